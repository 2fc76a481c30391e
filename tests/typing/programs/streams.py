"""Streams of wakeloop where a program expects those of asyncio."""

import asyncio
from typing import assert_type

import wakeloop


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"hello\n")
    await writer.drain()
    return await reader.readuntil(b"\n")


async def answer(reader: wakeloop.StreamReader, writer: wakeloop.StreamWriter) -> None:
    writer.write(assert_type(await reader.readline(), bytes))
    writer.close()
    await writer.wait_closed()


async def main() -> None:
    server = await wakeloop.start_server(answer, "127.0.0.1", 0, limit=1 << 16)
    async with assert_type(server, asyncio.Server):
        reader, writer = await wakeloop.open_connection(*server.sockets[0].getsockname())
        assert_type(reader, wakeloop.StreamReader)
        print(await ask(reader, writer))
        writer.close()


wakeloop.run(main())
