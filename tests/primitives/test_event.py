"""wakeloop.Event: tasks of any loop and threads wait until it is set."""

import asyncio
import random
import weakref

import pytest

from tests.support.queues import in_thread, until

wakeloop = pytest.importorskip("wakeloop", reason="the event is wakeloop's; the control group has none")


def test_an_event_wakes_all_who_wait_for_it(run):
    async def main():
        event, results = wakeloop.Event(), []
        assert not event.is_set() and repr(event) == "<wakeloop.Event unset>"
        tasks = [asyncio.ensure_future(event.wait()) for _ in range(3)]
        thread = in_thread(lambda: results.append(event.sync_wait()))
        await until(lambda: repr(event) == "<wakeloop.Event unset waiters:4>")
        tasks[0].cancel()
        in_thread(event.set).join()
        # Those who have waited are served, even if it is reset before they run.
        event.clear()
        assert await asyncio.gather(*tasks[1:]) == [True, True]
        await until(lambda: results == [True])
        thread.join()
        assert not event.is_set() and event.sync_wait(0.001) is False and event.sync_wait(-1) is False
        event.set()
        assert event.is_set() and await event.wait() is True and event.sync_wait() is True
        assert repr(event) == "<wakeloop.Event set>" and weakref.ref(event)() is event
        with pytest.raises(TypeError):
            wakeloop.Event(1)
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_an_event_is_set_from_another_loop(loop_factory):
    event, other = wakeloop.Event(), wakeloop.Event()

    async def set_later():
        await event.wait()
        other.set()

    def in_loop():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(set_later())

    async def main():
        thread = in_thread(in_loop)
        await asyncio.sleep(0.01)
        event.set()
        assert await other.wait() is True
        thread.join()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_random_sequences_do_what_they_do_with_asyncios_event(run):
    async def scenario(make, seed):
        chance, event, seen, waiting = random.Random(seed), make(), [], []

        async def wait(name):
            try:
                seen.append((name, await event.wait()))
            except asyncio.CancelledError:
                seen.append((name, "cancelled"))

        for number in range(60):
            step = chance.random()
            if step < 0.3:
                waiting.append(asyncio.ensure_future(wait(number)))
            elif step < 0.45:
                event.set()
            elif step < 0.6:
                event.clear()
            elif step < 0.7 and waiting:
                chance.choice(waiting).cancel()
            else:
                await asyncio.sleep(0)
            seen.append(event.is_set())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return seen

    for seed in range(100):
        assert run(scenario(wakeloop.Event, seed)) == run(scenario(asyncio.Event, seed)), f"seed {seed}"
