"""Compares the primitives of the Rust runtime with what asyncio programs use instead.

    python benchmarks/primitives.py sleep            # 10,000 sleeps at once
    python benchmarks/primitives.py lines            # a stream of 1,000 MB, line by line
    python benchmarks/primitives.py latency          # one request of 1 KiB and its response at a time

Every contender runs in a process of its own, in rounds, so that changes of the machine affect all of them. The table has
the medians, and beside each the ratio to asyncio on uvloop. The peer of `lines` and `latency` is a plain blocking process.
CPU is the contender's own, all of its threads together.

Each round of `sleep` and `lines` starts the contenders anew. Those of `latency` run from the first round to the last.
They take turns, a burst of a few milliseconds each, in an order that changes from round to round: the machine varies
more from one second to the next than the contenders differ. Their ratio is that of two bursts of the same round; the
table has the median of all rounds and, behind it, the middle half of them. All share one CPU with their peer, so that a
trip is the work of both sides and two switches. Waking an idle CPU would cost more than that on a virtual machine,
would vary, and would be the same for all.

`sleep` on tokio needs the extension in benchmarks/tokio_sleep; `make bench-primitives` builds it and runs all three.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Loop = asyncio.AbstractEventLoop
Row = tuple[str, str]
Figures = dict[str, float]
Body = Callable[[argparse.Namespace], Coroutine[Any, Any, Figures | None]]


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# -- sleep ----------------------------------------------------------------------------------------------------------


async def sleeps(sleep: Callable[[float], Awaitable[object]], count: int) -> Figures:
    async def one() -> None:
        await sleep(0.3)

    async def all_at_once() -> float:
        start = cpu()
        await asyncio.gather(*(one() for _ in range(count)))
        return cpu() - start

    await all_at_once()
    return {"cpu us per sleep": min([await all_at_once() for _ in range(4)]) / count * 1e6}


async def asyncio_sleep(options: argparse.Namespace) -> Figures:
    return await sleeps(asyncio.sleep, options.count)


async def wakeloop_sleep(options: argparse.Namespace) -> Figures:
    return await sleeps(importlib.import_module("wakeloop").sleep, options.count)


async def tokio_sleep(options: argparse.Namespace) -> Figures:
    """pyo3-async-runtimes with tokio."""
    return await sleeps(importlib.import_module("tokio_sleep").sleep, options.count)


# -- lines ----------------------------------------------------------------------------------------------------------


async def count_lines(lines: Any, options: argparse.Namespace) -> Figures:
    count = size = 0
    start, used = time.perf_counter(), cpu()
    async for line in lines:
        count += 1
        size += len(line)
    took, used = time.perf_counter() - start, cpu() - used
    assert size == options.megabytes * 1_000_000 and count == size // options.line, (count, size)
    return {"MB/s": size / took / 1e6, "cpu ns per line": used / count * 1e9}


async def asyncio_lines(options: argparse.Namespace) -> Figures:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    result = await count_lines(reader, options)
    writer.close()
    return result


async def wakeloop_lines(options: argparse.Namespace) -> Figures:
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


async def bursts(exchange: Callable[[bytes], Awaitable[bytes]], options: argparse.Namespace) -> None:
    """Runs a burst of exchanges for each line on stdin, and prints a line of figures for each burst."""
    await burst(exchange, options)
    print("ready", flush=True)
    while sys.stdin.readline():
        print(json.dumps(await burst(exchange, options)), flush=True)


async def burst(exchange: Callable[[bytes], Awaitable[bytes]], options: argparse.Namespace) -> Figures:
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


async def asyncio_latency(options: argparse.Namespace) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)

    async def exchange(message: bytes) -> bytes:
        writer.write(message)
        return await reader.readexactly(len(message))

    await bursts(exchange, options)
    writer.close()


async def wakeloop_latency(options: argparse.Namespace) -> None:
    wakeloop = importlib.import_module("wakeloop")
    async with await wakeloop.TcpStream.connect("127.0.0.1", options.port) as stream:

        async def exchange(message: bytes) -> bytes:
            await stream.write_all(message)
            answer: bytes = await stream.readexactly(len(message))
            return answer

        await bursts(exchange, options)


def serve_echo(connection: socket.socket, _options: argparse.Namespace) -> None:
    while data := connection.recv(65536):
        connection.sendall(data)


# -- the rounds -----------------------------------------------------------------------------------------------------

BODIES: dict[str, dict[str, Body]] = {
    "sleep": {"asyncio.sleep": asyncio_sleep, "wakeloop.sleep": wakeloop_sleep, "tokio sleep": tokio_sleep},
    "lines": {"asyncio streams": asyncio_lines, "wakeloop.TcpStream": wakeloop_lines},
    "latency": {"asyncio streams": asyncio_latency, "wakeloop.TcpStream": wakeloop_latency},
}
#: The contender and the loop that ratios refer to.
REFERENCES = {
    "sleep": ("asyncio.sleep", "uvloop"),
    "lines": ("asyncio streams", "uvloop"),
    "latency": ("asyncio streams", "uvloop"),
}
SERVERS = {"lines": serve_lines, "latency": serve_echo}
LOOPS = {"asyncio": "asyncio", "uvloop": "uvloop", "wakeloop": "wakeloop"}
#: The scenarios whose contenders take turns, and the number of rounds.
IN_TURNS = {"latency"}
ROUNDS = {"sleep": 5, "lines": 5, "latency": 200}


def pin() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def contend(options: argparse.Namespace) -> None:
    """One contender, in a process of its own."""
    if options.scenario in IN_TURNS:
        pin()
    module = importlib.import_module(LOOPS[options.loop])
    factory: Callable[[], Loop] = module.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        body = BODIES[options.scenario][options.contender]
        figures = runner.run(body(options))
    if figures is not None:
        print(json.dumps(figures))


def serve(options: argparse.Namespace) -> None:
    """The peer: a blocking thread for each connection, until it is killed."""
    if options.scenario in IN_TURNS:
        pin()

    def one(connection: socket.socket) -> None:
        with connection:
            SERVERS[options.scenario](connection, options)

    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=one, args=[connection], daemon=True).start()


def is_installed(name: str) -> bool:
    # A directory of that name beside this file is a namespace package, without an origin.
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def each_anew(commands: dict[Row, list[str]], rounds: int) -> dict[Row, list[Figures]]:
    results: dict[Row, list[Figures]] = {row: [] for row in commands}
    for _ in range(rounds):
        for row, command in commands.items():
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[row].append(json.loads(output))
    return results


def in_turns(commands: dict[Row, list[str]], rounds: int) -> dict[Row, list[Figures]]:
    results: dict[Row, list[Figures]] = {row: [] for row in commands}
    with contextlib.ExitStack() as stack:
        running: dict[Row, subprocess.Popen[str]] = {}
        for row, command in commands.items():
            running[row] = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
            assert next(iter(running[row].stdout or ()), "") == "ready\n", f"{row} did not start"
        for _ in range(rounds):
            for row in random.sample(list(running), len(running)):
                process = running[row]
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("go\n")
                results[row].append(json.loads(process.stdout.readline()))
    return results


def compare(options: argparse.Namespace) -> None:
    rows = [
        (contender, loop)
        for contender in BODIES[options.scenario]
        for loop in LOOPS
        if is_installed(LOOPS[loop]) and (contender != "tokio sleep" or is_installed("tokio_sleep"))
    ]
    own = [sys.executable, __file__, *sys.argv[1:]]
    peer = None
    try:
        if options.scenario in SERVERS:
            peer = subprocess.Popen([*own, "--serve"], stdout=subprocess.PIPE, text=True)
            assert peer.stdout is not None
            own += ["--port", peer.stdout.readline().strip()]
        commands = {(name, loop): [*own, "--contender", name, "--loop", loop] for name, loop in rows}
        run = in_turns if options.scenario in IN_TURNS else each_anew
        results = run(commands, options.rounds or ROUNDS[options.scenario])
    finally:
        if peer is not None:
            peer.kill()
            peer.wait()
    columns = list(results[rows[0]][0])
    reference = results.get(REFERENCES[options.scenario])
    print(f"| {options.scenario} | loop | {' | '.join(columns)} |")
    print(f"| --- | --- | {' | '.join(['--:'] * len(columns))} |")
    for (contender, loop), rounds in results.items():
        cells = [cell(column, rounds, reference, options.scenario in IN_TURNS) for column in columns]
        print(f"| {contender} | {loop} | {' | '.join(cells)} |")
    if "tokio sleep" in BODIES[options.scenario] and not is_installed("tokio_sleep"):
        print("left out: tokio sleep, whose extension module is not built (make bench-primitives)")


def cell(column: str, rounds: list[Figures], reference: list[Figures] | None, paired: bool) -> str:
    """The median of a figure and its ratio to the reference's.

    The ratio is the median of the ratios round by round, with their middle half, or else that of the medians.
    """
    figures = [figure[column] for figure in rounds]
    median = statistics.median(figures)
    if not reference:
        return f"{median:,.2f}"
    bases = [figure[column] for figure in reference]
    if not paired or len(figures) < 2:
        return f"{median:,.2f} ({median / statistics.median(bases):.2f}x)"
    low, middle, high = statistics.quantiles((ours / theirs for ours, theirs in zip(figures, bases)), n=4)
    return f"{median:,.2f} ({middle:.2f}x, {low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=BODIES)
    parser.add_argument("--rounds", type=int, help=f"how many: {ROUNDS}")
    parser.add_argument("--count", type=int, default=10_000, help="sleeps at once")
    parser.add_argument("--megabytes", type=int, default=1000, help="length of the stream of lines")
    parser.add_argument("--line", type=int, default=100, help="length of a line, a divisor of 1,000,000")
    parser.add_argument("--trips", type=int, default=400, help="requests in a burst")
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
