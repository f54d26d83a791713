# SPDX-License-Identifier: GPL-3.0-or-later
"""A scripted engine as a process of its own: `engine.py FOLDER PORT`. It freezes while FOLDER/frozen names its own pid.

Every start is a line in FOLDER/starts, every POST one in FOLDER/posts.
"""

from __future__ import annotations

import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder, port = Path(sys.argv[1]), int(sys.argv[2])
begun = time.time()
with (folder / "starts").open("a") as file:
    file.write(f"{os.getpid()}\n")
os.write(1, b"said on its output\n")
os.write(2, b"said on its error output\n")


def frozen() -> bool:
    try:
        return (folder / "frozen").read_text().strip() == str(os.getpid())
    except OSError:
        return False


steps = 0.0


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def say(self, text, status=200):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        global steps
        if self.path == "/metrics":
            running = 2 if (folder / "busy").exists() else 0
            if running and not frozen():
                steps += 5
            self.say(
                f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting{{engine="0"}} 0\n'
                f'vllm:iteration_tokens_total_count{{engine="0"}} {steps}\nprocess_start_time_seconds {begun}\n'
            )
        elif self.path == "/v1/models":
            self.say('{"data":[{"id":"m","owned_by":"vllm"}]}')
        elif self.path == "/health":
            self.say("")
        else:
            self.say("{}", 404)

    def do_POST(self):
        with (folder / "posts").open("a") as file:
            file.write(self.path + "\n")
        while frozen():
            time.sleep(0.05)
        self.say('{"choices":[{"text":"x"}]}')


ThreadingHTTPServer.allow_reuse_address = True
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
