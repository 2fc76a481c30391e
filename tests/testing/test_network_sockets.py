"""Sockets that the program itself has made, on the simulated network."""

import asyncio
import gc
import socket

import pytest

from tests.testing.networks import connected, hosts
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


def test_a_socket_that_the_program_has_made_joins_the_network():
    network = hosts()

    async def main(it):
        loop = asyncio.get_running_loop()
        with network.host("client"), socket.socket() as sock:
            sock.setblocking(False)
            made = loop.create_future()
            with network.host("server"):
                server = await asyncio.start_server(lambda *streams: made.set_result(streams), "server", 81)
            await loop.sock_connect(sock, ("10.0.0.2", 81))
            assert sock.getpeername() == ("10.0.0.2", 81) and sock.getsockname()[0] == "10.0.0.1"
            assert isinstance(sock, socket.socket)
            reader, writer = await made
            await loop.sock_sendall(sock, b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"and goodbye")
            room = bytearray(20)
            assert await loop.sock_recv_into(sock, room) == 11 and room[:11] == b"and goodbye"
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # Closing it closes the connection, not only the descriptor.
        assert await reader.read() == b""
        writer.close()
        server.close()

    connected(network, main)


def test_a_transport_takes_a_socket_that_the_program_has_connected():
    async def main():
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 80)
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", 80))
        reader, writer = await asyncio.open_connection(sock=sock)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert sock.fileno() == -1
        server.close()

    testing.run(main, network=Network())


def test_a_listener_that_the_program_has_bound_joins_the_network():
    async def main():
        listener = socket.create_server(("127.0.0.1", 0))
        server = await asyncio.start_server(lambda _, writer: writer.close(), sock=listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await reader.read() == b""
        writer.close()
        server.close()
        await server.wait_closed()
        assert listener.fileno() == -1

    testing.run(main, network=Network())


def test_sock_accept_gives_connections_of_the_network():
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            accepting = asyncio.create_task(loop.sock_accept(listener))
            await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            conn, address = await accepting
            assert address == writer.get_extra_info("sockname")
            with conn:
                assert conn.gettimeout() == 0
                await loop.sock_sendall(conn, b"x")
                assert await reader.read(1) == b"x"
            writer.close()

    testing.run(main, network=Network())


def test_a_socket_that_is_dropped_closes_its_connection():
    async def main():
        loop = asyncio.get_running_loop()
        made = loop.create_future()
        server = await asyncio.start_server(lambda *streams: made.set_result(streams), "127.0.0.1", 80)
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", 80))
        reader, writer = await made
        with pytest.warns(ResourceWarning, match="unclosed"):
            del sock
            gc.collect()
        assert await reader.read() == b""
        writer.close()
        server.close()

    testing.run(main, network=Network())


@pytest.mark.parametrize("make_network", [lambda: None, Network])
def test_messages_are_received_as_from_the_kernel(make_network):
    async def main():
        loop, got = asyncio.get_running_loop(), []
        with socket.socket() as listener, socket.socket() as sock:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            for each in listener, sock:
                each.setblocking(False)
            await loop.sock_connect(sock, listener.getsockname())
            peer, _ = await loop.sock_accept(listener)
            with peer:
                await loop.sock_sendall(sock, b"a stream of bytes")
                await asyncio.sleep(0.01)
                got += [peer.recvmsg(3), peer.recvmsg(2, 0, socket.MSG_PEEK)]
                rooms = [bytearray(2), bytearray(20)]
                got += [peer.recvmsg_into(rooms), rooms]
                with pytest.raises(BlockingIOError):
                    peer.recvmsg(1)
        with socket.socket(type=socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
            for each in receiver, sender:
                each.bind(("127.0.0.1", 0))
                each.setblocking(False)
            # It joins the network when it is given to the loop.
            first = asyncio.create_task(loop.sock_recvfrom(receiver, 8))
            await asyncio.sleep(0.01)
            for _ in range(3):
                await loop.sock_sendto(sender, b"datagram", receiver.getsockname())
            assert await first == (b"datagram", sender.getsockname())
            await asyncio.sleep(0.01)
            for size in 8, 4:
                *message, flags, address = receiver.recvmsg(size)
                got.append((message, bool(flags & socket.MSG_TRUNC)))
                assert address == sender.getsockname()
        return got

    assert testing.run(main, network=make_network()) == [
        (b"a s", [], 0, None),
        (b"tr", [], 0, None),
        (14, [], 0, None),
        [b"tr", bytearray(b"eam of bytes").ljust(20, b"\0")],
        ([b"datagram", []], False),
        ([b"data", []], True),
    ]


def test_a_pair_of_real_sockets_stays_real():
    async def main():
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        with one, other:
            for sock in one, other:
                sock.setblocking(False)
            await loop.sock_sendall(one, b"x")
            assert await loop.sock_recv(other, 1) == b"x"
            assert loop.network.sockets() == []

    testing.run(main, network=Network())


def test_a_socket_of_another_class_is_refused():
    class Mine(socket.socket):
        pass

    async def main():
        with Mine() as sock:
            sock.setblocking(False)
            with pytest.raises(TypeError, match="Mine cannot be moved to the simulated network"):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", 1))

    testing.run(main, network=Network())


def test_a_call_that_would_block_forever_is_refused():
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 80)
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", 80))
            sock.setblocking(True)
            with pytest.raises(RuntimeError, match=r"recv\(\) would block the thread"):
                sock.recv(1)
        server.close()

    testing.run(main, network=Network())
