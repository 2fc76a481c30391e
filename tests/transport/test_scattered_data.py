"""Data that is not contiguous in memory, such as every second byte of a buffer: system calls cannot send it.

asyncio finds that out when it makes the call, and treats it as an error of the socket, which ends the connection.
"""

import asyncio
import os
import socket
import sys

import pytest

from tests.support.protocol import Recording, close, pair
from tests.support.sockets import socketpair, tcp_pair
from tests.support.tls_pair import secure_pair

SCATTERED = memoryview(b"a-b-c-")[::2]


def listen_to_errors():
    """Collects the exception handler's calls from now on."""
    reported = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append((context["message"], type(context["exception"])))
    )
    return reported


@pytest.mark.parametrize("ends", [tcp_pair, socketpair], ids=["tcp", "unix"])
@pytest.mark.parametrize("method", ["write", "writelines"])
def test_non_contiguous_data_ends_a_connection_after_earlier_writes(run, ends, method):
    async def main():
        reported = listen_to_errors()
        with ends() as (sock, peer):
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            transport.write(b"before")
            if method == "write":
                transport.write(SCATTERED)
            elif sys.version_info >= (3, 12):
                transport.writelines([b"not sent", SCATTERED])
            else:
                with pytest.raises(TypeError, match="expected a bytes-like object"):
                    transport.writelines([b"not sent", SCATTERED])
                transport.abort()
                await protocol.lost
                return
            assert transport.is_closing() and transport.get_write_buffer_size() == 0
            transport.write(SCATTERED)  # silent, as every write to a lost connection
            await protocol.lost
            assert isinstance(protocol.error, BufferError)
            assert reported == [("Fatal write error on socket transport", BufferError)]
            assert peer.recv(100) == b"before"

    run(main())


@pytest.mark.parametrize("method", ["write", "writelines"])
def test_non_contiguous_data_is_silent_after_a_write_found_the_connection_broken(run, method):
    async def main():
        reported = listen_to_errors()
        with socketpair() as (sock, peer):
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            transport.pause_reading()
            peer.close()
            transport.write(b"finds it broken")
            if method == "write":
                transport.write(SCATTERED)
            elif sys.version_info >= (3, 12):
                transport.writelines([SCATTERED])
            await protocol.lost
            assert isinstance(protocol.error, BrokenPipeError)
            assert reported == []

    run(main())


@pytest.mark.parametrize("method", ["write", "writelines"])
def test_non_contiguous_data_ends_a_tls_connection(run, tls, method):
    async def main():
        reported = listen_to_errors()
        near, far = await secure_pair(tls)
        data = SCATTERED if method == "write" else [b"not sent", SCATTERED]
        getattr(near.transport, method)(data)
        await near.lost
        assert isinstance(near.error, BufferError)
        assert reported == [("Fatal error on SSL protocol", BufferError)]
        await close(near, far)

    run(main())


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "addressed"])
def test_non_contiguous_data_ends_a_datagram_transport_after_earlier_datagrams(run, connected):
    class Ending(asyncio.DatagramProtocol):
        def __init__(self):
            self.lost = asyncio.get_running_loop().create_future()

        def connection_lost(self, error):
            self.lost.set_result(error)

    async def main():
        reported = listen_to_errors()
        with socket.socket(type=socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            peer.settimeout(10)
            name = peer.getsockname()
            where = {"remote_addr": name} if connected else {"local_addr": ("127.0.0.1", 0)}
            transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(Ending, **where)
            for data in (b"1", b"2", SCATTERED):
                transport.sendto(data, None if connected else name)
            assert transport.is_closing()
            assert isinstance(await protocol.lost, BufferError)
            assert reported == [("Fatal write error on datagram transport", BufferError)]
            assert [peer.recv(10), peer.recv(10)] == [b"1", b"2"]

    run(main())


def test_a_non_contiguous_datagram_that_has_to_wait_is_copied(run, tmp_path):
    async def main():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as far:
            far.bind(str(tmp_path / "far"))
            far.settimeout(10)
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, family=socket.AF_UNIX, remote_addr=far.getsockname()
            )
            before = 0
            while transport.get_write_buffer_size() == 0 and not transport.is_closing():
                transport.sendto(b"x" * 1000)
                before += 1
            transport.sendto(SCATTERED)
            for _ in range(before):
                assert far.recv(2000) == b"x" * 1000
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            assert far.recv(2000) == b"abc"
            transport.close()
            await asyncio.sleep(0.01)

    run(main())


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
def test_non_contiguous_data_ends_a_pipe_unless_it_is_full(run, full):
    async def main():
        reported = listen_to_errors()
        reading, writing = os.pipe()
        try:
            transport, protocol = await asyncio.get_running_loop().connect_write_pipe(
                Recording, open(writing, "wb", 0)
            )
            if full:
                transport.write(bytes(1_000_000))
                with pytest.raises(TypeError, match="can't concat memoryview to bytearray"):
                    transport.write(SCATTERED)
                transport.abort()
            else:
                transport.write(SCATTERED)
                assert transport.is_closing()
            await protocol.lost
            assert isinstance(protocol.error, type(None) if full else BufferError)
            assert reported == ([] if full else [("Fatal write error on pipe transport", BufferError)])
        finally:
            os.close(reading)

    run(main())


def test_writing_a_released_memoryview_raises_in_the_caller(run):
    async def main():
        near, far = await pair()
        released = memoryview(b"x")
        released.release()
        with pytest.raises(ValueError, match="released"):
            near.transport.write(released)
        assert not near.transport.is_closing()
        await close(near, far)

    run(main())
