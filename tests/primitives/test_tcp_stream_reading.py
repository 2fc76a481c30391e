"""Reads of `wakeloop.TcpStream`: which bytes each one takes."""

import asyncio
import os
import random
import socket
import sys

import pytest

from tests.support.tcp_stream import connected, in_pieces

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_every_read_method_takes_its_part_of_the_stream(run):
    async def main():
        async with connected() as (stream, peer):
            peer.sendall(b"abcdef" + b"line\n" + b"until\r\n\r\n" + b"\0\0\0\x05frame" + b"rest\nof\nit")
            peer.shutdown(socket.SHUT_WR)
            assert await stream.read(0) == b""
            assert await stream.read(2) == b"ab"
            assert await stream.readexactly(4) == b"cdef"
            assert await stream.readline() == b"line\n"
            assert await stream.readuntil(b"\r\n\r\n") == b"until\r\n\r\n"
            assert await stream.read_frame() == b"frame"
            assert [line async for line in stream] == [b"rest\n", b"of\n", b"it"]
            assert await stream.read() == await stream.read(10) == await stream.readline() == b""

    run(main())


def test_lines_come_whole_and_in_order_however_they_are_sent(run):
    lines = [os.urandom(random.choice([0, 1, 20, 300, 5000])).replace(b"\n", b"") + b"\n" for _ in range(3000)]

    async def main():
        async with connected() as (stream, peer):
            thread = in_pieces(peer, b"".join(lines), largest=20_000)
            assert [line async for line in stream] == lines
            thread.join()

    run(main())


def test_a_random_mix_of_reads_gives_the_bytes_that_were_sent(run):
    data = random.randbytes(2_000_000)

    async def main():
        async with connected() as (stream, peer):
            thread = in_pieces(peer, data, largest=50_000)
            received = bytearray()
            while True:
                left = len(data) - len(received)
                match random.randrange(5):
                    case 0:
                        part = await stream.read(random.randint(1, 100_000))
                    case 1:
                        part = await stream.readexactly(min(left, random.randint(0, 400_000)))
                    case 2:
                        part = await stream.readline()
                    case 3:
                        try:
                            part = await stream.readuntil(bytes([random.randrange(256)]) * random.randint(1, 2))
                        except asyncio.IncompleteReadError as error:
                            part = error.partial
                        except asyncio.LimitOverrunError:
                            part = b""
                    case 4:
                        part = b""
                        async for line in stream:
                            part += line
                            if random.random() < 0.2:
                                break
                received += part
                if len(received) == len(data):
                    break
            assert received == data and await stream.read() == b""
            thread.join()

    run(main())


def test_frames_survive_the_way_there_and_back(run):
    async def main():
        frames = [random.randbytes(random.choice([0, 1, 100, 70_000])) for _ in range(200)]
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        async with listener, await wakeloop.TcpStream.connect(listener.host, listener.port) as one:
            async with await listener.accept() as other:

                async def send():
                    for frame in frames:
                        await one.write_frame(frame)
                    one.write_eof()

                sending = asyncio.create_task(send())
                assert [frame async for frame in other.frames()] == frames
                await sending
                with pytest.raises(asyncio.IncompleteReadError) as ended:
                    await other.read_frame()
                assert ended.value.partial == b""

    run(main())


def test_frames_come_whole_however_they_are_cut(run):
    frames = [random.randbytes(random.choice([0, 1, 5, 300, 20_000])) for _ in range(100)]

    async def main():
        for largest in (3, 1000, 100_000):
            some = frames if largest > 3 else [frame[:300] for frame in frames[:30]]
            async with connected() as (stream, peer):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in some)
                thread = in_pieces(peer, data + b"\0\0", largest=largest)
                received = []
                with pytest.raises(asyncio.IncompleteReadError) as cut:
                    async for frame in stream.frames(max_size=20_000):
                        received.append(frame)
                assert received == some and cut.value.partial == b"\0\0"
                thread.join()

    run(main())


def test_reads_cut_short_by_eof_raise_incomplete_read_error(run):
    async def main():
        for read, expected, partial in [
            (lambda stream: stream.readexactly(10), 10, b"rest"),
            (lambda stream: stream.readuntil(b"!"), None, b"rest"),
            (lambda stream: stream.read_frame(), 4, b"\0\0"),
            (lambda stream: stream.read_frame(), 4 + 9, b"\0\0\0\x09"),
            (lambda stream: stream.read_frame(), 4 + 9, b"\0\0\0\x09rest"),
        ]:
            async with connected() as (stream, peer):
                waiting = asyncio.ensure_future(read(stream))
                await asyncio.sleep(0.001)
                peer.sendall(partial)
                peer.shutdown(socket.SHUT_WR)
                with pytest.raises(asyncio.IncompleteReadError) as raised:
                    await waiting
                assert raised.value.partial == partial and raised.value.expected == expected

    run(main())


def test_an_item_longer_than_the_limit_raises_and_stays_readable(run):
    async def main():
        async with connected(limit=100) as (stream, peer):
            peer.sendall(b"x" * 150 + b"\nshort\n")
            for _ in range(2):
                with pytest.raises(asyncio.LimitOverrunError) as raised:
                    await stream.readuntil()
                assert raised.value.consumed == 150
            assert await stream.readexactly(151) == b"x" * 150 + b"\n"
            assert await stream.readline() == b"short\n"
            peer.sendall(b"\0\0\xff\xff")
            with pytest.raises(asyncio.LimitOverrunError, match="frame"):
                await stream.read_frame(max_size=1000)

    run(main())


