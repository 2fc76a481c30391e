"""What a file of `wakeloop.open` reads while it changes, from devices, from /proc, and into a buffer that changes.

tests/test_files_differential.py compares the reads themselves with those of `io`.
"""

import asyncio
import builtins
import os

import pytest

from tests.support.files import CONTENT, LINUX, content_path, fifo_pair, fifo_path  # noqa: F401

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


def test_a_file_that_is_truncated_while_it_is_read_ends_there(run, path):
    async def main():
        async with wakeloop.open(path, "rb") as file:
            got = await file.read(200_000)
            os.truncate(path, 250_000)
            rest = await file.read()
            # What was read ahead before is still there.
            assert got + rest == CONTENT[: len(got + rest)] and 250_000 <= len(got + rest) < len(CONTENT)
            assert await file.read() == b"" and await file.readline() == b""
            os.truncate(path, 10)
            await file.seek(0)
            with pytest.raises(asyncio.IncompleteReadError) as raised:
                await file.readexactly(100_000)
            assert raised.value.partial == CONTENT[:10] and raised.value.expected == 100_000
            assert await file.pread(100, 0) == CONTENT[:10] and await file.pread(100, 300_000) == b""

    run(main())


def test_a_file_that_grows_is_read_on(run, path):
    async def main():
        async with wakeloop.open(path, "rb") as file:
            assert await file.read() == CONTENT
            with builtins.open(path, "ab") as other:
                other.write(b"more\nand more")
            assert await file.readline() == b"more\n" and await file.read() == b"and more"

    run(main())


@LINUX
def test_devices_are_read_and_written(run):
    async def main():
        async with wakeloop.open("/dev/zero", "rb") as file:
            assert await file.read(1_000_000) == bytes(1_000_000) and await file.pread(5, 9) == bytes(5)
        async with wakeloop.open("/dev/null", "rb+", 0) as file:
            assert await file.read() == b"" and await file.write(b"gone") == 4
        async with wakeloop.open("/dev/urandom", "rb", 0) as file:
            assert len(await file.read(16)) == 16

    run(main())


@LINUX
def test_files_of_proc_are_read_to_their_end(run):
    async def main():
        async with wakeloop.open("/proc/self/status", "rb") as file:
            assert b"VmRSS" in await file.read()
        async with wakeloop.open("/proc/self/maps") as file:
            assert any([".so" in line async for line in file])

    run(main())


@pytest.mark.parametrize("huge", [2**40, 2**62])
def test_a_request_for_more_than_there_is_needs_no_memory_for_it(run, path, huge):
    async def main():
        async with wakeloop.open(path, "rb") as file:
            assert await file.read(huge) == CONTENT
            assert await file.pread(huge, 5) == CONTENT[5:]
            await file.seek(0)
            assert await file.readline(huge) == b"line 0\n" and len(await file.readlines(huge)) == 99_999
            with pytest.raises(OSError):
                await file.pread(1, -1)
        async with wakeloop.open(path) as text:
            assert await text.read(huge) == CONTENT.decode()

    run(main())


def test_a_buffer_that_is_resized_while_a_read_waits_gets_what_fits(run, fifo):
    async def main():
        async with fifo_pair(fifo) as (file, writer):
            buffer = bytearray(10)
            reading = asyncio.create_task(file.readinto(buffer))
            await asyncio.sleep(0.01)
            del buffer[4:]
            os.write(writer, b"1234567890")
            assert await reading == 4 and buffer == b"1234" and await file.read(6) == b"567890"

    run(main())
