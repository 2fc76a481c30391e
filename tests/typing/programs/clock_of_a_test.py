"""A test on a clock that jumps."""

import asyncio
from typing import assert_type

from wakeloop import testing


async def every(seconds: float, times: int) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    for _ in range(times):
        await asyncio.sleep(seconds)
    return loop.time() - start


async def frozen() -> str:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, testing.EventLoop)
    task = asyncio.create_task(asyncio.sleep(10, "done"))
    await asyncio.sleep(0)
    assert_type(loop.clock, testing.Clock).advance(10)
    return await task


assert_type(testing.run(lambda: every(3600, 24)), float)
assert_type(testing.run(frozen, clock="frozen"), str)
