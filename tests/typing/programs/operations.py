"""Operations are coroutines: tasks, timeouts and gather take them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, assert_type

import wakeloop


def later(delay: float) -> wakeloop.Operation[str]:
    return wakeloop.sleep(delay, "done")


async def first(*waits: Coroutine[Any, Any, str]) -> str:
    tasks = [asyncio.create_task(wait) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return done.pop().result()


async def main() -> None:
    assert_type(await wakeloop.sleep(0.01), None)
    assert_type(await asyncio.wait_for(later(0.01), 1), str)
    assert_type(await asyncio.gather(later(0.01), wakeloop.sleep(0, 1)), tuple[str, int])
    assert_type(await first(later(0.01), later(0.02)), str)
    async with asyncio.timeout(1), asyncio.TaskGroup() as group:
        task = group.create_task(later(0.01), name="later")
    assert_type(task.result(), str)


wakeloop.run(main())
