"""Pipe transports."""

import asyncio
import os

import pytest

from tests.support.protocol import Recording


class Writing(asyncio.BaseProtocol):
    def __init__(self):
        self.calls = []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.calls.append("connection_made")

    def pause_writing(self):
        self.calls.append("pause_writing")

    def resume_writing(self):
        self.calls.append("resume_writing")

    def connection_lost(self, exc):
        self.lost.set_result(exc)


async def ends():
    """Returns (read transport, its protocol, write transport, its protocol) of one pipe."""
    loop = asyncio.get_running_loop()
    reader, writer = os.pipe()
    reading, received = await loop.connect_read_pipe(Recording, os.fdopen(reader, "rb", 0))
    writing, wrote = await loop.connect_write_pipe(Writing, os.fdopen(writer, "wb", 0))
    return reading, received, writing, wrote


def test_data_written_to_a_pipe_is_received_then_eof(run):
    async def main():
        _, received, writing, wrote = await ends()
        payload = os.urandom(3_000_000)
        writing.write(payload[:10])
        writing.write(bytearray(payload[10:]))
        writing.write_eof()
        await received.lost
        assert received.data == payload
        assert received.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]
        assert await wrote.lost is None
        assert wrote.calls == ["connection_made", "pause_writing", "resume_writing"]

    run(main())


def test_reading_can_be_paused(run):
    async def main():
        reading, received, writing, _ = await ends()
        reading.pause_reading()
        writing.write(b"data")
        await asyncio.sleep(0.02)
        assert received.data == b"" and not reading.is_reading()
        reading.resume_reading()
        await received.received(4)
        writing.close()
        await received.lost

    run(main())


def test_a_reader_that_goes_away_ends_the_writer(run):
    async def main():
        reading, received, writing, wrote = await ends()
        reading.close()
        await received.lost
        assert isinstance(await wrote.lost, (BrokenPipeError, type(None)))
        assert writing.is_closing()

    run(main())


def test_a_reader_that_goes_away_with_data_waiting_is_a_broken_pipe_error_without_text(run):
    async def main():
        reader, writer = os.pipe()
        loop = asyncio.get_running_loop()
        writing, wrote = await loop.connect_write_pipe(Writing, os.fdopen(writer, "wb", 0))
        writing.write(bytes(1_000_000))
        assert writing.get_write_buffer_size() > 0
        os.close(reader)
        error = await wrote.lost
        assert type(error) is BrokenPipeError and error.args == () and error.errno is None

    run(main())


def test_abort_drops_the_pipes_write_buffer(run):
    async def main():
        reading, received, writing, wrote = await ends()
        reading.pause_reading()
        writing.write(bytes(1 << 20))
        assert writing.get_write_buffer_size() > 0
        writing.abort()
        assert await wrote.lost is None
        reading.close()
        await received.lost

    run(main())


def test_transports_are_asyncios_and_know_their_pipe(run):
    async def main():
        reading, received, writing, wrote = await ends()
        assert isinstance(reading, asyncio.ReadTransport) and isinstance(writing, asyncio.WriteTransport)
        assert reading.get_extra_info("pipe").fileno() >= 0 and writing.get_extra_info("pipe").fileno() >= 0
        assert writing.can_write_eof()
        repr(reading), repr(writing)
        writing.close()
        await asyncio.gather(received.lost, wrote.lost)

    run(main())


