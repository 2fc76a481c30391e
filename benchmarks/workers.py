"""Measures how evenly several processes share the connections of one listening socket.

    python benchmarks/workers.py [--servers raw,uvicorn,gunicorn] [--loops asyncio,uvloop,wakeloop] [--rounds N]

Each server has four workers. `raw` forks them itself and answers with a protocol, `uvicorn --workers 4` and
`gunicorn -w 4` serve an ASGI application. The client opens connections in four ways:

- `random`: 200 connections that stay open, one after another, with random pauses of 2 ms on average;
- `at once`: 200 connections that stay open, all at the same time;
- `churn`: 1,000 connections a second for two seconds, one request each;
- `flood`: one request per connection, as fast as 16 clients can, for two seconds.

The connections that stay open then send requests for half a second: 16 at a time, each on a connection chosen at random.
Each answer names the worker's process. The table has, per loop, the requests that the busiest worker and the least busy one answered, as a
multiple of an equal share: 1.00 and 1.00 are even. `churn` and `flood` have the CPU microseconds that a connection costs
the workers too, and `flood` the connections per second. Loops take turns. The figures are medians over the rounds, with
the worst round behind them.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import errno
import importlib
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loops import factory, split
from processes import ChildError, die_with_parent

WORKERS = 4
CONNECTIONS = 200
REQUEST = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
# The body of every answer is the worker's process id with this many digits.
DIGITS = 10
PAUSE, WORKING, CHURNING, RATE, CLIENTS = 0.002, 0.5, 2.0, 1000, 16
START_TIMEOUT, ANSWER_TIMEOUT = 30.0, 20.0
SERVERS = ("raw", "uvicorn", "gunicorn")

Counts = collections.Counter[int]
#: The answers of each process, and the CPU microseconds for each of them.
Sample = tuple[Counts, float]
Address = tuple[str, int]


# -- the servers ----------------------------------------------------------------------------------------------------


def body() -> bytes:
    return b"%0*d" % (DIGITS, os.getpid())


def note_start() -> None:
    """Tells the benchmark, by a file, that this worker is about to serve."""
    Path(os.environ["STARTED"], str(os.getpid())).touch()


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        note_start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % DIGITS)]})
    await send({"type": "http.response.body", "body": body()})


class Answering(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (DIGITS, body()))


def serve_raw(name: str, descriptor: int) -> None:
    """Forks the workers, and waits for them."""
    listener = socket.socket(fileno=descriptor)
    for _ in range(WORKERS):
        if not os.fork():
            die_with_parent()
            loop = factory(name)()
            loop.run_until_complete(loop.create_server(Answering, sock=listener, backlog=2048))
            note_start()
            loop.run_forever()
    signal.pause()


def gunicorn_worker(name: str) -> Any:
    """uvicorn's worker class on a loop; gunicorn asks for it by the name `workers:NAME`."""
    base = importlib.import_module("uvicorn_worker").UvicornWorker
    loop = "wakeloop:new_event_loop" if name == "wakeloop" else name
    return type(name, (base,), {"CONFIG_KWARGS": {**base.CONFIG_KWARGS, "loop": loop}})


def __getattr__(name: str) -> Any:
    if name in ("asyncio_worker", "uvloop_worker", "wakeloop_worker"):
        return gunicorn_worker(name.removesuffix("_worker"))
    raise AttributeError(name)


def command(server: str, name: str, descriptor: int, port: int) -> list[str]:
    python = [sys.executable, "-m"]
    if server == "raw":
        return [sys.executable, __file__, "--serve", name, str(descriptor)]
    if server == "uvicorn":
        loop = "wakeloop:new_event_loop" if name == "wakeloop" else name
        options = ["--loop", loop, "--workers", str(WORKERS), "--port", str(port), "--log-level", "warning"]
        return [*python, "uvicorn", *options, "--no-access-log", "workers:app"]
    options = ["-k", f"workers.{name}_worker", "-w", str(WORKERS), "-b", f"127.0.0.1:{port}"]
    return [*python, "gunicorn", *options, "--log-level", "warning", "workers:app"]


@contextlib.contextmanager
def running(server: str, name: str) -> Iterator[tuple[Address, list[int]]]:
    """A server with all of its workers: its address, and their process ids."""
    with contextlib.ExitStack() as stack:
        started = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        address: Address = listener.getsockname()
        descriptors = [listener.fileno()] if server == "raw" else []
        arguments = command(server, name, listener.fileno(), address[1])
        if server != "raw":
            listener.close()
        process = subprocess.Popen(
            arguments,
            cwd=Path(__file__).parent,
            env={**os.environ, "STARTED": str(started)},
            pass_fds=descriptors,
            start_new_session=True,
        )
        stack.callback(end, process)
        deadline = time.monotonic() + START_TIMEOUT
        while len(pids := [int(file.name) for file in started.iterdir()]) < WORKERS:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ChildError(f"{server} on {name} did not start")
            time.sleep(0.05)
        time.sleep(0.5)
        yield address, pids


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills the server's session, the workers included, and reaps the server."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- the client -----------------------------------------------------------------------------------------------------


