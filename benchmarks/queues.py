"""Compares wakeloop.Queue with janus and culsans, and with asyncio.Queue within one loop.

    python benchmarks/queues.py                    # every scenario
    python benchmarks/queues.py loops thread       # some of them

| scenario | what it does |
|---|---|
| one | two tasks of one loop: one puts, one gets; at most 100 items |
| loops | a task of one loop puts, a task of another loop in another thread gets; at most 100 items |
| burst | as loops, with any number of items, and the putting task lets others run after each 100 |
| thread | a thread puts and blocks, a task gets; at most 100 items |
| back | a task puts, a thread gets and blocks; at most 100 items |
| ping | two loops: an item there, an item back; each waits for the other |

Every contender runs in a process of its own, in rounds, so that changes of the machine affect all of them; the order
changes from round to round. All run on the same loop. The table has the medians, and beside each the ratio to wakeloop:
the median of the ratios round by round, with their middle half. CPU is that of the whole process, with all threads.

A queue of janus belongs to one loop. So its putting task of another loop uses the side for threads: `put_nowait` where
there is room for any number of items, and `asyncio.to_thread` around `put` and `get` where it may have to wait.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Figures = dict[str, float]
LOOPS = {"wakeloop": "wakeloop", "uvloop": "uvloop", "asyncio": "asyncio"}
ROOM = 100
#: How many items, for the fast and for the slow: a round takes some tenths of a second.
COUNTS = {"one": 50_000, "loops": 20_000, "burst": 50_000, "thread": 20_000, "back": 20_000, "ping": 3_000}
#: What janus cannot do without a thread for each item takes longer.
SLOW = {("janus", "loops"): 2_000, ("janus", "ping"): 500}


class Pair:
    """The two sides of a queue, made in the loop that owns it."""

    def __init__(self, contender: str, room: int, *, foreign: bool = False) -> None:
        queue: Any
        if contender == "asyncio":
            queue = asyncio.Queue(room)
            self.put, self.get = queue.put, queue.get
            return
        if contender == "wakeloop":
            queue = importlib.import_module("wakeloop").Queue(room)
            self.put, self.get = queue.put, queue.get
            self.far_put, self.far_get = queue.put, queue.get
        else:
            queue = importlib.import_module(contender).Queue(room)
            self.put, self.get = queue.async_q.put, queue.async_q.get
            self.far_put, self.far_get = self.put, self.get
            if contender == "janus":
                self.far_put = self._put_now(queue) if room == 0 else self._in_thread(queue.sync_q.put)
                self.far_get = self._in_thread(queue.sync_q.get)
        self.sync_put, self.sync_get = queue.sync_q.put, queue.sync_q.get

    @staticmethod
    def _put_now(queue: Any) -> Callable[[Any], Awaitable[None]]:
        async def put(item: Any) -> None:
            queue.sync_q.put_nowait(item)

        return put

    @staticmethod
    def _in_thread(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            return await asyncio.to_thread(function, *arguments)

        return call


async def put_all(put: Callable[[Any], Awaitable[None]], count: int, pause: int = 0) -> None:
    for number in range(count):
        await put(number)
        if pause and number % pause == 0:
            await asyncio.sleep(0)


async def get_all(get: Callable[[], Awaitable[Any]], count: int) -> None:
    for _ in range(count):
        await get()


def in_loop(factory: Any, main: Coroutine[Any, Any, None]) -> threading.Thread:
    def run() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


async def joined(thread: threading.Thread) -> None:
    while thread.is_alive():
        await asyncio.sleep(0.001)


async def one(contender: str, factory: Any, count: int) -> None:
    queue = Pair(contender, ROOM)
    await asyncio.gather(put_all(queue.put, count), get_all(queue.get, count))


async def loops(contender: str, factory: Any, count: int) -> None:
    queue = Pair(contender, ROOM)
    thread = in_loop(factory, put_all(queue.far_put, count))
    await get_all(queue.get, count)
    await joined(thread)


async def burst(contender: str, factory: Any, count: int) -> None:
    queue = Pair(contender, 0)
    thread = in_loop(factory, put_all(queue.far_put, count, pause=100))
    await get_all(queue.get, count)
    await joined(thread)


async def thread(contender: str, factory: Any, count: int) -> None:
    queue = Pair(contender, ROOM)

    def put() -> None:
        for number in range(count):
            queue.sync_put(number)

    other = threading.Thread(target=put)
    other.start()
    await get_all(queue.get, count)
    await joined(other)


async def back(contender: str, factory: Any, count: int) -> None:
    queue = Pair(contender, ROOM)

    def get() -> None:
        for _ in range(count):
            queue.sync_get()

    other = threading.Thread(target=get)
    other.start()
    await put_all(queue.put, count)
    await joined(other)


async def ping(contender: str, factory: Any, count: int) -> None:
    there, here = Pair(contender, 1), Pair(contender, 1)

    async def answer() -> None:
        for _ in range(count):
            await here.far_put(await there.far_get())

    other = in_loop(factory, answer())
    for number in range(count):
        await there.put(number)
        await here.get()
    await joined(other)


SCENARIOS = {"one": one, "loops": loops, "burst": burst, "thread": thread, "back": back, "ping": ping}
CONTENDERS = ["wakeloop", "janus", "culsans"]


def measure(scenario: str, contender: str, loop: str) -> Figures:
    factory = importlib.import_module(LOOPS[loop]).new_event_loop
    count = SLOW.get((contender, scenario), COUNTS[scenario])

    async def main() -> Figures:
        await SCENARIOS[scenario](contender, factory, count // 10)
        start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        await SCENARIOS[scenario](contender, factory, count)
        end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        return {"cpu us per item": cpu / count * 1e6, "us per item": (end - start) / count * 1e6}

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def compare(scenario: str, rounds: int, loop: str) -> None:
    contenders = [*CONTENDERS, *(["asyncio"] if scenario == "one" else [])]
    results: dict[str, list[Figures]] = {name: [] for name in contenders}
    own = [sys.executable, __file__, scenario, "--loop", loop, "--contender"]
    for _ in range(rounds):
        for name in random.sample(contenders, len(contenders)):
            done = subprocess.run([*own, name], check=True, stdout=subprocess.PIPE, text=True)
            results[name].append(json.loads(done.stdout))
    columns = list(results["wakeloop"][0])
    print(f"| {scenario} | {' | '.join(columns)} |")
    print(f"| --- | {' | '.join(['--:'] * len(columns))} |")
    for name, figures in results.items():
        cells = [cell([it[column] for it in figures], [it[column] for it in results["wakeloop"]]) for column in columns]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()


def cell(figures: list[float], reference: list[float]) -> str:
    text = f"{statistics.median(figures):,.2f}"
    if figures == reference or len(figures) < 2:
        return text
    low, middle, high = statistics.quantiles((one / base for one, base in zip(figures, reference)), n=4)
    return f"{text} ({middle:.2f}x, {low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="scenario")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--loop", choices=LOOPS, default="wakeloop")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measure(options.scenarios[0], options.contender, options.loop)))
        return
    for scenario in options.scenarios or SCENARIOS:
        compare(scenario, options.rounds, options.loop)


if __name__ == "__main__":
    main()
