"""call_later and call_at: never early, and in order, for every delay."""

import asyncio
import decimal
import fractions
import math
import os
import random
import re
import sys
import threading
import time

import pytest

from tests.loop.test_scheduling import run_once


def test_a_timer_with_a_deadline_of_nan_is_due_at_once(loop):
    ran = []
    loop.call_later(math.nan, ran.append, "timer")
    loop.call_soon(ran.append, "callback")
    run_once(loop)
    assert ran == ["callback", "timer"]


def test_a_timer_never_fires_early(loop):
    """Thousands of random deadlines, from microseconds to a third of a second, each checked against the loop's clock.
    """
    random_source = random.Random(1)
    early, fired = [], 0

    def check(when):
        nonlocal fired
        fired += 1
        now = loop.time()
        if now < when - time.get_clock_info("monotonic").resolution:
            early.append(when - now)
        if fired == 5000:
            loop.stop()

    start = loop.time()
    for _ in range(5000):
        when = start + 10 ** random_source.uniform(-6, -0.5)
        loop.call_at(when, check, when)
    loop.run_forever()
    assert early == []


@pytest.mark.parametrize("delay", [0.00002, 0.0001, 0.0004, 0.0009, 0.0013])
def test_a_sleep_below_a_millisecond_never_returns_early(run, delay):
    async def main():
        for _ in range(50):
            start = time.monotonic()
            await asyncio.sleep(delay)
            assert time.monotonic() - start >= delay

    run(main())


def test_timers_fire_in_the_order_of_their_deadlines(loop):
    seen, start = [], loop.time()
    deadlines = [start + number / 20000 for number in range(400)]
    for when in random.Random(2).sample(deadlines, len(deadlines)):
        loop.call_at(when, seen.append, when)
    loop.call_at(start + 0.05, loop.stop)
    loop.run_forever()
    assert seen == deadlines


@pytest.mark.native
def test_timers_with_equal_deadlines_fire_in_the_order_they_were_scheduled(loop):
    """asyncio's heap compares only the deadline, so equal ones change order. Ours do not."""
    seen, when = [], loop.time() + 0.01
    for number in range(500):
        loop.call_at(when, seen.append, number)
    loop.call_at(when, loop.stop)
    loop.run_forever()
    assert seen == list(range(500))


@pytest.mark.parametrize("delay", [0, 0.0, -1, -1e300, -math.inf, True - 1])
def test_a_delay_of_zero_or_less_fires_in_the_next_iteration(loop, delay):
    seen = []
    loop.call_later(delay, seen.append, "fired")
    assert seen == []
    run_once(loop)
    assert seen == ["fired"]


@pytest.mark.parametrize("delay", [1e6, 1e12, 1e300, math.inf, 2**70])
def test_a_huge_delay_never_fires_and_does_not_block_others(loop, delay):
    seen = []
    timer = loop.call_later(delay, seen.append, "never")
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    assert seen == []
    timer.cancel()


@pytest.mark.native
def test_a_delay_that_is_not_a_number_harms_no_other_timer(loop):
    """On asyncio NaN fires at once or makes the selector raise, depending on the version."""
    try:
        timer = loop.call_later(math.nan, lambda: None)
    except ValueError:
        timer = None
    seen = []
    for number in range(10):
        loop.call_later(0.001 * number, seen.append, number)
    loop.call_later(0.03, loop.stop)
    loop.run_forever()
    assert seen == list(range(10))
    if timer:
        timer.cancel()


@pytest.mark.parametrize("bad", [None, "1", b"1", [], object()])
def test_a_delay_that_is_no_number_is_a_type_error(loop, bad):
    with pytest.raises(TypeError):
        loop.call_later(bad, print)
    run_once(loop)


def test_a_deadline_of_none_is_a_type_error(loop):
    with pytest.raises(TypeError, match="when cannot be None"):
        loop.call_at(None, print)
    with pytest.raises(TypeError, match="delay must not be None"):
        loop.call_later(None, print)