class Client:
    """One connection, which sends one request at a time. `answered` is called with each answer's process id."""

    def __init__(self, selector: selectors.BaseSelector, address: Address, answered: Callable[[Client, int], None]):
        self.selector, self.answered, self.data, self.asks = selector, answered, b"", False
        self.sock = socket.socket()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        failed = self.sock.connect_ex(address)
        if failed not in (0, errno.EINPROGRESS):
            raise OSError(failed, os.strerror(failed))
        selector.register(self.sock, selectors.EVENT_READ, self)

    def ask(self) -> None:
        try:
            self.sock.send(REQUEST)
        except BlockingIOError:
            # It is not connected yet.
            self.selector.modify(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def on_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.selector.modify(self.sock, selectors.EVENT_READ, self)
            self.ask()
        if not events & selectors.EVENT_READ:
            return
        data = self.sock.recv(65536)
        if not data:
            raise ChildError("a worker closed a connection")
        self.data += data
        head, end, text = self.data.partition(b"\r\n\r\n")
        if end and len(text) >= DIGITS:
            self.data = b""
            self.answered(self, int(text))

    def close(self) -> None:
        self.selector.unregister(self.sock)
        self.sock.close()


def turn(selector: selectors.BaseSelector, timeout: float) -> None:
    for key, events in selector.select(timeout):
        key.data.on_ready(events)


def run_until(selector: selectors.BaseSelector, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while not done():
        turn(selector, 0.1)
        if time.monotonic() > deadline:
            raise ChildError(f"no answer within {ANSWER_TIMEOUT:.0f} s")


def keep_alive(address: Address, pause: Callable[[], float]) -> Counts:
    """Opens the connections, then sends requests on all of them."""
    counts: Counts = collections.Counter()
    working = False

    def answered(client: Client, pid: int) -> None:
        idle.append(client)
        if working:
            counts[pid] += 1
            # The last one takes the place of the one that is chosen.
            chosen = random.randrange(len(idle))
            idle[chosen], idle[-1] = idle[-1], idle[chosen]
            idle.pop().ask()

    idle: list[Client] = []
    clients: list[Client] = []
    with selectors.DefaultSelector() as selector:
        try:
            for _ in range(CONNECTIONS):
                clients.append(Client(selector, address, answered))
                if wait := pause():
                    time.sleep(wait)
            for client in clients:
                client.ask()
            run_until(selector, lambda: len(idle) == CONNECTIONS)
            working = True
            for client in random.sample(clients, CLIENTS):
                idle.remove(client)
                client.ask()
            until = time.monotonic() + WORKING
            while time.monotonic() < until:
                turn(selector, 0.1)
        finally:
            for client in clients:
                client.close()
    return counts


def churn(address: Address) -> Counts:
    """A new connection each millisecond, whatever the answers do."""
    counts: Counts = collections.Counter()

    def answered(client: Client, pid: int) -> None:
        counts[pid] += 1
        client.close()

    total = int(RATE * CHURNING)
    with selectors.DefaultSelector() as selector:
        start = time.monotonic()
        for number in range(total):
            while (left := start + number / RATE - time.monotonic()) > 0:
                turn(selector, left)
            Client(selector, address, answered).ask()
        run_until(selector, lambda: counts.total() == total)
    return counts


def flood(address: Address) -> Counts:
    """Each client opens its next connection when it has an answer."""
    counts: Counts = collections.Counter()

    def answered(client: Client, pid: int) -> None:
        counts[pid] += 1
        client.close()
        if time.monotonic() < until:
            Client(selector, address, answered).ask()

    with selectors.DefaultSelector() as selector:
        until = time.monotonic() + CHURNING
        for _ in range(CLIENTS):
            Client(selector, address, answered).ask()
        run_until(selector, lambda: not selector.get_map())
    return counts


def random_pause() -> float:
    return random.expovariate(1 / PAUSE)


WAYS: dict[str, Callable[[Address], Counts]] = {
    "random": lambda address: keep_alive(address, random_pause),
    "at once": lambda address: keep_alive(address, lambda: 0.0),
    "churn": churn,
    "flood": flood,
}


# -- the table ------------------------------------------------------------------------------------------------------


def shares(counts: Counts) -> tuple[float, float]:
    """What the busiest and the least busy worker have answered, as multiples of an equal share."""
    parts = [*counts.values(), *[0] * (WORKERS - len(counts))]
    return max(parts) * WORKERS / sum(parts), min(parts) * WORKERS / sum(parts)


def cpu(pid: int) -> float:
    """The CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(way: str, address: Address, pids: list[int]) -> Sample:
    before = sum(map(cpu, pids))
    counts = WAYS[way](address)
    return counts, (sum(map(cpu, pids)) - before) / counts.total() * 1e6


def row(samples: list[Sample], way: str) -> str:
    busiest, least = zip(*(shares(counts) for counts, _ in samples))
    text = f"{statistics.median(busiest):5.2f} ({max(busiest):.2f})  {statistics.median(least):5.2f} ({min(least):.2f})"
    if way in ("churn", "flood"):
        text += f"  {statistics.median(spent for _, spent in samples):5.0f} us"
    if way == "flood":
        text += f"  {statistics.median(counts.total() for counts, _ in samples) / CHURNING:6.0f}/s"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--loops", default="asyncio,uvloop,wakeloop")
    parser.add_argument("--ways", default=",".join(WAYS), help=", ".join(WAYS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--serve", nargs=2, metavar=("LOOP", "DESCRIPTOR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve_raw(options.serve[0], int(options.serve[1]))
    loops, missing = split(options.loops.split(","))
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}")
    for server in options.servers.split(","):
        samples: dict[tuple[str, str], list[Sample]] = collections.defaultdict(list)
        for number in range(options.rounds):
            for name in loops[number % len(loops) :] + loops[: number % len(loops)]:
                for way in options.ways.split(","):
                    with running(server, name) as (address, pids):
                        samples[way, name].append(measured(way, address, pids))
        print(f"\n{server}: busiest (worst round), least busy (worst round), of an equal share")
        for way in options.ways.split(","):
            for name in loops:
                print(f"  {way:8} {name:10} {row(samples[way, name], way)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
