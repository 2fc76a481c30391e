"""What the tasks of a loop wait for."""

import asyncio
from typing import assert_type

import wakeloop
from wakeloop.waits import TaskInfo


def longest(tasks: list[TaskInfo]) -> str:
    known = [(task.seconds, task.name) for task in tasks if task.seconds is not None]
    return max(known)[1]


async def main() -> None:
    wakeloop.track_waits()
    sleeper = asyncio.create_task(asyncio.sleep(10), name="sleeper")
    await wakeloop.sleep(0.01)
    found = assert_type(wakeloop.tasks(), list[TaskInfo])
    print(longest(found), [frame.line for task in found for frame in task.stack])
    for task in found:
        if task.kind == "timer":
            print(task.waits_for, task.target)
    sleeper.cancel()


wakeloop.run(main())