@pytest.mark.native
@pytest.mark.parametrize("bad", ["1", b"1", [], object(), 1j])
def test_a_deadline_that_is_no_number_is_a_type_error_at_once(loop, bad):
    """asyncio accepts it, and then cannot run any more."""
    with pytest.raises(TypeError):
        loop.call_at(bad, print)
    run_once(loop)


def test_integers_fractions_and_booleans_are_delays(loop):
    from fractions import Fraction

    seen = []
    loop.call_later(Fraction(1, 1000), seen.append, "fraction")
    loop.call_later(False, seen.append, "bool")
    loop.call_at(0, seen.append, "int")
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    assert sorted(seen) == ["bool", "fraction", "int"]


def test_a_callback_can_cancel_timers_that_are_due_with_it(loop):
    """Whichever of two due timers runs first cancels the other."""
    seen, when = [], loop.time() + 0.005

    def fire(name, other):
        seen.append(name)
        timers[other].cancel()

    timers = [loop.call_at(when, fire, 0, 1), loop.call_at(when + 1e-6, fire, 1, 0)]
    loop.call_later(0.03, loop.stop)
    time.sleep(0.01)
    loop.run_forever()
    assert len(seen) == 1


def test_random_cancellation_among_thousands_leaves_the_right_ones(loop):
    source, fired, start = random.Random(3), [], loop.time()
    timers = {n: loop.call_at(start + source.uniform(0, 0.2), fired.append, n) for n in range(4000)}
    cancelled = set(source.sample(sorted(timers), 2500))
    for number in cancelled:
        timers[number].cancel()
    loop.call_at(start + 0.25, loop.stop)
    loop.run_forever()
    assert sorted(fired) == sorted(set(timers) - cancelled)


def test_ten_thousand_timers_put_in_and_taken_out_at_random_fire_in_order(loop):
    """Timers are added and removed before the run, and by each other."""
    source, waiting, fired, start = random.Random(4), {}, [], loop.time()
    numbers, left, taken_out = [], 10_000, 0

    def put_in(earliest):
        nonlocal left
        left -= 1
        when = earliest + source.uniform(0, 0.2)
        waiting[left] = loop.call_at(when, fire, left, when)
        numbers.append(left)

    def take_out():
        nonlocal taken_out
        index = source.randrange(len(numbers))
        numbers[index], numbers[-1] = numbers[-1], numbers[index]
        timer = waiting.pop(numbers.pop(), None)
        if timer is not None:
            timer.cancel()
            taken_out += 1

    def fire(number, when):
        del waiting[number]  # which fails for one that was taken out
        fired.append(when)
        if left:
            take_out()
            put_in(loop.time() + 0.001)
        if not waiting:
            loop.stop()

    while left > 2000:
        put_in(start + 0.05)
        if source.random() < 0.4:
            take_out()
    loop.run_forever()
    assert left == 0 and len(fired) + taken_out == 10_000 and taken_out > 3000
    assert fired == sorted(fired)


def test_a_timer_scheduled_by_a_timer_waits_for_its_own_deadline(loop):
    times = []

    def step():
        times.append(loop.time())
        if len(times) < 5:
            loop.call_later(0.003, step)
        else:
            loop.stop()

    loop.call_later(0.003, step)
    loop.run_forever()
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    assert all(gap >= 0.003 - 1e-6 for gap in gaps)


def test_an_earlier_timer_shortens_the_wait(loop):
    """The loop waits for ten seconds, then gets a timer of ten milliseconds, from a callback and from a thread."""
    far = loop.call_later(10, lambda: None)
    start = loop.time()
    loop.call_later(0.001, loop.call_later, 0.01, loop.stop)
    loop.run_forever()
    assert loop.time() - start < 5
    thread = threading.Timer(0.02, loop.call_soon_threadsafe, (loop.call_later, 0.01, loop.stop))
    thread.start()
    loop.run_forever()
    thread.join()
    assert loop.time() - start < 8
    far.cancel()


