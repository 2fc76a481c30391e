"""TCP transports: the order of a connection's events, its ends, its state. Writing is in test_writing."""

import asyncio
import errno
import gc
import os
import re
import socket
import sys
import weakref

import pytest

from tests.support.protocol import Buffered, HalfOpen, Recording, close, pair
from tests.support.sockets import socketpair, tcp_pair


def test_events_come_in_order_and_each_once(run):
    async def main():
        near, far = await pair()
        far.transport.write(b"data")
        far.transport.write_eof()
        await near.received(4)
        await near.ended
        near.transport.close()
        await asyncio.gather(near.lost, far.lost)
        assert near.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]
        assert near.error is None and far.error is None

    run(main())


@pytest.mark.parametrize("first_is", ["paused", "reading"])
def test_a_second_transport_on_a_socket_is_refused_since_3_12(run, first_is):
    """Before, the events are those of the transport that began or resumed to read last."""

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            first, one = await loop.create_connection(Recording, sock=near)
            if first_is == "paused":
                first.pause_reading()
            if sys.version_info >= (3, 12):
                with pytest.raises(RuntimeError, match="^File descriptor .* is used by transport <"):
                    await loop.create_connection(Recording, sock=near)
                first.abort()
                await one.lost
                return
            second, two = await loop.create_connection(Recording, sock=near)
            far.send(b"second")
            await two.received(6)
            second.write(b"from second, ")
            first.write(b"from first")
            assert far.recv(100) == b"from second, from first"
            second.pause_reading()
            first.pause_reading()
            first.resume_reading()
            far.send(b"first")
            await one.received(5)
            assert (one.data, two.data) == (b"first", b"second")
            second.resume_reading()
            far.send(b" again")
            await two.received(12)
            second.close()
            await two.lost
            assert near.fileno() == -1
            first.abort()
            await one.lost
            assert (one.data, two.data) == (b"first", b"second again")

    run(main())


def test_resuming_a_transport_whose_socket_is_closed_raises(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            transport, protocol = await loop.create_connection(Recording, sock=near)
            transport.pause_reading()
            near.close()
            with pytest.raises(OSError) as raised:
                transport.resume_reading()
            assert raised.value.errno == errno.EBADF
            transport.abort()
            await protocol.lost

    run(main())


def test_data_and_end_in_one_segment_come_as_data_then_end(run):
    async def main():
        for _ in range(100):
            with tcp_pair() as (sock, peer):
                peer.send(b"last words")
                peer.close()
                _, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
                await protocol.lost
                assert protocol.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]
                assert protocol.data == b"last words"

    run(main())


def test_connection_lost_comes_in_a_later_iteration_than_close(run):
    async def main():
        near, far = await pair()
        for protocol in (near, far):
            protocol.transport.close()
            assert protocol.transport.is_closing() and protocol.calls[-1] != "connection_lost"
        await asyncio.gather(near.lost, far.lost)
        near.transport.close()
        near.transport.abort()
        await asyncio.sleep(0.01)
        assert near.calls.count("connection_lost") == 1

    run(main())


def test_connection_made_comes_before_create_connection_returns(run):
    async def main():
        near, far = await pair()
        assert near.connected.done() and near.transport is near.connected.result()
        await close(near, far)

    run(main())


def test_the_peer_sees_the_end_when_close_completes(run):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(Recording, sock=sock)
            transport.write(b"bye")
            transport.close()
            await protocol.lost
            async with asyncio.timeout(5):
                assert await loop.sock_recv(peer, 100) == b"bye"
                assert await loop.sock_recv(peer, 100) == b""

    run(main())


def test_after_write_eof_the_other_direction_stays_open(run):
    async def main():
        near, far = await pair(far=HalfOpen)
        assert near.transport.can_write_eof()
        near.transport.write(b"question")
        near.transport.write_eof()
        near.transport.write_eof()
        await far.ended
        assert not far.transport.is_closing()
        with pytest.raises(RuntimeError, match="Cannot call write\\(\\) after write_eof\\(\\)"):
            near.transport.write(b"more")
        method = "writelines" if sys.version_info >= (3, 12) else "write"
        with pytest.raises(RuntimeError, match=f"Cannot call {method}\\(\\) after write_eof\\(\\)"):
            near.transport.writelines([b"more"])
        far.transport.write(b"late answer")
        far.transport.close()
        await near.lost
        assert near.data == b"late answer" and far.data == b"question"

    run(main())


