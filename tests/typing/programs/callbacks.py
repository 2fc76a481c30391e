"""Callbacks of the loop have the types of their arguments."""

import asyncio
from typing import assert_type

import wakeloop


class Counter:
    def __init__(self, loop: wakeloop.EventLoop) -> None:
        self.loop = loop
        self.total = 0
        self.timer: asyncio.TimerHandle | None = None

    def add(self, amount: int, *, twice: bool = False) -> None:
        self.total += 2 * amount if twice else amount

    def start(self) -> None:
        assert_type(self.loop.call_soon(self.add, 1), asyncio.Handle)
        self.timer = self.loop.call_later(0.01, self.add, 2)
        self.loop.call_soon_threadsafe(self.add, 3)
        self.loop.call_at(self.loop.time() + 0.01, self.loop.stop)


loop = wakeloop.new_event_loop()
counter = Counter(loop)
counter.start()
loop.run_forever()
loop.close()
print(counter.total)
