"""`loop.sendfile` and `loop.sock_sendfile`."""

import asyncio
import asyncio.trsock
import contextlib
import io
import os
import socket
import struct
import sys
import threading

import pytest

from tests.support.protocol import Recording, pair
from tests.support.sockets import socketpair, tcp_pair
from tests.support.tls_pair import finish, secure_pair

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, asyncio's own way is taken")

#: More than both sockets of a connection buffer.
SIZE = 20_000_000


@pytest.fixture(scope="module")
def content():
    return os.urandom(1_000_000) * (SIZE // 1_000_000)


@pytest.fixture
def file(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb") as opened:
        yield opened


async def under_way(transport_or_sock, file, **options):
    """Starts a sendfile that waits for the peer, as a task."""
    loop = asyncio.get_running_loop()
    send = loop.sock_sendfile if isinstance(transport_or_sock, socket.socket) else loop.sendfile
    sending = asyncio.create_task(send(transport_or_sock, file, **options))
    await asyncio.sleep(0.05)
    assert not sending.done()
    return sending


async def closed(*protocols):
    for protocol in protocols:
        protocol.transport.abort()
    for protocol in protocols:
        await protocol.lost


class Slotted:
    """A socket of a program's own class, whose instances cannot be referred to weakly."""

    __slots__ = ("sock",)

    def __init__(self, sock):
        self.sock = sock

    def __getattr__(self, name):
        return getattr(self.sock, name)


@pytest.mark.parametrize("kind", [Slotted, asyncio.trsock.TransportSocket])
def test_sock_sendfile_takes_a_socket_without_weak_references(run, file, content, kind):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (ours, theirs):
            sending = asyncio.create_task(loop.sock_sendfile(kind(ours), file))
            received = bytearray()
            while len(received) < SIZE:
                received += await loop.sock_recv(theirs, 1_000_000)
            assert await sending == SIZE and received == content
            # The descriptor is free for other uses.
            await loop.sock_sendall(ours, b"more")
            assert await loop.sock_recv(theirs, 10) == b"more"

    run(main())


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_sendfile_keeps_its_order_between_two_writes(run, file, content, family):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() if family == socket.AF_INET else socketpair() as (ours, theirs):
            transport, near = await loop.create_connection(Recording, sock=ours)
            _, far = await loop.create_connection(Recording, sock=theirs)
            transport.write(b"before")
            assert await loop.sendfile(transport, file) == SIZE
            assert file.tell() == SIZE
            transport.write(b"after")
            assert await far.received(SIZE + 11) == b"before" + content + b"after"
            far.transport.write(b"answer")
            assert await near.received(6) == b"answer"
            await closed(near, far)

    run(main())


def test_a_server_sends_files_one_after_the_other(run, file, content):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        for number in range(20):
            assert await loop.sendfile(far.transport, file, number * 1000, 1000) == 1000
            assert file.tell() == (number + 1) * 1000
        assert await near.received(20_000) == content[:20_000]
        await closed(near, far)

    run(main())


def test_sendfile_keeps_its_order_between_two_stream_writes(run, file, content):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, theirs):
            _, writer = await asyncio.open_connection(sock=ours)
            _, far = await loop.create_connection(Recording, sock=theirs)
            writer.write(b"before")
            assert await loop.sendfile(writer.transport, file) == SIZE
            writer.write(b"after")
            await writer.drain()
            assert await far.received(SIZE + 11) == b"before" + content + b"after"
            writer.close()
            await writer.wait_closed()
            await far.lost

    run(main())


@pytest.mark.parametrize(
    ("offset", "count"), [(0, None), (1000, None), (0, 5000), (SIZE - 10, 100), (SIZE + 5, None), (3, 1 << 62)]
)
@pytest.mark.parametrize("by", ["transport", "socket"])
def test_sendfile_offset_and_count_select_the_part(run, file, content, by, offset, count):
    expected = content[offset:] if count is None else content[offset : offset + count]

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            if by == "transport":
                transport, protocol = await loop.create_connection(Recording, sock=near)
                sending = asyncio.create_task(loop.sendfile(transport, file, offset, count))
            else:
                sending = asyncio.create_task(loop.sock_sendfile(near, file, offset, count))
            received = bytearray()
            while len(received) < len(expected):
                received += await loop.sock_recv(far, 1 << 20)
            assert received == expected
            assert await sending == len(expected)
            # Versions of asyncio that always seek do so for a part beyond the end as well.
            assert file.tell() == offset + len(expected) or (not expected and file.tell() == 0)
            if by == "transport":
                await closed(protocol)

    run(main())


def test_an_empty_file_is_sent_at_once(run, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        (tmp_path / "empty").touch()
        near, far = await pair()
        with open(tmp_path / "empty", "rb") as empty:
            assert await loop.sendfile(near.transport, empty) == 0
            assert await loop.sendfile(near.transport, empty, 0, 10) == 0
        near.transport.write(b"next")
        assert await far.received(4) == b"next"
        await closed(near, far)

    run(main())


@pytest.mark.parametrize("by", ["transport", "socket"])
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"count": 0}, ValueError, r"count must be a positive integer \(got 0\)"),
        ({"count": -1}, ValueError, r"count must be a positive integer \(got -1\)"),
        ({"count": 1.5}, TypeError, r"count must be a positive integer \(got 1.5\)"),
        ({"offset": -1}, ValueError, r"offset must be a non-negative integer \(got -1\)"),
        ({"offset": "0"}, TypeError, r"offset must be a non-negative integer \(got '0'\)"),
    ],
)
def test_wrong_arguments_are_refused(run, file, by, arguments, error, text):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            if by == "socket":
                with pytest.raises(error, match=text):
                    await loop.sock_sendfile(near, file, **arguments)
                return
            transport, protocol = await loop.create_connection(Recording, sock=near)
            with pytest.raises(error, match=text):
                await loop.sendfile(transport, file, **arguments)
            # And nothing is left behind.
            assert transport.is_reading()
            transport.write(b"next")
            assert await loop.sock_recv(far, 10) == b"next"
            await closed(protocol)

    run(main())


