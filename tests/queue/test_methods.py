"""wakeloop.Queue: the methods that it shares with asyncio.Queue and queue.Queue, their errors, and shutdown."""

import asyncio
import queue
import weakref

import pytest

from tests.support.queues import SHUTS_DOWN, in_thread, until

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")


def test_items_come_in_the_order_in_which_they_were_put(run):
    async def main():
        items = wakeloop.Queue()
        for number in range(10):
            await items.put(number)
        items.put_nowait(10)
        assert items.qsize() == 11 and not items.empty() and not items.full()
        assert [await items.get() for _ in range(5)] + [items.get_nowait() for _ in range(6)] == list(range(11))
        assert items.empty()

    run(main())


def test_errors_are_those_of_asyncio_and_of_the_queue_module(run):
    async def main():
        items = wakeloop.Queue(maxsize=1)
        assert items.maxsize == items.sync_q.maxsize == 1
        for get_nowait, error in [
            (items.get_nowait, asyncio.QueueEmpty),
            (items.sync_q.get_nowait, queue.Empty),
            (lambda: items.sync_q.get(block=False), queue.Empty),
            (lambda: items.sync_q.get(timeout=0), queue.Empty),
        ]:
            with pytest.raises(error) as raised:
                get_nowait()
            assert type(raised.value) is error and str(raised.value) == ""
        items.put_nowait("only")
        assert items.full()
        for put_nowait, error in [
            (items.put_nowait, asyncio.QueueFull),
            (items.sync_q.put_nowait, queue.Full),
            (lambda item: items.sync_q.put(item, False), queue.Full),
            (lambda item: items.sync_q.put(item, timeout=0.001), queue.Full),
        ]:
            with pytest.raises(error) as raised:
                put_nowait("more")
            assert type(raised.value) is error and str(raised.value) == ""
        with pytest.raises(ValueError, match="called too many times"):
            for _ in range(2):
                items.task_done()
        for method in (items.sync_q.get, lambda timeout: items.sync_q.put(1, timeout=timeout)):
            with pytest.raises(ValueError, match="'timeout' must be a non-negative number"):
                method(timeout=-1)
            with pytest.raises(TypeError):
                method(timeout="soon")
        with pytest.raises(TypeError):
            wakeloop.Queue("large")
        with pytest.raises(TypeError):
            wakeloop.SyncQueue()

    run(main())


def test_a_maxsize_of_zero_or_less_means_any_number_of_items():
    for maxsize in (0, -1, -(10**30)):
        items = wakeloop.Queue(maxsize)
        for _ in range(100):
            items.put_nowait(None)
        assert not items.full()


def test_join_waits_until_all_items_are_done_with(run):
    async def main():
        items = wakeloop.Queue()
        await items.join()
        for number in range(3):
            items.put_nowait(number)
        joined = [asyncio.ensure_future(items.join()) for _ in range(3)]
        thread = in_thread(items.sync_q.join)
        for _ in range(3):
            await asyncio.sleep(0)
            assert not any(task.done() for task in joined) and thread.is_alive()
            items.get_nowait()
            items.task_done()
        await asyncio.gather(*joined)
        await until(lambda: not thread.is_alive())

    run(main())


def test_the_queue_shows_what_it_is():
    items = wakeloop.Queue[int](3)
    items.put_nowait(1)
    assert repr(items) == "<wakeloop.Queue maxsize=3 qsize=1 tasks=1>"
    items.shutdown()
    assert repr(items) == "<wakeloop.Queue maxsize=3 qsize=1 tasks=1 shutdown>"
    assert repr(items.sync_q) == f"<wakeloop.SyncQueue of {items!r}>"
    assert weakref.ref(items)() is items


def test_calls_are_coroutines_that_can_be_awaited_once(run):
    async def main():
        items = wakeloop.Queue()
        call = items.get()
        assert asyncio.iscoroutine(call) and call.__qualname__ == "Queue.get"
        items.put_nowait(1)
        assert await call == 1
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        call = items.put(2)
        call.close()
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        assert items.empty()

    run(main())


def test_a_wait_outside_of_a_loop_is_an_error():
    call = wakeloop.Queue().get()
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)


# -- shutdown --------------------------------------------------------------------------------------------------------


def test_a_queue_that_is_shut_down_gives_its_items_and_takes_none(run):
    async def main():
        items = wakeloop.Queue()
        items.put_nowait("last")
        items.shutdown()
        for put in (items.put_nowait, items.sync_q.put, items.sync_q.put_nowait):
            with pytest.raises(wakeloop.QueueShutDown):
                put("more")
        with pytest.raises(wakeloop.QueueShutDown):
            await items.put("more")
        assert await items.get() == "last"
        for get in (items.get_nowait, items.sync_q.get, items.sync_q.get_nowait):
            with pytest.raises(wakeloop.QueueShutDown):
                get()
        with pytest.raises(wakeloop.QueueShutDown):
            await items.get()
        items.shutdown()

    run(main())


@pytest.mark.skipif(not SHUTS_DOWN, reason="asyncio's queues have no shutdown() before Python 3.13")
def test_the_exception_is_that_of_both_modules():
    assert issubclass(wakeloop.QueueShutDown, (asyncio.QueueShutDown,))
    assert issubclass(wakeloop.QueueShutDown, (queue.ShutDown,))


@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_wakes_all_who_wait(run, immediate):
    async def main():
        empty, full = wakeloop.Queue(), wakeloop.Queue(1)
        full.put_nowait("first")
        results = []

        def block(method, *args):
            try:
                method(*args)
            except wakeloop.QueueShutDown:
                results.append("shut down")

        threads = [in_thread(block, empty.sync_q.get), in_thread(block, full.sync_q.put, "more")]
        tasks = [asyncio.ensure_future(call) for call in (empty.get(), empty.get(), full.put("more"), full.put("more"))]
        join = asyncio.ensure_future(full.join())
        await asyncio.sleep(0.01)
        empty.shutdown()
        full.sync_q.shutdown(immediate=immediate)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, wakeloop.QueueShutDown)
        await until(lambda: not any(thread.is_alive() for thread in threads))
        assert results == ["shut down"] * 2
        assert full.qsize() == (0 if immediate else 1)
        if not immediate:
            assert full.get_nowait() == "first"
            full.task_done()
        await join

    run(main())
