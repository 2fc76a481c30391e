"""One sender of much data: the CPU time of the sender and of its reader, on every loop.

    python benchmarks/bulk.py [--loops a,b,c] [--rounds N] [--only GLOB]...

A protocol writes pieces of one size to one or four connections, as fast as the flow control lets it. The reader is a
process without an event loop, which receives up to 64 or 256 KiB at a time. The baseline has all pieces at once and
passes 64 of them to each `writev`. Every pair of sender and reader is kept for all rounds of a case; in each round the
loops run in a random order. The table has the CPU seconds a GiB of both processes together, as medians; below them is
the cost over ours, round by round: the median and the middle half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import selectors
import socket
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import loops
from baseline import BASELINE, baseline_program
from processes import Child, ChildError, cores, die_with_parent, pin
from run import chosen

KIB, GIB = 1 << 10, 1 << 30
SIZES, CONNECTIONS, READERS = (4, 16, 64, 256, 1024), (1, 4), (64, 256)
CASES = [f"{size}k-writes/c{count}/{reader}k-reads" for size in SIZES for count in CONNECTIONS for reader in READERS]
TOTAL = 256 << 20
TIMEOUT = 60.0


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def answer(value: object) -> None:
    print(json.dumps(value), flush=True)


class Sender(asyncio.Protocol):
    def __init__(self, size: int) -> None:
        self.piece = bytes(size * KIB)
        self.left, self.paused = 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, total: int) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self.left = total // len(self.piece)
        self.send()
        return self.done

    def send(self) -> None:
        while self.left and not self.paused:
            self.left -= 1
            self.transport.write(self.piece)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.send()

    def data_received(self, data: bytes) -> None:
        self.done.set_result(None)


async def send(port: int, size: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    senders = []
    for _ in range(count):
        _, protocol = await loop.create_connection(lambda: Sender(size), "127.0.0.1", port)
        senders.append(protocol)
    answer({})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        before = cpu()
        await asyncio.gather(*(one.start(json.loads(line) // count) for one in senders))
        answer({"cpu": cpu() - before})


def read(size: int, count: int) -> None:
    """Reads from all connections, and answers a connection when it has got its part."""
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        answer({"port": listener.getsockname()[1]})
        readers = {}
        for _ in range(count):
            one, _ = listener.accept()
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ)
            readers[one.fileno()] = one
        room = bytearray(size * KIB)
        for line in sys.stdin:
            before, left = cpu(), dict.fromkeys(readers, json.loads(line) // count)
            while left:
                for key, _ in selector.select():
                    one = readers[key.fd]
                    left[key.fd] -= one.recv_into(room)
                    if not left[key.fd]:
                        del left[key.fd]
                        one.send(b".")
            answer({"cpu": cpu() - before})


class Pair:
    """A sender and its reader, each on a core of its own."""

    def __init__(self, loop: str, case: str) -> None:
        self.stack = ExitStack()
        self.samples: list[float] = []
        size, count, reads = (int("".join(filter(str.isdigit, part))) for part in case.split("/"))
        sender_cpu, reader_cpu = cores()
        script = str(Path(__file__))
        self.reader = self.child(script, "--read", str(reads), "--count", str(count), "--cpu", str(reader_cpu))
        port = str(self.reader.receive(TIMEOUT)["port"])
        if loop == BASELINE:
            arguments = ["send", str(sender_cpu), port, str(size), str(count)]
            self.sender = self.child(*arguments, program=str(baseline_program()))
        else:
            arguments = ["--send", str(size), "--count", str(count), "--cpu", str(sender_cpu)]
            self.sender = self.child(script, *arguments, "--port", port, "--loop", loop)
        self.sender.receive(TIMEOUT)
        self.round()
        self.samples.clear()

    def child(self, *arguments: str, **options: str) -> Child:
        return self.stack.enter_context(Child(*arguments, **options))

    def round(self) -> None:
        self.reader.send(TOTAL)
        self.sender.send(TOTAL)
        both = self.sender.receive(TIMEOUT)["cpu"] + self.reader.receive(TIMEOUT)["cpu"]
        self.samples.append(both * GIB / TOTAL)


def measure(case: str, names: list[str], rounds: int) -> dict[str, list[float]]:
    with ExitStack() as stack:
        pairs = {}
        for name in names:
            pairs[name] = Pair(name, case)
            stack.callback(pairs[name].stack.close)
        for _ in range(rounds):
            for pair in random.sample(list(pairs.values()), len(pairs)):
                pair.round()
        return {name: pair.samples for name, pair in pairs.items()}


def ratio(samples: list[float], ours: list[float]) -> str:
    found = [one / our for one, our in zip(samples, ours)]
    low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else 3 * found
    return f"{middle:.2f} [{low:.2f}–{high:.2f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description="the CPU time of one sender of much data and of its reader")
    parser.add_argument("--loops", default=",".join((*loops.KNOWN, BASELINE)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases by name; may be repeated")
    for name in ("read", "send", "count", "cpu", "port"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--loop", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read or arguments.send:
        die_with_parent()
        pin(arguments.cpu)
    if arguments.read:
        read(arguments.read, arguments.count)
        return 0
    if arguments.send:
        with asyncio.Runner(loop_factory=loops.factory(arguments.loop)) as runner:
            runner.run(send(arguments.port, arguments.send, arguments.count))
        return 0
    names, missing = loops.split(arguments.loops.split(","))
    for name, why in missing.items():
        print(f"{name} is left out: {why}")
    print(f"{'CPU seconds a GiB':26}" + "".join(f"{name:>20}" for name in names))
    for case in chosen(CASES, arguments.only):
        try:
            found = measure(case, names, arguments.rounds)
        except ChildError as error:
            print(f"{case}: {error}")
            continue
        print(f"{case:26}" + "".join(f"{statistics.median(found[name]):20.3f}" for name in names))
        if "wakeloop" in found:
            print(f"{'':26}" + "".join(f"{ratio(found[name], found['wakeloop']):>20}" for name in names), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
