"""Datagrams."""

import asyncio
from typing import assert_type

import wakeloop


async def answer(socket: wakeloop.UdpSocket) -> None:
    data, address = await socket.recv_from()
    await socket.send_to(assert_type(data, bytes).upper(), address)


async def main() -> None:
    async with wakeloop.UdpSocket.bind("127.0.0.1", 0) as server:
        answering = asyncio.create_task(answer(server))
        async with wakeloop.UdpSocket.connect("127.0.0.1", server.port) as client:
            await client.send(memoryview(b"hello"))
            assert_type(await client.recv(), bytes)
        await answering


wakeloop.run(main())