def test_a_regular_file_is_refused_as_a_pipe(run, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        with open(tmp_path / "file", "wb") as file:
            with pytest.raises(ValueError, match="only for pipes, sockets and character devices|only for sockets"):
                await loop.connect_write_pipe(Writing, file)
            with pytest.raises(ValueError, match="only for pipes/sockets|Pipe transport is for"):
                await loop.connect_read_pipe(Recording, file)

    run(main())


def test_a_terminal_can_be_read(run):
    async def main():
        loop = asyncio.get_running_loop()
        master, slave = os.openpty()
        transport, protocol = await loop.connect_read_pipe(Recording, os.fdopen(master, "rb", 0))
        os.write(slave, b"typed\n")
        # The terminal ends a line with a carriage return too.
        assert await protocol.received(7) == b"typed\r\n"
        transport.close()
        assert await protocol.lost is None
        os.close(slave)

    run(main())


def test_data_in_a_pipe_is_received_before_callbacks_of_the_connecting_task(run):
    """An SSH process replaces its input like this: connection_lost of the old pipe must come before the data of the
    new one.
    """

    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(10):
            calls = []

            class Reading(asyncio.Protocol):
                def data_received(self, data):
                    calls.append(data)

            readable, writable = os.pipe()
            os.write(writable, b"there already")
            transport, _ = await loop.connect_read_pipe(Reading, os.fdopen(readable, "rb", 0))
            loop.call_soon(calls.append, "scheduled")
            await asyncio.sleep(0.01)
            assert calls == [b"there already", "scheduled"]
            transport.close()
            os.close(writable)
            await asyncio.sleep(0)

    run(main())


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_read_pipe_that_cannot_be_watched_stays_open_without_events(run, debug):
    """/dev/null is standard input of services. epoll refuses it."""

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_debug(debug)
        reports = []
        loop.set_exception_handler(lambda _, report: reports.append(report))
        file = open(os.devnull, "rb", 0)
        reading, received = await loop.connect_read_pipe(Recording, file)
        (report,) = reports
        assert report["message"].startswith("Exception in callback ") and "_add_reader(" in report["message"]
        assert repr(report["exception"]) == "PermissionError(1, 'Operation not permitted')"
        assert {"message", "exception", "handle"} <= set(report)
        assert reading.is_reading() and not reading.is_closing() and not file.closed
        reading.pause_reading()
        assert not reading.is_reading()
        with pytest.raises(PermissionError):
            reading.resume_reading()
        assert received.calls == ["connection_made"]
        reading.close()
        await received.lost
        assert received.calls == ["connection_made", "connection_lost"] and file.closed
        assert len(reports) == 1

    run(main())


def test_dev_null_can_be_written_to_as_a_pipe(run):
    async def main():
        loop = asyncio.get_running_loop()
        file = open(os.devnull, "wb", 0)
        writing, wrote = await loop.connect_write_pipe(Writing, file)
        writing.write(bytes(3_000_000))
        assert writing.get_write_buffer_size() == 0
        writing.close()
        assert await wrote.lost is None and file.closed
        assert wrote.calls == ["connection_made"]

    run(main())


@pytest.mark.parametrize("direction", ["read", "write"])
def test_files_that_are_no_pipes_are_refused(run, tmp_path, direction):
    async def main():
        loop = asyncio.get_running_loop()
        connect = loop.connect_read_pipe if direction == "read" else loop.connect_write_pipe
        texts = {
            "read": "Pipe transport is for pipes/sockets only.",
            "write": "Pipe transport is only for pipes, sockets and character devices",
        }
        with open(tmp_path / "file", "wb", 0) as file:
            with pytest.raises(ValueError) as refused:
                await connect(asyncio.BaseProtocol, file)
            assert str(refused.value) == texts[direction] and not file.closed

        class Directory:
            fd = os.open(tmp_path, os.O_RDONLY)

            def fileno(self):
                return self.fd

        with pytest.raises(ValueError) as refused:
            await connect(asyncio.BaseProtocol, Directory())
        assert str(refused.value) == texts[direction]
        os.close(Directory.fd)

    run(main())


def test_the_repr_of_a_lost_pipe_says_closed_twice(run):
    """Once for the transport, and once in the place of what it polls for."""

    async def main():
        reading, _, writing, wrote = await ends()
        numbers = [transport.get_extra_info("pipe").fileno() for transport in (reading, writing)]
        reading.close()
        writing.close()
        await wrote.lost
        await asyncio.sleep(0)
        for transport, number in zip((reading, writing), numbers):
            assert repr(transport).partition(" ")[2] == f"closed fd={number} closed>"

    run(main())


def test_a_pipe_resumes_its_protocol_only_when_everything_is_written(run):
    async def main():
        reader, writer = os.pipe()
        writing, wrote = await asyncio.get_running_loop().connect_write_pipe(Writing, os.fdopen(writer, "wb", 0))
        size = 0
        try:
            while not writing.get_write_buffer_size():
                writing.write(bytes(65536))
                size += 65536
            writing.set_write_buffer_limits(high=1000, low=1000)
            writing.write(bytes(1_000))
            size += 1_000
            left = writing.get_write_buffer_size()
            assert wrote.calls == ["connection_made", "pause_writing"] and left > 1000
            # A pipe takes data again when a page of it is free.
            while writing.get_write_buffer_size():
                assert "resume_writing" not in wrote.calls
                size -= len(os.read(reader, 4096))
                await asyncio.sleep(0.001)
            assert wrote.calls[-1] == "resume_writing"
        finally:
            os.close(reader)
            writing.abort()
        await wrote.lost

    run(main())
