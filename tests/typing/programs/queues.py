"""A queue between a task and a thread."""

import asyncio
import threading
from typing import Generic, TypeVar, assert_type

import wakeloop

T = TypeVar("T")


class Producer(Generic[T]):
    """A thread that puts items, and then ends the queue."""

    def __init__(self, queue: wakeloop.Queue[T], items: list[T]) -> None:
        self.side: wakeloop.SyncQueue[T] = queue.sync_q
        self.items = items

    def run(self) -> None:
        for item in self.items:
            self.side.put(item, timeout=1)
        self.side.shutdown()


async def consume(queue: wakeloop.Queue[T]) -> list[T]:
    found: list[T] = []
    try:
        while True:
            found.append(await queue.get())
            queue.task_done()
    except wakeloop.QueueShutDown:
        return found


async def main() -> list[int]:
    queue: wakeloop.Queue[int] = wakeloop.Queue(maxsize=2)
    threading.Thread(target=Producer(queue, [1, 2, 3]).run).start()
    return assert_type(await asyncio.wait_for(consume(queue), 1), list[int])


print(wakeloop.run(main()))
