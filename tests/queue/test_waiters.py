"""Tasks that wait for a wakeloop.Queue: the order in which they are served, and their cancellation."""

import asyncio

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")


def test_a_getter_that_is_cancelled_while_it_is_notified_passes_that_on(run):
    async def main():
        items = wakeloop.Queue()
        first, second = (asyncio.ensure_future(items.get()) for _ in range(2))
        await asyncio.sleep(0)
        items.put_nowait("item")
        first.cancel()
        assert await second == "item"
        assert first.cancelled() or (await asyncio.gather(first, return_exceptions=True)) and first.cancelled()

    run(main())


def test_a_putter_that_is_cancelled_while_it_is_notified_passes_that_on(run):
    async def main():
        items = wakeloop.Queue(1)
        items.put_nowait("first")
        cancelled, other = (asyncio.ensure_future(items.put(item)) for item in ("cancelled", "other"))
        await asyncio.sleep(0)
        assert items.get_nowait() == "first"
        cancelled.cancel()
        await other
        assert items.get_nowait() == "other" and items.empty()
        await asyncio.gather(cancelled, return_exceptions=True)

    run(main())


def test_cancelled_waits_take_and_put_nothing(run):
    async def main():
        items = wakeloop.Queue(1)
        for wait in (items.get, items.join):
            if wait == items.join:
                items.put_nowait("only")
            tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        tasks = [asyncio.ensure_future(items.put("more")) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert items.get_nowait() == "only" and items.empty()
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(items.get(), 0.001)
        items.put_nowait("kept")
        assert await items.get() == "kept"

    run(main())


def test_waiting_getters_are_served_in_order(run):
    async def main():
        items, served = wakeloop.Queue(), []

        async def get(name):
            served.append((name, await items.get()))

        tasks = [asyncio.ensure_future(get(name)) for name in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        for number in range(4):
            items.put_nowait(number)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [(0, 0), (1, 1), (3, 2), (4, 3)]

    run(main())


def test_a_getter_that_is_overtaken_keeps_its_place(run):
    async def main():
        items, served = wakeloop.Queue(), []

        async def get(name):
            served.append((name, await items.get()))

        tasks = [asyncio.ensure_future(get(name)) for name in ("first", "second")]
        await asyncio.sleep(0)
        items.put_nowait("taken")
        assert items.get_nowait() == "taken"
        await asyncio.sleep(0.001)
        items.put_nowait(1)
        items.put_nowait(2)
        await asyncio.gather(*tasks)
        assert served == [("first", 1), ("second", 2)]

    run(main())


def test_a_task_that_never_has_to_wait_still_lets_others_run(run):
    async def main():
        items, turns, done = wakeloop.Queue(), 0, False

        async def other():
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(10_000):
            await items.put(None)
            await items.get()
        done = True
        await task
        assert turns >= 5

    run(main())
