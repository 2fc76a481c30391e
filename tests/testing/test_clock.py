"""The clock of a testing loop: jumps, advances, and waits for what is real."""

import asyncio
import concurrent.futures
import math
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

import wakeloop
from wakeloop import testing

pytestmark = pytest.mark.native

HOUR = 3600.0


def test_a_week_of_cron_like_work_takes_no_time():
    runs = []

    async def main():
        loop = asyncio.get_running_loop()

        async def every(seconds, name):
            while loop.time() < 7 * 24 * HOUR:
                await asyncio.sleep(seconds)
                runs.append((loop.time(), name))

        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(every(HOUR, "hourly"))
            jobs.create_task(every(24 * HOUR, "daily"))

    before = time.monotonic()
    testing.run(main)
    assert time.monotonic() - before < 60
    assert len(runs) == 7 * 24 + 7 and runs[0] == (HOUR, "hourly") and runs[-1][0] == 7 * 24 * HOUR
    assert [moment for moment, _ in runs] == sorted(moment for moment, _ in runs)


def test_timers_and_timeouts_follow_the_clock():
    async def main():
        loop, fired = asyncio.get_running_loop(), []
        assert loop.time() == 0.0
        loop.call_later(90, fired.append, "later")
        loop.call_at(30, fired.append, "at")
        loop.call_later(60, fired.append, "cancelled").cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.Event().wait()
        assert loop.time() == 100 and fired == ["at", "later"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(1000), 5)
        assert loop.time() == 105
        done, pending = await asyncio.wait([asyncio.create_task(asyncio.sleep(delay)) for delay in (1, 10)], timeout=5)
        assert (len(done), len(pending), loop.time()) == (1, 1, 110)
        await pending.pop()

    testing.run(main)


def test_wakeloops_own_sleep_follows_the_clock(runtime):
    async def main():
        loop = asyncio.get_running_loop()
        assert await wakeloop.sleep(HOUR, "slept") == "slept"
        assert await wakeloop.sleep(0) is None and await wakeloop.sleep(-1) is None
        assert loop.time() == HOUR
        with pytest.raises(ValueError, match="NaN"):
            await wakeloop.sleep(math.nan)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wakeloop.sleep(math.inf), 5)
        assert loop.time() == HOUR + 5

    testing.run(main)
    before = time.monotonic()
    wakeloop.run(wakeloop.sleep(0.01))
    assert time.monotonic() - before >= 0.01


def test_a_program_that_never_rests_gets_to_its_deadline():
    async def main():
        loop, turns = asyncio.get_running_loop(), 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                while True:
                    turns += 1
                    await asyncio.sleep(0)
        assert 0.01 <= loop.time() < 0.0101 and turns > 10_000
        return turns

    assert testing.run(main, seed=1) == testing.run(main, seed=1)


def test_a_busy_program_with_overdue_timers_does_not_turn_the_clock_back():
    seen = []

    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.sleep(HOUR)
        done = loop.create_future()

        def again():
            seen.append(loop.time())
            if len(seen) < 11_000:
                loop.call_at(0, again)
            else:
                done.set_result(None)

        loop.call_at(0, again)
        await done

    testing.run(main)
    assert seen[0] == HOUR and seen == sorted(seen)


def test_a_busy_program_leaves_a_frozen_clock_where_it_is():
    async def main():
        for _ in range(11_000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert testing.run(main, clock="frozen") == 0


def test_a_frozen_clock_moves_only_by_advance():
    async def main():
        loop, fired = asyncio.get_running_loop(), []
        for delay in (3, 1, 2, 10):
            loop.call_later(delay, fired.append, delay)
        for _ in range(5):
            await asyncio.sleep(0)
        assert loop.time() == 0 and fired == []
        loop.clock.advance(2.5)
        assert loop.time() == 2.5 and fired == []
        await asyncio.sleep(0)
        assert fired == [1, 2]
        loop.clock.advance(0.5)
        await asyncio.sleep(0)
        assert fired == [1, 2, 3]
        loop.clock.resume()
        await asyncio.sleep(20)
        assert fired == [1, 2, 3, 10] and loop.time() == 23

    testing.run(main, clock="frozen")


def test_a_clock_can_be_frozen_and_advanced_while_the_loop_runs():
    async def main():
        clock = asyncio.get_running_loop().clock
        await asyncio.sleep(5)
        clock.freeze()
        assert clock.mode == "frozen"
        sleeper = asyncio.create_task(asyncio.sleep(7))
        await asyncio.sleep(0)
        clock.advance(7)
        await sleeper
        clock.resume()
        assert (clock.mode, clock.time()) == ("auto", 12)
        await asyncio.sleep(1)

    testing.run(main)


def test_a_clock_can_be_advanced_between_two_runs():
    loop = testing.EventLoop()
    fired = []
    loop.call_later(5, fired.append, "due")
    loop.clock.advance(4)
    loop.run_until_complete(asyncio.sleep(0))
    assert fired == []
    loop.clock.advance(1)
    loop.run_until_complete(asyncio.sleep(0))
    assert fired == ["due"] and loop.time() == 5
    loop.close()


@pytest.mark.parametrize("clock", ["auto", "real"])
def test_a_clock_that_moves_by_itself_is_not_advanced_while_its_loop_runs(clock):
    async def main():
        with pytest.raises(RuntimeError, match="moves by itself.*freeze"):
            asyncio.get_running_loop().clock.advance(1)

    testing.run(main, clock=clock)


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, -math.inf])
def test_an_impossible_advance_is_refused(seconds):
    with pytest.raises(ValueError, match="cannot be advanced by"):
        testing.Clock("frozen").advance(seconds)


