"""A service on a network in memory, with faults."""

import asyncio
from typing import assert_type

from wakeloop import testing
from wakeloop.testing.network import Network


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    writer.close()


async def main() -> bytes:
    async with await asyncio.start_server(serve, "127.0.0.1", 8000):
        reader, writer = await asyncio.open_connection("127.0.0.1", 8000)
        writer.write(b"hello\n")
        answer = await reader.readline()
        writer.close()
    return answer


network = Network(latency=0.05)
network.shorten("recv", (1, 600))
assert_type(testing.run(main, seed=1, network=network), bytes)
