"""Found by the clock: a job that is to run once an hour, and falls behind.

python examples/testing/clock.py
"""

import asyncio
from collections.abc import Awaitable, Callable

from wakeloop import testing


async def every(seconds: float, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        await job()
        await asyncio.sleep(seconds)  # the bug: the next hour begins when the job has ended


async def a_week() -> None:
    runs = 0

    async def job() -> None:
        nonlocal runs
        runs += 1
        await asyncio.sleep(30)  # stands for work

    task = asyncio.create_task(every(3600, job))
    await asyncio.sleep(7 * 24 * 3600 - 1)
    task.cancel()
    await asyncio.wait([task])
    assert runs == 7 * 24, f"{runs} runs in a week that has {7 * 24} hours"


if __name__ == "__main__":
    try:
        testing.run(a_week)
    except AssertionError as error:
        print(error)
