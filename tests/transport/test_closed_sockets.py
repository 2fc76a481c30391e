"""Sockets that the program closes while a transport uses them: the transport's calls fail, as in asyncio.

Another socket soon gets the same descriptor. No data may be sent to that socket or received from it.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket

import pytest

from tests.support.protocol import Buffered, Recording, close
from tests.support.sockets import socketpair
from tests.transport.test_udp import Recorder


@contextlib.contextmanager
def taken_over(sock, how="close"):
    """Closes the socket. Returns two connected sockets, of which the first has its old descriptor."""
    number = sock.fileno()
    assert getattr(sock, how)() in (None, number)
    with contextlib.ExitStack() as stack:
        if how == "detach":
            # Only the descriptor is kept, until another socket has its number.
            stack.enter_context(socket.socket(fileno=number)).close()
        # The lowest free number is given first.
        one = other = None
        while one is None or max(one.fileno(), other.fileno()) < number:
            one, other = stack.enter_context(socketpair())
        assert number in (one.fileno(), other.fileno()), "another has the number"
        yield (one, other) if one.fileno() == number else (other, one)


async def connected(protocol=Recording):
    """Returns a protocol, its socket, and the socket at the other end."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    _, made = await asyncio.get_running_loop().create_connection(protocol, sock=near)
    return made, near, far


def is_silent(sock):
    """Whether nothing has arrived, not even eof."""
    try:
        sock.recv(100)
    except BlockingIOError:
        return True
    return False


WRITES = {
    "little": lambda transport: transport.write(b"secret"),
    "mutable": lambda transport: transport.write(bytearray(b"secret")),
    "much": lambda transport: transport.write(bytes(100_000)),
    "lines": lambda transport: transport.writelines([b"secret", b"lines"]),
}


@pytest.mark.parametrize("how", ["close", "detach"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_do_not_reach_a_reused_descriptor(run, write, how):
    async def main():
        protocol, near, far = await connected()
        with far, taken_over(near, how) as (_, other):
            write(protocol.transport)
            error = await asyncio.wait_for(protocol.lost, 5)
            assert isinstance(error, OSError) and error.errno == errno.EBADF
            assert is_silent(other)

    run(main())


@pytest.mark.native
def test_pending_writes_do_not_reach_a_reused_descriptor(run):
    """asyncio never completes here: it fails to remove the descriptor from its selector."""

    async def main():
        protocol, near, far = await connected()
        protocol.transport.write(bytes(10_000_000))
        with far, taken_over(near) as (one, other):
            protocol.transport.write(b"more")
            await asyncio.sleep(0.01)
            protocol.transport.abort()
            await protocol.lost
            assert is_silent(other) and one.send(b"still open") and other.recv(100)

    run(main())


def test_write_eof_does_not_shut_down_a_reused_descriptor(run):
    async def main():
        protocol, near, far = await connected()
        with far, taken_over(near) as (_, other):
            with pytest.raises(OSError) as caught:
                protocol.transport.write_eof()
            assert caught.value.errno == errno.EBADF
            assert is_silent(other)
            protocol.transport.abort()
            await protocol.lost

    run(main())


@pytest.mark.parametrize("protocol", [Recording, Buffered, "reader"])
def test_data_is_not_received_from_a_reused_descriptor(run, protocol):
    async def main():
        reader = asyncio.StreamReader()
        made, near, far = await connected(
            protocol if protocol != "reader" else lambda: asyncio.StreamReaderProtocol(reader)
        )
        transport = made.transport if protocol != "reader" else made._transport
        transport.pause_reading()
        # The poller keeps reporting the connection, because a duplicate of it is open.
        with far, near.dup(), taken_over(near) as (one, other):
            far.send(b"for us")
            other.send(b"for another")
            await asyncio.sleep(0.01)
            transport.resume_reading()
            await asyncio.sleep(0.02)
            assert transport.is_closing()
            assert one.recv(100) == b"for another"
        assert bytes(reader._buffer if protocol == "reader" else made.data) == b""
        if protocol == "reader":
            assert reader.exception().errno == errno.EBADF

    run(main())


def test_sendfile_does_not_reach_a_reused_descriptor(run, tmp_path):
    async def main():
        path = tmp_path / "file"
        path.write_bytes(b"content")
        protocol, near, far = await connected()
        with path.open("rb") as file, far, taken_over(near) as (_, other):
            with contextlib.suppress(OSError):
                await asyncio.wait_for(asyncio.get_running_loop().sendfile(protocol.transport, file), 5)
            protocol.transport.abort()
            await protocol.lost
            assert is_silent(other)

    run(main())


@pytest.mark.native
def test_a_socket_with_a_reused_descriptor_gets_a_working_transport(run):
    """asyncio refuses such a connection as long as the old transport exists."""

    async def main():
        loop = asyncio.get_running_loop()
        protocol, near, far = await connected()
        with far, taken_over(near) as (one, other):
            _, new = await loop.create_connection(Recording, sock=one)
            other.send(b"one")
            assert await new.received(3) == b"one"
            protocol.transport.close()
            await protocol.lost
            other.send(b"two")
            assert await new.received(6) == b"onetwo"
            new.transport.write(b"three")
            await asyncio.sleep(0.01)
            assert other.recv(100) == b"three"
            await close(new)

    run(main())


async def datagrams():
    """Returns a recording protocol, its connected socket, and the socket at the other end."""
    far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    far.bind(("127.0.0.1", 0))
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.connect(far.getsockname())
    far.connect(near.getsockname())
    for sock in (near, far):
        sock.setblocking(False)
    _, made = await asyncio.get_running_loop().create_datagram_endpoint(Recorder, sock=near)
    return made, near, far


def test_datagrams_do_not_reach_a_reused_descriptor(run):
    async def main():
        recorder, near, far = await datagrams()
        with far, taken_over(near) as (_, other):
            for _ in range(3):
                recorder.transport.sendto(b"secret")
            await asyncio.sleep(0.01)
            assert [error.errno for error in recorder.errors] == 3 * [errno.EBADF]
            assert is_silent(other) and is_silent(far) and not recorder.transport.is_closing()
            recorder.transport.close()
            await recorder.lost

    run(main())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_closing_an_endpoint_does_not_affect_a_reused_descriptor(run, end):
    async def main():
        recorder, near, far = await datagrams()
        number = near.fileno()
        near.close()
        new, again, peer = await datagrams()
        with far, peer:
            if number not in (again.fileno(), peer.fileno()):
                pytest.skip("the number was not given again")
            getattr(recorder.transport, end)()
            await recorder.lost
            peer.send(b"hello")
            await asyncio.sleep(0.02)
            assert [data for data, _ in new.received] == [b"hello"]
            new.transport.close()
            await new.lost

    run(main())


def listening():
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


@pytest.mark.parametrize("how", ["close", "detach"])
def test_no_connection_is_accepted_from_a_reused_descriptor_of_a_listener(run, how):
    async def main():
        loop = asyncio.get_running_loop()
        problems, made = [], []
        loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))

        class Counting(asyncio.Protocol):
            def connection_made(self, transport):
                made.append(transport)
                transport.abort()

        with contextlib.ExitStack() as stack:
            sock = listening()
            number, address = sock.fileno(), sock.getsockname()
            # The poller keeps reporting the listener, because a duplicate of it is open.
            stack.enter_context(sock.dup())
            server = await loop.create_server(Counting, sock=sock)
            if getattr(sock, how)() is not None:
                socket.socket(fileno=number).close()
            other = stack.enter_context(listening())
            while other.fileno() < number:
                other = stack.enter_context(listening())
            assert other.fileno() == number
            for name in (other.getsockname(), address):
                stack.enter_context(socket.create_connection(name))
            await asyncio.sleep(0.01)
            assert not made
            assert problems and all(problem.errno == errno.EBADF for problem in problems)
            other.accept()[0].close()
            with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
                server.close()

    run(main())


