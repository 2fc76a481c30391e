"""`wakeloop.open`: what files do beyond those of `io`: order, cancellation, bad input and faults.

tests/test_files_differential.py compares the operations themselves with those of `io`."""

import asyncio
import builtins
import contextlib
import errno
import gc
import os
import random
import socket
import sys
import textwrap
import threading
import time
import warnings
import weakref

import pytest

from tests.support import script
from tests.support.protocol import Recording

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
CONTENT = b"".join(b"line %d\n" % number for number in range(100_000))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@contextlib.asynccontextmanager
async def fifo_pair(fifo):
    """A file that reads a FIFO, and the descriptor that writes into it."""
    opening = asyncio.ensure_future(wakeloop.open(fifo, "rb"))
    writer = await wakeloop.spawn_blocking(os.open, fifo, os.O_WRONLY)
    file = await opening
    try:
        yield file, writer
    finally:
        with contextlib.suppress(OSError):
            os.close(writer)
        await file.close()


def drop_from_cache(path):
    with builtins.open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def cancelled(awaitable, turns=1):
    """Starts it as a task, and cancels it when it waits."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run_program(body, *arguments):
    """Runs the body in another process, and returns what it prints."""
    outcome = script.run_script("wakeloop", f"import sys\nsys.argv[1:] = {arguments!r}\n" + textwrap.dedent(body))
    assert outcome.code == 0, outcome
    return outcome.out


# -- opening -------------------------------------------------------------------------------------------------------


def test_a_file_is_opened_by_await_and_by_async_with(run, path):
    async def main():
        file = await wakeloop.open(path, "rb")
        assert await file.readline() == b"line 0\n" and not file.closed
        await file.close()
        assert file.closed and await file.close() is None
        async with wakeloop.open(path) as text:
            assert isinstance(text, wakeloop.TextFile) and await text.readline() == "line 0\n"
        assert text.closed
        async with await wakeloop.open(path, "rb") as binary:
            assert isinstance(binary, wakeloop.File) and binary.name == str(path) and binary.mode == "rb"
        assert binary.closed

    run(main())


WRONG = [
    ("", {}),
    ("z", {}),
    ("rw", {}),
    ("rr", {}),
    ("bt", {}),
    ("r+w", {}),
    ("U", {}),
    (3, {}),
    ("r", {"buffering": 0}),
    ("rb", {"encoding": "utf-8"}),
    ("rb", {"errors": "strict"}),
    ("rb", {"newline": ""}),
    ("r", {"newline": "x"}),
    ("r", {"newline": 3}),
    ("r", {"encoding": "no such"}),
    ("r", {"encoding": "hex"}),
    ("r", {"encoding": 3}),
    ("rb", {"buffering": "1"}),
    ("wb", {"closefd": False}),
    ("x", {}),
    ("xb", {}),
]


@pytest.mark.parametrize(("mode", "options"), WRONG)
def test_wrong_arguments_raise_what_open_raises(run, path, mode, options):
    async def main():
        await wakeloop.open(path, mode, **options)

    with pytest.raises((ValueError, TypeError, OSError, LookupError)) as expected:
        builtins.open(path, mode, **options)
    with pytest.raises(type(expected.value)) as raised:
        run(main())
    assert str(raised.value) == str(expected.value)


@pytest.mark.parametrize("place", ["a\0b", b"a\0b", "", "/no/such/file", "/", -1, 10_000, 1.5, None, [], "\udcff" * 300])
@pytest.mark.parametrize("mode", ["r", "rb", "w+b"])
def test_paths_that_cannot_be_opened_raise_what_open_raises(run, place, mode):
    async def main():
        await wakeloop.open(place, mode)

    with pytest.raises((ValueError, TypeError, OSError)) as expected:
        builtins.open(place, mode)
    with pytest.raises(type(expected.value)) as raised:
        run(main())
    assert str(raised.value) == str(expected.value)
    assert getattr(raised.value, "filename", None) == getattr(expected.value, "filename", None)


def test_an_opener_and_closefd_are_used_as_open_uses_them(run, path):
    async def main():
        flags = []

        def opener(name, flag):
            flags.append((name, flag, threading.get_ident()))
            return os.open(name, flag)

        async with wakeloop.open(path, "rb", opener=opener) as file:
            assert await file.read(4) == b"line"
        [(name, flag, thread)] = flags
        assert name == str(path) and flag == os.O_RDONLY | os.O_CLOEXEC and thread != threading.get_ident()
        descriptor = os.open(path, os.O_RDONLY)
        async with wakeloop.open(descriptor, "rb", closefd=False) as file:
            assert await file.read(4) == b"line" and file.fileno() == descriptor
        os.close(descriptor)

    run(main())


def test_a_cancelled_open_of_a_fifo_leaves_no_descriptor(run, fifo):
    async def main():
        await cancelled(wakeloop.open(fifo, "rb").__aenter__(), 10)
        # The thread may still be in the open, which ends when somebody opens the other end.
        other = os.open(fifo, os.O_RDWR)
        await asyncio.sleep(0.05)
        os.close(other)

    run(main())


def test_a_file_that_is_not_closed_warns_and_writes_what_it_kept(run, tmp_path):
    async def main():
        file = await wakeloop.open(tmp_path / "new", "wb")
        await file.write(b"kept")
        with pytest.warns(ResourceWarning, match="unclosed file"):
            del file
            gc.collect()
        assert (tmp_path / "new").read_bytes() == b"kept"

    run(main())


# -- order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_writes_of_many_tasks_happen_in_the_order_of_their_awaits(run, tmp_path, mode):
    async def main():
        pieces = [f"{number:05d}\n" * random.choice([1, 100, 30_000]) for number in range(60)]
        expected = "".join(pieces)
        async with wakeloop.open(tmp_path / "new", mode) as file:
            await asyncio.gather(*(file.write(piece if mode == "w" else piece.encode()) for piece in pieces))
        assert (tmp_path / "new").read_text() == expected

    run(main())


@pytest.mark.parametrize("mode", ["rb", "r"])
@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=LINUX)])
def test_reads_of_many_tasks_happen_in_the_order_of_their_awaits(run, path, mode, cold):
    async def main():
        sizes = [random.choice([1, 100, 5000, 70_000]) for _ in range(100)]
        async with wakeloop.open(path, mode) as file:
            if cold:
                drop_from_cache(path)
            got = await asyncio.gather(*(file.read(size) for size in sizes))
        joined = "".join(got) if mode == "r" else b"".join(got).decode()
        assert joined == CONTENT.decode()[: sum(sizes)]

    run(main())


def test_a_close_waits_for_the_operations_before_it(run, tmp_path):
    async def main():
        file = await wakeloop.open(tmp_path / "new", "wb")
        writes = [file.write(b"x" * 300_000) for _ in range(5)]
        await asyncio.gather(*writes, file.close())
        assert file.closed and (tmp_path / "new").stat().st_size == 1_500_000
        with pytest.raises(ValueError, match="write to closed file"):
            await file.write(b"y")

    run(main())


def test_reads_at_offsets_run_beside_each_other_and_move_nothing(run, path):
    async def main():
        async with wakeloop.open(path, "rb+") as file:
            await file.read(10)
            drop_from_cache(path) if sys.platform == "linux" else None
            offsets = [random.randrange(len(CONTENT)) for _ in range(200)]
            got = await asyncio.gather(*(file.pread(3000, offset) for offset in offsets))
            assert got == [CONTENT[offset : offset + 3000] for offset in offsets]
            assert await file.pread(10, len(CONTENT)) == b"" and await file.tell() == 10
            assert await file.pwrite(b"OVER", 2) == 4
            assert await file.pread(8, 0) == b"liOVER\nl" and await file.read(3) == CONTENT[10:13]
            await file.seek(0)
            await file.write(b"kept")
            assert await file.pread(6, 0) == b"keptER" and await file.tell() == 4

    run(main())


def test_sendfile_sends_to_a_transport_in_turn(run, path):
    async def main():
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, near = await loop.create_connection(Recording, sock=ours)
        _, far = await loop.create_connection(Recording, sock=theirs)
        async with wakeloop.open(path, "rb") as file:
            await file.read(5)
            sent, rest = await asyncio.gather(file.sendfile(transport, 10, 1000), file.read(5))
            assert sent == 1000 and rest == CONTENT[1010:1015]
            with pytest.raises(RuntimeError):
                transport.close()
                await file.sendfile(transport)
            assert await file.read(5)
        await far.lost
        await near.lost
        assert bytes(far.data) == CONTENT[10:1010]
        far.transport.close()

    run(main())


# -- faults --------------------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_full_disk_raises_and_the_file_can_be_closed(run, mode):
    async def main():
        file = await wakeloop.open("/dev/full", mode)
        data = b"x" if mode == "wb" else "x"
        assert await file.write(data) == 1
        with pytest.raises(OSError) as raised:
            await file.flush()
        assert raised.value.errno == errno.ENOSPC
        with pytest.raises(OSError) as raised:
            await file.write(data * 1_000_000)
        assert raised.value.errno == errno.ENOSPC
        with pytest.raises(OSError) as raised:
            await file.close()
        assert raised.value.errno == errno.ENOSPC and file.closed
        await file.close()

    run(main())


def test_what_could_not_be_written_is_kept_and_written_later(tmp_path):
    output = run_program(
        """
        import asyncio, resource, signal, sys, wakeloop
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        async def main():
            async with wakeloop.open(sys.argv[1], "wb") as file:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
                await file.write(b"a" * 700)
                await file.write(b"b" * 700)
                try:
                    await file.flush()
                except OSError as error:
                    print(error.strerror)
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                assert await file.tell() == 1400

        wakeloop.run(main())
        print(open(sys.argv[1], "rb").read() == b"a" * 700 + b"b" * 700)
        """,
        str(tmp_path / "new"),
    )
    assert output.split("\n")[:2] == ["File too large", "True"]


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


def test_a_fifo_does_not_block_the_loop(run, fifo):
    async def main():
        async with fifo_pair(fifo) as (file, writer):
            reading = asyncio.create_task(file.read(10))
            await asyncio.sleep(0.01)
            assert not reading.done()
            os.write(writer, b"12345")
            await asyncio.sleep(0.01)
            assert not reading.done()
            os.write(writer, b"67890abc\nd")
            assert await reading == b"1234567890" and await file.readline() == b"abc\n"
            assert not file.seekable()
            with pytest.raises(OSError) as raised:
                await file.tell()
            assert raised.value.errno == errno.ESPIPE
            os.close(writer)
            assert await file.read() == b"d" and await file.read() == b""

    run(main())


def test_a_fifo_whose_reader_is_gone_raises_broken_pipe(run, fifo):
    async def main():
        opening = asyncio.ensure_future(wakeloop.open(fifo, "wb"))
        reader = await wakeloop.spawn_blocking(os.open, fifo, os.O_RDONLY)
        file = await opening
        os.close(reader)
        await file.write(b"x")
        with pytest.raises(BrokenPipeError):
            await file.flush()
        with pytest.raises(BrokenPipeError):
            await file.close()
        assert file.closed

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


def test_a_closed_file_refuses_everything(run, path):
    async def main():
        file = await wakeloop.open(path, "rb+")
        await file.close()
        calls = [file.read, file.read1, file.peek, file.readline, file.readlines, file.tell, file.truncate, file.flush]
        calls += [file.fsync, file.__aenter__, file.__anext__, lambda: file.seek(0), lambda: file.write(b"")]
        calls += [lambda: file.readinto(bytearray(1)), lambda: file.readexactly(1), lambda: file.writelines([])]
        calls += [lambda: file.pread(1, 0), lambda: file.pwrite(b"", 0), lambda: file.sendfile(None)]
        for call in calls:
            with pytest.raises(ValueError, match="closed file"):
                await call()
        for call in (file.fileno, file.isatty, file.readable, file.writable, file.seekable):
            with pytest.raises(ValueError, match="I/O operation on closed file"):
                call()
        assert "closed" in repr(file)

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


def test_data_that_changes_after_the_call_of_write_is_written_as_bytes_were(run, tmp_path):
    async def main():
        data = b"x" * 500_000
        async with wakeloop.open(tmp_path / "new", "wb") as file:
            await asyncio.gather(file.write(memoryview(data)), file.write(bytearray(data)))
            with pytest.raises(BufferError, match="not C-contiguous"):
                await file.write(memoryview(data)[::2])
            with pytest.raises(TypeError):
                await file.write("text")
            with pytest.raises(TypeError):
                await file.writelines([b"a", 3])
        assert (tmp_path / "new").read_bytes() == b"x" * 1_000_000

    run(main())


# -- cancellation --------------------------------------------------------------------------------------------------

OPERATIONS = {
    "read": lambda file: file.read(100),
    "read_all": lambda file: file.read(),
    "read1": lambda file: file.read1(100),
    "peek": lambda file: file.peek(),
    "readline": lambda file: file.readline(),
    "readlines": lambda file: file.readlines(),
    "readexactly": lambda file: file.readexactly(100),
    "readinto": lambda file: file.readinto(bytearray(100)),
    "next": lambda file: file.__anext__(),
    "pread": lambda file: file.pread(100, 0),
    "write": lambda file: file.write(b"x" * 1000),
    "writelines": lambda file: file.writelines([b"x" * 500] * 2),
    "pwrite": lambda file: file.pwrite(b"x" * 1000, 0),
    "seek": lambda file: file.seek(500),
    "seek_end": lambda file: file.seek(0, 2),
    "tell": lambda file: file.tell(),
    "truncate": lambda file: file.truncate(0),
    "flush": lambda file: file.flush(),
    "fsync": lambda file: file.fsync(),
    "close": lambda file: file.close(),
    "sendfile": lambda file: file.sendfile(None),
    "enter": lambda file: file.__aenter__(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_is_cancelled_before_its_turn_does_nothing(run, path, operation):
    async def main():
        async with wakeloop.open(path, "rb+") as file:
            await file.read(7)
            await file._hold()
            later = asyncio.ensure_future(file.read(7))
            await asyncio.sleep(0)
            waiting = asyncio.ensure_future(OPERATIONS[operation](file))
            last = asyncio.ensure_future(file.readline())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0)
            assert waiting.cancelled() and not later.done() and not last.done()
            file._end_turn()
            assert await later == b"line 1\n" and await last == b"line 2\n"
            assert await file.tell() == 21
        assert path.read_bytes() == CONTENT

    run(main())


READS = ["read", "readline", "readexactly", "readinto", "next", "read1", "peek"]


@pytest.mark.parametrize("operation", READS)
def test_a_cancelled_read_of_a_fifo_loses_nothing(run, fifo, operation):
    async def main():
        async with fifo_pair(fifo) as (file, writer):
            start = b"" if operation in ("read1", "peek") else b"some "
            for _ in range(10):
                os.write(writer, start)
                await cancelled(OPERATIONS[operation](file), 2)
            reading = asyncio.create_task(OPERATIONS[operation](file))
            await asyncio.sleep(0.01)
            assert not reading.done()
            reading.cancel()
            await asyncio.wait([reading])
            os.write(writer, b"more\n")
            assert await file.readline() == start * 10 + b"more\n"

    run(main())


@LINUX
@pytest.mark.parametrize("operation", [*READS, "read_all", "readlines", "pread"])
def test_a_cancelled_read_of_the_disk_moves_nothing(run, path, operation):
    async def main():
        async with wakeloop.open(path, "rb") as file:
            await file.seek(7)
            for turns in (1, 2, 3) * 5:
                drop_from_cache(path)
                task = asyncio.ensure_future(OPERATIONS[operation](file))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if task.done():
                    await file.seek(7)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await file.seek(7)
                assert await file.tell() == 7
            assert await file.read() == CONTENT[7:]

    run(main())


@pytest.mark.parametrize("mode", ["rb", "r"])
@pytest.mark.parametrize("buffering", [-1, 5000])
def test_reads_of_which_some_are_cancelled_give_the_content_once(run, path, mode, buffering):
    async def main():
        async with wakeloop.open(path, mode, buffering) as file:
            got = []

            async def one(size):
                data = await (file.readline() if size < 0 else file.read(size))
                got.append(data)
                return data

            while not got or got[-1]:
                if sys.platform == "linux" and random.random() < 0.3:
                    drop_from_cache(path)
                sizes = random.choices([-1, 1, 100, 9000, 70_000, 600_000], [3, 3, 3, 3, 3, 1], k=10)
                tasks = [asyncio.ensure_future(one(size)) for size in sizes]
                for task in random.sample(tasks, 5):
                    for _ in range(random.randrange(4)):
                        await asyncio.sleep(0)
                    task.cancel()
                await asyncio.wait(tasks)
            joined = "".join(got) if mode == "r" else b"".join(got).decode()
            assert joined == CONTENT.decode()

    for _ in range(5):
        run(main())


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_cancelled_write_is_done_as_a_whole_or_not_at_all(run, tmp_path, mode):
    async def main():
        async with wakeloop.open(tmp_path / "new", mode) as file:
            for number in range(50):
                data = f"{number:09d}\n" * random.choice([1, 30_000])
                task = asyncio.ensure_future(file.write(data if mode == "w" else data.encode()))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            position = await file.tell()
        lines = (tmp_path / "new").read_text().splitlines()
        assert position == 10 * len(lines) and lines == sorted(lines)
        assert all(lines.count(line) in (1, 30_000) for line in set(lines))

    run(main())


def test_a_cancelled_close_that_has_begun_closes(run, tmp_path):
    async def main():
        file = await wakeloop.open(tmp_path / "new", "wb")
        await file.write(b"kept")
        closing = asyncio.ensure_future(file.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert file.closed
        await file.close()
        while (tmp_path / "new").read_bytes() != b"kept":
            await asyncio.sleep(0.001)

    run(main())


TEXT_READS = {
    "read": lambda file: file.read(1_000),
    "read_all": lambda file: file.read(),
    "readline": lambda file: file.readline(),
    "readlines": lambda file: file.readlines(),
    "next": lambda file: file.__anext__(),
}


@pytest.mark.parametrize("operation", TEXT_READS)
def test_a_cancelled_read_of_text_loses_nothing(run, fifo, operation):
    async def main():
        opening = asyncio.ensure_future(wakeloop.open(fifo, encoding="utf-8"))
        writer = await wakeloop.spawn_blocking(os.open, fifo, os.O_WRONLY)
        async with await opening as file:
            begun = "é\nä " if operation in ("readlines", "read", "read_all") else "éä "
            for byte in (begun * 10).encode():
                os.write(writer, bytes([byte]))
                task = asyncio.ensure_future(TEXT_READS[operation](file))
                await asyncio.sleep(0.001)
                assert not task.done()
                task.cancel()
                await asyncio.wait([task])
            os.write(writer, b"end\n")
            os.close(writer)
            assert await file.read() == begun * 10 + "end\n"

    run(main())


def test_a_cancelled_seek_of_text_moves_nothing(run, tmp_path):
    path = tmp_path / "text"
    path.write_text("eé\n" * 20_000, encoding="utf-16")

    async def main():
        async with wakeloop.open(path, "r+", encoding="utf-16") as file:
            await file.read(30_001)
            here = await file.tell()
            for target, whence in [(0, 2), (here, 0), (0, 0), (0, 1)] * 5:
                drop_from_cache(path) if sys.platform == "linux" else None
                task = asyncio.ensure_future(file.seek(target, whence))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    await file.seek(here)
                assert await file.tell() == here
            assert len(await file.read()) == 60_000 - 30_001

    run(main())


def test_an_awaitable_that_is_never_awaited_warns_and_does_nothing(run, path):
    async def main():
        async with wakeloop.open(path, "rb") as file:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                file.read(5)
                gc.collect()
            assert [str(warning.message) for warning in seen] == ["coroutine 'File.read' was never awaited"]
            assert await file.tell() == 0

    run(main())


def test_an_operation_that_was_started_and_dropped_passes_its_turn_on(run, fifo):
    async def main():
        async with fifo_pair(fifo) as (file, writer):
            call = file.read(5)
            call.send(None)
            call.close()
            os.write(writer, b"123456")
            assert await file.read(5) == b"12345"

    run(main())


# -- the surroundings ----------------------------------------------------------------------------------------------


def test_a_file_without_references_is_freed_in_the_middle_of_a_read(run, fifo):
    async def main():
        opening = asyncio.ensure_future(wakeloop.open(fifo, "rb"))
        writer = await wakeloop.spawn_blocking(os.open, fifo, os.O_WRONLY)
        file = await opening
        gone, descriptor = weakref.ref(file), file.fileno()
        await cancelled(file.read(5), 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del file, opening
            for _ in range(1000):
                gc.collect()
                if gone() is None and not os.path.exists(f"/dev/fd/{descriptor}"):
                    break
                await asyncio.sleep(0.001)
            else:
                pytest.fail("the file is still there")
        os.close(writer)

    run(main())


def test_a_file_in_a_forked_child_is_usable_unless_the_parent_is_using_it(tmp_path):
    output = run_program(
        """
        import asyncio, os, sys, warnings, wakeloop
        warnings.simplefilter("ignore", DeprecationWarning)
        path = sys.argv[1]
        open(path, "wb").write(b"line 1\\nline 2\\n")
        os.mkfifo(path + "-fifo")

        async def open_both():
            file = await wakeloop.open(path, "rb")
            opening = asyncio.ensure_future(wakeloop.open(path + "-fifo", "rb"))
            writer = await wakeloop.spawn_blocking(os.open, path + "-fifo", os.O_WRONLY)
            return file, await opening, writer

        async def main():
            file, fifo, writer = await open_both()
            await file.readline()
            reading = asyncio.ensure_future(fifo.read(1))
            await asyncio.sleep(0.01)
            if (child := os.fork()) == 0:
                async def inside():
                    line = await file.readline()
                    try:
                        await fifo.read(1)
                    except RuntimeError as error:
                        return line + str(error).encode()
                asyncio.get_event_loop_policy()
                asyncio._set_running_loop(None)
                os.write(1, asyncio.Runner().run(inside()) + b"\\n")
                os._exit(0)
            os.waitpid(child, 0)
            os.write(writer, b"x")
            await reading
            os.close(writer)
            await file.close()
            await fifo.close()

        asyncio.run(main())
        """,
        str(tmp_path / "file"),
    )
    assert output.splitlines() == ["line 2", "this file is in use by the parent process"]


def test_the_interpreter_exits_while_a_fifo_is_read_and_opened(tmp_path):
    os.mkfifo(tmp_path / "one")
    os.mkfifo(tmp_path / "two")
    output = run_program(
        """
        import asyncio, os, sys, wakeloop

        async def main():
            opening = asyncio.ensure_future(wakeloop.open(sys.argv[1], "rb"))
            writer = await wakeloop.spawn_blocking(os.open, sys.argv[1], os.O_WRONLY)
            file = await opening
            for task in (file.read(1), wakeloop.open(sys.argv[2], "rb").__aenter__()):
                asyncio.ensure_future(task)
            await asyncio.sleep(0.05)
            print("leaving", flush=True)

        wakeloop.run(main())
        """,
        str(tmp_path / "one"),
        str(tmp_path / "two"),
    )
    assert output.splitlines()[0] == "leaving"


def test_files_work_on_uvloop(path):
    pytest.importorskip("uvloop")
    output = run_program(
        """
        import asyncio, os, sys, uvloop, wakeloop
        path = sys.argv[1]
        content = open(path, "rb").read()

        async def main():
            async with wakeloop.open(path, "rb") as file:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert await file.read(300_000) == content[:300_000]
                got = await asyncio.gather(*(file.pread(5000, offset) for offset in range(0, 500_000, 5000)))
                assert b"".join(got) == content[:500_000]
            async with wakeloop.open(path, "r+") as text:
                assert [line async for line in text] == content.decode().splitlines(keepends=True)
                await text.write("more")
                await text.fsync()
            assert await wakeloop.fs.read_bytes(path) == content + b"more"
            return "done"

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(runner.run(main()))
        """,
        str(path),
    )
    assert output == "done\n"


def test_a_loop_of_reads_from_the_cache_lets_other_tasks_run(run, path):
    async def main():
        async with wakeloop.open(path, "rb") as file, wakeloop.open(path) as text:
            for read in (lambda: file.read(10), lambda: file.pread(10, 0), lambda: text.readline(), file.tell):
                turns = 0

                async def count():
                    nonlocal turns
                    while True:
                        await asyncio.sleep(0)
                        turns += 1

                counting = asyncio.ensure_future(count())
                for _ in range(20_000):
                    await read()
                counting.cancel()
                assert turns > 10

    run(main())


def test_a_read_of_the_cache_needs_no_thread(run, path):
    async def main():
        async with wakeloop.open(path, "rb") as file:
            for _ in range(20):
                await file.seek(0)
                call = file.read(4096)
                with contextlib.suppress(StopIteration):
                    assert call.send(None) is None, "it waits"
                    continue
                break
            else:
                pytest.fail("every read has yielded")

    run(main())


def test_the_warning_about_line_buffering_names_the_line_that_opens_the_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.warns(RuntimeWarning, match="line buffering") as ours:
        opening = wakeloop.open(path, "rb", 1)
    with pytest.warns(RuntimeWarning, match="line buffering") as theirs, open(path, "rb", 1):
        pass
    assert ours[0].filename == theirs[0].filename == __file__
    assert str(ours[0].message) == str(theirs[0].message)
    del opening