def test_a_transport_without_sendfile_raises_runtime_error(run, file, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        (tmp_path / "text").write_text("text")
        with open(tmp_path / "text") as text, pytest.raises(ValueError, match="file should be opened in binary mode"):
            await loop.sendfile(near.transport, text)
        near.transport.close()
        with pytest.raises(RuntimeError, match="Transport is closing"):
            await loop.sendfile(near.transport, file)
        await closed(near, far)
        datagrams, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
        with pytest.raises(RuntimeError, match="sendfile is not supported for transport"):
            await loop.sendfile(datagrams, file)
        with socketpair(socket.SOCK_DGRAM) as (sock, _):
            with pytest.raises(ValueError, match="only SOCK_STREAM type sockets are supported"):
                await loop.sock_sendfile(sock, file)
        datagrams.abort()
        loop.set_debug(True)
        with socket.socket() as sock, pytest.raises(ValueError, match="the socket must be non-blocking"):
            await loop.sock_sendfile(sock, file)

    run(main())


@pytest.mark.parametrize("by", ["transport", "socket"])
def test_sendfile_falls_back_for_files_that_are_not_regular(run, by):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            destination, send = near, loop.sock_sendfile
            if by == "transport":
                destination, protocol = await loop.create_connection(Recording, sock=near)
                send = loop.sendfile
            memory = io.BytesIO(b"0123456789")
            with pytest.raises(asyncio.SendfileNotAvailableError, match="not a regular file"):
                await send(destination, memory, fallback=False)
            assert await send(destination, memory, 2, 5) == 5
            assert await loop.sock_recv(far, 100) == b"23456"
            assert memory.tell() == 7
            if by == "transport":
                await closed(protocol)

    run(main())


def test_sendfile_of_a_pipe_is_refused(run):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        reader, writer = os.pipe()
        os.write(writer, b"in a pipe")
        os.close(writer)
        with os.fdopen(reader, "rb", 0) as source:
            # Versions of asyncio that always seek fail there.
            with pytest.raises((asyncio.SendfileNotAvailableError, OSError)):
                await loop.sendfile(near.transport, source, 0, 9, fallback=False)
        near.transport.write(b"next")
        assert await far.received(4) == b"next"
        await closed(near, far)

    run(main())


def test_over_tls_the_file_is_read_and_encrypted(run, file, content, tls):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await secure_pair(tls)
        with pytest.raises(RuntimeError, match="fallback is disabled and native sendfile is not supported"):
            await loop.sendfile(near.transport, file, fallback=False)
        assert await loop.sendfile(near.transport, file, 100, 3_000_000) == 3_000_000
        assert file.tell() == 3_000_100
        assert await far.received(3_000_000) == content[100:3_000_100]
        await finish(near, far)

    run(main())


def test_nothing_can_be_written_while_a_file_is_sent(run, file):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, theirs):
            transport, near = await loop.create_connection(Recording, sock=ours)
            sending = await under_way(transport, file)
            for data in (b"x", b"", bytearray(b"x")):
                with pytest.raises(RuntimeError, match="unable to write; sendfile is in progress"):
                    transport.write(data)
            with pytest.raises(RuntimeError, match="sendfile is in progress"):
                transport.writelines([b"x"])
            # asyncio raises KeyError.
            with pytest.raises((RuntimeError, KeyError)):
                await loop.sendfile(transport, file)
            assert not transport.is_reading()
            received = 0
            while received < SIZE:
                received += len(await loop.sock_recv(theirs, 1 << 20))
            assert await sending == SIZE == received
            assert transport.is_reading()
            transport.write(b"next")
            assert await loop.sock_recv(theirs, 100) == b"next"
            await closed(near)

    run(main())