def test_impossible_settings_of_a_clock_are_refused():
    for rate in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="rate"):
            testing.Clock(rate=rate)
    with pytest.raises(TypeError, match="number of seconds"):
        testing.Clock("frozen").advance("an hour")
    for options, what in (
        ({"clock": "sundial"}, "sundial"),
        ({"while_waiting": "hurry"}, "hurry"),
        ({"executor": "elsewhere"}, "elsewhere"),
        ({"max_steps": 0}, "max_steps is a positive number, not 0"),
        ({"slow_callback": 0}, "slow_callback"),
        ({"seed": -1}, "negative"),
        ({"executor_delay": -1, "executor": "inline"}, "delay"),
        ({"executor_delay": (2, 1), "executor": "inline"}, "lower bound first"),
        ({"executor_delay": 1}, "inline"),
    ):
        with pytest.raises(ValueError, match=what):
            testing.EventLoop(**options)
    with pytest.raises(TypeError, match="not both"):
        testing.EventLoop(seed=1, schedule=testing.Fifo())
    with pytest.raises(TypeError, match="int"):
        testing.EventLoop(seed="one")
    for delay in ((), (1,), (1, 2, 3)):
        with pytest.raises(TypeError, match="two bounds"):
            testing.EventLoop(executor="inline", executor_delay=delay)


def test_a_real_clock_flows_at_its_rate():
    async def main():
        loop = asyncio.get_running_loop()
        loop.clock.rate = 1000
        before, real = loop.time(), time.monotonic()
        await asyncio.sleep(20)
        assert loop.time() - before >= 20 and 0.02 <= time.monotonic() - real < 10
        loop.clock.rate = 0.5
        real = time.monotonic()
        await asyncio.sleep(0.01)
        assert time.monotonic() - real >= 0.0199

    testing.run(main, clock="real")


# -- what is real ----------------------------------------------------------------------------------------------


async def tick(seen):
    while True:
        await asyncio.sleep(60)
        seen.append(asyncio.get_running_loop().time())


def test_a_child_process_is_waited_for_in_real_time():
    async def main():
        seen = []
        ticking = asyncio.create_task(tick(seen))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import sys; print(sys.stdin.read())", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        said, _ = await asyncio.wait_for(process.communicate(b"spoken"), 60)
        assert (said, process.returncode, seen) == (b"spoken\n", 0, [])
        ticking.cancel()

    testing.run(main)


def test_a_job_of_a_thread_is_waited_for_in_real_time(runtime):
    async def main():
        seen, go = [], threading.Event()
        ticking = asyncio.create_task(tick(seen))
        asyncio.get_running_loop().call_later(0.02, go.set)
        assert await asyncio.wait_for(asyncio.to_thread(go.wait), 60)
        assert await asyncio.wait_for(wakeloop.spawn_blocking(os.getpid), 60) == os.getpid()
        assert seen == [] and asyncio.get_running_loop().time() >= 0.02
        ticking.cancel()

    testing.run(main)


def tell(loop, go, told):
    go.wait()
    loop.call_soon_threadsafe(told.set_result, "told")


def test_a_thread_of_the_program_is_waited_for_in_real_time():
    async def main():
        loop = asyncio.get_running_loop()
        seen, go, told = [], threading.Event(), loop.create_future()
        ticking = asyncio.create_task(tick(seen))

        thread = threading.Thread(target=tell, args=[loop, go, told])
        thread.start()
        loop.call_later(0.02, go.set)
        assert await asyncio.wait_for(told, 60) == "told" and seen == []
        thread.join()
        await asyncio.sleep(60.5)
        assert seen == [60]
        ticking.cancel()

    testing.run(main)


