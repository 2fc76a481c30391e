"""For the tests of wakeloop.Queue and wakeloop.Event: threads beside the loop, and waits for what they do."""

import asyncio
import threading

SHUTS_DOWN = hasattr(asyncio, "QueueShutDown")


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)