def test_reading_stays_paused_after_sendfile(run, file):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        near.transport.pause_reading()
        assert await loop.sendfile(near.transport, file) == SIZE
        assert not near.transport.is_reading()
        far.transport.write(b"later")
        await asyncio.sleep(0.01)
        assert near.data == b""
        near.transport.resume_reading()
        assert await near.received(5) == b"later"
        await closed(near, far)

    run(main())


def test_a_cancelled_sendfile_leaves_the_connection_and_the_files_position(run, file, content):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, theirs):
            transport, near = await loop.create_connection(Recording, sock=ours)
            file.seek(7)
            sending = await under_way(transport, file)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert file.tell() == 7 and transport.is_reading() and not transport.is_closing()
            transport.write(b"<end>")
            received = bytearray()
            while not received.endswith(b"<end>"):
                received += await loop.sock_recv(theirs, 1 << 20)
            assert received[:-5] == content[: len(received) - 5]
            theirs.send(b"answer")
            assert await near.received(6) == b"answer"
            await closed(near)

    run(main())


def test_a_cancelled_sock_sendfile_leaves_the_socket(run, file, content):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            sending = await under_way(near, file)
            # The other direction still works.
            far.send(b"meanwhile")
            assert await loop.sock_recv(near, 100) == b"meanwhile"
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert file.tell() == 0
            ending = asyncio.create_task(loop.sock_sendall(near, b"<end>"))
            received = bytearray()
            while not received.endswith(b"<end>"):
                received += await loop.sock_recv(far, 1 << 20)
            assert received[:-5] == content[: len(received) - 5]
            await ending

    run(main())


@pytest.mark.parametrize("by", ["transport", "socket"])
def test_a_reset_in_the_middle_is_an_error_and_the_position_shows_how_far_it_came(run, file, by):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            if by == "transport":
                transport, protocol = await loop.create_connection(Recording, sock=near)
                sending = await under_way(transport, file)
            else:
                sending = await under_way(near, file)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            far.close()
            with pytest.raises(ConnectionError):
                await sending
            assert 0 < file.tell() < SIZE
            if by == "transport":
                assert isinstance(await protocol.lost, (ConnectionError, type(None)))

    run(main())


