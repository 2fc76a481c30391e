"""Listening sockets that the program has made itself: connections queue from listen() on, on the network as in the kernel."""

import asyncio
import contextlib
import os
import socket
import threading

import pytest

from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native

#: Each program runs on real sockets, and on the network.
NETWORKS = pytest.mark.parametrize("network", [lambda: None, Network], ids=["real", "network"])


def plain(backlog=5):
    sock = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    sock.setblocking(False)
    return sock


def by_hand():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    sock.setblocking(False)
    return sock


def six():
    sock = socket.create_server(("::1", 0), family=socket.AF_INET6)
    sock.setblocking(False)
    return sock


def abstract_unix():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0wakeloop %d" % os.getpid())
    sock.listen()
    sock.setblocking(False)
    return sock


MADE = pytest.mark.parametrize("make", [plain, by_hand, six, abstract_unix])


async def connect(listener):
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return await asyncio.open_unix_connection("\0" + name[1:].decode() if isinstance(name, bytes) else name)
    return await asyncio.open_connection(*name[:2])


async def close(*writers):
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# -- how a program accepts: each takes a listener, and gives what the client has received ------------------------------


async def with_sock_accept(listener):
    loop = asyncio.get_running_loop()
    reader, writer = await connect(listener)
    accepted, _ = await loop.sock_accept(listener)
    await loop.sock_sendall(accepted, b"hello")
    accepted.close()
    return await reader.read(), writer


async def with_a_reader(listener, key=lambda listener: listener):
    loop = asyncio.get_running_loop()

    def accept():
        accepted, _ = listener.accept()
        accepted.send(b"hello")
        accepted.close()

    loop.add_reader(key(listener), accept)
    try:
        reader, writer = await connect(listener)
        return await reader.read(), writer
    finally:
        loop.remove_reader(key(listener))


async def with_a_reader_of_its_descriptor(listener):
    return await with_a_reader(listener, socket.socket.fileno)


async def with_a_server(listener):
    async def serve(reader, writer):
        writer.write(b"hello")
        writer.close()

    starter = asyncio.start_unix_server if listener.family == socket.AF_UNIX else asyncio.start_server
    async with await starter(serve, sock=listener):
        reader, writer = await connect(listener)
        return await reader.read(), writer


async def with_a_copy(listener):
    copy = listener.dup()
    copy.setblocking(False)
    listener.close()
    try:
        return await with_sock_accept(copy)
    finally:
        copy.close()


async def with_another_object_for_it(listener):
    with socket.fromfd(listener.fileno(), listener.family, listener.type) as other:
        other.setblocking(False)
        reader, writer = await connect(listener)
        await close(writer)
        accepted, _ = await asyncio.get_running_loop().sock_accept(other)
        accepted.close()
        return await with_a_reader(other)


ACCEPTED = pytest.mark.parametrize(
    "accept",
    [
        with_sock_accept,
        with_a_reader,
        with_a_reader_of_its_descriptor,
        with_a_server,
        with_a_copy,
        with_another_object_for_it,
    ],
)


@NETWORKS
@ACCEPTED
@MADE
@pytest.mark.parametrize("place", ["within the run", "before it"])
def test_connections_queue_from_listen_on(network, accept, make, place):
    earlier = make() if place == "before it" else None

    async def main():
        listener = earlier or make()
        with listener:
            data, writer = await accept(listener)
            await close(writer)
        return data

    assert testing.run(main, network=network()) == b"hello"


@NETWORKS
def test_a_unix_listener_with_a_path_joins(network, tmp_path):
    path = str(tmp_path / "socket")

    async def main():
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.setblocking(False)
            data, writer = await with_sock_accept(listener)
            await close(writer)
        os.unlink(path)
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(path)
        return data

    assert testing.run(main, network=network()) == b"hello"


@NETWORKS
def test_a_reader_that_was_added_before_listen_is_called(network):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket() as listener:
            listener.setblocking(False)
            listener.bind(("127.0.0.1", 0))
            accepted = loop.create_future()
            # The kernel reports a socket that does not listen yet as hung up.
            loop.add_reader(listener, lambda: None)
            listener.listen()
            loop.add_reader(listener, lambda: accepted.done() or accepted.set_result(listener.accept()[0]))
            reader, writer = await connect(listener)
            (await accepted).close()
            assert await reader.read() == b""
            loop.remove_reader(listener)
            await close(writer)

    testing.run(main, network=network())


@NETWORKS
def test_a_listener_that_is_closed_resets_the_connections_in_its_queue(network):
    async def main():
        with plain() as listener:
            reader, writer = await connect(listener)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await close(writer)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*writer.get_extra_info("peername"))

    testing.run(main, network=network())


@NETWORKS
def test_a_datagram_socket_joins_when_the_program_waits_for_it(network):
    async def main():
        loop, received = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
            loop.add_reader(sock, lambda: received.done() or received.set_result(sock.recvfrom(100)[0]))
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=sock.getsockname())
            transport.sendto(b"hello")
            data = await received
            loop.remove_reader(sock)
            transport.close()
        return data

    assert testing.run(main, network=network()) == b"hello"


@NETWORKS
def test_a_thread_of_the_program_can_make_the_listener(network):
    async def main():
        with await asyncio.to_thread(plain) as listener:
            data, writer = await with_sock_accept(listener)
            await close(writer)
        return data

    assert testing.run(main, network=network()) == b"hello"


def test_a_full_queue_drops_what_is_more_until_somebody_accepts():
    async def main():
        loop = asyncio.get_running_loop()
        with plain(backlog=1) as listener:
            # Linux takes one more than the number.
            first = [await connect(listener) for _ in range(2)]
            third = asyncio.create_task(connect(listener))
            await asyncio.sleep(0.5)
            assert not third.done()
            (await loop.sock_accept(listener))[0].close()
            _, writer = await third
            assert loop.time() == 1  # The first packet was lost, and was sent again after a second.
            await close(writer, *[writer for _, writer in first])

    testing.run(main, network=Network())


def test_a_listener_from_before_the_run_has_its_backlog():
    listener = plain(backlog=1)

    async def main():
        with listener:
            first = [await connect(listener) for _ in range(2)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connect(listener), 60)
            await close(*[writer for _, writer in first])

    testing.run(main, network=Network())


def test_a_server_of_another_thread_stays_real():
    listener, stop = socket.create_server(("127.0.0.1", 0)), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:

        async def main():
            with pytest.raises(ConnectionRefusedError):
                await connect(listener)

        testing.run(main, network=Network())
        assert type(listener) is socket.socket
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()
    finally:
        stop.set()
        thread.join()
        listener.close()


def test_listen_is_as_before_after_the_run():
    async def main():
        pass

    testing.run(main, network=Network())
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        assert type(listener) is socket.socket
        listener.accept()[0].close()
