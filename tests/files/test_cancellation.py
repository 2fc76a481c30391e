"""Cancelled operations on a file of `wakeloop.open`: no data is lost, and no position moves."""

import asyncio
import gc
import os
import random
import select
import sys
import tty
import warnings

import pytest

from tests.support.files import (  # noqa: F401
    CONTENT,
    LINUX,
    cancelled,
    content_path,
    drop_from_cache,
    fifo_pair,
    fifo_path,
    run_program,
)

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


def test_a_cancelled_open_of_a_fifo_leaves_no_descriptor(run, fifo):
    async def main():
        await cancelled(wakeloop.open(fifo, "rb").__aenter__(), 10)
        # The thread may still be in the open, which ends when somebody opens the other end.
        other = os.open(fifo, os.O_RDWR)
        await asyncio.sleep(0.05)
        os.close(other)

    run(main())


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


def test_a_read_is_cancelled_while_a_forked_child_lives():
    output = run_program(
        """
        import asyncio, os, wakeloop

        async def main():
            reader, writer = os.pipe()
            file = await wakeloop.open(reader, "rb")
            reading = asyncio.ensure_future(file.read(10))
            await asyncio.sleep(0.01)
            until, end = os.pipe()
            if not (child := os.fork()):
                os.close(end)
                os.read(until, 1)
                os._exit(0)
            reading.cancel()
            await asyncio.wait([reading])
            closed, _ = await asyncio.wait([asyncio.ensure_future(file.close())], timeout=5)
            print(len(closed))
            os.close(end)
            os.waitpid(child, 0)

        wakeloop.run(main())
        """
    )
    assert output == "1\n"


def test_a_terminal_is_written_behind_a_cancelled_read(run):
    async def main():
        controller, terminal = os.openpty()
        tty.setraw(terminal)
        try:
            async with wakeloop.open(terminal, "rb+", 0) as file:
                reading = asyncio.ensure_future(file.readline())
                await asyncio.sleep(0.01)
                os.write(controller, b"some ")
                # The thread takes it, and waits for more.
                while select.select([terminal], [], [], 0)[0]:
                    await asyncio.sleep(0.01)
                reading.cancel()
                await asyncio.wait([reading])
                assert reading.cancelled() and await file.write(b"prompt") == 6
                assert os.read(controller, 100) == b"prompt"
                os.write(controller, b"more\n")
                assert await file.readline() == b"some more\n"
        finally:
            os.close(controller)

    run(main())


@LINUX
@pytest.mark.parametrize("operation", [*READS, "read_all", "readlines", "pread"])
def test_a_cancelled_read_of_the_disk_moves_nothing(run, path, operation):
    async def main():
        for turns in (1, 2, 3) * 5:
            # Opened anew, because a file that has read ahead would not ask the disk.
            async with wakeloop.open(path, "rb") as file:
                await file.seek(7)
                drop_from_cache(path)
                task = asyncio.ensure_future(OPERATIONS[operation](file))
                for _ in range(turns):
                    await asyncio.sleep(0)
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


def test_a_cancelled_write_that_waits_for_a_thread_is_done(tmp_path):
    output = run_program(
        """
        import asyncio, threading, wakeloop

        async def main():
            file = await wakeloop.open(sys.argv[1], "wb")
            await file.write(b"first ")
            release = threading.Event()
            # Each of these jobs keeps a thread, until the pool has no other.
            jobs = [asyncio.ensure_future(wakeloop.spawn_blocking(release.wait)) for _ in range(512)]
            while wakeloop.runtime_metrics().blocking_jobs < 512:
                await asyncio.sleep(0.001)
            writing = asyncio.ensure_future(file.write(b"x" * 300_000))
            while not wakeloop.runtime_metrics().blocking_queue_depth:
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
            release.set()
            await asyncio.gather(*jobs)
            await file.write(b" last")
            await file.close()
            return writing.cancelled()

        print(wakeloop.run(main()), open(sys.argv[1], "rb").read() == b"first " + b"x" * 300_000 + b" last")
        """,
        str(tmp_path / "new"),
    )
    assert output == "True True\n"


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


def test_an_open_that_is_never_awaited_warns_and_opens_nothing(run, path):
    async def main():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            wakeloop.open(path, "w")
            with pytest.raises(ValueError):
                wakeloop.open(path, "wr")
            # One that is awaited, or entered, does not warn.
            await (await wakeloop.open(path, "rb")).close()
            async with wakeloop.open(path, "rb") as file:
                assert await file.read(1)
            gc.collect()
        assert [(str(warning.message), warning.filename) for warning in seen] == [
            ("coroutine 'open' was never awaited", __file__)
        ]

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
