"""Hosts of the simulated network: their addresses, names and routes, and the code that runs on them."""

import asyncio
import errno
import os
import socket

import pytest

from tests.testing.networks import hosts, now
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


@pytest.mark.parametrize(
    ("address", "number", "seconds"),
    [
        ("10.0.0.2", errno.ECONNREFUSED, 0.2),
        ("10.0.0.77", errno.EHOSTUNREACH, 3.0),
        ("10.0.1.1", errno.ENETUNREACH, 0.0),
        ("fd00::1", errno.ENETUNREACH, 0.0),
        ("127.0.0.1", errno.ECONNREFUSED, 0.2),
        ("0.0.0.0", errno.ECONNREFUSED, 0.2),
    ],
)
def test_connect_fails_as_on_linux_in_a_subnet_without_a_gateway(address, number, seconds):
    network = Network(latency=0.1)
    network.host("client", "10.0.0.1/24", gateway=False)
    network.host("server", "10.0.0.2/24", gateway=False)

    async def main():
        with network.host("client"), pytest.raises(OSError) as caught:
            await asyncio.open_connection(address, 9)
        assert caught.value.errno == number
        text = os.strerror(number) if number == errno.ENETUNREACH else f"Connect call failed ('{address}', 9)"
        assert str(caught.value) == f"[Errno {number}] {text}"
        assert now() == pytest.approx(seconds)

    testing.run(main, network=network)


def test_connecting_through_a_gateway_to_nobody_times_out():
    async def main():
        with pytest.raises(TimeoutError) as caught:
            await asyncio.open_connection("203.0.113.9", 9)
        assert str(caught.value) == "[Errno 110] Connect call failed ('203.0.113.9', 9)"
        assert now() == 127

    testing.run(main, network=Network())


def test_a_host_without_a_way_back_does_not_answer():
    network = Network()
    network.host("inside", "10.0.0.1/24", gateway=False)

    async def main():
        with network.host("inside"):
            server = await asyncio.start_server(lambda *_: None, "10.0.0.1", 80)
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("10.0.0.1", 80)
        server.close()

    testing.run(main, network=network)


def test_code_runs_on_the_host_that_was_entered_and_takes_it_along():
    network = hosts()
    peers = []

    async def main():
        async def handle(reader, writer):
            peers.append(writer.get_extra_info("peername")[0])
            # A handler runs on its server's host.
            reader, other = await asyncio.open_connection("localhost", 81)
            peers.append(await reader.read())
            writer.close()
            other.close()

        def greet(reader, writer):
            writer.write(b"from the same host")
            writer.close()

        async def serve():
            return await asyncio.start_server(handle, None, 80), await asyncio.start_server(greet, "127.0.0.1", 81)

        servers = await network.host("server").create_task(serve())

        async def ask(host):
            reader, writer = await asyncio.open_connection("server", 80)
            await reader.read()
            writer.close()

        await network.host("client").run(ask("client"))
        await ask("localhost")
        for server in servers:
            server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 81)

    testing.run(main, network=network)
    assert peers == ["10.0.0.1", b"from the same host", "192.0.2.1", b"from the same host"]


def test_a_host_is_left_by_the_code_that_entered_it():
    network = hosts()
    with pytest.raises(RuntimeError, match="is left by code that has not entered it last"):
        network.host("client").__exit__(None, None, None)


def test_local_addr_chooses_the_source():
    network = Network()
    network.host("client", "10.0.0.1", "10.0.0.7")

    async def main():
        peers = []

        def handle(reader, writer):
            peers.append(writer.get_extra_info("peername"))
            writer.close()

        server = await asyncio.start_server(handle, "192.0.2.1", 80)
        with network.host("client"):
            reader, writer = await asyncio.open_connection("192.0.2.1", 80, local_addr=("10.0.0.7", 4000))
            await reader.read()
            writer.close()
            with pytest.raises(OSError, match="error while attempting to bind on address"):
                await asyncio.open_connection("192.0.2.1", 80, local_addr=("10.0.0.9", 4000))
        server.close()
        assert peers == [("10.0.0.7", 4000)]

    testing.run(main, network=network)


def test_a_network_without_ipv6_has_no_sockets_of_it():
    async def main():
        loop = asyncio.get_running_loop()
        assert [info[0] for info in await loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)] == [socket.AF_INET]
        with pytest.raises(OSError) as caught:
            await asyncio.open_connection("::1", 80)
        assert caught.value.errno == errno.EAFNOSUPPORT

    testing.run(main, network=Network(ipv6=False))


# -- names ---------------------------------------------------------------------------------------


def test_names_are_those_of_the_network():
    network = hosts(lookup_delay=0.25)
    network.name("db.example", "server", "10.0.0.1")

    async def main():
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo("db.example", "http", type=socket.SOCK_STREAM)
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        assert found == [(*kind, ("10.0.0.2", 80)), (*kind, ("10.0.0.1", 80))]
        assert now() == 0.25
        assert [info[4][0] for info in await loop.getaddrinfo("LOCALHOST.", 1, type=socket.SOCK_STREAM)] == [
            "::1",
            "127.0.0.1",
        ]
        with pytest.raises(socket.gaierror) as caught:
            await loop.getaddrinfo("example.com", 80)
        assert str(caught.value) == "[Errno -2] Name or service not known"
        with pytest.raises(socket.gaierror) as caught:
            await loop.getaddrinfo("db.example", 80, family=socket.AF_INET6)
        assert caught.value.errno == socket.EAI_NODATA
        assert await loop.getnameinfo(("10.0.0.2", 80)) == ("server", "http")
        assert await loop.getnameinfo(("10.0.0.2", 80), socket.NI_NUMERICHOST) == ("10.0.0.2", "http")
        assert await loop.getnameinfo(("127.0.0.1", 9)) == ("localhost", "discard")

    testing.run(main, network=network)


def test_happy_eyeballs_falls_back_from_an_address_that_does_not_answer():
    network = Network(latency=0.01)
    network.host("server", "2001:db8::5", "10.0.0.5")

    async def main():
        with network.host("server"):
            server = await asyncio.start_server(lambda _, writer: writer.close(), "10.0.0.5", 80)
            # Nobody refuses connections to the other address: it is behind a firewall.
        network._owners.pop(network.host("server").interfaces[0].ip)
        reader, writer = await asyncio.open_connection("server", 80, happy_eyeballs_delay=0.25)
        assert writer.get_extra_info("peername") == ("10.0.0.5", 80)
        assert now() == pytest.approx(0.27)
        writer.close()
        server.close()

    testing.run(main, network=network)