READS = {
    "readline": (b"one\ntwo\nrest", lambda stream: stream.readline()),
    "a long readline": (b"x" * 11 + b"\ntwo\n", lambda stream: stream.readline()),
    "a readline of the limit": (b"x" * 10 + b"\ntwo\n", lambda stream: stream.readline()),
    "a long last readline": (b"x" * 30, lambda stream: stream.readline()),
    "readuntil": (b"one\r\ntwo\r\nrest", lambda stream: stream.readuntil(b"\r\n")),
    "a long readuntil": (b"x" * 11 + b"\r\n", lambda stream: stream.readuntil(b"\r\n")),
    "a readuntil of the limit": (b"x" * 10 + b"\r\n", lambda stream: stream.readuntil(b"\r\n")),
    "readuntil without its separator": (b"x" * 30, lambda stream: stream.readuntil(b"--")),
    "readuntil of a newline": (b"one\n" + b"x" * 12 + b"\n", lambda stream: stream.readuntil()),
    "readuntil of one of several": (b"one\r\ntwo\nrest", lambda stream: stream.readuntil((b"\r\n", b"\n"))),
    "readexactly": (b"abcdefg", lambda stream: stream.readexactly(3)),
    "read": (b"abcdefg", lambda stream: stream.read(3)),
    "read to the end": (b"x" * 30, lambda stream: stream.read()),
    "no separator": (b"", lambda stream: stream.readuntil(b"")),
    "no separators": (b"", lambda stream: stream.readuntil(())),
    "a negative size": (b"", lambda stream: stream.readexactly(-1)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("waits", [False, True])
def test_a_read_with_asyncios_name_does_what_asyncios_does(run, read, waits):
    """The same results, the same exceptions, and the same bytes left for the next read."""
    data, call = read
    if sys.version_info < (3, 13) and read in (READS["readuntil of one of several"], READS["no separators"]):
        pytest.skip("asyncio takes several separators since 3.13")

    async def results(reader):
        found = []
        for _ in range(4):
            try:
                found.append(await call(reader))
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
                found.append((type(error), error.args, vars(error), type(error.__context__)))
        found.append(await reader.read())
        return found, reader.at_eof()

    async def main():
        reader = asyncio.StreamReader(limit=10)
        reader.feed_data(data)
        reader.feed_eof()
        expected = await results(reader)
        async with connected(limit=10) as (stream, peer):
            if waits:
                # Nothing is here when the first read looks.
                waiting = asyncio.ensure_future(results(stream))
                await asyncio.sleep(0.001)
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
            else:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.001)
                waiting = results(stream)
            found = await waiting
        assert found == expected

    run(main())


def test_an_exact_read_may_be_larger_than_every_buffer(run):
    data = os.urandom(5_000_000)

    async def main():
        async with connected() as (stream, peer):
            thread = in_pieces(peer, data, largest=500_000)
            assert await stream.readexactly(len(data)) == data
            thread.join()

    run(main())


def test_an_unread_stream_stops_its_sender(run):
    """Backpressure: the runtime reads ahead only so far."""

    async def main():
        async with connected() as (stream, peer):
            assert await stream.read(0) == b""
            peer.sendall(b"\n")
            assert await stream.readline() == b"\n"
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            peer.settimeout(0.3)
            sent = 0
            with pytest.raises(TimeoutError):
                while sent < 200_000_000:
                    sent += peer.send(bytes(1_000_000))
            assert sent < 50_000_000
            left = sent
            while left:
                left -= len(await stream.read(left))

    run(main())


def test_a_cancelled_read_takes_nothing(run):
    """Whatever the read waited for, and whenever it was cancelled, the next read gets the bytes."""
    numbers = [b"%d\n" % number for number in range(5000)]

    async def main():
        async with connected() as (stream, peer):
            thread = in_pieces(peer, b"".join(numbers), largest=30, end=False)
            received, cancelled = bytearray(), 0
            while len(received) < sum(map(len, numbers)):
                reads = [
                    lambda: stream.readline(),
                    lambda: stream.readexactly(3),
                    lambda: stream.read(5),
                    lambda: stream.readuntil(b"7\n"),
                ]
                left = sum(map(len, numbers)) - len(received)
                read = reads[0] if left < 2000 else random.choice(reads)
                task = asyncio.ensure_future(read())
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    received += await task
                except asyncio.CancelledError:
                    cancelled += 1
                    if random.random() < 0.3:
                        received += await stream.readline()
            assert received == b"".join(numbers) and cancelled > 0
            thread.join()

    run(main())


def test_a_second_reader_is_refused_and_the_first_undisturbed(run):
    async def main():
        async with connected() as (stream, peer):
            first = asyncio.ensure_future(stream.readline())
            await asyncio.sleep(0.001)
            with pytest.raises(RuntimeError, match="already reading"):
                await stream.read(1)
            with pytest.raises(RuntimeError, match="already reading"):
                async for _ in stream:
                    pass
            peer.sendall(b"line\nnext\n")
            assert await first == b"line\n"
            assert await stream.readline() == b"next\n"

    run(main())


def test_a_stream_can_be_read_while_it_is_written(run):
    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        async with await wakeloop.TcpStream.connect("127.0.0.1", server.port) as stream:
            data = os.urandom(20_000_000)
            sending = asyncio.create_task(send(stream, data))
            assert await stream.readexactly(len(data)) == data
            await sending
        server.close()
        await server.wait_closed()

    async def send(stream, data):
        await stream.write_all(data)

    run(main())


def test_data_after_urgent_data_is_read(run):
    async def main():
        async with connected() as (stream, peer), asyncio.timeout(10):
            reading = asyncio.ensure_future(stream.readexactly(9))
            await asyncio.sleep(0.01)
            peer.sendall(b"mark")
            peer.send(b"!", socket.MSG_OOB)
            peer.sendall(b"after")
            assert await reading == b"markafter"

    run(main())
