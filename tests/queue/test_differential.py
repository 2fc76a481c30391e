"""wakeloop.Queue against asyncio.Queue: random sequences of operations have the same results."""

import asyncio
import os
import random

import pytest

from tests.support.queues import SHUTS_DOWN

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")


class Reference(asyncio.Queue):
    """asyncio's queue, with the one difference: a waiter that was overtaken goes back to its place, not to the end."""

    def _init(self, maxsize):
        super()._init(maxsize)
        self._places = {}

    async def _wait(self, waiters, place):
        waiter = asyncio.get_running_loop().create_future()
        place = place or len(self._places) + 1
        self._places[waiter] = place
        waiters.insert(sum(self._places[other] < place for other in waiters), waiter)
        try:
            await waiter
        except BaseException:
            waiter.cancel()
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiter.cancelled() and not (self.full() if waiters is self._putters else self.empty()):
                self._wakeup_next(waiters)
            raise
        return place

    async def put(self, item):
        place = None
        while self.full():
            if getattr(self, "_is_shutdown", False):
                raise asyncio.QueueShutDown
            place = await self._wait(self._putters, place)
        self.put_nowait(item)

    async def get(self):
        place = None
        while self.empty():
            if getattr(self, "_is_shutdown", False):
                raise asyncio.QueueShutDown
            place = await self._wait(self._getters, place)
        return self.get_nowait()


class Scenario:
    """Applies random operations to a queue, and writes down what can be seen from outside."""

    def __init__(self, make, seed):
        self.random = random.Random(seed)
        self.items = make(self.random.choice([0, 0, 1, 2, 5]))
        self.number = 0
        self.seen = []
        self.waiting = []

    async def call(self, method, *args):
        name = method.__name__
        try:
            self.seen.append((name, await method(*args)))
        except asyncio.CancelledError:
            self.seen.append((name, "cancelled"))
        except Exception as error:
            self.seen.append((name, kind(error)))

    def call_nowait(self, method, *args):
        try:
            self.seen.append((method.__name__, method(*args)))
        except Exception as error:
            self.seen.append((method.__name__, kind(error)))

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)

    async def run(self):
        items, random = self.items, self.random
        for _ in range(random.randrange(20, 120)):
            self.number += 1
            step = random.random()
            if step < 0.2:
                self.call_nowait(items.put_nowait, self.number)
            elif step < 0.35:
                self.call_nowait(items.get_nowait)
            elif step < 0.5:
                self.waiting.append(asyncio.ensure_future(self.call(items.put, self.number)))
            elif step < 0.7:
                self.waiting.append(asyncio.ensure_future(self.call(items.get)))
            elif step < 0.75:
                self.waiting.append(asyncio.ensure_future(self.call(items.join)))
            elif step < 0.8:
                self.call_nowait(items.task_done)
            elif step < 0.87 and self.waiting:
                # asyncio passes over a future that was cancelled, while here the task passes the notification on when it
                # runs. So that this does not change an order, the others are at rest.
                await self.settle()
                notify = random.choice([None, items.put_nowait, items.get_nowait])
                if notify is not None:
                    self.call_nowait(notify, *[self.number] * (notify.__name__ == "put_nowait"))
                random.choice(self.waiting).cancel()
                await self.settle()
            elif step < 0.875 and SHUTS_DOWN:
                items.shutdown(random.random() < 0.3)
            else:
                await asyncio.sleep(0)
            self.seen.append((items.qsize(), items.empty(), items.full()))
        await self.settle()
        self.seen.append(("pending", sum(not task.done() for task in self.waiting)))
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)
        self.seen.append((items.qsize(), items.empty(), items.full()))
        return self.seen


def kind(error):
    return "QueueShutDown" if isinstance(error, wakeloop.QueueShutDown) else type(error).__name__


@pytest.mark.timeout(60)
def test_random_sequences_do_what_they_do_with_asyncios_queue(run):
    first = int(os.environ.get("FIRST_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("SCENARIOS", "400"))):
        expected = run(Scenario(Reference, seed).run())
        assert run(Scenario(wakeloop.Queue, seed).run()) == expected, f"seed {seed}"
