"""All the ways to run a program on the loop."""

import asyncio
from typing import assert_type

import wakeloop


async def answer() -> int:
    return 42


def first() -> int:
    return wakeloop.run(answer(), debug=True)


def second() -> int:
    with asyncio.Runner(loop_factory=wakeloop.new_event_loop) as runner:
        return assert_type(runner.run(answer()), int)


def third() -> int:
    loop = wakeloop.new_event_loop()
    try:
        return assert_type(loop.run_until_complete(answer()), int)
    finally:
        loop.close()


def fourth() -> int:
    wakeloop.install()
    return asyncio.run(answer())


print(first(), second(), third(), fourth())
