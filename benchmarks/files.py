"""Compares wakeloop.open with aiofiles and anyio, and with plain blocking reads in a thread.

    python benchmarks/files.py                     # every scenario
    python benchmarks/files.py cached lines        # some of them

| scenario | what it does |
|---|---|
| cached | reads 4 KiB from the page cache, at random offsets, one read at a time |
| sequential | reads 4 KiB from the page cache, one after the other |
| many | as cached, 32 tasks at once, each with a file of its own |
| big | reads a file of 1 GiB, which is in the page cache, in pieces of 64 KiB |
| lines | iterates over the lines of a text file |
| cold | 32 tasks read 64 KiB at random offsets of a file that is not in the page cache |
| slow | as cold, on a FUSE file system that answers each read after 20 ms (needs root) |

Every contender runs in a process of its own, in rounds, so that changes of the machine affect all of them; the order
changes from round to round. All run on the same loop. The table has the medians, and beside each the ratio to wakeloop:
the median of the ratios round by round, with their middle half. CPU is that of the whole process, with all threads.
`cold` and `slow` measure by how much a timer of 1 ms is late; `idle` is a loop without any file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

Figures = dict[str, float]
LOOPS = {"wakeloop": "wakeloop", "uvloop": "uvloop", "asyncio": "asyncio"}
BLOCK, PIECE = 4096, 64 * 1024
SMALL, BIG = 16 * 1024 * 1024, 1024 * 1024 * 1024
LINE = "x" * 60 + " äé\n"
TASKS, READS = 32, 200


@contextlib.asynccontextmanager
async def opened(library: str, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
    module = importlib.import_module(library)
    make = module.open_file if library == "anyio" else module.open
    made = make(*arguments, **options)
    async with (await made if library == "anyio" else made) as file:
        yield file


class Used:
    """The time and the CPU time of the process."""

    def __init__(self) -> None:
        self.wall, self.cpu = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime

    def since(self) -> tuple[float, float]:
        wall, cpu = self._now()
        return wall - self.wall, cpu - self.cpu

    def per(self, count: int, name: str) -> Figures:
        wall, cpu = self.since()
        return {f"cpu us per {name}": cpu / count * 1e6, f"us per {name}": wall / count * 1e6}


def offsets(size: int, count: int) -> list[int]:
    return [random.randrange(size // BLOCK) * BLOCK for _ in range(count)]


async def random_reads(file: Any, count: int) -> None:
    for offset in offsets(SMALL, count):
        await file.seek(offset)
        assert len(await file.read(BLOCK)) == BLOCK


async def cached(library: str, path: str) -> Figures:
    count = 20_000 if library == "wakeloop" else 3_000
    async with opened(library, path, "rb") as file:
        await random_reads(file, 100)
        used = Used()
        await random_reads(file, count)
        return used.per(count, "read")


async def cached_pread(_: str, path: str) -> Figures:
    async with opened("wakeloop", path, "rb") as file:
        await file.pread(BLOCK, 0)
        places = offsets(SMALL, 20_000)
        used = Used()
        for offset in places:
            assert len(await file.pread(BLOCK, offset)) == BLOCK
        return used.per(len(places), "read")


async def sequential(library: str, path: str) -> Figures:
    count = 0
    async with opened(library, path, "rb") as file:
        await file.read(BLOCK)
        used = Used()
        while await file.read(BLOCK):
            count += 1
        return used.per(count, "read")


async def many(library: str, path: str) -> Figures:
    count = 1_000 if library == "wakeloop" else 100
    async with contextlib.AsyncExitStack() as stack:
        files = [await stack.enter_async_context(opened(library, path, "rb")) for _ in range(TASKS)]
        await asyncio.gather(*(random_reads(file, 10) for file in files))
        used = Used()
        await asyncio.gather(*(random_reads(file, count) for file in files))
        return used.per(count * TASKS, "read")


def rate(used: Used) -> Figures:
    wall, cpu = used.since()
    return {"MB/s": BIG / wall / 1e6, "cpu s": cpu}


async def big(library: str, path: str) -> Figures:
    async with opened(library, path, "rb") as file:
        used = Used()
        while await file.read(PIECE):
            pass
        return rate(used)


async def big_in_thread(_: str, path: str) -> Figures:
    def read() -> Figures:
        with open(path, "rb") as file:
            used = Used()
            while file.read(PIECE):
                pass
            return rate(used)

    return await asyncio.to_thread(read)


async def lines(library: str, path: str) -> Figures:
    async with opened(library, path, encoding="utf-8") as file:
        count, used = 0, Used()
        async for line in file:
            assert len(line) == len(LINE)
            count += 1
            if library != "wakeloop" and count == 20_000:
                break
        return used.per(count, "line")


async def late_while(reading: Callable[[], Awaitable[object]]) -> Figures:
    """How late a timer is while this is under way."""
    late: list[float] = []

    async def tick() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.001
            await asyncio.sleep(0.001)
            late.append(loop.time() - due)

    ticking = asyncio.ensure_future(tick())
    used = Used()
    await reading()
    wall, cpu = used.since()
    ticking.cancel()
    late.sort()
    place = late[len(late) * 99 // 100]
    return {"p99 late ms": place * 1e3, "longest late ms": late[-1] * 1e3, "wall s": wall, "cpu s": cpu}


async def cold(library: str, path: str) -> Figures:
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    async def one() -> None:
        async with opened(library, path, "rb") as file:
            for _ in range(READS):
                await file.seek(random.randrange(size - PIECE))
                assert len(await file.read(PIECE)) == PIECE

    async def all_tasks() -> None:
        await asyncio.gather(*(one() for _ in range(TASKS)))

    return await late_while(all_tasks)


async def idle(_library: str, _path: str) -> Figures:
    return await late_while(lambda: asyncio.sleep(1))


Body = Callable[[str, str], Coroutine[Any, Any, Figures]]
LIBRARIES = ["wakeloop", "aiofiles", "anyio"]


def contenders(body: Body, **others: Body) -> dict[str, Body]:
    return {**dict.fromkeys(LIBRARIES, body), **others}


SCENARIOS: dict[str, dict[str, Body]] = {
    "cached": contenders(cached, pread=cached_pread),
    "sequential": contenders(sequential),
    "many": contenders(many),
    "big": contenders(big, thread=big_in_thread),
    "lines": contenders(lines),
    "cold": contenders(cold, idle=idle),
    "slow": contenders(cold, idle=idle),
}


def make_file(scenario: str, folder: Path) -> Path:
    """The file, in the page cache as far as it fits."""
    path = folder / scenario
    if scenario == "lines":
        path.write_text(LINE * 500_000, encoding="utf-8")
        return path
    size = BIG if scenario in ("big", "cold") else SMALL
    block = random.randbytes(1024 * 1024)
    with open(path, "wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        os.fsync(file.fileno())
    return path


@contextlib.contextmanager
def place(scenario: str, folder: Path) -> Iterator[Path | None]:
    """The path of the scenario's file, or None if it cannot be made here."""
    path = make_file(scenario, folder)
    try:
        if scenario != "slow":
            yield path
            return
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("slow_disk.py")), str(path), str(folder / "mount")],
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            if not server.stdout.readline():
                yield None
            else:
                yield folder / "mount" / "file"
        finally:
            server.terminate()
            server.wait()
    finally:
        path.unlink()


