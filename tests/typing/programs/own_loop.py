"""A loop of the program's own, and a policy for code that asks for one."""

import asyncio
from typing import Any

import wakeloop


class Loop(wakeloop.EventLoop):
    """Counts the tasks that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.set_task_factory(self.make)

    def make(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        self.made += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def time(self) -> float:
        return super().time() + 1.0


async def main() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
    return loop.made


print(wakeloop.run(main(), loop_factory=Loop))
