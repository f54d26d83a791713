# SPDX-License-Identifier: GPL-3.0-or-later
"""What a check costs, beside what people use instead; many servers in one call; growth from 50 to 1,000.

Scripted servers with a real 50 kB page run in processes of their own; CPU is the checker's alone (with its children's).
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from .figures import put
from .markers import table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tests/fixtures/captures/vllm-0.32.0-busy-2.prom"
COMMAND = ROOT / "roles/health_check/files/llm-health"
WAIT_S = 2.0
ENV = {
    **os.environ,
    "PYTHONPATH": str(ROOT / ".collections"),
    "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".collections"),
    "ANSIBLE_LIBRARY": str(ROOT / "plugins/modules"),
}


async def fleet(count: int, ready: Path) -> None:
    """`count` servers with a busy vLLM's page whose step counter rises at every reading. Writes what it was asked to `ready`."""
    page = PAGE.read_text()
    head, _, tail = page.partition("vllm:iteration_tokens_total_count{")
    labels, _, rest = tail.partition("} ")
    _, _, rest = rest.partition("\n")
    asked = {"requests": 0, "bytes": 0}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            asked["requests"] += 1
            path = request.split(b" ", 2)[1]
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in request.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                ),
                0,
            )
            if length:
                await reader.readexactly(length)
            if path == b"/metrics":
                body = (
                    f"{head}vllm:iteration_tokens_total_count{{{labels}}} {5000 + asked['requests']}\n{rest}".encode()
                )
            elif path == b"/v1/models":
                body = b'{"data":[{"id":"tiny","owned_by":"vllm"}]}'
            elif path.startswith(b"/v1/"):
                body = b'{"choices":[{"text":"x"}]}'
            elif path == b"/asked":
                body = json.dumps(asked).encode()
                asked["requests"] -= 1
            else:
                body = b"{}"
            if path != b"/asked":
                asked["bytes"] += len(body) + len(request)
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512) for _ in range(count)]
    ready.write_text(json.dumps([server.sockets[0].getsockname()[1] for server in servers]))
    await asyncio.Event().wait()


def started(count: int, folder: Path) -> tuple[subprocess.Popen[bytes], list[str]]:
    ready = folder / f"ports-{count}"
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmark.bench_check", "--fleet", str(count), str(ready)], cwd=ROOT, env=ENV
    )
    while not (ready.exists() and ready.read_text().endswith("]")):
        time.sleep(0.05)
    return process, [f"http://127.0.0.1:{port}" for port in json.loads(ready.read_text())]


def cost(argv: list[str], **more: object) -> tuple[float, float, float]:
    """(CPU s, wall s, peak MB) of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(
        [
            "/usr/bin/env",
            "python3",
            "-c",
            "import resource,subprocess,sys;"
            "r=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL).returncode;"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)",
            *argv,
        ],
        capture_output=True,
        text=True,
        env=ENV,
        cwd=ROOT,
        check=False,
    )
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, int(done.stdout.split()[-1]) / 1024


def main() -> None:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    playbook_bin = str(Path(sys.executable).parent / "ansible")
    rows, single = [], []
    process, urls = started(1, folder)
    try:
        chat = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        ways = {
            "curl, a chat probe": ["curl", "-s", "-m", "45", "-d", chat, urls[0] + "/v1/chat/completions"],
            "llm-health (two readings)": [sys.executable, str(COMMAND), urls[0], "--wait", "0"],
            "ansible.builtin.uri, a chat probe": [
                playbook_bin,
                "-i",
                "localhost,",
                "-c",
                "local",
                "all",
                "-m",
                "ansible.builtin.uri",
                "-a",
                f"url={urls[0]}/v1/chat/completions method=POST body_format=json body='{chat}'",
            ],
            "llm_health, ad hoc": [
                playbook_bin,
                "-i",
                "localhost,",
                "-c",
                "local",
                "all",
                "-m",
                "llm_health",
                "-a",
                f"url={urls[0]} wait=0",
            ],
        }
        for name, argv in ways.items():
            best = min(cost(argv) for _ in range(3))
            single.append((name, f"{best[0]:.2f}", f"{best[1]:.2f}", "yes" if "chat" in name else "no"))
    finally:
        process.kill()
        process.wait()
    for count in (50, 250, 500, 1000):
        process, urls = started(count, folder)
        try:
            wanted = [sys.executable, str(COMMAND), *urls, "--wait", str(WAIT_S), "--probe", "never"]
            cpu, wall, peak = cost(wanted)
            asked = json.loads(
                subprocess.run(["curl", "-s", urls[0] + "/asked"], capture_output=True, check=True).stdout
            )
            rows.append(
                (
                    count,
                    f"{cpu:.2f}",
                    f"{1000 * cpu / count:.1f}",
                    f"{wall:.1f}",
                    f"{peak:.0f}",
                    f"{asked['requests'] / count:.1f}",
                    f"{asked['bytes'] / count / 1000:.0f}",
                )
            )
        finally:
            process.kill()
            process.wait()
    text = "## What a check costs\n\nOne server, the best of three (CPU with everything that the command starts):\n\n"
    text += table(("way", "CPU s", "wall s", "takes a request slot"), single)
    text += "\n\nMany busy servers with a real 53 kB page in one `llm-health` call, waits of 2 s:\n\n"
    text += table(
        ("servers", "CPU s", "CPU ms a server", "wall s", "peak MB", "requests a server", "kB a server"), rows
    )
    text += "\n\nBy `./dev bench check`."
    print(text)
    put("check", text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fleet"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
        asyncio.run(fleet(int(sys.argv[2]), Path(sys.argv[3])))
    else:
        main()
