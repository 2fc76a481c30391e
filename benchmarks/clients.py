"""Client scenarios: the loop under test is the client, its peer an echo server in another process.

Like the in-process scenarios, each coroutine function does one batch of work and returns the number of operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Client = Callable[[int], Coroutine[Any, Any, int]]
CLIENTS: dict[str, Client] = {}

MESSAGE = bytes(range(256)) * 4


async def exchange(port: int, messages: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(messages):
        writer.write(MESSAGE)
        await writer.drain()
        assert await reader.readexactly(len(MESSAGE)) == MESSAGE
    writer.close()
    await writer.wait_closed()


async def one_stream(port: int) -> int:
    await exchange(port, 500)
    return 500


async def ten_streams(port: int) -> int:
    await asyncio.gather(*[exchange(port, 100) for _ in range(10)])
    return 1_000


async def connect_and_close(port: int) -> int:
    """create_connection to a numeric address, closed when connected."""
    loop = asyncio.get_running_loop()

    class Peer(asyncio.Protocol):
        def __init__(self) -> None:
            self.lost = loop.create_future()

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set_result(None)

    for _ in range(100):
        transport, protocol = await loop.create_connection(Peer, "127.0.0.1", port)
        transport.close()
        await protocol.lost
    return 100


CLIENTS["client/streams/1k/c1"] = one_stream
CLIENTS["client/streams/1k/c10"] = ten_streams
CLIENTS["client/connect+close"] = connect_and_close
