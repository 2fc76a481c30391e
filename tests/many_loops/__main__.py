"""Runs the stress of many loops.

    python -m tests.many_loops [--minutes N] [--loops N] [--seed N] [--loop wakeloop|asyncio]

It runs in rounds of 30 seconds. After the first rounds, which warm caches, descriptors and threads must stay the same,
and the memory in use and the objects must not grow. Resident memory is shown, but says little: what 64 threads leave of
malloc's arenas differs from round to round by half of it.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
from xml.etree import ElementTree

import wakeloop

from ..soak.__main__ import resident, slope
from .stress import stress

ROUND = 30.0
WARM_UP = 4
#: The most that a round may add, by the slope over all rounds: of memory in use in KiB, of blocks of Python's own
#: allocator, and of objects that the collector knows. A round has 20,000 jobs. CPython 3.12 leaves about 50 blocks for
#: each thousand of them, on asyncio's loop too; 3.14 and 3.15 leave next to none.
MOST_PER_ROUND = (100.0, 2000.0, 500.0)


def in_use() -> float:
    """Returns the memory from malloc that is in use, in KiB. Only glibc and its malloc tell; for others it is 0."""
    c = ctypes.CDLL(None)
    if not hasattr(c, "malloc_info"):
        return 0.0
    c.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as report:
        file = ctypes.c_void_p(c.fopen(report.name.encode(), b"w"))
        c.malloc_info(0, file)
        c.fclose(file)
        tree = ElementTree.parse(report.name).getroot()
    totals = {one.get("type"): int(one.get("size", 0)) for one in tree.findall("total")}
    system = tree.find("system[@type='current']")
    taken = 0 if system is None else int(system.get("size", 0))
    return (taken - totals.get("fast", 0) - totals.get("rest", 0) + totals.get("mmap", 0)) / 1024


def trim() -> None:
    """Has glibc give back free memory; other C libraries do not have the function."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--loops", type=int, default=64)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--loop", choices=["wakeloop", "asyncio"], default="wakeloop")
    options = parser.parse_args()
    factory = wakeloop.new_event_loop if options.loop == "wakeloop" else asyncio.new_event_loop
    print(f"{options.loops} loops, seed {options.seed}", flush=True)
    end, round_number, jobs = time.monotonic() + 60 * options.minutes, 0, 0
    measured: list[tuple[float, ...]] = []
    counted = None
    while (left := end - time.monotonic()) > 1:
        done = stress(min(ROUND, left), options.loops, options.seed + round_number, factory)
        gc.collect()
        trim()
        jobs += sum(done.values())
        now = (len(os.listdir("/proc/self/fd")), threading.active_count())
        measured.append((in_use(), sys.getallocatedblocks(), len(gc.get_objects())))
        print(f"round {round_number}: {sum(done.values())} jobs, {now}, %.0f KiB in use" % measured[-1][0], end="")
        print(", %.0f blocks, %.0f objects, " % measured[-1][1:], f"{resident()} KiB resident", sep="", flush=True)
        if round_number == WARM_UP:
            counted = now
        elif counted is not None and now > counted:
            raise SystemExit(f"descriptors and threads: {counted} before, {now} now")
        round_number += 1
    growth = [slope([*column]) for column in zip(*(measured[WARM_UP:] or measured))]
    print(f"{jobs} jobs; a round adds %.0f KiB, %.0f blocks and %.0f objects" % tuple(growth))
    if any(added > most for added, most in zip(growth, MOST_PER_ROUND)):
        raise SystemExit("it grows")


if __name__ == "__main__":
    main()
