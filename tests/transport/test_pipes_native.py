"""Native pipe transports: order, limits, ends, terminals and sockets."""

import asyncio
import fcntl
import gc
import os
import socket
import tty
import warnings

import pytest

from tests.support.protocol import Recording
from tests.transport.test_pipes import Writing, ends


async def reading(descriptor, protocol=Recording):
    return await asyncio.get_running_loop().connect_read_pipe(protocol, os.fdopen(descriptor, "rb", 0))


async def writing(descriptor, protocol=Writing):
    return await asyncio.get_running_loop().connect_write_pipe(protocol, os.fdopen(descriptor, "wb", 0))


async def read_all(descriptor, size):
    """Reads everything from the other end without a transport."""
    os.set_blocking(descriptor, False)
    data = bytearray()
    async with asyncio.timeout(10):
        while len(data) < size:
            try:
                piece = os.read(descriptor, 1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            assert piece
            data += piece
    return bytes(data)


def test_small_and_large_writes_keep_their_order(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        pieces = []
        for number in range(300):
            piece = os.urandom(1 + number * 37 % 5000)
            kind = (bytes, bytearray, memoryview)[number % 3]
            data = kind(piece)
            transport.write(data)
            if kind is bytearray:
                data[:] = bytes(len(data))
            pieces.append(piece)
            if number % 50 == 0:
                await asyncio.sleep(0)
        transport.writelines([b"lines", b"", bytearray(b"and lines")])
        expected = b"".join(pieces) + b"linesand lines"
        assert await read_all(reader, len(expected)) == expected
        transport.close()
        assert await protocol.lost is None
        os.close(reader)

    run(main())


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_write_puts_data_into_the_pipe_before_it_returns(run, kind):
    """A callback may write and then block until the reader has answered."""

    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        os.set_blocking(reader, False)
        for text in (b"one", b"two", bytes(5000)):
            transport.write(kind(text))
            assert os.read(reader, 10_000) == text
        transport.writelines([b"three", b"four"])
        assert os.read(reader, 100) == b"threefour"
        assert transport.get_write_buffer_size() == 0
        for end in (transport.write_eof, transport.close):
            end()
        assert await protocol.lost is None
        assert os.read(reader, 100) == b""
        os.close(reader)

    run(main())


def test_a_pipe_that_was_full_is_written_at_once_when_it_was_emptied(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        for size in (200_000, 70_000):
            transport.write(bytes(size))
            assert transport.get_write_buffer_size() > 0
            await read_all(reader, size)
            assert transport.get_write_buffer_size() == 0
            transport.write(b"now")
            assert os.read(reader, 10) == b"now"
        transport.close()
        assert await protocol.lost is None
        os.close(reader)

    run(main())


def test_data_written_before_abort_is_in_the_pipe(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        transport.write(b"last words")
        transport.abort()
        assert await protocol.lost is None
        assert os.read(reader, 100) == b"last words"
        os.close(reader)

    run(main())


def test_a_reader_that_goes_away_while_data_is_pending_is_an_error(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        transport.write(bytes(1 << 20))
        assert transport.get_write_buffer_size() > 0
        os.close(reader)
        assert isinstance(await protocol.lost, BrokenPipeError)

    run(main())


def test_a_reader_that_goes_away_is_noticed_without_a_write(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        os.close(reader)
        assert await asyncio.wait_for(protocol.lost, 5) is None

    run(main())


@pytest.mark.parametrize(
    ("ending", "silent"),
    [("failed write", 4), ("failed flush", 5), ("peer", 5), ("close", 5), ("abort", 5), ("close with data", 5), ("abort with data", 5)],
)  # fmt: skip
def test_writing_to_a_lost_pipe_is_silent_and_then_logged(run, asyncio_log, ending, silent):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        if ending.endswith("data") or ending == "failed flush":
            transport.write(bytes(1 << 20))
        if ending.startswith(("failed", "peer")):
            os.close(reader)
        if ending == "failed write":
            transport.write(b"x")
        elif ending in ("failed flush", "peer"):
            await asyncio.wait([protocol.lost], timeout=5)
        else:
            getattr(transport, ending.split()[0])()
        asyncio_log.clear()
        for _ in range(8):
            transport.write(b"x")
        texts = [record.getMessage() for record in asyncio_log.records if "os.write" in record.getMessage()]
        assert texts == ["pipe closed by peer or os.write(pipe, data) raised exception."] * (8 - silent)
        if ending == "close with data":
            transport.abort()
        await asyncio.wait([protocol.lost], timeout=5)
        assert protocol.lost.done()
        if not ending.startswith(("failed", "peer")):
            os.close(reader)

    run(main())


def test_writing_an_object_that_is_not_bytes_like_to_a_pipe_is_a_type_error(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer)
        with pytest.raises(AssertionError):
            transport.write("text")
        transport.write(b"")
        transport.close()
        await protocol.lost
        os.close(reader)

    run(main())


def test_a_write_pipe_stays_open_after_its_protocol_is_changed(run):
    async def main():
        reader, writer = os.pipe()
        transport, first = await writing(writer)
        second = Writing()
        transport.set_protocol(second)
        assert transport.get_protocol() is second
        transport.set_write_buffer_limits(high=10)
        assert transport.get_write_buffer_limits() == (2, 10)
        transport.write(bytes(200_000))
        assert second.calls == ["pause_writing"]
        await read_all(reader, 200_000)
        async with asyncio.timeout(5):
            while "resume_writing" not in second.calls:
                await asyncio.sleep(0.001)
        transport.close()
        assert await second.lost is None and not first.lost.done()
        os.close(reader)

    run(main())


def test_messages_of_every_size_come_through(run):
    async def main():
        read, received, write, wrote = await ends()
        payload = os.urandom(2_000_000)
        sent = 0
        for size in (1, 10, 1000, 40_000, 65_536, 65_537, 200_000, 3, 1_000_000):
            write.write(payload[sent : sent + size])
            sent += size
            await received.received(sent)
        assert received.data == payload[:sent]
        write.close()
        assert await received.lost is None
        await wrote.lost

    run(main())


def test_an_exception_in_data_received_is_reported_and_reading_goes_on(run):
    class Failing(Recording):
        def data_received(self, data):
            super().data_received(data)
            raise ZeroDivisionError

    async def main():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        reader, writer = os.pipe()
        transport, protocol = await reading(reader, Failing)
        for _ in range(2):
            os.write(writer, b"x")
            await asyncio.sleep(0.01)
        assert protocol.data == b"xx"
        assert [type(context["exception"]) for context in problems] == [ZeroDivisionError] * 2
        os.close(writer)
        assert await protocol.lost is None

    run(main())


def test_closing_a_read_pipe_delivers_nothing_more(run):
    async def main():
        reader, writer = os.pipe()
        transport, protocol = await reading(reader)
        os.write(writer, b"unread")
        transport.close()
        transport.close()
        assert transport.is_closing() and not transport.is_reading()
        assert await protocol.lost is None
        assert protocol.calls == ["connection_made", "connection_lost"]
        os.close(writer)

    run(main())


def test_stream_readers_and_writers_work_on_pipes(run):
    async def main():
        loop = asyncio.get_running_loop()
        reader, writer = os.pipe()
        lines = asyncio.StreamReader()
        source, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reader, "rb", 0)
        )
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(writer, "wb", 0)
        )
        out = asyncio.StreamWriter(transport, protocol, None, loop)
        for number in range(1000):
            out.write(b"line %d\n" % number)
            await out.drain()
        out.close()
        assert [await lines.readline() for _ in range(1001)] == [
            *(b"line %d\n" % number for number in range(1000)),
            b"",
        ]
        source.close()
        await asyncio.sleep(0.01)

    run(main())


def test_sockets_can_be_used_as_pipes(run):
    async def main():
        ours, theirs = socket.socketpair()
        transport, protocol = await asyncio.get_running_loop().connect_write_pipe(Writing, ours)
        transport.write(b"over a socket")
        await asyncio.sleep(0)
        assert theirs.recv(100) == b"over a socket"
        theirs.close()
        assert await asyncio.wait_for(protocol.lost, 5) is None

    run(main())


def test_a_fifo_can_be_read_and_written(run, tmp_path):
    async def main():
        path = tmp_path / "fifo"
        os.mkfifo(path)
        source, received = await reading(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        sink, wrote = await writing(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        sink.write(b"through the file system")
        await received.received(23)
        sink.close()
        assert await received.lost is None and await wrote.lost is None

    run(main())


def test_a_terminal_is_read_and_written_through_one_descriptor(run):
    async def main():
        loop = asyncio.get_running_loop()
        master, slave = os.openpty()
        tty.setraw(slave)
        terminal = os.fdopen(slave, "r+b", 0)
        source, received = await loop.connect_read_pipe(Recording, terminal)
        sink, wrote = await loop.connect_write_pipe(Writing, terminal)
        os.write(master, b"typed")
        await received.received(5)
        sink.write(b"shown")
        assert await read_all(master, 5) == b"shown"
        assert source.get_extra_info("pipe") is terminal and sink.get_extra_info("pipe") is terminal
        sink.close()
        await wrote.lost
        # Whichever transport ends first closes the file, as in asyncio.
        assert terminal.closed
        source.close()
        await received.lost
        os.close(master)

    run(main())


def test_a_terminal_that_is_hung_up_ends_its_reader_quietly(run):
    async def main():
        master, slave = os.openpty()
        transport, protocol = await reading(master)
        os.close(slave)
        # Linux reports EIO, the BSDs an end of file.
        assert isinstance(await asyncio.wait_for(protocol.lost, 5), (OSError, type(None)))

    run(main())


def test_a_device_can_be_written(run):
    async def main():
        transport, protocol = await writing(os.open(os.devnull, os.O_WRONLY))
        for _ in range(10):
            transport.write(bytes(100_000))
        assert transport.get_write_buffer_size() == 0
        transport.close()
        assert await protocol.lost is None

    run(main())


def test_transports_describe_themselves(run):
    async def main():
        source, received, sink, wrote = await ends()
        number = source.get_extra_info("pipe").fileno()
        assert f"fd={number} polling" in repr(source)
        source.pause_reading()
        assert f"fd={number} idle" in repr(source)
        source.resume_reading()
        assert "idle bufsize=0" in repr(sink)
        sink.close()
        assert "closing" in repr(sink)
        await wrote.lost
        await received.lost
        assert "closed" in repr(sink) and "closed" in repr(source)

    run(main())


def test_unclosed_pipe_transports_warn(loop_factory):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        loop = loop_factory()
        transports = loop.run_until_complete(ends())
        pipes = [transports[0].get_extra_info("pipe"), transports[2].get_extra_info("pipe")]
        loop.close()
        assert "open" in repr(transports[0]) and "open" in repr(transports[2])
        del transports, loop
        gc.collect()
    texts = [str(warning.message) for warning in caught]
    assert sum("unclosed transport" in text for text in texts) == 2
    assert all(pipe.closed for pipe in pipes)


class Refilling(Writing):
    """Acts as soon as the pipe has room again."""

    then = None

    def resume_writing(self):
        super().resume_writing()
        if self.then is not None:
            self.then, then = None, self.then
            then()


@pytest.mark.parametrize("after", ["ask for the size", "abort", "close"])
def test_a_pipe_that_was_full_takes_what_is_written_when_it_has_room_again(run, after):
    """The pipe is probably full again, so the write may wait for the poller. No program must notice."""

    async def main():
        reader, writer = os.pipe()
        transport, protocol = await writing(writer, Refilling)

        def then():
            transport.write(b"more")
            if after == "ask for the size":
                assert transport.get_write_buffer_size() == 0
            # Called from here, asyncio would close the pipe before it writes.
            asyncio.get_running_loop().call_soon(transport.abort if after == "abort" else transport.close)

        transport.set_write_buffer_limits(0)  # room again means: all is written
        protocol.then = then
        transport.write(bytes(200_000))
        assert transport.get_write_buffer_size() > 0
        assert await read_all(reader, 200_004) == bytes(200_000) + b"more"
        assert await protocol.lost is None
        os.close(reader)

    run(main())


def test_a_pipe_that_was_full_is_written_at_once_when_the_loop_rests(loop):
    reader, writer = os.pipe()
    transport, protocol = loop.run_until_complete(writing(writer))
    page = os.sysconf("SC_PAGE_SIZE")
    whole = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)

    async def fill():
        transport.write(bytes(whole + page))
        os.read(reader, page)
        while transport.get_write_buffer_size():
            await asyncio.sleep(0.001)

    loop.run_until_complete(fill())
    assert len(os.read(reader, whole)) == whole
    transport.write(b"now")
    os.set_blocking(reader, False)
    assert os.read(reader, 10) == b"now"
    transport.close()
    loop.run_until_complete(protocol.lost)
    os.close(reader)
