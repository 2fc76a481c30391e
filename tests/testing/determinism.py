"""Does a seed repeat a run, step by step? Runs random programs in several processes, and compares their steps.

    python -m tests.testing.determinism                         200 programs, 20 seeds, 5 runs of each
    python -m tests.testing.determinism --programs 20           fewer
    python -m tests.testing.determinism --show 17 3             prints the steps of program 17 with seed 3

The runs are spread over processes. Each has another PYTHONHASHSEED, other addresses, another order of the programs, and
other things in memory. Compared are the steps, with time, task and line, and the program's journal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import hashlib
import importlib
import inspect
import json
import logging
import os
import random
import subprocess
import sys
import time
import unittest
import warnings

from wakeloop.testing._observed import ObservedLoop

from ..support import differential
from .programs import Program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(number, seed):
    """Runs a program with a seed. Returns its steps and what it returned or raised, as text.

    Every fourth program is a scenario of the differential fuzzer, and every fourth a test of CPython's own suite.
    """
    # What a program leaves behind is not of interest here.
    loop = ObservedLoop(seed=seed, check=False, patch_time=number % 4 == 1)
    if number % 4 == 3:
        ended = differential.observe("schedules", number, lambda: loop)
    elif number % 4 == 1 and (tests := suite()):
        ended = run_test(loop, *tests[number // 4 % len(tests)])
    else:
        ended = loop.run_program(Program(number))
    return [*map(str, loop.steps), repr(ended)]


@functools.cache
def suite():
    """The tests of asyncio in CPython's suite that make no loop of their own, as classes and names. Empty without one."""
    found = []
    for name in ("locks", "queues", "taskgroups", "threads", "timeouts", "waitfor"):
        try:
            module = importlib.import_module(f"test.test_asyncio.test_{name}")
        except ImportError:
            continue  # Some systems have it in a package of its own, and each Python has its own modules.
        for _, case in inspect.getmembers(module, inspect.isclass):
            if issubclass(case, unittest.IsolatedAsyncioTestCase):
                names = unittest.defaultTestLoader.getTestCaseNames(case)
                found += [(case, name) for name in names if inspect.iscoroutinefunction(getattr(case, name))]
    # Neighbours test the same class.
    random.Random(0).shuffle(found)
    return found


def run_test(loop, case, name):
    """Runs a test, and returns how it has ended. In an order that is not asyncio's it may fail."""

    async def program():
        test = case(name)
        test.setUp()
        await test.asyncSetUp()
        try:
            await getattr(test, name)()
        finally:
            await test.asyncTearDown()
            test.tearDown()

    with warnings.catch_warnings():
        # A test that fails may leave a coroutine behind.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            ended = loop.run_program(program)
        except (Exception, asyncio.CancelledError) as error:
            ended = type(error).__name__  # its text may have addresses
        gc.collect()
    return case.__name__, name, ended


def digest(lines):
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def digests(programs, seeds, order):
    """Returns the digest of each run, by program and seed. The order of the programs is that of the given seed."""
    places = [(number, seed) for number in range(programs) for seed in range(seeds)]
    random.Random(order).shuffle(places)
    # Objects of many sizes, so that the addresses of others are different in each process.
    kept = [bytearray(random.Random(order).randrange(1, 5000)) for _ in range(1000)]
    found = {f"{number} {seed}": digest(run(number, seed)) for number, seed in places}
    del kept
    return found


def in_a_process(programs, seeds, order):
    """Starts a process that writes the digests to its output."""
    command = [sys.executable, "-m", "tests.testing.determinism", "--worker", str(order)]
    command += ["--programs", str(programs), "--seeds", str(seeds)]
    variables = {**os.environ, "PYTHONHASHSEED": str(order)}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def compare(programs, seeds, runs, jobs=2):
    """Runs everything. Returns the runs that differ, and for each program how many different orders its seeds have."""
    found = []
    for start in range(0, runs, jobs):
        with contextlib.ExitStack() as stack:
            orders = range(start, min(start + jobs, runs))
            processes = [stack.enter_context(in_a_process(programs, seeds, order + 1)) for order in orders]
            for process in processes:
                found.append(json.loads(process.communicate()[0]))
                assert process.returncode == 0
    first, *others = found
    differing = sorted(key for key in first if any(other[key] != first[key] for other in others))
    orders = [len({first[f"{number} {seed}"] for seed in range(seeds)}) for number in range(programs)]
    return differing, orders


def first_difference(one, two):
    for place, (line, other) in enumerate(zip(one, two)):
        if line != other:
            return f"line {place}: {line!r} and {other!r}"
    return f"{len(one)} and {len(two)} lines"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.testing.determinism")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--show", type=int, nargs=2, metavar=("PROGRAM", "SEED"))
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show:
        print(*run(*options.show), sep="\n")
        return 0
    # A test that fails in another order than asyncio's may lose exceptions.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    if options.worker is not None:
        json.dump(digests(options.programs, options.seeds, options.worker), sys.stdout)
        return 0
    started = time.monotonic()
    differing, orders = compare(options.programs, options.seeds, options.runs)
    steps = [len(run(number, 0)) - 1 for number in range(options.programs)]
    many, total = sum(count > 1 for count in orders), options.programs * options.seeds
    print(f"{options.programs} programs of {min(steps)} to {max(steps)} steps, {options.seeds} seeds, {options.runs} runs")
    print(f"programs and seeds of which a run differs from the first: {len(differing)} of {total}")
    for key in differing[:10]:
        print(f"  program and seed: {key}")
    print(
        f"different orders: {sum(orders)} of {total}; {many} programs have more than one, "
        f"the median is {sorted(orders)[len(orders) // 2]} of {options.seeds}"
    )
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
