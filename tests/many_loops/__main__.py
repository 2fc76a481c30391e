"""Runs the stress of many loops.

    python -m tests.many_loops [--minutes N] [--loops N] [--seed N] [--loop wakeloop|asyncio]

It runs in rounds of 30 seconds. After the first rounds, which warm caches, descriptors and threads must stay the same,
and memory and objects must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import threading
import time

import wakeloop

from ..soak.__main__ import resident, slope
from .stress import stress

ROUND = 30.0
WARM_UP = 4
#: The most that a round may add to resident memory, in KiB, by the slope over all rounds, when the C library has given
#: back what it keeps for 64 threads.
MOST_PER_ROUND = 1024.0
MOST_OBJECTS_PER_ROUND = 500.0


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
    memory: list[float] = []
    objects: list[float] = []
    counted = None
    while (left := end - time.monotonic()) > 1:
        done = stress(min(ROUND, left), options.loops, options.seed + round_number, factory)
        gc.collect()
        trim()
        jobs += sum(done.values())
        now = (len(os.listdir("/proc/self/fd")), threading.active_count())
        memory.append(resident())
        objects.append(len(gc.get_objects()))
        print(f"round {round_number}: {sum(done.values())} jobs, {now}, {memory[-1]:.0f} KiB", flush=True)
        if round_number == WARM_UP:
            counted = now
        elif counted is not None and now > counted:
            raise SystemExit(f"descriptors and threads: {counted} before, {now} now")
        round_number += 1
    growth, more = slope(memory[WARM_UP:]), slope(objects[WARM_UP:])
    print(f"{jobs} jobs; a round adds {growth:.0f} KiB and {more:.0f} objects")
    if growth > MOST_PER_ROUND or more > MOST_OBJECTS_PER_ROUND:
        raise SystemExit("it grows")


if __name__ == "__main__":
    main()
