"""The primitives of the Rust runtime against what asyncio programs use instead.

    python benchmarks/primitives.py sleep            # 10,000 sleeps at once
    python benchmarks/primitives.py lines            # a stream of 1,000 MB, line by line
    python benchmarks/primitives.py latency          # one request of 1 KiB and its response at a time

Every contender runs in a process of its own, in rounds, so that the machine's moods hit all of them; the table has
the medians, and beside each the ratio to what asyncio offers on uvloop. The peer of `lines` and `latency` is a plain
blocking process. CPU is the contender's own, all of its threads together.

`sleep` on tokio needs the extension in benchmarks/tokio_sleep; `make bench-primitives` builds it and runs all three.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Loop = asyncio.AbstractEventLoop
Body = Callable[[argparse.Namespace], Coroutine[Any, Any, dict[str, float]]]


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# -- sleep ----------------------------------------------------------------------------------------------------------


async def sleeps(sleep: Callable[[float], Awaitable[object]], count: int) -> dict[str, float]:
    async def one() -> None:
        await sleep(0.3)

    async def all_at_once() -> float:
        start = cpu()
        await asyncio.gather(*(one() for _ in range(count)))
        return cpu() - start

    await all_at_once()
    return {"cpu us per sleep": min([await all_at_once() for _ in range(4)]) / count * 1e6}


async def asyncio_sleep(options: argparse.Namespace) -> dict[str, float]:
    return await sleeps(asyncio.sleep, options.count)


async def wakeloop_sleep(options: argparse.Namespace) -> dict[str, float]:
    return await sleeps(importlib.import_module("wakeloop").sleep, options.count)


async def tokio_sleep(options: argparse.Namespace) -> dict[str, float]:
    """pyo3-async-runtimes with tokio."""
    return await sleeps(importlib.import_module("tokio_sleep").sleep, options.count)


# -- lines ----------------------------------------------------------------------------------------------------------


async def count_lines(lines: Any, options: argparse.Namespace) -> dict[str, float]:
    count = size = 0
    start, used = time.perf_counter(), cpu()
    async for line in lines:
        count += 1
        size += len(line)
    took, used = time.perf_counter() - start, cpu() - used
    assert size == options.megabytes * 1_000_000 and count == size // options.line, (count, size)
    return {"MB/s": size / took / 1e6, "cpu ns per line": used / count * 1e9}


async def asyncio_lines(options: argparse.Namespace) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    result = await count_lines(reader, options)
    writer.close()
    return result


async def wakeloop_lines(options: argparse.Namespace) -> dict[str, float]:
    wakeloop = importlib.import_module("wakeloop")
    async with await wakeloop.TcpStream.connect("127.0.0.1", options.port) as stream:
        return await count_lines(stream, options)


def serve_lines(connection: socket.socket, options: argparse.Namespace) -> None:
    line = b"x" * (options.line - 1) + b"\n"
    block = line * (1_000_000 // options.line)
    left = options.megabytes * 1_000_000
    while left:
        part = block[:left]
        connection.sendall(part)
        left -= len(part)


# -- latency --------------------------------------------------------------------------------------------------------


async def round_trips(exchange: Callable[[bytes], Awaitable[bytes]], options: argparse.Namespace) -> dict[str, float]:
    message, times = os.urandom(options.size), []
    for _ in range(options.trips // 10):
        await exchange(message)
    used = cpu()
    for _ in range(options.trips):
        start = time.perf_counter()
        answer = await exchange(message)
        times.append(time.perf_counter() - start)
        assert answer == message
    used = cpu() - used
    times.sort()
    return {
        "p50 us": times[len(times) // 2] * 1e6,
        "p99 us": times[len(times) * 99 // 100] * 1e6,
        "cpu us per trip": used / len(times) * 1e6,
    }


async def asyncio_latency(options: argparse.Namespace) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)

    async def exchange(message: bytes) -> bytes:
        writer.write(message)
        return await reader.readexactly(len(message))

    result = await round_trips(exchange, options)
    writer.close()
    return result


async def wakeloop_latency(options: argparse.Namespace) -> dict[str, float]:
    wakeloop = importlib.import_module("wakeloop")
    async with await wakeloop.TcpStream.connect("127.0.0.1", options.port) as stream:

        async def exchange(message: bytes) -> bytes:
            await stream.write_all(message)
            answer: bytes = await stream.read_exactly(len(message))
            return answer

        return await round_trips(exchange, options)


def serve_echo(connection: socket.socket, _options: argparse.Namespace) -> None:
    while data := connection.recv(65536):
        connection.sendall(data)


# -- the rounds -----------------------------------------------------------------------------------------------------

BODIES: dict[str, dict[str, Body]] = {
    "sleep": {"asyncio.sleep": asyncio_sleep, "wakeloop.sleep": wakeloop_sleep, "tokio sleep": tokio_sleep},
    "lines": {"asyncio streams": asyncio_lines, "wakeloop.TcpStream": wakeloop_lines},
    "latency": {"asyncio streams": asyncio_latency, "wakeloop.TcpStream": wakeloop_latency},
}
#: What the ratios are to.
BASELINES = {
    "sleep": ("asyncio.sleep", "uvloop"),
    "lines": ("asyncio streams", "uvloop"),
    "latency": ("asyncio streams", "uvloop"),
}
SERVERS = {"lines": serve_lines, "latency": serve_echo}
LOOPS = {"asyncio": "asyncio", "uvloop": "uvloop", "wakeloop": "wakeloop"}


def contend(options: argparse.Namespace) -> None:
    """One contender, in a process of its own."""
    module = importlib.import_module(LOOPS[options.loop])
    factory: Callable[[], Loop] = module.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        body = BODIES[options.scenario][options.contender]
        print(json.dumps(runner.run(body(options))))


def serve(options: argparse.Namespace) -> None:
    """The peer: blocking, one connection after the other, until it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                SERVERS[options.scenario](connection, options)


