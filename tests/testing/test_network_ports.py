"""Ports of the simulated network, and the listeners that have them."""

import asyncio
import errno
import socket

import pytest

from tests.testing.networks import hosts, now
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


def test_a_port_is_used_once_per_host_and_address():
    network = hosts()

    async def main():
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(asyncio.Protocol, "127.0.0.1", 80)]
        with pytest.raises(OSError) as caught:
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 80)
        assert caught.value.errno == errno.EADDRINUSE
        assert "error while attempting to bind on address ('127.0.0.1', 80): " in str(caught.value)
        with pytest.raises(OSError, match="address already in use"):
            await loop.create_server(asyncio.Protocol, "0.0.0.0", 80)
        servers.append(await loop.create_server(asyncio.Protocol, "192.0.2.1", 80))
        with network.host("server"):
            servers.append(await loop.create_server(asyncio.Protocol, None, 80))
            with pytest.raises(OSError, match="could not bind on any address|cannot assign requested address"):
                await loop.create_server(asyncio.Protocol, "10.0.0.1", 81)
        for server in servers:
            server.close()
        servers.append(await loop.create_server(asyncio.Protocol, "127.0.0.1", 80))
        servers[-1].close()

    testing.run(main, network=network)


def test_servers_that_reuse_a_port_share_its_connections():
    counts = [0, 0]

    async def main():
        def serve(number):
            def handle(reader, writer):
                counts[number] += 1
                writer.close()

            return asyncio.start_server(handle, "127.0.0.1", 80, reuse_port=True)

        servers = [await serve(0), await serve(1)]
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", 80)
            await reader.read()
            writer.close()
        for server in servers:
            server.close()

    testing.run(main, network=Network(), seed=1)
    assert sum(counts) == 20 and min(counts) > 2


def test_ephemeral_ports_are_taken_and_given_back():
    async def main():
        loop = asyncio.get_running_loop()
        ports = set()
        for _ in range(3):
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            ports.add(server.sockets[0].getsockname()[1])
            server.close()
        assert len(ports) == 3 and min(ports) >= 32768
        assert loop.network.sockets() == []

    testing.run(main, network=Network())


def test_a_full_backlog_delays_the_next_connection():
    async def main():
        network = asyncio.get_running_loop().network
        with network.host("server"):
            listener = socket.socket()
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            server = await loop.create_server(asyncio.Protocol, sock=listener, backlog=1, start_serving=False)
            listener.listen(1)
            port = listener.getsockname()[1]
        address = network.host("server").addresses[0]
        connections = [asyncio.create_task(asyncio.open_connection(address, port)) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert [one.done() for one in connections] == [True, True, False]
        await server.start_serving()
        await connections[2]
        assert now() == 1.0
        for one in connections:
            one.result()[1].close()
        server.close()

    testing.run(main, network=hosts())
