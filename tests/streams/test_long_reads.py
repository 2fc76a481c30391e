"""Reads of many bytes from TCP: the loop wakes when all of them have arrived, and nothing else changes."""

import asyncio
import contextlib
import random
import re
import socket
import sys

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED

KIB = 1024
RCVLOWAT = pytest.mark.skipif(
    sys.platform != "linux" or FREE_THREADED, reason="the mark is set on Linux only, and not on free-threaded builds"
)


@contextlib.asynccontextmanager
async def connection(**options):
    """A native reader and writer, and the blocking socket at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    with far:
        far.settimeout(10)
        reader, writer = await wakeloop.open_connection(sock=near, **options)
        try:
            yield reader, writer, far
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def mark_of(writer):
    return writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


async def send(far, data):
    await asyncio.to_thread(far.sendall, data)


@pytest.mark.parametrize("size", [128 * KIB, 200_001, 1024 * KIB, 1024 * KIB + 1, 3 * 1024 * KIB + 5])
def test_a_long_read_gets_all_of_its_bytes_in_whatever_pieces_they_come(run, size):
    async def main():
        pieces = random.Random(size)
        async with connection() as (reader, writer, far):
            for _ in range(3):
                data = pieces.randbytes(size)
                reading = asyncio.ensure_future(reader.readexactly(size + 4))
                start = 0
                while start < size:
                    end = start + pieces.choice([1, 1000, 60_000, 150_000, 400_000])
                    await send(far, data[start:end])
                    start = end
                assert not reading.done()
                await send(far, b"last")
                assert await reading == data + b"last"
                # Short items afterwards are not held back.
                await send(far, b"x")
                assert await reader.readexactly(1) == b"x"

    run(main())


@RCVLOWAT
def test_the_mark_is_never_higher_than_what_a_read_still_needs(run):
    async def main():
        async with connection() as (reader, writer, far):
            reading = asyncio.ensure_future(reader.readexactly(3 * 1024 * KIB))
            await asyncio.sleep(0)
            if type(asyncio.get_running_loop()).__module__.startswith("wakeloop"):
                assert mark_of(writer) > 64 * KIB
            left = 3 * 1024 * KIB
            while left:
                await send(far, bytes(min(left, 256 * KIB)))
                left -= min(left, 256 * KIB)
                await asyncio.sleep(0.01)
                stored = re.search(r"(\d+) bytes", repr(reader))
                assert mark_of(writer) <= max(1, 3 * 1024 * KIB - int(stored[1] if stored else 0))
            assert len(await reading) == 3 * 1024 * KIB
            assert mark_of(writer) == 1

    run(main())


@RCVLOWAT
@pytest.mark.native
def test_the_loop_does_not_wake_for_each_piece_of_a_long_read(run):
    async def main():
        loop = asyncio.get_running_loop()
        async with connection() as (reader, writer, far):

            async def events(size):
                reading = asyncio.ensure_future(reader.readexactly(size))
                await asyncio.sleep(0)
                before = loop.metrics().io_events
                for _ in range(size // (8 * KIB)):
                    far.sendall(bytes(8 * KIB))
                    await asyncio.sleep(0.001)
                await reading
                return loop.metrics().io_events - before

            assert await events(1024 * KIB) <= 5 < 14 <= await events(120 * KIB)

    run(main())


def test_after_a_cancelled_long_read_a_short_one_gets_what_has_arrived(run):
    async def main():
        async with connection() as (reader, writer, far):
            for how in ("cancel", "timeout"):
                reading = asyncio.ensure_future(reader.readexactly(1024 * KIB))
                await asyncio.sleep(0)
                await send(far, b"part")
                if how == "cancel":
                    reading.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await reading
                else:
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(reading, 0.01)
                assert await reader.read(100) == b"part"

    run(main())


def test_the_end_of_the_stream_ends_a_long_read_with_what_has_arrived(run):
    async def main():
        async with connection() as (reader, writer, far):
            reading = asyncio.ensure_future(reader.readexactly(1024 * KIB))
            await asyncio.sleep(0)
            await send(far, b"part")
            far.shutdown(socket.SHUT_WR)
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await reading
            assert caught.value.partial == b"part" and caught.value.expected == 1024 * KIB

    run(main())


def test_a_reset_ends_a_long_read(run):
    async def main():
        async with connection() as (reader, writer, far):
            reading = asyncio.ensure_future(reader.readexactly(1024 * KIB))
            await asyncio.sleep(0)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
            with pytest.raises(ConnectionResetError):
                await reading

    run(main())


@pytest.mark.parametrize("size", [64 * KIB, 512 * KIB])
def test_a_long_read_ends_with_a_fixed_receive_buffer(run, size):
    async def main():
        async with connection() as (reader, writer, far):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            for _ in range(2):
                sending = asyncio.ensure_future(send(far, bytes(1024 * KIB)))
                assert len(await reader.readexactly(1024 * KIB)) == 1024 * KIB
                await sending
            assert mark_of(writer) == 1

    run(main())


@pytest.mark.parametrize("limit", [100, 64 * KIB, 4 * 1024 * KIB])
def test_a_long_read_ends_with_any_limit(run, limit):
    async def main():
        async with connection(limit=limit) as (reader, writer, far):
            for size in (300 * KIB, 2 * 1024 * KIB):
                sending = asyncio.ensure_future(send(far, bytes(size) + b"\n"))
                assert len(await reader.readexactly(size)) == size
                assert await reader.readline() == b"\n"
                await sending

    run(main())


def test_another_protocol_gets_each_piece_while_a_long_read_waits(run):
    class Counting(asyncio.Protocol):
        received = 0

        def data_received(self, data):
            self.received += len(data)

    async def main():
        async with connection() as (reader, writer, far):
            reading = asyncio.ensure_future(reader.readexactly(1024 * KIB))
            await asyncio.sleep(0)
            protocol, old = Counting(), writer.transport.get_protocol()
            writer.transport.set_protocol(protocol)
            await send(far, b"piece")
            while not protocol.received:
                await asyncio.sleep(0.001)
            reading.cancel()
            await asyncio.wait([reading])
            writer.transport.set_protocol(old)

    run(main())


def test_data_that_a_program_puts_into_the_buffer_counts_for_a_waiting_read(run):
    async def main():
        async with connection() as (reader, writer, far):
            reading = asyncio.ensure_future(reader.readexactly(256 * KIB))
            await asyncio.sleep(0)
            reader._buffer.extend(bytes(256 * KIB - 1))
            await send(far, b"x")
            assert len(await reading) == 256 * KIB

            reading = asyncio.ensure_future(reader.readexactly(256 * KIB))
            await asyncio.sleep(0)
            reader._buffer = bytearray(256 * KIB - 1)
            await send(far, b"x")
            assert len(await reading) == 256 * KIB

    run(main())


@RCVLOWAT
def test_a_duplicate_of_the_socket_does_not_keep_the_mark_of_a_read_that_its_transport_has_ended(run):
    async def main():
        async with connection() as (reader, writer, _):
            with writer.get_extra_info("socket").dup() as other:
                reading = asyncio.ensure_future(reader.readexactly(1024 * KIB))
                await asyncio.sleep(0.01)
                writer.transport.abort()
                with pytest.raises(asyncio.IncompleteReadError):
                    await reading
                assert other.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1

    run(main())


def test_a_long_read_does_not_hold_back_data_from_a_protocol_of_a_subclass(run):
    """Its `data_received` may count the bytes, or set a timeout anew with each piece."""
    pieces = []

    class Counting(asyncio.StreamReaderProtocol):
        def data_received(self, data):
            pieces.append(len(data))
            super().data_received(data)

    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reader = wakeloop.StreamReader(loop=loop)
            protocol = Counting(reader, loop=loop)
            transport, _ = await loop.create_connection(lambda: protocol, *listener.getsockname())
            far, _ = listener.accept()
        with far:
            reading = asyncio.ensure_future(reader.readexactly(3 * 1024 * KIB))
            await asyncio.sleep(0.01)
            far.sendall(bytes(KIB))
            await asyncio.sleep(0.05)
            assert pieces == [KIB]
            await send(far, bytes(3 * 1024 * KIB - KIB))
            async with asyncio.timeout(5):
                assert len(await reading) == sum(pieces) == 3 * 1024 * KIB
            transport.abort()
            await asyncio.sleep(0)

    run(main())


def test_data_that_a_program_feeds_counts_for_a_waiting_read(run):
    async def main():
        async with connection() as (reader, _, far):
            reading = asyncio.ensure_future(reader.readexactly(300 * KIB))
            await asyncio.sleep(0.01)
            reader.feed_data(bytes(200 * KIB))
            await send(far, b"x" * 100 * KIB)
            async with asyncio.timeout(5):
                assert await reading == bytes(200 * KIB) + b"x" * 100 * KIB

    run(main())