def is_there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def compare(options: argparse.Namespace) -> None:
    rows = [
        (contender, loop)
        for contender in BODIES[options.scenario]
        for loop in LOOPS
        if is_there(LOOPS[loop]) and (contender != "tokio sleep" or is_there("tokio_sleep"))
    ]
    results: dict[tuple[str, str], list[dict[str, float]]] = {row: [] for row in rows}
    own = [sys.executable, __file__, *sys.argv[1:]]
    peer = None
    try:
        if options.scenario in SERVERS:
            peer = subprocess.Popen([*own, "--serve"], stdout=subprocess.PIPE, text=True)
            assert peer.stdout is not None
            own += ["--port", peer.stdout.readline().strip()]
        for _ in range(options.rounds):
            for contender, loop in rows:
                command = [*own, "--contender", contender, "--loop", loop]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                results[contender, loop].append(json.loads(output))
    finally:
        if peer is not None:
            peer.kill()
            peer.wait()
    columns = list(results[rows[0]][0])
    medians = {
        row: [statistics.median(figures[column] for figures in rounds) for column in columns]
        for row, rounds in results.items()
    }
    baseline = medians.get(BASELINES[options.scenario])
    print(f"| {options.scenario} | loop | {' | '.join(columns)} |")
    print(f"| --- | --- | {' | '.join(['--:'] * len(columns))} |")
    for (contender, loop), figures in medians.items():
        cells = [f"{figure:,.2f}" for figure in figures]
        if baseline:
            cells = [f"{cell} ({figure / base:.2f}x)" for cell, figure, base in zip(cells, figures, baseline)]
        print(f"| {contender} | {loop} | {' | '.join(cells)} |")
    if "tokio sleep" in BODIES[options.scenario] and not is_there("tokio_sleep"):
        print("left out: tokio sleep, whose extension module is not built (make bench-primitives)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=BODIES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=10_000, help="sleeps at once")
    parser.add_argument("--megabytes", type=int, default=1000, help="length of the stream of lines")
    parser.add_argument("--line", type=int, default=100, help="length of a line, a divisor of 1,000,000")
    parser.add_argument("--trips", type=int, default=20_000, help="requests")
    parser.add_argument("--size", type=int, default=1024, help="length of a request and its response")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    for hidden in ("--contender", "--loop"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
    elif options.contender:
        contend(options)
    else:
        compare(options)


if __name__ == "__main__":
    main()