def test_a_job_that_a_program_submits_to_an_executor_itself_is_waited_for_in_real_time():
    async def main():
        loop = asyncio.get_running_loop()
        seen, go, told = [], threading.Event(), loop.create_future()
        ticking = asyncio.create_task(tick(seen))

        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            jobs = [executor.submit(int), executor.submit(tell, loop, go, told)]
            loop.call_later(0.02, go.set)
            assert await asyncio.wait_for(told, 60) == "told" and seen == []
            # A job that says nothing when it ends.
            await asyncio.wait_for(asyncio.wrap_future(jobs[1]), 60)
            go.clear()
            silent = executor.submit(go.wait)
            loop.call_later(0.02, go.set)
            await asyncio.sleep(61 - loop.time())
            assert silent.done() and seen == [60]
        ticking.cancel()

    testing.run(main)


def test_an_executor_that_was_busy_before_the_run_is_not_waited_for():
    go = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(go.wait)
        try:
            testing.run(lambda: asyncio.sleep(HOUR))
        finally:
            go.set()


def test_a_thread_that_ends_without_a_word_lets_the_clock_jump():
    async def main():
        loop, go = asyncio.get_running_loop(), threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        loop.call_later(0.02, go.set)
        await asyncio.sleep(10 * HOUR)
        thread.join()

    testing.run(main)


@pytest.mark.parametrize("server", ["asyncio", "wakeloop"])
def test_a_real_connection_works_and_the_clock_does_not_jump_meanwhile(server):
    streams = asyncio if server == "asyncio" else wakeloop

    async def main():
        seen = []
        ticking = asyncio.create_task(tick(seen))

        async def echo(reader, writer):
            writer.write(await reader.readexactly(5))
            await asyncio.sleep(0.01)
            writer.close()

        listening = await streams.start_server(echo, "127.0.0.1", 0)
        reader, writer = await streams.open_connection(*listening.sockets[0].getsockname()[:2])
        writer.write(b"hello")
        assert await asyncio.wait_for(reader.read(), 60) == b"hello"
        writer.close()
        await writer.wait_closed()
        listening.close()
        await listening.wait_closed()
        assert seen == []
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(3 * HOUR)
        assert len(seen) >= 3 * 60 - 1 and asyncio.get_running_loop().time() == before + 3 * HOUR
        ticking.cancel()

    testing.run(main)


def test_operations_of_the_runtime_are_waited_for_in_real_time(runtime):
    async def main():
        seen = []
        ticking = asyncio.create_task(tick(seen))
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        near = await wakeloop.TcpStream.connect(listener.host, listener.port)
        far = await listener.accept()
        reading = asyncio.create_task(far.read(5))
        await asyncio.sleep(0.01)
        await near.write_all(b"there")
        assert await asyncio.wait_for(reading, 60) == b"there" and seen == []
        for each in (near, far, listener):
            each.close()
        ticking.cancel()

    testing.run(main, check=False)


def test_real_descriptors_do_not_hold_the_clock_if_it_is_told_so():
    async def main():
        loop = asyncio.get_running_loop()
        read, write = os.pipe()
        got = []
        loop.add_reader(read, lambda: got.append(os.read(read, 10)))
        await asyncio.sleep(HOUR)
        os.write(write, b"x")
        await asyncio.sleep(HOUR)
        assert got == [b"x"] and loop.time() == 2 * HOUR
        loop.remove_reader(read)
        os.close(read)
        os.close(write)

    before = time.monotonic()
    testing.run(main, while_waiting="jump")
    assert time.monotonic() - before < 60


def test_a_clock_that_waits_for_long_says_for_what(monkeypatch):
    monkeypatch.setattr("wakeloop.testing._loop.PATIENCE", 0.02)

    async def main():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            server = await asyncio.start_server(print, sock=listener)
            await asyncio.sleep(0.01)
            await asyncio.sleep(0.06)
            server.close()

    with pytest.warns(testing.SimulationWarning, match="waits in real time for 1 descriptor; the next timer is due in 0"):
        testing.run(main)


def test_a_reader_in_real_time_wakes_a_loop_with_a_frozen_clock():
    async def main():
        loop = asyncio.get_running_loop()
        got = loop.create_future()
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=[got.set_result, "told"])
        loop.call_later(HOUR, got.set_result, "by the timer")
        thread.start()
        assert await got == "told" and loop.time() == 0
        thread.join()

    testing.run(main, clock="frozen", check=False)
