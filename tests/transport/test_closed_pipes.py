"""Files and sockets that the program closes while a pipe transport uses them.

asyncio's pipe transports continue to use the descriptor number, whatever it belongs to by then. Ours behave as
asyncio's do while nothing else has the number.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import socket

import pytest

from tests.support.protocol import Recording
from tests.transport.test_pipes import Writing

#: The kinds of file objects that a transport is made with, each made from a descriptor and a mode.
KINDS = {
    "raw": lambda fd, mode: open(fd, mode, buffering=0),
    "buffered": open,
    "text": lambda fd, mode: open(fd, mode.replace("b", "")),
}


def nobody_reads(descriptor):
    os.set_blocking(descriptor, False)
    try:
        return not os.read(descriptor, 100)
    except BlockingIOError:
        return True


@contextlib.contextmanager
def taken_over(owner, end):
    """Closes the file. Returns both ends of a new pipe, of which one has the file's old descriptor."""
    number = owner.fileno()
    owner.close()
    ends = []
    for descriptor in os.pipe():
        ends.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200))
        os.close(descriptor)
    os.dup2(ends[end], number, inheritable=False)
    os.close(ends[end])
    ends[end] = number
    try:
        yield ends
    finally:
        for descriptor in ends:
            os.close(descriptor)


async def writing(make, protocol=Writing):
    """Returns a transport, its protocol, the file that it writes to, and the other end."""
    reader, writer = os.pipe()
    file = make(writer, "wb")
    transport, protocol = await asyncio.get_running_loop().connect_write_pipe(protocol, file)
    return transport, protocol, file, reader


async def reading(make, protocol=Recording):
    reader, writer = os.pipe()
    file = make(reader, "rb")
    transport, protocol = await asyncio.get_running_loop().connect_read_pipe(protocol, file)
    return transport, protocol, file, writer


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_writing_to_a_pipe_whose_file_was_closed_ends_the_connection(run, make):
    async def main():
        transport, protocol, file, reader = await writing(make)
        file.close()
        transport.write(b"secret")
        error = await asyncio.wait_for(protocol.lost, 5)
        assert isinstance(error, OSError) and error.errno == errno.EBADF
        os.close(reader)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("data", [b"secret", bytearray(b"secret"), bytes(100_000)], ids=["little", "mutable", "much"])
def test_a_write_after_the_pipes_file_was_closed_does_not_reach_a_reused_descriptor(run, make, data):
    async def main():
        transport, protocol, file, reader = await writing(make)
        with taken_over(file, end=1) as (other, _):
            transport.write(data)
            error = await asyncio.wait_for(protocol.lost, 5)
            assert isinstance(error, OSError) and error.errno == errno.EBADF
            assert nobody_reads(other)
        os.close(reader)

    run(main())


@pytest.mark.native
def test_pending_writes_do_not_reach_a_reused_descriptor_of_a_pipe(run):
    async def main():
        transport, protocol, file, reader = await writing(KINDS["raw"])
        transport.write(bytes(1_000_000))
        # The poller keeps reporting the pipe, because a duplicate of it is open.
        duplicate = os.dup(file.fileno())
        with taken_over(file, end=1) as (other, _):
            assert os.read(reader, 65_536)
            error = await asyncio.wait_for(protocol.lost, 5)
            assert isinstance(error, OSError) and error.errno == errno.EBADF
            assert nobody_reads(other)
        os.close(reader)
        os.close(duplicate)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("kind", ["protocol", "reader"])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_closed_read_pipe_does_not_read_from_a_reused_descriptor(run, make, kind, asyncio_log):
    async def main():
        stream = asyncio.StreamReader()
        made = Recording if kind == "protocol" else lambda: asyncio.StreamReaderProtocol(stream)
        transport, protocol, file, writer = await reading(make, made)
        duplicate = os.dup(file.fileno())
        with taken_over(file, end=0) as (other, another):
            os.write(another, b"for another")
            os.write(writer, b"for us")
            await asyncio.sleep(0.02)
            assert transport.is_closing()
            assert os.read(other, 100) == b"for another"
        assert "Fatal read error on pipe transport" in asyncio_log.text
        if kind == "reader":
            assert stream.exception().errno == errno.EBADF
        else:
            assert protocol.error.errno == errno.EBADF and not protocol.data
        os.close(duplicate)
        os.close(writer)

    run(main())


@pytest.mark.native
def test_a_pipe_with_a_reused_descriptor_gets_a_working_transport(run):
    """asyncio never polls the new pipe."""

    async def main():
        loop = asyncio.get_running_loop()
        transport, protocol, file, writer = await reading(KINDS["raw"])
        number = file.fileno()
        with taken_over(file, end=0) as (other, another):
            assert other == number
            new, recording = await loop.connect_read_pipe(Recording, open(os.dup(other), "rb", 0))
            again, second = await loop.connect_read_pipe(Recording, open(other, "rb", 0, closefd=False))
            new.pause_reading()
            os.write(another, b"one")
            assert await asyncio.wait_for(second.received(3), 5) == b"one"
            transport.close()
            await asyncio.wait_for(protocol.lost, 5)
            os.write(another, b"two")
            assert await asyncio.wait_for(second.received(6), 5) == b"onetwo"
            for end in (new, again):
                end.close()
            await recording.lost
            await second.lost
        os.close(writer)

    run(main())


@pytest.mark.native
def test_a_closed_socket_under_a_pipe_transport_ends_the_connection(run):
    async def main():
        near, far = socket.socketpair()
        transport, protocol = await asyncio.get_running_loop().connect_write_pipe(Writing, near)
        with far, taken_over(near, end=1) as (other, _):
            transport.write(b"secret")
            error = await asyncio.wait_for(protocol.lost, 5)
            assert isinstance(error, OSError) and error.errno == errno.EBADF
            assert nobody_reads(other)

    run(main())


@pytest.mark.native
def test_a_detached_file_stays_open_when_the_transport_of_its_buffer_closes(run):
    """The descriptor stays open as long as the raw file does, which other code owns now and must close. asyncio fails
    a second time when the transport is collected.
    """

    async def main():
        transport, protocol, buffered, reader = await writing(KINDS["buffered"])
        file = buffered.detach()
        transport.write(b"still there")
        assert os.read(reader, 100) == b"still there"
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        transport.abort()
        await asyncio.wait_for(protocol.lost, 5)
        await asyncio.sleep(0)
        file.close()
        os.close(reader)

    run(main())
