"""For the tests of wakeloop.tasks(): a task that waits, and what is known of it."""

import asyncio
import contextlib

import wakeloop


def info_of(task, loop=None):
    (found,) = [info for info in wakeloop.tasks(loop) if info.task is task]
    return found


@contextlib.asynccontextmanager
async def waiting(awaitable, name="the task"):
    """A task that awaits this in a function, from the time when it waits."""

    async def wait():
        return await awaitable

    task = asyncio.create_task(wait(), name=name)
    await asyncio.sleep(0.001)
    while info_of(task).state != "waiting":
        await asyncio.sleep(0.001)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
