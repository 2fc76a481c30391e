"""Files of `wakeloop.open` on pipes: those whose descriptor does not block, and those beside no free descriptor."""

import asyncio
import contextlib
import errno
import os
import resource
import select
import stat
import time
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

LENGTH = 300_000


@pytest.mark.parametrize("buffering", [-1, 100])
def test_a_write_to_a_non_blocking_pipe_waits_for_room(run, buffering):
    async def main():
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        received = bytearray()
        async with wakeloop.open(reader, "rb") as source:
            async with wakeloop.open(writer, "wb", buffering) as target:
                writing = asyncio.ensure_future(target.write(b"x" * LENGTH))
                while len(received) < LENGTH:
                    received += await source.read1(50_000)
                assert await writing == LENGTH
            assert received == b"x" * LENGTH and await source.read() == b""

    run(main())


def test_a_read_of_a_non_blocking_pipe_waits_for_data(run):
    async def main():
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        async with wakeloop.open(reader, "rb") as source:
            reading = asyncio.ensure_future(source.read(4))
            await asyncio.sleep(0.01)
            assert not reading.done()
            os.write(writer, b"data")
            os.close(writer)
            assert await reading == b"data"

    run(main())


def test_several_files_read_one_non_blocking_pipe(run):
    async def read(reader):
        count = 0
        async with wakeloop.open(os.dup(reader), "rb", 0) as source:
            while await source.read(1):
                count += 1
        return count

    async def main():
        reader, writer = os.pipe()
        os.set_blocking(reader, False)

        def write():
            for _ in range(20_000):
                os.write(writer, b"x")
                time.sleep(0)
            os.close(writer)

        reading = [asyncio.ensure_future(read(reader)) for _ in range(4)]
        await wakeloop.spawn_blocking(write)
        assert sum(await asyncio.gather(*reading)) == 20_000
        os.close(reader)

    run(main())


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_pipe_gives_exactly_so_many_bytes_that_come_in_parts(run, buffering):
    async def main():
        reader, writer = os.pipe()
        async with wakeloop.open(reader, "rb", buffering) as source:
            reading = asyncio.ensure_future(source.readexactly(9))
            for part in (b"abc", b"def", b"ghijk"):
                await asyncio.sleep(0.01)
                assert not reading.done()
                os.write(writer, part)
            assert await reading == b"abcdefghi"
            os.close(writer)
            with pytest.raises(asyncio.IncompleteReadError) as raised:
                await source.readexactly(9)
            assert raised.value.partial == b"jk"

    run(main())


def test_a_read_without_a_buffer_gives_what_a_cancelled_one_has_left(run):
    async def main():
        reader, writer = os.pipe()
        async with wakeloop.open(reader, "rb", 0) as source:
            reading = asyncio.ensure_future(source.readline())
            os.write(writer, b"prompt")
            # The thread takes it, and waits for more.
            while select.select([reader], [], [], 0)[0]:
                await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.wait([reading])
            async with asyncio.timeout(5):
                assert await source.read(100) == b"prompt"
        os.close(writer)

    run(main())


@pytest.mark.parametrize("size", [20_000, 1_000_000, -1])
def test_a_regular_file_without_a_position_is_read_as_a_pipe_is(run, monkeypatch, size):
    # As some files of /proc are. This one is a pipe whose type says otherwise.
    reader, writer = os.pipe()
    original = os.fstat

    def fstat(descriptor):
        is_it = descriptor == reader
        return SimpleNamespace(st_mode=stat.S_IFREG, st_size=0) if is_it else original(descriptor)

    monkeypatch.setattr(os, "fstat", fstat)

    async def main():
        async with wakeloop.open(reader, "rb") as source:
            os.write(writer, b"data")
            os.close(writer)
            assert await source.read(size) == b"data"

    run(main())


@contextlib.contextmanager
def no_free_descriptor():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
        with pytest.raises(OSError) as raised:
            while True:
                taken.append(os.dup(taken[0]))
        assert raised.value.errno == errno.EMFILE
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_a_pipe_is_read_without_a_free_descriptor(run, mode):
    async def main():
        reader, writer = os.pipe()
        async with wakeloop.open(reader, mode) as source:
            # The pool has a thread, and the text decoder is loaded.
            os.write(writer, b"first\n")
            assert len(await source.readline()) == 6
            with no_free_descriptor():
                given_up = asyncio.ensure_future(source.readline())
                await asyncio.sleep(0.01)
                given_up.cancel()
                await asyncio.wait([given_up])
                reading = asyncio.ensure_future(source.readline())
                await asyncio.sleep(0.01)
                assert given_up.cancelled() and not reading.done()
                os.write(writer, b"line\n")
                assert len(await reading) == 5
            os.close(writer)
            assert len(await source.read()) == 0

    run(main())