def test_the_loops_clock_is_the_monotonic_clock(loop):
    before = time.monotonic()
    now = loop.time()
    assert before <= now <= time.monotonic() and isinstance(now, float)


def test_an_overridden_clock_is_the_one_that_counts(loop_factory):
    """Test tools subclass the loop and move its clock. Timers must follow that clock, in both directions."""
    kind = type(probe := loop_factory())
    probe.close()

    class Shifted(kind):
        shift = 0.0

        def time(self):
            return super().time() + self.shift

    loop = Shifted()
    try:
        seen = []
        timer = loop.call_later(1000, seen.append, "an hour later")
        assert timer.when() >= time.monotonic() + 999
        run_once(loop)
        assert seen == []
        loop.shift = 1001.0
        run_once(loop)
        run_once(loop)
        assert seen == ["an hour later"]
        timer = loop.call_later(0.01, seen.append, "too early")
        loop.shift = 0.0
        time.sleep(0.02)
        run_once(loop)
        assert seen == ["an hour later"]
        timer.cancel()
    finally:
        loop.close()


@pytest.mark.parametrize("shift", [1000.0, -1000.0], ids=["ahead", "behind"])
def test_a_clock_with_another_origin_is_waited_for_once(loop_factory, shift):
    kind, asked = type(probe := loop_factory()), []
    probe.close()

    class Shifted(kind):
        def time(self):
            asked.append(None)
            return super().time() + shift

    loop = Shifted()
    try:
        # It neither waits until the system's clock shows the deadline, nor looks again and again because it has passed.
        loop.run_until_complete(asyncio.sleep(0.1))
        assert len(asked) < 20
    finally:
        loop.close()


def test_timeouts_fire_and_are_cancelled(run):
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        assert await asyncio.wait_for(asyncio.sleep(0, "in time"), 10) == "in time"

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="asyncio.sleep checks for NaN since 3.13")
def test_asyncio_sleep_of_nan_is_a_value_error(run):
    async def main():
        with pytest.raises(ValueError):
            await asyncio.sleep(math.nan)

    run(main())


@pytest.mark.parametrize(
    "now", [100, True, 2**60 + 1, 0.5, fractions.Fraction(1, 3), decimal.Decimal("0.1")], ids=lambda now: type(now).__name__
)
def test_deadlines_are_of_the_kind_that_the_clock_and_the_caller_count_in(loop, now):
    loop.time = lambda: now
    deadlines = (5, -1, True, 0.5, fractions.Fraction(1, 2), decimal.Decimal(1))
    for delay in deadlines:
        try:
            expected = now + delay
        except TypeError as error:
            with pytest.raises(TypeError, match=re.escape(str(error))):
                loop.call_later(delay, print)
        else:
            later = loop.call_later(delay, print)
            assert later.when() == expected and type(later.when()) is type(expected) and hash(later) == hash(expected)
            later.cancel()
        at = loop.call_at(delay, print)
        assert at.when() == delay and type(at.when()) is type(delay)
        at.cancel()
    del loop.time


@pytest.mark.skipif(sys.platform != "linux", reason="counts the entries of /proc/self/fd")
def test_waiting_for_a_deadline_takes_no_further_descriptor(run):
    """Programs compare their open descriptors before and after some work to find leaks."""

    async def main():
        before = len(os.listdir("/proc/self/fd"))
        for delay in (0.0005, 0.003, 0.02):
            await asyncio.sleep(delay)
        await asyncio.wait_for(asyncio.sleep(0.001), 1)
        return len(os.listdir("/proc/self/fd")) - before

    assert run(main()) == 0


@pytest.mark.parametrize("sign", [1, -1])
def test_a_deadline_that_is_too_large_for_a_float_is_kept(loop, sign):
    timer = loop.call_at(sign * 10**400, print)
    assert timer.when() == sign * 10**400
    assert (timer < loop.call_at(loop.time() + 1000, print)) == (sign < 0)
    timer.cancel()