def test_the_peers_end_is_received_while_writes_are_pending(run):
    async def main():
        loop, size, got = asyncio.get_running_loop(), 4 << 20, 0
        with socketpair() as (sock, peer):
            transport, protocol = await loop.create_connection(HalfOpen, sock=sock)
            transport.write(bytes(size))
            assert transport.get_write_buffer_size() > 0
            peer.shutdown(socket.SHUT_WR)
            while not protocol.ended.done() and not transport.is_closing():
                await asyncio.sleep(0)
            assert protocol.calls == ["connection_made", "pause_writing", "eof_received"]
            while got < size:
                got += len(await loop.sock_recv(peer, 1 << 20))
            assert not transport.is_closing() and not protocol.lost.done()
            transport.write(b"more")
            assert await loop.sock_recv(peer, 100) == b"more"
            await close(protocol)

    run(main())


def test_write_eof_flushes_pending_writes(run):
    async def main():
        near, far = await pair()
        payload = os.urandom(8 << 20)
        near.transport.write(payload)
        near.transport.write_eof()
        await far.ended
        assert far.data == payload
        await close(near, far)

    run(main())


def test_abort_drops_the_write_buffer(run):
    async def main():
        with tcp_pair() as (sock, peer):
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            transport.write(bytes(32 << 20))
            assert transport.get_write_buffer_size() > 0
            transport.abort()
            assert transport.is_closing() and transport.get_write_buffer_size() == 0
            assert await protocol.lost is None

    run(main())


def test_abort_sends_what_was_written_just_before_it(run):
    """asyncio's write sends at once. What the socket took is on its way, and abort drops only the rest."""

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(Recording, sock=sock)
            transport.write(b"bye")
            transport.abort()
            assert await protocol.lost is None
            async with asyncio.timeout(5):
                assert await loop.sock_recv(peer, 100) == b"bye"
                assert await loop.sock_recv(peer, 100) == b""

    run(main())


def test_a_reset_by_the_peer_is_the_exception_of_connection_lost(run):
    async def main():
        with tcp_pair() as (sock, peer):
            _, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
            assert isinstance(await protocol.lost, ConnectionResetError)

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_data_the_peer_sent_before_a_reset_is_received(run, turns):
    """The early answer to a large upload: the peer closes with our data unread, and our next write fails."""

    async def main():
        with tcp_pair() as (sock, peer):
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            transport.write(bytes(16 << 20))
            for _ in range(turns):
                await asyncio.sleep(0)
            assert transport.get_write_buffer_size() > 0
            peer.send(b"413 Content Too Large")
            peer.close()
            assert isinstance(await protocol.lost, (ConnectionResetError, BrokenPipeError))
            assert protocol.data == b"413 Content Too Large" and protocol.calls[-1] == "connection_lost"

    run(main())


def test_closing_inside_data_received_ends_the_deliveries(run):
    class First(Recording):
        def data_received(self, data):
            assert "closed" not in self.calls
            super().data_received(data)
            self.calls.append("closed")
            self.transport.close()

    async def main():
        near, far = await pair(near=First)
        far.transport.write(os.urandom(4 << 20))
        await near.lost
        assert near.calls == ["connection_made", "data_received", "closed", "connection_lost"]
        await close(far)

    run(main())


def test_set_protocol_changes_which_protocol_gets_the_next_data(run):
    async def main():
        near, far = await pair()
        far.transport.write(b"first")
        await near.received(5)
        second = Recording()
        second.connection_made(near.transport)
        near.transport.set_protocol(second)
        assert near.transport.get_protocol() is second
        far.transport.write(b"second")
        await second.received(6)
        third = Buffered()
        near.transport.set_protocol(third)
        far.transport.write(b"third")
        while third.data != b"third":
            await asyncio.sleep(0.001)
        assert near.data == b"first" and second.data == b"second"
        far.transport.close()
        await third.lost
        await far.lost

    run(main())


def test_the_only_argument_of_a_method_may_be_given_by_name(run):
    async def main():
        near, far = await pair()
        near.transport.write(data=b"one")
        near.transport.writelines(list_of_data=[b"two"])
        near.transport.set_protocol(protocol=near)
        assert await far.received(6) == b"onetwo"
        with pytest.raises(TypeError, match="unexpected keyword argument 'dat'"):
            near.transport.write(dat=b"three")
        await close(near, far)

    run(main())


