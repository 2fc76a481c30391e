"""How soon the window answers while Python cannot, beside a health route of uvicorn on asyncio, and of granian.

    python benchmarks/window.py [--requests N] [--busy N] [--only NAME]...

In each situation every path is asked so many times, each time on a new connection, as a probe does; so many processes
compute beside it. The table has the latency in milliseconds: the median, the 99th percentile and the longest. A health
route that does not answer within a second is asked ten times only.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from processes import die_with_parent

PATHS = ("/livez", "/metrics", "/stack")
PATIENCE = 1.0
#: Longer than the measurement takes.
LONG = 600


# -- the service -------------------------------------------------------------------------------------------------------


def deadlock() -> None:
    one, two = threading.Lock(), threading.Lock()
    started = threading.Event()

    def other() -> None:
        with two:
            started.set()
            with one:
                pass

    with one:
        threading.Thread(target=other, daemon=True).start()
        started.wait()
        with two:
            pass


def keep_gil() -> None:
    # A pause: what comes after it, in this thread and in others, is over.
    ctypes.PyDLL(None).poll(None, 0, LONG * 1000)


SITUATIONS: dict[str, Callable[[], None] | None] = {
    "idle": None,
    "a callback sleeps": lambda: time.sleep(LONG),
    "C code keeps the GIL": keep_gil,
    "a deadlock of two locks": deadlock,
    "the interpreter ends": None,
}


async def app(scope: dict[str, object], receive: object, send: Callable[[dict[str, object]], object]) -> None:
    """The health route of the other servers: any path."""
    if scope["type"] == "lifespan":
        return
    block = SITUATIONS[os.environ["SITUATION"]]
    if block is not None and scope["path"] == "/block":
        asyncio.get_running_loop().call_later(0.05, block)
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[misc]
    await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[misc]


def serve_window(situation: str) -> None:
    import wakeloop

    async def main() -> None:
        if block := SITUATIONS[situation]:
            asyncio.get_running_loop().call_later(0.05, block)
        if situation != "the interpreter ends":
            await asyncio.sleep(LONG)

    # It stays open until the process ends.
    window = wakeloop.admin("127.0.0.1:0", limit=0.05)
    print(window.addresses[-1].rpartition(":")[2], flush=True)
    wakeloop.run(main())
    # At its end the interpreter waits for a thread that is no daemon.
    threading.Thread(target=time.sleep, args=(LONG,)).start()


def rival_command(name: str, port: int) -> list[str]:
    if name == "uvicorn":
        own = ["--loop", "asyncio", "--log-level", "error"]
    else:
        own = ["--interface", "asgi", "--loop", "asyncio", "--no-ws", "--log-level", "error"]
    return [sys.executable, "-m", name, "window:app", "--host", "127.0.0.1", "--port", str(port), *own]


# -- the measurement ---------------------------------------------------------------------------------------------------


def ask(port: int, path: str) -> float:
    """The seconds that an answer takes; infinite if there is none."""
    began = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = sock.recv(65536)
            while piece := sock.recv(65536):
                answer += piece
    except OSError:
        return math.inf
    assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")), answer
    return time.perf_counter() - began


def latencies(port: int, path: str, requests: int) -> list[float]:
    found: list[float] = []
    while len(found) < requests:
        found.append(ask(port, path))
        if len(found) == 10 and math.isinf(max(found)):
            break
    return sorted(found)


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A server's workers too are ended with it.
        start_new_session=True,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=os.path.dirname(os.path.abspath(__file__)),
        preexec_fn=die_with_parent,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def until_it_answers(port: int) -> None:
    deadline = time.monotonic() + 60
    while math.isinf(ask(port, "/")):
        if time.monotonic() > deadline:
            raise SystemExit("the server does not answer")
        time.sleep(0.05)


def row(name: str, path: str, found: list[float]) -> None:
    shown = [statistics.median(found), found[math.ceil(len(found) * 0.99) - 1], found[-1]]
    cells = ("no answer" if math.isinf(each) else f"{each * 1e3:.2f}" for each in shown)
    print(f"  {name:<22} {path:<9} {len(found):>6} " + " ".join(f"{cell:>10}" for cell in cells), flush=True)


def measure(situation: str, requests: int) -> None:
    print(f"{situation}\n  {'':<22} {'path':<9} {'asked':>6} {'median':>10} {'99 %':>10} {'longest':>10}")
    with running([sys.executable, os.path.abspath(__file__), "--serve", situation]) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        time.sleep(0.5)
        for path in PATHS:
            row("wakeloop's window", path, latencies(port, path, requests))
    if situation == "the interpreter ends":
        return
    for name in ("uvicorn", "granian"):
        port = free_port()
        with running(rival_command(name, port), {"SITUATION": situation}):
            until_it_answers(port)
            if SITUATIONS[situation] is not None:
                ask(port, "/block")
                time.sleep(0.5)
            row(f"{name} on asyncio", "/health", latencies(port, "/health", requests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000, help="of each path in each situation")
    parser.add_argument("--busy", type=int, default=2, help="processes that compute beside it")
    parser.add_argument("--only", action="append", choices=list(SITUATIONS), help="one of the situations")
    parser.add_argument("--serve", choices=list(SITUATIONS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve_window(given.serve)
        return
    print(f"CPython {sys.version.split()[0]}, {os.cpu_count()} cores, {given.busy} busy processes beside; milliseconds\n")
    with ExitStack() as stack:
        for _ in range(given.busy):
            stack.enter_context(running([sys.executable, "-c", "while True: pass"]))
        for situation in given.only or SITUATIONS:
            measure(situation, given.requests)


if __name__ == "__main__":
    main()
