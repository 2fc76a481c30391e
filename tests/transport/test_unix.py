"""Unix sockets: by path, abstract, and their removal."""

import asyncio
import os
import socket
import struct
import sys

import pytest

from tests.support.protocol import Buffered, Recording, close
from tests.support.sockets import socketpair


async def shout(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
    writer.close()


async def talk(path):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"hello\n")
    assert await reader.readline() == b"HELLO\n"
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


def test_a_server_on_a_path_answers(run, tmp_path):
    async def main():
        path = str(tmp_path / "socket")
        server = await asyncio.start_unix_server(shout, path)
        await asyncio.gather(*(talk(path) for _ in range(50)))
        await talk(tmp_path / "socket")
        server.close()
        await server.wait_closed()
        assert os.path.exists(path) is (sys.version_info < (3, 13))

    run(main())


def test_a_server_on_an_abstract_address_leaves_no_file(run):
    async def main():
        path = f"\0wakeloop-test-{os.getpid()}"
        server = await asyncio.start_unix_server(shout, path)
        await asyncio.gather(*(talk(path) for _ in range(10)))
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(path)

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="cleanup_socket is new in 3.13")
def test_cleanup_socket_false_leaves_the_path(run, tmp_path):
    async def main():
        path = tmp_path / "socket"
        server = await asyncio.start_unix_server(shout, path, cleanup_socket=False)
        server.close()
        await server.wait_closed()
        assert path.is_socket()

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="cleanup_socket is new in 3.13")
def test_a_path_taken_over_by_another_server_is_not_removed(run, tmp_path):
    async def main():
        path = tmp_path / "socket"
        first = await asyncio.start_unix_server(shout, path)
        second = await asyncio.start_unix_server(shout, path)
        first.close()
        await first.wait_closed()
        assert path.is_socket()
        await talk(path)
        second.close()
        await second.wait_closed()
        assert not path.exists()

    run(main())


def test_a_stale_socket_is_replaced_and_a_file_is_not(run, tmp_path):
    async def main():
        stale = tmp_path / "stale"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(stale))
        server = await asyncio.start_unix_server(shout, stale)
        await talk(stale)
        server.close()
        await server.wait_closed()
        file = tmp_path / "file"
        file.write_text("precious")
        with pytest.raises(OSError, match="is already in use"):
            await asyncio.start_unix_server(shout, file)
        assert file.read_text() == "precious"

    run(main())


def test_extra_info_of_a_unix_transport(run, tmp_path):
    async def main():
        path = str(tmp_path / "socket")
        server = await asyncio.start_unix_server(shout, path)
        reader, writer = await asyncio.open_unix_connection(path)
        assert writer.get_extra_info("peername") == path
        assert writer.get_extra_info("sockname") in ("", None, b"")
        assert writer.get_extra_info("socket").family == socket.AF_UNIX
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    run(main())


def test_a_unix_connection_that_ended_still_knows_both_addresses(run, tmp_path):
    async def main():
        loop, path, served = asyncio.get_running_loop(), str(tmp_path / "socket"), []

        def serve():
            served.append(Recording())
            return served[0]

        server = await loop.create_unix_server(serve, path)
        transport, client = await loop.create_unix_connection(Recording, path)
        transport.close()
        await client.lost
        await served[0].lost
        server.close()
        assert [transport.get_extra_info(name) for name in ("sockname", "peername")] == ["", path]
        assert [served[0].transport.get_extra_info(name) for name in ("sockname", "peername")] == [path, ""]

    run(main())


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="no peer credentials on this system")
def test_both_ends_can_read_peer_credentials(run, tmp_path):
    async def main():
        loop, path, served = asyncio.get_running_loop(), str(tmp_path / "socket"), []

        def serve():
            served.append(Recording())
            return served[0]

        server = await loop.create_unix_server(serve, path)
        _, client = await loop.create_unix_connection(Recording, path)
        client.transport.write(b"hello")
        while not served:
            await asyncio.sleep(0)
        await served[0].received(5)
        for protocol in (client, served[0]):
            sock = protocol.transport.get_extra_info("socket")
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            assert struct.unpack("3i", peer) == (os.getpid(), os.getuid(), os.getgid())
            assert sock.family == socket.AF_UNIX
        server.close()
        await close(client, served[0])

    run(main())


def test_a_socketpair_makes_two_transports(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            reader, writer = await asyncio.open_unix_connection(sock=near)
            payload = os.urandom(1_000_000)
            writer.write(payload)
            received = bytearray()
            while len(received) < len(payload):
                received += await loop.sock_recv(far, 65536)
            assert received == payload
            far.close()
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(main())


def test_a_socket_that_is_not_unix_is_refused(run, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET) as sock:
            with pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"):
                await loop.create_unix_connection(asyncio.Protocol, sock=sock)
            with pytest.raises(ValueError, match="A UNIX Domain Stream Socket was expected"):
                await loop.create_unix_server(asyncio.Protocol, sock=sock)
        with pytest.raises(ValueError, match="path was not specified"):
            await loop.create_unix_server(asyncio.Protocol)
        with pytest.raises(FileNotFoundError):
            await loop.create_unix_connection(asyncio.Protocol, str(tmp_path / "absent"))

    run(main())


def test_descriptors_can_be_passed_over_a_socket_that_the_loop_watches(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            received = loop.create_future()

            def receive():
                loop.remove_reader(far)
                received.set_result(socket.recv_fds(far, 100, 1))

            loop.add_reader(far, receive)
            reading, writing = os.pipe()
            socket.send_fds(near, [b"a pipe"], [writing])
            os.close(writing)
            data, (passed,), *_ = await received
            os.write(passed, b"through the passed end")
            os.close(passed)
            assert (data, os.read(reading, 100)) == (b"a pipe", b"through the passed end")
            os.close(reading)

    run(main())


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the connection is refused outright")
def test_a_unix_socket_whose_queue_is_full_refuses(run, tmp_path):
    """asyncio reports a connection, and every use of it fails. uvloop refuses too."""

    async def main():
        path = str(tmp_path / "socket")
        waiting = []
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(0)
            while True:
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                waiting.append(client)
                try:
                    client.connect(path)
                except BlockingIOError:
                    break
            with pytest.raises(BlockingIOError):
                await asyncio.open_unix_connection(path)
            for client in waiting:
                client.close()

    run(main())


@pytest.mark.parametrize("protocol", [Recording, Buffered])
def test_data_after_a_passed_descriptor_is_received(run, protocol):
    """Each message with a descriptor ends a read, and there is no separate event for the data after it."""

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            _, receiving = await loop.create_unix_connection(protocol, sock=far)
            for letter in b"abc":
                socket.send_fds(near, [bytes([letter])], [near.fileno()])
            near.sendall(b"rest")
            async with asyncio.timeout(10):
                while len(receiving.data) < 7:
                    await asyncio.sleep(0.01)
            assert receiving.data == b"abcrest"
            await close(receiving)

    run(main())


def test_a_stream_reader_gets_data_after_a_passed_descriptor(run):
    async def main():
        with socketpair() as (near, far):
            reader, writer = await asyncio.open_unix_connection(sock=far)
            for letter in b"abc":
                socket.send_fds(near, [bytes([letter])], [near.fileno()])
            near.sendall(b"rest")
            async with asyncio.timeout(10):
                assert await reader.readexactly(7) == b"abcrest"
            writer.close()
            await writer.wait_closed()

    run(main())
