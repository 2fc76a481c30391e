"""wakeloop.tasks(): for how long each task has waited, and wakeloop.track_waits()."""

import asyncio
import gc
import sys
import time

import pytest

import wakeloop
from tests.support.sockets import socketpair
from tests.support.waits import info_of, waiting


@pytest.mark.native
def test_native_waits_know_when_they_began(run):
    async def main():
        with socketpair() as (ours, theirs):
            began = time.monotonic()
            reader, writer = await wakeloop.open_connection(sock=theirs)
            loop = asyncio.get_running_loop()
            async with waiting(loop.sock_recv(ours, 1)) as first, waiting(reader.read(1)) as second:
                waits = time.monotonic()
                await asyncio.sleep(0.1)
                least = time.monotonic() - waits
                for task in (first, second):
                    info = info_of(task)
                    # The time is that of a turn, in units of 4.2 ms.
                    assert info.exact and least - 0.005 <= info.seconds <= time.monotonic() - began + 0.005
            writer.close()

    run(main())


def test_a_wait_of_which_nothing_is_recorded_has_waited_at_least_since_it_was_seen(run):
    async def main():
        async with waiting(asyncio.Event().wait()) as task:
            # `waiting` has looked already.
            seen = info_of(task).seconds
            assert seen is not None and not info_of(task).exact
            await asyncio.sleep(0.05)
            again = info_of(task)
            assert seen + 0.05 <= again.seconds < 100 and not again.exact
            assert "waiting for at least " in str(again)

    run(main())


def test_the_first_look_at_a_wait_does_not_know_for_how_long(run):
    async def main():
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0.001)
        first = info_of(task)
        assert (first.state, first.seconds, first.exact) == ("waiting", None, False)
        task.cancel()

    run(main())


def test_another_wait_for_another_future_begins_again(run):
    async def main():
        queue = asyncio.Queue()

        async def consume():
            while True:
                await queue.get()

        async with waiting(consume()) as task:
            await asyncio.sleep(0.05)
            assert info_of(task).seconds >= 0.05
            since = time.monotonic()
            queue.put_nowait(1)
            await asyncio.sleep(0.01)
            info_of(task)
            info = info_of(task)
            assert info.state == "waiting" and info.seconds <= time.monotonic() - since

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("debug", [False, True])
def test_a_loop_that_tracks_waits_knows_how_long_each_has_waited(run, debug):
    async def main():
        wakeloop.track_waits()
        event = asyncio.Event()
        task = asyncio.create_task(event.wait())
        began = time.monotonic()
        while info_of(task).state != "waiting":
            await asyncio.sleep(0)
        waits = time.monotonic()
        await asyncio.sleep(0.05)
        least = time.monotonic() - waits
        info = info_of(task)
        assert info.exact and least <= info.seconds <= time.monotonic() - began
        event.set()
        await task
        assert asyncio.get_running_loop()._last_step(task) is None
        wakeloop.track_waits(False)
        other = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0.001)
        assert info_of(other).seconds is None
        other.cancel()

    run(main(), debug=debug)


@pytest.mark.native
def test_a_loop_that_tracks_waits_runs_callbacks_and_reports_errors_as_before(loop, asyncio_log):
    class Callback:
        seen = []

        def __getattr__(self, name):
            self.seen.append(name)
            raise AttributeError(name)

        def __call__(self):
            self.seen.append("called")

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("as before")

    async def interrupts():
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    wakeloop.track_waits(loop=loop)
    loop.call_soon(Callback())
    loop.call_later(0.001, Callback())
    loop.call_soon(int, "not a number")
    with pytest.raises(ValueError, match="as before"):
        loop.run_until_complete(fails())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert Callback.seen == ["called", "called"]
    assert ["int" in record.getMessage() for record in asyncio_log.records if record.levelname == "ERROR"] == [True]
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(interrupts())


@pytest.mark.native
def test_only_wakeloops_loops_track_waits():
    other = asyncio.SelectorEventLoop()
    with pytest.raises(TypeError, match="only wakeloop's loops"):
        wakeloop.track_waits(loop=other)
    other.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        wakeloop.track_waits()
    closed = wakeloop.new_event_loop()
    closed.close()
    wakeloop.track_waits(loop=closed)
    wakeloop.track_waits(False, loop=closed)


@pytest.mark.native
@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
def test_an_eager_task_has_not_the_steps_of_one_that_was_destroyed_at_its_address(run):
    async def never():
        await asyncio.get_running_loop().create_future()

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        wakeloop.track_waits()
        tasks = [loop.create_task(never()) for _ in range(100)]
        await asyncio.sleep(0.001)
        # They are destroyed, pending.
        tasks.clear()
        gc.collect()
        loop.set_task_factory(asyncio.eager_task_factory)
        tasks = [loop.create_task(never()) for _ in range(100)]
        assert [info.seconds for info in wakeloop.tasks() if info.task in tasks] == [None] * 100
        for task in tasks:
            task.cancel()

    run(main())
