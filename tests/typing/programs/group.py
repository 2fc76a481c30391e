"""Several loops in one process, and one server on all of them."""

from typing import assert_type

import wakeloop


async def handle(reader: wakeloop.StreamReader, writer: wakeloop.StreamWriter) -> None:
    async for line in reader:
        writer.write(assert_type(line, bytes).upper())
        await writer.drain()
    writer.close()


async def square(number: int) -> int:
    return number * number


async def main(group: wakeloop.EventLoopGroup) -> int:
    async with await group.start_server(handle, "127.0.0.1", 0) as server:
        assert_type(server, wakeloop.GroupServer)
        assert_type(server.connections, list[int])
    assert_type(await group.run_on_each(square, 3), list[int])
    return await group.run_on(group.loops[0], square, 4)


with wakeloop.EventLoopGroup(2) as group:
    assert_type(group.run(main(group)), int)
