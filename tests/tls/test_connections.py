"""TLS: connections, servers, start_tls; extra info, failures, and how it ends."""

import asyncio
import hashlib
import os
import random
import socket
import ssl

import pytest

from tests.support.protocol import Recording
from tests.support.sockets import listener


@pytest.fixture(autouse=True)
def with_every_engine(tls_engine):
    """Every test here runs with both of wakeloop's engines, and on asyncio."""


async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


class Secured:
    """Gives an echoing TLS server and one client's streams."""

    def __init__(self, tls, handler=echo):
        self._tls, self._handler = tls, handler

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._handler, "127.0.0.1", 0, ssl=self._tls.server())
        self.address = self.server.sockets[0].getsockname()
        self.reader, self.writer = await asyncio.open_connection(
            *self.address, ssl=self._tls.client(), server_hostname="localhost"
        )
        return self.reader, self.writer

    async def __aexit__(self, *error):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass
        self.server.close()
        await self.server.wait_closed()
        await asyncio.sleep(0.01)


def test_tls_data_is_echoed(run, tls):
    async def main():
        async with Secured(tls) as (reader, writer):
            for size in (1, 10, 16_383, 16_384, 16_385, 65_536, 300_000, 3):
                message = os.urandom(size)
                writer.write(message[: size // 2])
                writer.write(bytearray(message[size // 2 :]))
                assert await reader.readexactly(size) == message

    run(main())


class Counted(socket.socket):
    """Counts what is read and written: the transport must not bypass it."""

    received = sent = 0

    def recv_into(self, *args):
        self.received += 1
        return super().recv_into(*args)

    def recv(self, *args):
        self.received += 1
        return super().recv(*args)

    def send(self, *args):
        self.sent += 1
        return super().send(*args)

    def sendmsg(self, *args):
        self.sent += 1
        return super().sendmsg(*args)


@pytest.mark.parametrize("upgraded", [False, True], ids=["from the start", "by start_tls"])
def test_overridden_socket_methods_are_called_for_all_tls_data(run, tls, upgraded):
    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        sock = Counted(socket.AF_INET, socket.SOCK_STREAM)
        sock.connect(server.sockets[0].getsockname())
        sock.setblocking(False)
        if upgraded:
            reader, writer = await asyncio.open_connection(sock=sock)
            await writer.start_tls(tls.client(), server_hostname="localhost")
        else:
            reader, writer = await asyncio.open_connection(sock=sock, ssl=tls.client(), server_hostname="localhost")
        writer.write(b"x" * 100_000)
        assert await reader.readexactly(100_000) == b"x" * 100_000
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert sock.received and sock.sent

    run(main())


def test_a_large_transfer_arrives_unchanged_both_ways(run, tls):
    block = os.urandom(1 << 20)

    async def main():
        async with Secured(tls) as (reader, writer):

            async def send():
                for _ in range(32):
                    writer.write(block)
                    await writer.drain()

            async def receive():
                digest = hashlib.sha256()
                for _ in range(32):
                    digest.update(await reader.readexactly(1 << 20))
                return digest.digest()

            _, digest = await asyncio.gather(send(), receive())
            assert digest == hashlib.sha256(block * 32).digest()

    run(main())


def test_get_extra_info_of_a_tls_transport(run, tls):
    async def main():
        async with Secured(tls) as (_, writer):
            info = writer.get_extra_info
            assert isinstance(info("ssl_object"), (ssl.SSLObject, ssl.SSLSocket))
            assert isinstance(info("sslcontext"), ssl.SSLContext)
            assert info("peercert")["subject"] == ((("commonName", "localhost"),),)
            name, version, bits = info("cipher")
            assert name == info("ssl_object").cipher()[0] and bits >= 128 and version.startswith("TLS")
            assert info("compression") is None
            assert info("peername")[0] == "127.0.0.1" and info("sockname")[0] == "127.0.0.1"
            assert info("socket").family == socket.AF_INET
            assert isinstance(writer.transport, asyncio.Transport)
            assert not writer.can_write_eof()
            with pytest.raises(NotImplementedError):
                writer.write_eof()

    run(main())


def test_data_just_before_close_arrives_and_the_end_is_clean(run, tls):
    async def main():
        async def handler(reader, writer):
            writer.write(b"x" * 1_000_000)
            writer.close()

        async with Secured(tls, handler) as (reader, writer):
            assert await reader.read() == b"x" * 1_000_000

    run(main())


def test_an_untrusted_certificate_fails_the_handshake(run, tls, asyncio_log):
    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        address = server.sockets[0].getsockname()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(*address, ssl=ssl.create_default_context(), server_hostname="localhost")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(*address, ssl=tls.client(), server_hostname="elsewhere.example")
        reader, writer = await asyncio.open_connection(*address, ssl=tls.client(), server_hostname="localhost")
        writer.write(b"still serving")
        assert await reader.readexactly(13) == b"still serving"
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(0.01)

    run(main())


def test_a_client_without_tls_is_dropped_and_the_server_runs_on(run, tls, asyncio_log):
    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(5):
            try:
                await reader.read()
            except ConnectionError:
                pass
        writer.close()
        reader, writer = await asyncio.open_connection(*address, ssl=tls.client(), server_hostname="localhost")
        writer.write(b"still served")
        assert await reader.readexactly(12) == b"still served"
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(0.01)

    run(main())


def test_the_handshake_timeout_ends_a_handshake_with_a_silent_peer(run, tls):
    async def main():
        with listener() as silent:
            with pytest.raises(ConnectionAbortedError, match="SSL handshake is taking longer than"):
                await asyncio.open_connection(
                    *silent.getsockname(), ssl=tls.client(), server_hostname="localhost", ssl_handshake_timeout=0.05
                )
            await asyncio.sleep(0.01)

    run(main())


def test_a_peer_that_closes_during_the_handshake_is_an_error(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        with listener() as server:

            async def hang_up():
                accepted, _ = await loop.sock_accept(server)
                accepted.close()

            task = asyncio.create_task(hang_up())
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await asyncio.open_connection(*server.getsockname(), ssl=tls.client(), server_hostname="localhost")
            await task

    run(main())


def test_cancelling_a_handshake_leaves_nothing(run, tls):
    async def main():
        with listener() as silent:
            task = asyncio.create_task(
                asyncio.open_connection(*silent.getsockname(), ssl=tls.client(), server_hostname="localhost")
            )
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.02)

    run(main())


def test_start_tls_upgrades_both_sides_of_a_plain_connection(run, tls):
    async def main():
        async def handler(reader, writer):
            assert await reader.readline() == b"STARTTLS\n"
            writer.write(b"go ahead\n")
            await writer.drain()
            await writer.start_tls(tls.server())
            assert await reader.readline() == b"secret\n"
            writer.write(b"answer\n")
            await writer.drain()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"STARTTLS\n")
        assert await reader.readline() == b"go ahead\n"
        await writer.start_tls(tls.client(), server_hostname="localhost")
        assert writer.get_extra_info("cipher")
        writer.write(b"secret\n")
        assert await reader.readline() == b"answer\n"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)

    run(main())


def test_loop_start_tls_gives_a_new_transport_to_the_same_protocol(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        async with Secured(tls) as (_, _):
            pass
        accepted = loop.create_future()
        server = await loop.create_server(lambda: recorded(accepted), "127.0.0.1", 0)
        transport, near = await loop.create_connection(Recording, *server.sockets[0].getsockname())
        far = await accepted
        while far.transport is None:
            await asyncio.sleep(0)
        upgraded, other = await asyncio.gather(
            loop.start_tls(transport, near, tls.client(), server_hostname="localhost"),
            loop.start_tls(far.transport, far, tls.server(), server_side=True),
        )
        assert upgraded is not transport and upgraded.get_protocol() is near
        upgraded.write(b"through tls")
        assert await far.received(11) == b"through tls"
        assert near.calls == ["connection_made"], "it is not called twice"
        upgraded.close()
        await asyncio.gather(near.lost, far.lost)
        other.close()
        server.close()
        await asyncio.sleep(0.01)

    def recorded(future):
        protocol = Recording()
        future.set_result(protocol)
        return protocol

    run(main())


def test_flow_control_works_through_tls(run, tls):
    async def main():
        go_on, written = asyncio.Event(), 0

        async def slow(reader, writer):
            await go_on.wait()
            await reader.readexactly(written)
            writer.write(b"got it all")
            await writer.drain()
            writer.close()

        async with Secured(tls, slow) as (reader, writer):
            try:
                while written < 256 << 20:
                    writer.write(bytes(100_000))
                    written += 100_000
                    await asyncio.wait_for(writer.drain(), 0.05)
            except TimeoutError:
                pass
            go_on.set()
            assert written < 256 << 20, "drain never waited"
            await writer.drain()
            assert await reader.read() == b"got it all"

    run(main())


def test_pause_and_resume_reading_work_through_tls(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        transport, protocol = await loop.create_connection(
            Recording, *server.sockets[0].getsockname(), ssl=tls.client(), server_hostname="localhost"
        )
        transport.pause_reading()
        assert not transport.is_reading()
        transport.write(b"echo this")
        await asyncio.sleep(0.03)
        assert protocol.data == b""
        transport.resume_reading()
        assert await protocol.received(9) == b"echo this"
        transport.abort()
        await protocol.lost
        server.close()
        await asyncio.sleep(0.02)

    run(main())


def test_a_hundred_tls_clients_at_once(run, tls):
    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        address, context = server.sockets[0].getsockname(), tls.client()

        async def client(number):
            reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="localhost")
            message = b"%d" % number * 1000
            writer.write(message)
            assert await reader.readexactly(len(message)) == message
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(client(number) for number in range(100)))
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.02)

    run(main())


def test_busy_and_quiet_tls_connections_take_turns(run, tls):
    """More connections than keep their record buffers, with messages of one record and of many."""

    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        address, context = server.sockets[0].getsockname(), tls.client()
        clients = [
            await asyncio.open_connection(*address, ssl=context, server_hostname="localhost") for _ in range(24)
        ]
        order = random.Random(24)
        for busy in (1, 8, 24, 3):
            for _ in range(20):
                talking = order.sample(clients, busy)
                messages = [os.urandom(order.choice((1, 1000, 16_384, 16_385, 100_000))) for _ in talking]
                for (_, writer), message in zip(talking, messages, strict=True):
                    writer.write(message)
                for (reader, _), message in zip(talking, messages, strict=True):
                    assert await reader.readexactly(len(message)) == message
                if busy == 1:
                    for _ in range(300):
                        await asyncio.sleep(0)
        for _, writer in clients:
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.02)

    run(main())


def test_an_exception_in_data_received_ends_the_tls_connection(run, tls):
    class Failing(Recording):
        def data_received(self, data):
            raise ZeroDivisionError

    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
        transport, protocol = await loop.create_connection(
            Failing, *server.sockets[0].getsockname(), ssl=tls.client(), server_hostname="localhost"
        )
        transport.write(b"x")
        error = await protocol.lost
        assert isinstance(error, ZeroDivisionError) and error in problems
        server.close()
        await asyncio.sleep(0.02)

    run(main())
