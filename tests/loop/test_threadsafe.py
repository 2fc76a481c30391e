"""call_soon_threadsafe and what is built on it."""

import asyncio
import socket
import sys
import threading
import time

import pytest

from tests.support.builds import FREE_THREADED


@pytest.fixture
def running(loop):
    """Gives a loop that runs in its own thread, parked."""
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    while not loop.is_running():
        time.sleep(0.001)
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_a_parked_loop_wakes_at_once(running):
    for _ in range(50):
        time.sleep(0.002)
        woken, start = threading.Event(), time.monotonic()
        running.call_soon_threadsafe(woken.set)
        assert woken.wait(5)
        assert time.monotonic() - start < 1


def test_a_burst_from_one_thread_keeps_its_order(running):
    seen, done = [], threading.Event()
    for number in range(20_000):
        running.call_soon_threadsafe(seen.append, number)
    running.call_soon_threadsafe(done.set)
    assert done.wait(20) and seen == list(range(20_000))


def test_threads_that_only_schedule_do_not_starve_the_loop(loop):
    """Whenever the loop looks, something is scheduled. It must come to its timers and to its events all the same."""
    ask, scheduled, called = threading.Semaphore(0), threading.Semaphore(0), []

    def schedule():
        while ask.acquire() and not ended:
            loop.call_soon_threadsafe(callback)
            scheduled.release()

    def callback():
        called.append("callback")
        if len(called) > 1000:
            loop.stop()
        if ended:
            return
        ask.release()
        assert scheduled.acquire(timeout=20)

    def timer():
        called.append("timer")
        near.send(b"x")

    def event():
        called.append("event")
        loop.stop()

    ended = False
    thread = threading.Thread(target=schedule)
    thread.start()
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        loop.add_reader(far, event)
        loop.call_later(0, timer)
        loop.call_soon(callback)
        loop.run_forever()
        loop.remove_reader(far)
    ended = True
    ask.release()
    thread.join()
    assert called.index("timer") < 5 and called.index("event") < 100


def test_a_flood_from_the_loops_own_thread_keeps_its_order(loop):
    seen = []

    def flood():
        for number in range(50_000):
            loop.call_soon_threadsafe(seen.append, number)
        loop.call_soon(loop.stop)

    loop.call_soon(flood)
    loop.run_forever()
    assert seen == list(range(50_000))


def test_bursts_from_many_threads_lose_nothing_and_keep_each_threads_order(running):
    seen, done = [], threading.Event()

    def burst(name):
        for number in range(2000):
            running.call_soon_threadsafe(seen.append, (name, number))
            if number % 100 == 0:
                time.sleep(0)

    threads = [threading.Thread(target=burst, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    running.call_soon_threadsafe(done.set)
    assert done.wait(20) and len(seen) == 16_000
    for name in range(8):
        assert [number for owner, number in seen if owner == name] == list(range(2000))


def test_wakes_are_not_lost_between_iterations(running):
    """Ping-pong: the loop parks after every callback, and every wake-up has to reach it."""
    answer = threading.Event()
    for _ in range(3000):
        running.call_soon_threadsafe(answer.set)
        assert answer.wait(5)
        answer.clear()


def test_a_threadsafe_call_can_be_cancelled(running):
    seen, done, blocked = [], threading.Event(), threading.Event()
    running.call_soon_threadsafe(blocked.wait, 5)
    handle = running.call_soon_threadsafe(seen.append, "cancelled")
    handle.cancel()
    blocked.set()
    running.call_soon_threadsafe(done.set)
    assert done.wait(5) and seen == [] and handle.cancelled()


def test_calls_made_before_the_loop_runs_are_kept(loop):
    seen = []
    thread = threading.Thread(target=lambda: [loop.call_soon_threadsafe(seen.append, n) for n in range(100)])
    thread.start()
    thread.join()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == list(range(100))


def test_calls_from_the_loops_own_thread_keep_their_order(loop):
    seen = []
    for number in range(100):
        (loop.call_soon if number % 2 else loop.call_soon_threadsafe)(seen.append, number)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == list(range(100))


def test_call_soon_threadsafe_on_a_closed_loop_raises(loop_factory):
    loop = loop_factory()
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon_threadsafe(print)


def test_closing_a_loop_while_threads_schedule_raises_only_in_the_callers(loop_factory):
    # Without a GIL the threads that schedule leave others little of the processors, so that a round may take a second.
    for _ in range(3 if FREE_THREADED else 20):
        loop, refused = loop_factory(), []

        def fire(loop=loop, refused=refused):
            try:
                while True:
                    loop.call_soon_threadsafe(int)
            except RuntimeError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=fire) for _ in range(3)]
        for thread in threads:
            thread.start()
        loop.call_later(0.005, loop.stop)
        loop.run_forever()
        loop.close()
        for thread in threads:
            thread.join()
        assert refused == ["Event loop is closed"] * 3


def test_stop_from_another_thread_ends_the_run(loop):
    before, seen = threading.Event(), []
    loop.call_soon(before.set)

    def stop():
        assert before.wait(20)
        loop.call_soon_threadsafe(seen.append, "the call before")
        loop.call_soon_threadsafe(loop.stop)

    thread = threading.Thread(target=stop)
    thread.start()
    loop.run_forever()
    thread.join()
    assert seen == ["the call before"] and not loop.is_closed()