def compare(scenario: str, options: argparse.Namespace) -> None:
    results: dict[str, list[Figures]] = {name: [] for name in SCENARIOS[scenario]}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, place(scenario, Path(folder)) as path:
        if path is None:
            print(f"left out: {scenario}, because a FUSE file system cannot be mounted here\n")
            return
        own = [sys.executable, __file__, scenario, "--loop", options.loop, "--path", str(path), "--contender"]
        for _ in range(options.rounds):
            for name in random.sample(list(results), len(results)):
                done = subprocess.run([*own, name], check=True, stdout=subprocess.PIPE, text=True)
                results[name].append(json.loads(done.stdout))
    columns = list(results["wakeloop"][0])
    print(f"| {scenario} | {' | '.join(columns)} |")
    print(f"| --- | {' | '.join(['--:'] * len(columns))} |")
    for name, rounds in results.items():
        cells = [cell([it[column] for it in rounds], [it[column] for it in results["wakeloop"]]) for column in columns]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()


def cell(figures: list[float], reference: list[float]) -> str:
    text = f"{statistics.median(figures):,.2f}"
    if figures is reference or len(figures) < 2:
        return text
    low, middle, high = statistics.quantiles((one / base for one, base in zip(figures, reference)), n=4)
    return f"{text} ({middle:.2f}x, {low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="scenario")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--loop", choices=LOOPS, default="wakeloop")
    parser.add_argument("--folder", help="where the files are made, by default that of temporary files")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        factory = importlib.import_module(LOOPS[options.loop]).new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            [scenario] = options.scenarios
            print(json.dumps(runner.run(SCENARIOS[scenario][options.contender](options.contender, options.path))))
        return
    for scenario in options.scenarios or SCENARIOS:
        compare(scenario, options)


if __name__ == "__main__":
    main()
