"""An event that tasks of any loop and threads wait for."""

import asyncio
import threading
from typing import assert_type

import wakeloop


def wait(event: wakeloop.Event) -> None:
    if not assert_type(event.sync_wait(timeout=1), bool):
        raise TimeoutError("the event was not set")


async def main() -> None:
    event = wakeloop.Event()
    thread = threading.Thread(target=wait, args=[event])
    thread.start()
    waiter = asyncio.create_task(event.wait())
    event.set()
    assert_type(await waiter, bool)
    thread.join()
    event.clear()
    print(event.is_set())


wakeloop.run(main())