def test_run_coroutine_threadsafe_brings_back_result_error_and_cancellation(running):
    async def answer():
        await asyncio.sleep(0.001)
        return "answer"

    async def fail():
        raise KeyError("wrong")

    assert asyncio.run_coroutine_threadsafe(answer(), running).result(5) == "answer"
    with pytest.raises(KeyError):
        asyncio.run_coroutine_threadsafe(fail(), running).result(5)
    cancelled, slept = threading.Event(), threading.Event()

    async def sleep():
        try:
            slept.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    future = asyncio.run_coroutine_threadsafe(sleep(), running)
    assert slept.wait(5) and future.cancel() and cancelled.wait(5)


def test_a_busy_thread_does_not_keep_wakes_from_the_loop(running):
    """A thread that never waits keeps the GIL for its switch interval. Calls still arrive, in order."""
    stop, seen, done = False, [], threading.Event()

    def burn():
        while not stop:
            sum(range(100))

    burner = threading.Thread(target=burn)
    burner.start()
    try:
        for number in range(20):
            running.call_soon_threadsafe(seen.append, number)
            time.sleep(0.001)
        running.call_soon_threadsafe(done.set)
        assert done.wait(10) and seen == list(range(20))
    finally:
        stop = True
        burner.join()


def test_two_loops_in_two_threads_talk_to_each_other(loop_factory):
    loops = [loop_factory(), loop_factory()]
    threads = [threading.Thread(target=loop.run_forever) for loop in loops]
    for thread in threads:
        thread.start()
    finished, rounds = threading.Event(), 2000

    def ping(number):
        if number == rounds:
            finished.set()
        else:
            loops[number % 2].call_soon_threadsafe(ping, number + 1)

    ping(0)
    assert finished.wait(20)
    for loop, thread in zip(loops, threads):
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


has_blocking_cancel = pytest.mark.skipif(sys.version_info < (3, 14), reason="the thread-safe handle is new in 3.14")


@has_blocking_cancel
@pytest.mark.parametrize("ask", ["cancel", "cancelled"])
def test_cancelling_from_another_thread_waits_until_the_callback_has_run(running, ask):
    started, may_end, seen, answers = threading.Event(), threading.Event(), [], []

    def callback():
        started.set()
        may_end.wait(10)
        seen.append("ran to its end")

    handle = running.call_soon_threadsafe(callback)
    assert isinstance(handle, asyncio.events._ThreadSafeHandle) and isinstance(handle, asyncio.Handle)
    assert started.wait(5)
    threads = [threading.Thread(target=lambda: answers.append((getattr(handle, ask)(), list(seen)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    assert answers == []
    may_end.set()
    for thread in threads:
        thread.join(5)
    assert answers == [(None if ask == "cancel" else False, ["ran to its end"])] * 3


@has_blocking_cancel
@pytest.mark.parametrize("debug", [False, True])
def test_a_callback_may_cancel_its_own_thread_safe_handle(loop, debug):
    loop.set_debug(debug)
    seen = []

    def callback():
        handle.cancel()
        seen.append(handle.cancelled())
        loop.stop()

    handle = loop.call_soon_threadsafe(callback)
    loop.run_forever()
    assert seen == [True] and "cancelled" in repr(handle)


@has_blocking_cancel
def test_a_thread_that_waits_to_cancel_goes_on_when_the_callback_fails(running, asyncio_log):
    started, may_end = threading.Event(), threading.Event()

    def callback():
        started.set()
        may_end.wait(10)
        raise ValueError("on purpose")

    handle = running.call_soon_threadsafe(callback)
    assert started.wait(5)
    thread = threading.Thread(target=handle.cancel)
    thread.start()
    time.sleep(0.02)
    may_end.set()
    thread.join(5)
    assert not thread.is_alive() and handle.cancelled()
    done = threading.Event()
    running.call_soon_threadsafe(done.set)
    assert done.wait(5) and "on purpose" in asyncio_log.text


@has_blocking_cancel
def test_after_a_cancel_the_callback_has_ended_or_never_begins(running):
    """Races a cancel against the run, thousands of times."""
    begun, ended = set(), set()

    def callback(number):
        begun.add(number)
        if number % 7 == 0:
            time.sleep(0)
        ended.add(number)

    after_cancel = []
    for number in range(3000):
        handle = running.call_soon_threadsafe(callback, number)
        if number % 3:
            time.sleep(0)
        handle.cancel()
        after_cancel.append((number in begun, number in ended))
    done = threading.Event()
    running.call_soon_threadsafe(done.set)
    assert done.wait(10)
    assert after_cancel == [(number in begun, number in begun) for number in range(3000)]


@pytest.mark.native
def test_a_call_to_a_loop_that_is_closed_meanwhile_is_refused(loop):
    """asyncio would keep the callback in the queue of the closed loop."""

    class Callback:
        def __call__(self):
            raise AssertionError("the loop is closed")

        @property
        def __class__(self):
            # Debug mode asks for the class, as another thread may run then.
            loop.close()
            return object

    loop.set_debug(True)
    callback = Callback()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon_threadsafe(callback)
    assert len(loop._ready) == 0
