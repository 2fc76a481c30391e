"""What a file of `wakeloop.open` reads while it changes, from devices, from /proc, and into a buffer that changes.

tests/files/test_differential.py compares the reads themselves with those of `io`.
"""

import asyncio
import builtins
import os

import pytest

from tests.support import preload
from tests.support.files import CONTENT, LINUX, content_path, fifo_pair, fifo_path, run_program  # noqa: F401
from tests.support.preload import needs_preload

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


@pytest.mark.parametrize("size", [5, None])
def test_a_file_that_is_truncated_by_its_reader_ends_there(run, path, size):
    async def main():
        async with wakeloop.open(path, "rb+") as file:
            assert await file.read(3) == CONTENT[:3]
            assert await file.truncate(size) == (size or 3)
            assert await file.read() == CONTENT[3 : size or 3]
        assert path.read_bytes() == CONTENT[: size or 3]

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


def opened_path(path):
    return path


def opened_zeros(_):
    return "/dev/zero"


@LINUX
@pytest.mark.parametrize("opened", [opened_path, opened_zeros])
def test_a_file_without_a_buffer_gives_as_much_at_once_as_in_io(run, path, opened):
    with builtins.open(path, "ab") as target:
        target.truncate(3_000_000)

    async def main():
        place = bytearray(2_500_000)
        with builtins.open(opened(path), "rb", 0) as file:
            expected = [file.readinto(place), len(file.read(300_000))]
        async with wakeloop.open(opened(path), "rb", 0) as file:
            assert [await file.readinto(place), len(await file.read(300_000))] == expected == [2_500_000, 300_000]
            await file.seek(0)
            assert len(await file.read(2_500_000)) == 2_500_000

    run(main())


@LINUX
def test_files_of_proc_are_read_to_their_end(run):
    async def main():
        async with wakeloop.open("/proc/self/status", "rb") as file:
            assert b"VmRSS" in await file.read()
        async with wakeloop.open("/proc/self/maps") as file:
            assert any([".so" in line async for line in file])
        # The kernel gives such a file in pieces of a page at most.
        async with wakeloop.open("/proc/self/smaps", "rb") as file:
            assert len(await file.pread(20_000, 0)) == 20_000

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


@needs_preload
@pytest.mark.parametrize("read", ["read({})", "readexactly({})", "pread({}, 0)", "readinto(bytearray({}))"])
def test_a_read_that_finds_only_a_part_in_the_page_cache_goes_on(tmp_path, path, monkeypatch, read):
    monkeypatch.setenv("LD_PRELOAD", str(preload.build("short_reads", tmp_path)))
    output = run_program(
        f"""
        import asyncio, ctypes, os, wakeloop

        async def main():
            library = ctypes.CDLL(os.environ["LD_PRELOAD"])
            async with wakeloop.open(sys.argv[1], "rb") as file:
                library.shorten(1)
                got = await file.{read.format(200_000)}
                library.shorten(0)
            size = got if isinstance(got, int) else len(got)
            print(size, ctypes.c_ulong.in_dll(library, "shortened").value > 0)

        wakeloop.run(main())
        """,
        str(path),
    )
    assert output == "200000 True\n"
