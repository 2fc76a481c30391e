"""Mistakes that the type checker must find in a user's program. Checked by tests/project/test_typing.py, never run.

Each mistake is ignored by the name of its error; mypy reports an ignore that ignores nothing.
"""

import asyncio

import wakeloop


async def number() -> int:
    text: str = await wakeloop.sleep(0.1, 5)  # type: ignore[arg-type]
    await wakeloop.sleep("soon")  # type: ignore[call-overload]
    server = await wakeloop.start_echo_server("127.0.0.1", "80")  # type: ignore[arg-type]
    server.port = 80  # type: ignore[misc]
    async with wakeloop.sleep(0.1):  # type: ignore[misc]
        return len(text)


async def wrong_items(items: wakeloop.Queue[int]) -> str:
    items.put_nowait("text")  # type: ignore[arg-type]
    items.sync_q.put("text")  # type: ignore[arg-type]
    wakeloop.SyncQueue(items)  # type: ignore[call-arg]
    return await items.get()  # type: ignore[return-value]


def add(one: int, other: int) -> int:
    return one + other


def start(loop: wakeloop.EventLoop) -> None:
    loop.call_soon(add, 1, "2")  # type: ignore[arg-type]
    loop.call_later("soon", add, 1, 2)  # type: ignore[arg-type]
    wakeloop.run(number)  # type: ignore[arg-type]
    result: str = wakeloop.run(number())  # type: ignore[assignment]
    wakeloop.configure(2)  # type: ignore[call-arg]
    asyncio.Runner(loop_factory=wakeloop.run)  # type: ignore[arg-type]
    print(result)
