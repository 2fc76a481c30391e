"""Transports and protocols, as on every loop."""

import asyncio
from typing import assert_type

import wakeloop


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    async with server:
        address = server.sockets[0].getsockname()
        transport, protocol = await loop.create_connection(Echo, *address)
        assert_type(protocol, Echo)
        assert_type(transport, asyncio.Transport)
        transport.close()


wakeloop.run(main())
