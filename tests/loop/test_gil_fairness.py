"""How often a busy loop lets other Python threads take the GIL. The loop counts its releases of it.

Releasing the GIL for an instant now and then is not enough for a thread that returns from a wait: each release restarts
the switch interval, after which the interpreter would take the GIL from the loop.
"""

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import wakeloop
from tests.support.builds import needs_gil

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("runtime"), needs_gil]

#: Releases in a twentieth of a second: at least so many if a thread seems to want the GIL, at most so many if none does.
OFTEN, RARELY = 20, 12
ROUNDS = 11


@contextlib.contextmanager
def spinning(loop):
    """Keeps the loop busy with callbacks."""
    going = True

    def spin():
        if going:
            loop.call_soon(spin)

    spin()
    yield
    going = False


async def gil_releases():
    """Returns how often, in a twentieth of a second, the loop released the GIL."""
    loop = asyncio.get_running_loop()
    before, started = loop.metrics().blocking_polls, loop.time()
    await asyncio.sleep(0.05)
    return (loop.metrics().blocking_polls - before) * 0.05 / (loop.time() - started)


async def usual_gil_releases():
    """The median of several such numbers. The loop notices within the first few that a thread has come or gone."""
    await asyncio.sleep(0.2)
    return statistics.median([await gil_releases() for _ in range(ROUNDS)])


@contextlib.asynccontextmanager
async def thread(work):
    """Starts a thread that repeats the work. In the end it may still need the loop."""
    over = False

    def repeat():
        while not over:
            work()

    other = threading.Thread(target=repeat)
    other.start()
    try:
        yield
    finally:
        over = True
        await asyncio.to_thread(other.join)


def compute_a_little():
    for _ in range(5000):
        pass
    time.sleep(0.0002)


def compute():
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        pass


@pytest.mark.measured
def test_an_executor_jobs_thread_gets_the_gil_while_the_loop_is_busy(run):
    async def main():
        loop = asyncio.get_running_loop()
        # asyncio's own code takes the first job of a loop.
        await asyncio.to_thread(int)
        with spinning(loop):
            release = threading.Event()
            job = loop.run_in_executor(None, release.wait)
            # A thread that keeps the GIL makes the loop release it less often, but not permanently.
            await loop.run_in_executor(None, compute)
            assert await usual_gil_releases() >= OFTEN
            release.set()
            await job
            # Its thread is still there, and waits for another job.
            assert await usual_gil_releases() <= RARELY

    run(main())


@pytest.mark.measured
def test_a_spawn_blocking_thread_gets_the_gil_while_the_loop_is_busy(run):
    async def main():
        with spinning(asyncio.get_running_loop()):
            release = threading.Event()
            job = asyncio.ensure_future(asyncio.wait_for(wakeloop.spawn_blocking(release.wait), 60))
            assert await usual_gil_releases() >= OFTEN
            release.set()
            await job
            assert await usual_gil_releases() <= RARELY

    run(main())


@pytest.mark.measured
def test_a_thread_that_uses_call_soon_threadsafe_gets_the_gil_while_the_loop_is_busy(run):
    async def main():
        loop = asyncio.get_running_loop()

        def call():
            loop.call_soon_threadsafe(int)
            time.sleep(0.01)

        with spinning(loop):
            async with thread(call):
                assert await usual_gil_releases() >= OFTEN
            assert await usual_gil_releases() <= RARELY

    run(main())


@pytest.mark.measured
def test_a_thread_that_uses_run_coroutine_threadsafe_gets_the_gil_while_the_loop_is_busy(run):
    async def main():
        loop = asyncio.get_running_loop()

        async def nothing():
            pass

        with spinning(loop):
            async with thread(lambda: asyncio.run_coroutine_threadsafe(nothing(), loop).result(60)):
                assert await usual_gil_releases() >= OFTEN

    run(main())


@pytest.mark.measured
def test_a_thread_that_never_calls_the_loop_gets_the_gil_while_the_loop_is_busy(run):
    async def main():
        with spinning(asyncio.get_running_loop()):
            async with thread(compute_a_little):
                assert await usual_gil_releases() >= OFTEN

    run(main())


@pytest.mark.measured
def test_a_thread_gets_about_as_many_turns_as_beside_asyncios_loop():
    async def main():
        turns = 0

        def work():
            nonlocal turns
            compute_a_little()
            turns += 1

        with spinning(asyncio.get_running_loop()):
            async with thread(work):
                await asyncio.sleep(0.3)
                return turns

    def turns_beside(new_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(main())

    def ratio():
        return turns_beside(wakeloop.new_event_loop) / turns_beside(asyncio.new_event_loop)

    ratios = [ratio() for _ in range(ROUNDS)]
    assert statistics.median(ratios) > 1 / 3, ratios


def test_messages_of_other_threads_do_not_delay_the_events_of_a_busy_loop(run):
    async def main():
        loop = asyncio.get_running_loop()
        turns, jobs, release = 0, [], threading.Event()
        event = loop.create_future()

        def busy():
            nonlocal turns
            if not event.done():
                turns += 1
                # The job's thread sends its result before the next poll.
                jobs.append(asyncio.ensure_future(wakeloop.spawn_blocking(int)))
                time.sleep(0.002)
                loop.call_soon(busy)

        # While it is awaited, every poll releases the GIL.
        waiting = asyncio.ensure_future(wakeloop.spawn_blocking(release.wait))
        reading, writing = socket.socketpair()
        with reading, writing, spinning(loop):
            busy()
            await asyncio.sleep(0.1)
            reading.setblocking(False)
            loop.add_reader(reading, lambda: event.done() or event.set_result(None))
            turns = 0
            writing.send(b"x")
            await event
            loop.remove_reader(reading)
        assert turns < 10
        assert await asyncio.gather(*jobs) == [0] * len(jobs)
        release.set()
        await waiting

    run(main())


def test_the_first_executor_job_of_a_loop_gets_the_gil_while_the_loop_is_busy(run):
    """asyncio's own run_in_executor takes the first job."""

    async def main():
        with spinning(asyncio.get_running_loop()):
            release = threading.Event()
            job = asyncio.get_running_loop().run_in_executor(None, release.wait)
            assert await gil_releases() > 0
            release.set()
            await job

    run(main())


@pytest.mark.measured
def test_call_soon_threadsafe_from_the_loops_own_thread_does_not_release_the_gil(run):
    async def main():
        loop = asyncio.get_running_loop()
        with spinning(loop):
            async with thread(lambda: time.sleep(0.05)):
                going = True

                def again():
                    if going:
                        loop.call_soon_threadsafe(again)

                again()
                assert await usual_gil_releases() <= RARELY
                going = False

    run(main())


def test_without_other_threads_the_loop_keeps_the_gil():
    code = """
        import asyncio
        import wakeloop
        from tests.loop.test_gil_fairness import gil_releases, spinning

        async def main():
            with spinning(asyncio.get_running_loop()):
                assert await gil_releases() == 0

        wakeloop.run(main())
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
