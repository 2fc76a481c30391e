"""`wakeloop.Queue` and `wakeloop.Event` on a testing loop: when a wait for them lets the clock jump."""

import asyncio
import queue
import threading
import time

import pytest

import wakeloop
from wakeloop import testing

pytestmark = pytest.mark.native

HOUR = 3600.0


async def _get(kind):
    await kind.Queue().get()


async def _put(kind):
    items = kind.Queue(1)
    await items.put(1)
    await items.put(2)


async def _join(kind):
    items = kind.Queue()
    await items.put(1)
    await items.join()


async def _wait(kind):
    await kind.Event().wait()


WAITS = pytest.mark.parametrize("wait", [_get, _put, _join, _wait], ids=["get", "put", "join", "event"])
KINDS = pytest.mark.parametrize("kind", [asyncio, wakeloop])


@WAITS
@KINDS
@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"while_waiting": "jump"}], ids=str)
def test_a_timeout_of_a_wait_follows_the_clock(kind, wait, options):
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR):
                await wait(kind)
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert testing.run(main, **options) == HOUR
    assert time.monotonic() - before < 60


@WAITS
@KINDS
def test_a_wait_that_nobody_can_end_is_a_deadlock(kind, wait):
    with pytest.raises(testing.Deadlock):
        testing.run(lambda: wait(kind))


def test_a_coroutine_of_a_queue_can_be_the_program():
    items = wakeloop.Queue()
    items.put_nowait(1)
    assert testing.run(items.get()) == 1
    with pytest.raises(testing.Deadlock):
        testing.run(items.get)


@KINDS
def test_a_consumer_that_waits_does_not_delay_the_producer(kind):
    async def main():
        loop, items, taken = asyncio.get_running_loop(), kind.Queue(), []

        async def consume():
            while True:
                taken.append((await items.get(), loop.time()))

        consumer = asyncio.create_task(consume())
        for number in range(3):
            await asyncio.sleep(HOUR)
            await items.put(number)
        await asyncio.sleep(1)
        consumer.cancel()
        await asyncio.wait([consumer])
        return taken

    assert testing.run(main) == [(0, HOUR), (1, 2 * HOUR), (2, 3 * HOUR)]


class Earlier:
    """A thread that is there before the loop runs. It calls a function when it is told to."""

    def __init__(self, function):
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(function,))

    def _run(self, function):
        self._told.wait()
        function()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.tell()
        self._thread.join()

    def tell(self):
        self._told.set()


def test_the_clock_waits_for_an_earlier_thread_that_may_have_the_queue():
    items, event = wakeloop.Queue(), wakeloop.Event()

    def serve():
        time.sleep(0.05)
        items.sync_q.put("item")
        time.sleep(0.05)
        event.set()

    async def main():
        async with asyncio.timeout(HOUR):
            earlier.tell()
            return await items.get(), await event.wait(), asyncio.get_running_loop().time() < 60

    with Earlier(serve) as earlier:
        assert testing.run(main) == ("item", True, True)
    with Earlier(lambda: None), pytest.raises(TimeoutError):
        # It jumps all the same if that is asked for.
        testing.run(lambda: asyncio.wait_for(items.get(), HOUR), while_waiting="jump")


def test_an_earlier_thread_that_cannot_have_the_queue_does_not_stop_the_clock():
    with Earlier(lambda: None):
        for wait in (_get, _put, _join, _wait):
            with pytest.raises(testing.Deadlock):
                testing.run(lambda wait=wait: wait(wakeloop))

        async def main():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_get(wakeloop), HOUR)
            return asyncio.get_running_loop().time()

        assert testing.run(main) == HOUR


def test_a_queue_from_before_the_run_does_not_stop_the_clock_without_other_threads():
    items = wakeloop.Queue()
    with pytest.raises(testing.Deadlock):
        testing.run(items.get)


def test_the_clock_waits_for_an_earlier_thread_that_waits_for_the_same_queue():
    handed = queue.Queue()

    def serve():
        items = handed.get()
        with pytest.raises(queue.Full):
            items.sync_q.put(2, timeout=0.05)
        items.task_done()

    async def main():
        items = wakeloop.Queue(1)
        items.put_nowait(1)
        joined = items.join()
        handed.put(items)
        while not joined._is_shared(0):
            time.sleep(0)
        async with asyncio.timeout(HOUR):
            await joined
        return asyncio.get_running_loop().time()

    with Earlier(serve) as earlier:
        earlier.tell()
        assert testing.run(main) < 60


def test_the_clock_waits_for_threads_and_jobs_of_the_program(runtime):
    async def main():
        loop, items = asyncio.get_running_loop(), wakeloop.Queue()

        def put(item):
            threading.Event().wait(0.05)
            items.sync_q.put(item)

        async with asyncio.timeout(HOUR):
            threading.Thread(target=put, args=("thread",)).start()
            assert await items.get() == "thread"
            job = asyncio.ensure_future(asyncio.to_thread(put, "job"))
            assert await items.get() == "job"
            await job
            job = asyncio.ensure_future(wakeloop.spawn_blocking(put, "operation"))
            assert await items.get() == "operation"
            await job
        return loop.time()

    assert testing.run(main) < 60


def test_the_clock_waits_for_an_earlier_loop_that_uses_the_queue():
    requests, answers = wakeloop.Queue(), wakeloop.Queue()

    async def serve():
        while await requests.get():
            await asyncio.sleep(0.05)
            await answers.put("answer")

    async def main():
        async with asyncio.timeout(HOUR):
            await requests.put(True)
            return await answers.get(), asyncio.get_running_loop().time() < 60

    with Earlier(lambda: asyncio.run(serve())) as earlier:
        earlier.tell()
        try:
            # The loop is there before the run.
            requests.put_nowait(True)
            assert answers.sync_q.get() == "answer"
            # The other loop may open descriptors meanwhile.
            assert testing.run(main, check=False) == ("answer", True)
        finally:
            requests.put_nowait(False)
