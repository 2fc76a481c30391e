"""Datagrams on the simulated network."""

import asyncio
import errno
import socket

import pytest

from tests.testing.networks import hosts
from wakeloop import testing

pytestmark = pytest.mark.native


class Recorder(asyncio.DatagramProtocol):
    """Keeps what it receives, with the time."""

    def __init__(self):
        self.received, self.errors = [], []

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.received.append((asyncio.get_running_loop().time(), data, address))

    def error_received(self, error):
        self.errors.append(error)


async def endpoint(**options):
    _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(Recorder, **options)
    return protocol


def between(network, main, **options):
    """Runs `main(client, server)`: the client is connected to the server."""

    async def run():
        with network.host("server"):
            server = await endpoint(local_addr=("10.0.0.2", 53))
        with network.host("client"):
            client = await endpoint(remote_addr=("server", 53))
        try:
            return await main(client, server)
        finally:
            client.transport.close()
            server.transport.close()
            await asyncio.sleep(0)

    return testing.run(run, network=network, **options)


def test_datagrams_go_both_ways_after_the_latency():
    async def main(client, server):
        client.transport.sendto(b"question")
        await asyncio.sleep(1)
        [(when, data, address)] = server.received
        assert (when, data, address[0]) == (0.5, b"question", "10.0.0.1")
        server.transport.sendto(b"answer", address)
        await asyncio.sleep(1)
        assert client.received == [(1.5, b"answer", ("10.0.0.2", 53))]

    between(hosts(latency=0.5), main)


def test_datagrams_are_lost_doubled_and_overtaken():
    def numbers(seed, **conditions):
        async def main(client, server):
            for number in range(100):
                client.transport.sendto(b"%d" % number)
                await asyncio.sleep(0.0001)
            await asyncio.sleep(10)
            return [int(data) for _, data, _ in server.received]

        return between(hosts(**conditions), main, seed=seed)

    assert numbers(1) == list(range(100))
    lost = numbers(1, loss=0.3)
    assert 50 < len(lost) < 90 and lost == sorted(lost)
    doubled = numbers(1, duplicate=0.3)
    assert 110 < len(doubled) < 150 and set(doubled) == set(range(100))
    overtaken = numbers(1, reorder=0.2)
    assert len(overtaken) == 100 and overtaken != sorted(overtaken)
    jittered = numbers(1, latency=(0.01, 0.5))
    assert len(jittered) == 100 and jittered != sorted(jittered)
    assert numbers(1, loss=0.3) == lost and numbers(2, loss=0.3) != lost


def test_a_cut_loses_datagrams_for_good():
    network = hosts(latency=1)

    async def main(client, server):
        client.transport.sendto(b"on its way")
        await asyncio.sleep(0.5)
        network.partition("client", "server")
        client.transport.sendto(b"into the void")
        network.heal()
        client.transport.sendto(b"after it")
        await asyncio.sleep(10)
        assert [data for _, data, _ in server.received] == [b"after it"]
        assert client.errors == []

    between(network, main)


def test_a_connected_socket_gets_to_know_that_nobody_listens():
    async def main(client, server):
        server.transport.close()
        await asyncio.sleep(0)
        client.transport.sendto(b"x")
        await asyncio.sleep(0.15)
        assert client.errors == []
        await asyncio.sleep(0.1)
        [error] = client.errors
        assert isinstance(error, ConnectionRefusedError)
        # One that is not connected does not.
        other = await endpoint(local_addr=("127.0.0.1", 0))
        other.transport.sendto(b"x", ("127.0.0.1", 9))
        await asyncio.sleep(1)
        assert other.errors == []
        other.transport.close()

    between(hosts(latency=0.1), main)


def test_errors_of_sendto_are_those_of_linux():
    async def main(client, server):
        client.transport.sendto(bytes(65508))
        with pytest.raises(ValueError, match="Invalid address: must be None or"):
            client.transport.sendto(b"x", ("10.0.0.1", 1))
        server.transport.sendto(b"x", ("255.255.255.255", 1))
        server.transport.sendto(b"x", ("10.0.0.1", 0))
        assert [error.errno for error in client.errors] == [errno.EMSGSIZE]
        assert [error.errno for error in server.errors] == [errno.EACCES, errno.EINVAL]

    between(hosts(), main)


def test_a_full_buffer_loses_datagrams():
    async def main(client, server):
        server.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 3000)
        for _ in range(10):
            client.transport.sendto(bytes(1000))
        await asyncio.sleep(1)
        assert len(server.received) == 2

    between(hosts(), main)


def test_a_connected_socket_receives_from_its_peer_alone():
    async def main(client, server):
        other = await endpoint(local_addr=("192.0.2.1", 1000))
        name = client.transport.get_extra_info("sockname")
        other.transport.sendto(b"x", name)
        server.transport.sendto(b"y", name)
        await asyncio.sleep(1)
        assert [data for _, data, _ in client.received] == [b"y"]
        other.transport.close()

    between(hosts(), main)


def test_a_datagram_socket_that_the_program_has_made_joins_the_network():
    network = hosts()

    async def main(client, server):
        loop = asyncio.get_running_loop()
        with network.host("client"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await loop.sock_sendto(sock, b"raw", ("10.0.0.2", 53))
            await asyncio.sleep(1)
            [(_, data, address)] = server.received
            server.transport.sendto(data * 2, address)
            assert await loop.sock_recvfrom(sock, 100) == (b"rawraw", ("10.0.0.2", 53))

    between(network, main)


def test_faults_of_recv_and_send_become_errors_of_the_protocol():
    network = hosts()

    async def main(client, server):
        network.fail("send", errno.ENOBUFS, host="client", times=1)
        network.fail("recv", errno.EHOSTUNREACH, host="server", times=1)
        client.transport.sendto(b"one")
        client.transport.sendto(b"two")
        await asyncio.sleep(1)
        assert [error.errno for error in client.errors] == [errno.ENOBUFS]
        assert [error.errno for error in server.errors] == [errno.EHOSTUNREACH]
        assert [data for _, data, _ in server.received] == [b"two"]

    between(network, main)
