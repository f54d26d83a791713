# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Prometheus for a test: it scrapes pages that the test makes, every second, and is asked over its own API."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

PROGRAM = shutil.which("prometheus")


class Prometheus:
    """`pages`: by path, what is scraped there. Raises RuntimeError with what it said when it does not answer."""

    def __init__(self, folder: Path, pages: dict[str, Callable[[], str]]) -> None:
        class Pages(BaseHTTPRequestHandler):
            def do_GET(self):
                made = pages.get(self.path)
                body = (made() if made else "").encode()
                self.send_response(200 if made else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self._pages = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        threading.Thread(target=self._pages.serve_forever, daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": path.strip("/"),
                    "metrics_path": path,
                    "static_configs": [{"targets": [f"127.0.0.1:{self._pages.server_port}"]}],
                    "relabel_configs": [{"target_label": "instance", "replacement": "spark1"}],
                }
                for path in pages
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = (folder / "prometheus.log").open("w")
        self._process = subprocess.Popen(
            [
                str(PROGRAM),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(Path(self._log.name).read_text()[-2000:])
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def ask(self, path: str, **values: str) -> Any:
        """The answer's data. Raises ValueError with Prometheus's own words for a query that it cannot read."""
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(values)}", timeout=20
            ) as said:
                return json.load(said)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        return list(self.ask("query", query=expression)["result"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
        self._pages.shutdown()
        self._pages.server_close()