def test_extra_info_has_the_keys_and_types_of_asyncio(run):
    async def main():
        near, far = await pair()
        transport = near.transport
        sock = transport.get_extra_info("socket")
        assert isinstance(sock, asyncio.trsock.TransportSocket) and sock.family == socket.AF_INET
        assert str(type(sock)) == str(asyncio.trsock.TransportSocket)
        assert transport.get_extra_info("sockname") == sock.getsockname()
        assert transport.get_extra_info("peername") == far.transport.get_extra_info("sockname")
        assert far.transport.get_extra_info("peername") == transport.get_extra_info("sockname")
        assert transport.get_extra_info("sslcontext") is None
        assert transport.get_extra_info("unknown", "default") == "default"
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        await close(near, far)
        assert transport.get_extra_info("peername") is not None

    run(main())


def test_a_transport_is_idle_until_connection_made_has_returned(run):
    class Looking(Recording):
        def connection_made(self, transport):
            super().connection_made(transport)
            self.seen = repr(transport)

    async def main():
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()

        def accept():
            accepted.set_result(Looking())
            return accepted.result()

        server = await loop.create_server(accept, "127.0.0.1", 0)
        _, near = await loop.create_connection(Looking, *server.sockets[0].getsockname())
        far = await accepted
        await far.connected
        for one in (near, far):
            assert "read=idle write=<idle, bufsize=0>" in one.seen
            assert "read=polling write=<idle, bufsize=0>" in repr(one.transport)
        await close(near, far)
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.parametrize("asked", ["in connection_lost", "after it"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_ended_still_knows_both_addresses(run, reset, asked):
    """Even if nobody read the addresses while the socket was open."""

    class Asking(Recording):
        addresses = None

        def connection_lost(self, exc):
            if asked == "in connection_lost":
                self.addresses = addresses_of(self.transport)
            super().connection_lost(exc)

    def addresses_of(transport):
        return transport.get_extra_info("sockname"), transport.get_extra_info("peername")

    async def main():
        with tcp_pair() as (sock, peer):
            expected = sock.getsockname(), sock.getpeername()
            transport, protocol = await asyncio.get_running_loop().create_connection(Asking, sock=sock)
            if reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
            await protocol.lost
            await asyncio.sleep(0)
            assert (protocol.addresses or addresses_of(transport)) == expected

    run(main())


def test_transports_are_asyncios_and_can_be_weakly_referenced(run):
    async def main():
        near, far = await pair()
        assert isinstance(near.transport, asyncio.Transport)
        assert isinstance(near.transport, asyncio.ReadTransport) and isinstance(near.transport, asyncio.WriteTransport)
        assert {near.transport: 1}[near.transport] == 1
        reference = weakref.ref(near.transport)
        assert reference() is near.transport
        await close(near, far)
        near.transport = near.connected = None
        del near
        await asyncio.sleep(0)
        gc.collect()
        assert reference() is None

    run(main())


def test_a_write_that_fails_comes_before_more_data_than_one_buffer(run):
    async def main():
        sock, peer = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(lambda: Buffered(3000), sock=sock)
        transport.write(bytes(3_000_000))
        peer.send(bytes(5000))
        peer.close()
        assert isinstance(await protocol.lost, OSError)
        assert len(protocol.data) == 3000

    run(main())


def test_many_connections_open_and_close_at_once(run):
    async def main():
        pairs = await asyncio.gather(*(pair() for _ in range(200)))
        for number, (near, _) in enumerate(pairs):
            near.transport.write(str(number).encode() * 10)
            near.transport.close()
        await asyncio.gather(*(far.lost for _, far in pairs), *(near.lost for near, _ in pairs))
        assert [bytes(far.data) for _, far in pairs] == [str(number).encode() * 10 for number in range(200)]

    run(main())


def test_repr_shows_the_state(run):
    async def main():
        near, far = await pair()
        assert "closed" not in repr(near.transport) and f"fd={near.transport.get_extra_info('socket').fileno()}" in repr(near.transport)
        near.transport.close()
        assert "closing" in repr(near.transport) or "closed" in repr(near.transport)
        fd = re.search(r" fd=\d+", repr(near.transport))[0]
        await close(near, far)
        assert f" closed{fd}>" in repr(near.transport)

    run(main())


def test_arguments_can_be_named(run):
    async def main():
        near, far = await pair()
        near.transport.set_protocol(protocol=near)
        near.transport.write(data=b"one ")
        near.transport.writelines(list_of_data=[b"two ", b"three"])
        assert await far.received(13) == b"one two three"
        for wrong in ({"bytes": b""}, {}):
            with pytest.raises(TypeError):
                near.transport.write(**wrong)
        await close(near, far)

    run(main())


def test_overridden_socket_methods_are_called(run):
    """A subclass of socket that counts, encrypts or records: the transport must not bypass it."""
    sent, received = [], []

    class Recorder(socket.socket):
        def send(self, data, *flags):
            sent.append(bytes(data))
            return super().send(data, *flags)

        def recv(self, size, *flags):
            received.append(super().recv(size, *flags))
            return received[-1]

    async def main():
        near, far = socket.socketpair()
        far.setblocking(False)
        with far:
            own = Recorder(near.family, near.type, near.proto, near.detach())
            own.setblocking(False)
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(Recording, sock=own)
            transport.write(b"ping")
            assert await loop.sock_recv(far, 100) == b"ping"
            await loop.sock_sendall(far, b"pong")
            assert await protocol.received(4) == b"pong"
            transport.close()
            await protocol.lost

    run(main())
    assert sent == [b"ping"] and received == [b"pong"]


def test_a_plain_subclass_of_socket_is_an_ordinary_socket(run):
    class Named(socket.socket):
        name = "mine"

    async def main():
        near, far = socket.socketpair()
        far.setblocking(False)
        with far:
            own = Named(near.family, near.type, near.proto, near.detach())
            own.setblocking(False)
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(Recording, sock=own)
            transport.write(b"ping")
            assert await loop.sock_recv(far, 100) == b"ping"
            transport.close()
            await protocol.lost
            assert own.fileno() == -1

    run(main())


@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_get_extra_info_first_called_after_connection_lost(run, tmp_path, family, side):
    """The names and the closed socket are as if they had been read earlier."""

    async def main():
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()

        def serve():
            protocol = Recording()
            accepted.set_result(protocol)
            return protocol

        path = str(tmp_path / "s")
        if family == "tcp":
            server = await loop.create_server(serve, "127.0.0.1", 0)
            client, near = await loop.create_connection(Recording, *server.sockets[0].getsockname())
        else:
            server = await loop.create_unix_server(serve, path)
            client, near = await loop.create_unix_connection(Recording, path)
        protocol = near if side == "client" else await accepted
        transport = await protocol.connected
        client.close()
        await protocol.lost
        await asyncio.sleep(0)
        server.close()
        sock = transport.get_extra_info("socket")
        assert sock.fileno() == -1 and sock.type == socket.SOCK_STREAM
        if family == "tcp":
            assert sock.family == socket.AF_INET and sock.proto == socket.IPPROTO_TCP
            assert {len(transport.get_extra_info(name)) for name in ("sockname", "peername")} == {2}
        else:
            assert sock.family == socket.AF_UNIX
            ends = ["", path] if side == "client" else [path, ""]
            assert [transport.get_extra_info("sockname"), transport.get_extra_info("peername")] == ends
        assert transport.get_extra_info("socket") is sock
        with pytest.raises(OSError):
            sock.getsockname()

    run(main())


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_descriptor_closed_by_other_code_is_reported(run, debug):
    async def main():
        loop, reported = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: reported.append(context))
        near, far = await pair()
        os.close(far.transport.get_extra_info("socket").fileno())
        far.transport.close()
        await far.lost
        await asyncio.sleep(0)
        (context,) = reported
        callback = "_SelectorSocketTransport._call_connection_lost"
        shows_argument = debug or sys.version_info < (3, 13)
        assert context["message"] == f"Exception in callback {callback}({'None' if shows_argument else ''})"
        assert context["exception"].errno == errno.EBADF
        assert callback in repr(context["handle"])
        if (sock := far.transport._sock) is not None:  # asyncio keeps it, and closes it once more at the end
            sock.detach()
            far.transport._sock = None
        near.transport.close()
        await near.lost

    run(main(), debug=debug)


@pytest.mark.parametrize("protocol", [Recording, Buffered])
def test_data_after_urgent_data_is_received(run, protocol):
    """A read ends at the urgent mark, and there is no separate event for the data after it."""

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            _, receiving = await loop.create_connection(protocol, sock=far)
            near.sendall(b"before")
            near.send(b"!", socket.MSG_OOB)
            near.sendall(b"behind")
            async with asyncio.timeout(10):
                while len(receiving.data) < 12:
                    await asyncio.sleep(0.01)
            assert receiving.data == b"beforebehind"
            await close(receiving)

    run(main())
