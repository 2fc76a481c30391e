"""Datagram transports."""

import asyncio
import socket
import sys

import pytest


class Recorder(asyncio.DatagramProtocol):
    def __init__(self):
        self.received, self.errors = [], []
        self.lost = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.received.append((data, address))
        self.news.set()

    def error_received(self, exc):
        self.errors.append(exc)
        self.news.set()

    def connection_lost(self, exc):
        self.lost.set_result(exc)

    async def until(self, count):
        async with asyncio.timeout(5):
            while len(self.received) < count:
                self.news.clear()
                await self.news.wait()


class Echo(Recorder):
    def datagram_received(self, data, address):
        super().datagram_received(data, address)
        self.transport.sendto(data.upper(), address)


async def endpoint(protocol=Recorder, **options):
    options.setdefault("local_addr", ("127.0.0.1", 0))
    return await asyncio.get_running_loop().create_datagram_endpoint(protocol, **options)


async def close(*protocols):
    for protocol in protocols:
        protocol.transport.close()
    for protocol in protocols:
        assert await protocol.lost is None


def test_datagrams_are_echoed(run):
    async def main():
        transport, echo = await endpoint(Echo)
        address = transport.get_extra_info("sockname")
        near, client = await endpoint(local_addr=None, remote_addr=address)
        for number in range(500):
            near.sendto(b"message %d" % number)
            await client.until(number + 1)
        assert client.received == [(b"MESSAGE %d" % number, address) for number in range(500)]
        assert near.get_extra_info("peername") == address
        await close(echo, client)

    run(main())


def test_every_size_and_kind_of_datagram(run):
    async def main():
        transport, echo = await endpoint(Echo)
        near, client = await endpoint(local_addr=None, remote_addr=transport.get_extra_info("sockname"))
        for data in (b"x" * 60_000, bytearray(b"array"), memoryview(b"view"), b"y"):
            near.sendto(data)
        await client.until(4)
        assert {data for data, _ in client.received} == {b"X" * 60_000, b"ARRAY", b"VIEW", b"Y"}
        with pytest.raises(TypeError, match="bytes-like"):
            near.sendto("text")
        await close(echo, client)

    run(main())


def test_unconnected_endpoints_send_to_an_address(run):
    async def main():
        one, first = await endpoint()
        other, second = await endpoint()
        one.sendto(b"to the other", other.get_extra_info("sockname"))
        await second.until(1)
        assert second.received == [(b"to the other", one.get_extra_info("sockname"))]
        await close(first, second)

    run(main())


def test_a_connected_endpoint_refuses_other_addresses(run):
    async def main():
        transport, echo = await endpoint(Echo)
        near, client = await endpoint(local_addr=None, remote_addr=transport.get_extra_info("sockname"))
        with pytest.raises(ValueError, match="Invalid address"):
            near.sendto(b"x", ("127.0.0.1", 9))
        await close(echo, client)

    run(main())


def test_error_received_runs_while_its_exception_is_handled(run):
    class Asking(Recorder):
        def error_received(self, exc):
            self.handled = sys.exc_info()[1]
            super().error_received(exc)

    async def main():
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            nobody = sock.getsockname()
        near, client = await endpoint(Asking, local_addr=None, remote_addr=nobody)
        async with asyncio.timeout(5):
            while not client.errors:
                near.sendto(b"anyone?")
                await asyncio.sleep(0.001)
        assert client.handled is client.errors[-1] and sys.exc_info()[1] is None
        await close(client)

    run(main())


def test_an_unreachable_peer_calls_error_received(run):
    async def main():
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            nobody = sock.getsockname()
        near, client = await endpoint(local_addr=None, remote_addr=nobody)
        near.sendto(b"anyone?")
        async with asyncio.timeout(5):
            while not client.errors:
                near.sendto(b"anyone?")
                await asyncio.sleep(0.001)
        assert isinstance(client.errors[0], ConnectionRefusedError)
        assert not near.is_closing()
        await close(client)

    run(main())


def test_close_and_abort_end_with_connection_lost_once(run):
    async def main():
        transport, protocol = await endpoint()
        transport.close()
        transport.close()
        assert transport.is_closing() and await protocol.lost is None
        transport, protocol = await endpoint()
        transport.abort()
        transport.sendto(b"ignored", ("127.0.0.1", 9))
        assert await protocol.lost is None

    run(main())


def test_an_exception_in_datagram_received_is_reported(run):
    class Failing(Recorder):
        def datagram_received(self, data, address):
            raise ZeroDivisionError

    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
        transport, protocol = await endpoint(Failing)
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", transport.get_extra_info("sockname"))
            while not problems:
                await asyncio.sleep(0.001)
        assert isinstance(problems[0], ZeroDivisionError)
        transport.close()
        await protocol.lost

    run(main())


def test_unix_datagrams(run, tmp_path):
    async def main():
        path, own = str(tmp_path / "server"), str(tmp_path / "client")
        _, server = await endpoint(local_addr=path, family=socket.AF_UNIX)
        near, client = await endpoint(local_addr=own, remote_addr=path, family=socket.AF_UNIX)
        near.sendto(b"by path")
        await server.until(1)
        assert server.received == [(b"by path", own)]
        await close(server, client)

    run(main())


def test_transports_are_asyncios(run):
    async def main():
        transport, protocol = await endpoint()
        assert isinstance(transport, asyncio.BaseTransport)
        assert isinstance(transport, asyncio.DatagramTransport) or sys.version_info < (3, 12)
        assert transport.get_write_buffer_size() == 0 and not transport.is_closing()
        assert transport.get_extra_info("socket").type == socket.SOCK_DGRAM
        repr(transport)
        await close(protocol)

    run(main())
