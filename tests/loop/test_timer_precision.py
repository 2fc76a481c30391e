"""Timers at scale: never early, in order, and precise below a millisecond."""

import asyncio
import gc
import os
import random
import subprocess
import sys
import textwrap
import time

import pytest

from tests.support import preload
from tests.support.loops import PRELUDE, factory

TIMERS = 100_000


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_hundred_thousand_random_timers_fire_in_order_and_none_before_its_deadline(loop):
    """Each deadline is compared with the loop's clock when its callback runs."""
    source, fired, early = random.Random(20), [], []
    # asyncio allows a deadline to be early by the resolution of its clock, one nanosecond.
    tolerance = time.get_clock_info("monotonic").resolution

    def fire(when):
        if loop.time() < when - tolerance:
            early.append(when - loop.time())
        fired.append(when)
        if len(fired) == TIMERS:
            loop.stop()

    gc.collect()
    start = loop.time()
    for _ in range(TIMERS):
        when = start + 10 ** source.uniform(-6, 0.4)
        loop.call_at(when, fire, when)
    loop.run_forever()
    assert early == [] and len(fired) == TIMERS
    # Timers that were due before the loop ran come at once, the rest as they fall due: sorted either way.
    assert fired == sorted(fired)


@pytest.mark.native
def test_no_timer_fires_before_the_clock_has_reached_it_to_the_last_bit(loop):
    early = []

    def fire(when):
        if loop.time() < when:
            early.append(when)

    start = loop.time()
    source = random.Random(3)
    for _ in range(20_000):
        when = start + source.uniform(0, 0.2)
        loop.call_at(when, fire, when)
    loop.call_at(start + 0.25, loop.stop)
    loop.run_forever()
    assert early == []


@pytest.mark.native
@preload.needs_preload
def test_a_wait_ends_at_the_deadline_to_the_microsecond(tmp_path):
    """asyncio's poll rounds a timeout up to a millisecond."""
    body = """
    import ctypes, os, threading
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    times = (ctypes.c_double * 64).in_dll(library, "times")
    loop = new_loop()
    reader, writer = os.pipe()
    loop.add_reader(reader, loop.stop)
    for fraction in (0.00002, 0.0001, 0.0004567, 0.0009):
        # So far away that it is waited for, however busy the machine is. What is written ends the wait.
        deadline = loop.time() + 20 + fraction
        timer = loop.call_at(deadline, print, "too late")
        threading.Timer(0.02, os.write, (writer, b"x")).start()
        loop.run_forever()
        os.read(reader, 1)
        timer.cancel()
        assert any(abs(time - deadline) < 1e-6 for time in times), (deadline, list(times))
        # A timer that is set for the first deadline is not set again for a later one.
        loop.close()
        loop = new_loop()
        loop.add_reader(reader, loop.stop)
    loop.close()
    """
    library = preload.build("timers", tmp_path)
    source = PRELUDE["wakeloop"] + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.native
@pytest.mark.measured
def test_a_sleep_of_a_tenth_of_a_millisecond_is_never_early_and_far_shorter_than_asyncios():
    """asyncio's poll rounds such a sleep up to a millisecond. The sleeps alternate, so that both see the same machine
    load.
    """

    async def measure(rounds):
        taken = []
        for _ in range(rounds):
            start = time.monotonic()
            await asyncio.sleep(0.0001)
            taken.append(time.monotonic() - start)
        return taken

    ours, theirs = [], []
    for _ in range(5):
        for results, name in ((ours, "wakeloop"), (theirs, "asyncio")):
            with asyncio.Runner(loop_factory=factory(name)) as runner:
                results += runner.run(measure(40))
    assert min(ours) >= 0.0001
    middle = len(ours) // 2
    assert sorted(ours)[middle] < 0.75 * sorted(theirs)[middle]
