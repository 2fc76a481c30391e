"""The memory of a wakeloop.Queue: the garbage collector sees its items and its waits, and nothing leaks."""

import asyncio
import gc
import queue
import sys
import weakref

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")


class Value:
    """An item that can be referred to weakly."""


def test_the_collector_sees_the_items():
    items = wakeloop.Queue()
    value = Value()
    value.queue, value.side, gone = items, items.sync_q, weakref.ref(value)
    items.put_nowait(value)
    del value, items
    gc.collect()
    assert gone() is None


def test_the_collector_takes_a_task_that_waits_for_a_queue_that_nobody_has(loop):
    messages = []
    loop.set_exception_handler(lambda _, context: messages.append(context["message"]))

    async def wait():
        items = wakeloop.Queue()
        await items.get()

    tasks = [weakref.ref(loop.create_task(wait())) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    gc.collect()
    assert [task() for task in tasks] == [None] * 3
    assert messages == ["Task was destroyed but it is pending!"] * 3


def test_waits_leak_nothing(run):
    async def main():
        items, event = wakeloop.Queue(1), wakeloop.Event()
        value = Value()

        async def once():
            get = asyncio.ensure_future(items.get())
            await asyncio.sleep(0)
            items.put_nowait(value)
            await get
            await items.put(value)
            put = asyncio.ensure_future(items.put(value))
            await asyncio.sleep(0)
            put.cancel()
            await asyncio.gather(put, return_exceptions=True)
            items.get_nowait()
            with pytest.raises(queue.Empty):
                items.sync_q.get(timeout=0.00001)
            wait = asyncio.ensure_future(event.wait())
            await asyncio.sleep(0)
            event.set()
            await wait
            event.clear()
            items.get(), items.put(value), event.wait()

        async def many():
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those at the end of `once` are never awaited
                for _ in range(300):
                    await once()
            gc.collect()
            return sys.getrefcount(value), len(gc.get_objects())

        await many()
        references, objects = await many()
        again, more = await many()
        assert references == again and more - objects < 50

    run(main())
