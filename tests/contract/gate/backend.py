"""A model server that answers every route LiteLLM may call, and counts."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Backend:
    def __init__(self, host: str = "127.0.0.1") -> None:
        backend = self
        self.hits: Counter[str] = Counter()
        self.fail: set[str] = set()
        self.stream_s = 0.0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                model = body.get("model", "?")
                backend.hits[model] += 1
                if model in backend.fail:
                    self._send(500, {"error": {"message": "down", "type": "x", "code": "500"}})
                elif body.get("stream"):
                    self._stream(model)
                else:
                    self._send(200, _answer(self.path, model))

            def _send(self, status: int, document: dict) -> None:
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _stream(self, model: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                if self.path.endswith("/responses"):
                    answer = _answer(self.path, model)
                    for kind in ("response.created", "response.completed"):
                        self.wfile.write(f"data: {json.dumps({'type': kind, 'response': answer})}\n\n".encode())
                    self.close_connection = True
                    return
                for number in range(3):
                    delta = {"role": "assistant", "content": f"w{number} "}
                    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if number == 2 else None}
                    if self.path.endswith("/completions") and "chat" not in self.path:
                        choice = {"index": 0, "text": f"w{number} ", "finish_reason": choice["finish_reason"]}
                    chunk = {
                        "id": "c",
                        "object": "chat.completion.chunk",
                        "created": 1,
                        "model": model,
                        "choices": [choice],
                    }
                    self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                    self.wfile.flush()
                    time.sleep(backend.stream_s)
                self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server((host, 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://{host}:{self.port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(path: str, model: str) -> dict:
    if path.endswith("/embeddings"):
        return {
            "object": "list",
            "model": model,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.1]}],
            "usage": USAGE,
        }
    if path.endswith("/images/generations"):
        return {"created": 1, "data": [{"url": "http://example.invalid/x.png"}]}
    if path.endswith("/moderations"):
        return {"id": "m", "model": model, "results": [{"flagged": False, "categories": {}, "category_scores": {}}]}
    if path.endswith("/responses"):
        content = [{"type": "output_text", "text": "hi", "annotations": []}]
        message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": content}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return {"id": "r", "object": "response", "created_at": 1, "model": model, "status": "completed", "output": [message],
                "usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    if path.endswith("/chat/completions"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": USAGE,
        }
    choice = {"index": 0, "text": "hi", "finish_reason": "stop"}
    return {"id": "c", "object": "text_completion", "created": 1, "model": model, "choices": [choice], "usage": USAGE}