def test_a_half_closed_connection_ends_the_file(run, file):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, _):
            transport, near = await loop.create_connection(Recording, sock=ours)
            sending = await under_way(transport, file)
            transport.write_eof()
            with pytest.raises(BrokenPipeError):
                await sending
            await closed(near)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_connection_that_is_closed_in_the_middle_ends_the_file(run, file, how):
    """asyncio never wakes the waiting task in this case."""

    async def main():
        loop = asyncio.get_running_loop()
        problems = []
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        with tcp_pair() as (ours, _):
            transport, near = await loop.create_connection(Recording, sock=ours)
            sending = await under_way(transport, file)
            getattr(transport, how)()
            with pytest.raises(ConnectionError, match="Connection is closed by peer"):
                await sending
            assert 0 < file.tell() < SIZE
            assert await near.lost is None and not problems

    run(main())


@pytest.mark.native
def test_a_sendfile_cancelled_before_it_starts_leaves_the_connection(run, file):
    """asyncio refuses every write from then on."""

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, theirs):
            transport, near = await loop.create_connection(Recording, sock=ours)
            transport.write(bytes(SIZE))
            sending = await under_way(transport, file)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert transport.is_reading()
            transport.write(b"x")
            received = 0
            while received < SIZE + 1:
                received += len(await loop.sock_recv(theirs, 1 << 20))
            await closed(near)

    run(main())


def test_a_connection_lost_before_its_sendfile_starts_is_an_error(run, file):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, _):
            transport, near = await loop.create_connection(Recording, sock=ours)
            transport.write(bytes(SIZE))
            sending = await under_way(transport, file)
            transport.abort()
            with pytest.raises(ConnectionError, match="Connection is closed by peer"):
                await sending
            await near.lost

    run(main())


@pytest.mark.native
def test_a_connection_closed_before_its_sendfile_starts_sends_what_was_written_and_nothing_of_the_file(run, file):
    """On asyncio's loop the task gets the error of a closed socket."""

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (ours, theirs):
            transport, near = await loop.create_connection(Recording, sock=ours)
            transport.write(bytes(SIZE))
            sending = await under_way(transport, file)
            transport.close()
            received = 0
            while data := await loop.sock_recv(theirs, 1 << 20):
                received += len(data)
            with pytest.raises(ConnectionError, match="Connection is closed by peer"):
                await sending
            assert received == SIZE and file.tell() == 0
            assert await near.lost is None

    run(main())


def test_a_socket_shut_down_in_the_middle_ends_the_file(run, file):
    async def main():
        with tcp_pair() as (near, _):
            sending = await under_way(near, file)
            near.shutdown(socket.SHUT_RDWR)
            with pytest.raises(BrokenPipeError):
                await asyncio.wait_for(sending, 5)
            assert 0 < file.tell() < SIZE

    run(main())


def test_a_socket_closed_in_the_middle_does_not_disturb_the_next_one(run, file):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, _):
            sending = await under_way(near, file)
            # Late events of the descriptor must not reach its next owner.
            near.shutdown(socket.SHUT_RDWR)
            near.close()
            with tcp_pair() as (other, peer):
                await loop.sock_sendall(other, b"other")
                assert await loop.sock_recv(peer, 100) == b"other"
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending

    run(main())


def test_a_transports_socket_is_refused(run, file):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, _):
            transport, protocol = await loop.create_connection(Recording, sock=near)
            for sock in (near, transport.get_extra_info("socket")):
                with pytest.raises(RuntimeError, match="is used by transport"):
                    await loop.sock_sendfile(sock, file)
            await closed(protocol)

    run(main())


def test_a_replaced_os_sendfile_is_the_one_that_is_called(run, file, monkeypatch):
    calls = []
    genuine = os.sendfile

    def sendfile(*arguments):
        calls.append(arguments)
        return genuine(*arguments)

    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        monkeypatch.setattr(os, "sendfile", sendfile)
        assert await loop.sendfile(near.transport, file, 0, 1000) == 1000
        assert calls and await far.received(1000)
        await closed(near, far)

    run(main())


