"""The websockets library, both ends."""

import asyncio
import os

import pytest

from tests.ecosystem.support import need

need("websockets.asyncio.server")
from websockets.asyncio.client import connect  # noqa: E402
from websockets.asyncio.server import serve  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402

pytestmark = pytest.mark.timeout(90)


async def echo(connection):
    async for message in connection:
        await connection.send(message)


def address_of(server):
    host, port = server.sockets[0].getsockname()[:2]
    return f"{host}:{port}"


def test_thousands_of_messages_come_back(run):
    async def main():
        async with serve(echo, "127.0.0.1", 0, max_size=None) as server:

            async def client(number):
                async with connect(f"ws://{address_of(server)}", max_size=None) as connection:
                    for turn in range(100):
                        message = os.urandom(1 + (number * turn * 53) % 30_000) if turn % 2 else f"text {number} {turn}"
                        await connection.send(message)
                        assert await connection.recv() == message

            await asyncio.gather(*(client(number) for number in range(30)))

    run(main())


def test_messages_in_flight_keep_their_order(run):
    async def main():
        async with serve(echo, "127.0.0.1", 0) as server, connect(f"ws://{address_of(server)}") as connection:

            async def send():
                for number in range(3000):
                    await connection.send(str(number))

            async def receive():
                return [await connection.recv() for _ in range(3000)]

            _, received = await asyncio.gather(send(), receive())
            assert received == [str(number) for number in range(3000)]

    run(main())


def test_large_messages_over_tls(run, tls):
    async def main():
        async with serve(echo, "127.0.0.1", 0, ssl=tls.server(), max_size=None, compression=None) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(f"wss://localhost:{port}", ssl=tls.client(), max_size=None, compression=None) as connection:
                for size in (1, 16_384, 1_000_000, 4_000_000):
                    message = os.urandom(size)
                    await connection.send(message)
                    assert await connection.recv() == message
        await asyncio.sleep(0.1)

    run(main())


def test_broadcast_ping_and_close_reach_every_client(run):
    async def main():
        from websockets.asyncio.server import broadcast

        connected = set()

        async def handler(connection):
            connected.add(connection)
            try:
                await connection.wait_closed()
            finally:
                connected.discard(connection)

        async with serve(handler, "127.0.0.1", 0) as server:
            clients = await asyncio.gather(*(connect(f"ws://{address_of(server)}") for _ in range(50)))
            while len(connected) < 50:
                await asyncio.sleep(0.001)
            broadcast(connected, "to all")
            assert [await client.recv() for client in clients] == ["to all"] * 50
            await asyncio.gather(*[await client.ping() for client in clients])
            server.close()
            for client in clients:
                with pytest.raises(ConnectionClosed):
                    await client.recv()
            await server.wait_closed()

    run(main())