def test_no_protocol_factory_is_called_after_one_closed_the_listener(run):
    async def main():
        loop = asyncio.get_running_loop()
        sock = listening()
        made = loop.create_future()

        def factory():
            sock.close()
            if not made.done():
                made.set_result(None)
            return asyncio.Protocol()

        server = await loop.create_server(factory, sock=sock)
        with socket.create_connection(sock.getsockname()) as client:
            await asyncio.wait_for(made, 5)
            client.setblocking(False)
            await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
                server.close()
        await asyncio.sleep(0.01)

    run(main())


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # asyncio leaves it to the collector
def test_a_refused_connection_is_closed_even_if_a_transport_used_its_descriptor(run):
    """os.close() on a transport's descriptor gives the number to the next connection, which must not be leaked."""

    class Refused(Exception):
        pass

    async def main():
        loop, protocols = asyncio.get_running_loop(), []

        def factory():
            if protocols:
                raise Refused
            protocols.append(Recording())
            return protocols[0]

        server = await loop.create_server(factory, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        first, second = socket.socket(), socket.socket()
        for sock in (first, second):
            sock.setblocking(False)
        await loop.sock_connect(first, address)
        while not protocols:
            await asyncio.sleep(0)
        transport = await protocols[0].connected
        transport.pause_reading()
        await asyncio.sleep(0)
        number = transport.get_extra_info("socket").fileno()
        # The listening socket accepts the second connection with the number that is now free.
        os.close(number)
        await loop.sock_connect(second, address)
        assert await asyncio.wait_for(loop.sock_recv(second, 1), 5) == b""
        transport._sock.detach()
        await close(protocols[0])
        first.close()
        second.close()
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.native
def test_a_transport_that_cannot_be_made_leaves_the_descriptor_to_its_caller(run):
    """The descriptor is closed before the loop watches it: the loop closes nothing, and the server counts no client."""

    class Server:
        clients = 0

        def _attach(self, *transport):
            self.clients += 1

        def _detach(self, *transport):
            self.clients -= 1

    class Closing(asyncio.Protocol):
        @property
        def connection_made(self):
            os.close(number)
            return super().connection_made

    async def main():
        loop, server = asyncio.get_running_loop(), Server()
        for _ in range(3):
            with pytest.raises(OSError, match="Bad file descriptor"):
                loop._make_socket_transport(sock, Closing(), server=server)
            assert sock.fileno() == number and server.clients == 0
            os.dup2(far.fileno(), number)

    near, far = socket.socketpair()
    # Above all numbers that the loop's table holds.
    number = fcntl.fcntl(near.fileno(), fcntl.F_DUPFD_CLOEXEC, 700)
    near.close()
    with far, socket.socket(fileno=number) as sock:
        run(main())