class Stepped:
    """Counts how often the task that awaits this was stepped."""

    def __init__(self, coroutine):
        self.coroutine = coroutine
        self.steps = 0

    def __await__(self):
        inner = self.coroutine.__await__()
        while True:
            self.steps += 1
            try:
                future = next(inner)
            except StopIteration as stop:
                return stop.value
            yield future


@contextlib.contextmanager
def reading_thread(sock, size):
    """Reads `size` bytes from a blocking socket in a thread."""

    def read():
        left = size
        while left:
            left -= len(sock.recv(min(left, 1 << 18)))

    sock.setblocking(True)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@LINUX
@pytest.mark.native
@pytest.mark.parametrize("by", ["transport", "socket"])
def test_sendfile_steps_no_task_and_opens_no_descriptor(run, file, by):
    size = SIZE // 10  # such a small buffer makes it slow

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
            if by == "transport":
                transport, protocol = await loop.create_connection(Recording, sock=near)
                sending = Stepped(loop.sendfile(transport, file, 0, size))
            else:
                sending = Stepped(loop.sock_sendfile(near, file, 0, size))

            async def main():
                return await sending

            await asyncio.sleep(0.01)  # the loop has what it needs for that
            before = len(os.listdir("/proc/self/fd"))
            task = asyncio.create_task(main())
            await asyncio.sleep(0.01)
            assert len(os.listdir("/proc/self/fd")) == before
            with reading_thread(far, size):
                assert await task == size
            assert sending.steps <= 3
            if by == "transport":
                await closed(protocol)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("by", ["transport", "socket"])
def test_a_large_file_to_a_fast_reader_does_not_stop_the_loop(run, file, by):
    """asyncio sends as much in one iteration as the reader takes meanwhile."""
    turns = 0

    def turn(loop):
        nonlocal turns
        turns += 1
        timer[0] = loop.call_soon(turn, loop)

    timer = [None]

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            if by == "transport":
                transport, protocol = await loop.create_connection(Recording, sock=near)
            turn(loop)
            with reading_thread(far, SIZE):
                if by == "transport":
                    assert await loop.sendfile(transport, file) == SIZE
                else:
                    assert await loop.sock_sendfile(near, file) == SIZE
            timer[0].cancel()
            assert turns > 3
            if by == "transport":
                await closed(protocol)

    run(main())


@pytest.mark.parametrize("by", ["transport", "socket"])
def test_a_file_that_shrinks_ends_early(run, file, by):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            if by == "transport":
                transport, protocol = await loop.create_connection(Recording, sock=near)
                sending = await under_way(transport, file)
            else:
                sending = await under_way(near, file)
            os.truncate(file.name, SIZE - 1000)
            received = 0
            while received < SIZE - 1000:
                received += len(await loop.sock_recv(far, 1 << 20))
            assert await sending == SIZE - 1000 == file.tell()
            if by == "transport":
                await closed(protocol)

    run(main())


@LINUX
@pytest.mark.native
def test_a_file_that_fits_into_the_socket_is_sent_in_several_iterations(run, tmp_path):
    """Other callbacks run in between, also if the socket has room for all of it."""
    size = 5 << 19
    path = tmp_path / "small"
    path.write_bytes(bytes(size))

    async def main():
        loop, turns = asyncio.get_running_loop(), []

        def count():
            turns.append(None)
            nonlocal handle
            handle = loop.call_soon(count)

        with socketpair() as (near, far), path.open("rb") as opened:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * size)
            if near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 3 * size:
                pytest.skip("the system refuses so large a buffer")
            handle = loop.call_soon(count)
            assert await loop.sock_sendfile(near, opened) == size
            handle.cancel()
        # One mebibyte in each, and one more that finds the end.
        assert len(turns) >= 3

    run(main())
