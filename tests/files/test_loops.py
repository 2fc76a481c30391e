"""Files of `wakeloop.open` and the loop that awaits them: they do not block it, and it may be any loop."""

import asyncio
import errno
import os
import time

import pytest

from tests.support.files import content_path, fifo_pair, fifo_path, run_program  # noqa: F401

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


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


@pytest.mark.parametrize("arrives", ["before the loop closes", "after that"])
@pytest.mark.parametrize("others", [0, 3])
def test_a_file_can_be_used_after_a_loop_was_closed_in_the_middle_of_a_read(loop_factory, arrives, others):
    """Nobody gets what the first loop's tasks have asked for, so nothing is lost, and their turn comes to an end."""
    reading, writing = os.pipe()
    closed, used = loop_factory(), loop_factory()

    async def first():
        file = await wakeloop.open(reading, "rb")
        kept = [closed.create_task(file.read(4)) for _ in range(1 + others)]
        await asyncio.sleep(0.01)
        return file, kept

    async def second():
        call = asyncio.ensure_future(file.read(4))
        if arrives == "after that":
            await asyncio.sleep(0.01)
            assert not call.done()
            os.write(writing, b"one,two;")
        async with asyncio.timeout(10):
            assert await call == b"one," and await file.read(4) == b"two;"
            os.close(writing)
            assert await file.read() == b""
            await file.close()

    file, kept = closed.run_until_complete(first())
    if arrives == "before the loop closes":
        os.write(writing, b"one,two;")
        time.sleep(0.01)
    closed.close()
    used.run_until_complete(second())
    used.close()
    for task in kept:
        task._log_destroy_pending = False
        assert not task.done()


STOPPED = {
    "read": lambda file: file.read(100),
    "pread": lambda file: file.pread(100, 7),
    "tell": lambda file: file.tell(),
    "long pread": lambda file: file.pread(600_000, 0),
    "write": lambda file: file.write(b"x" * 200_000),
}


@pytest.mark.parametrize("operation", STOPPED)
@pytest.mark.parametrize("tasks", [1, 3])
def test_a_file_can_be_used_after_a_loop_was_closed_between_two_steps(loop_factory, path, operation, tasks):
    """What is ready at once has yielded to the loop, and what has waited is ready to continue."""

    async def repeat(file):
        while True:
            await STOPPED[operation](file)

    async def use(file):
        async with asyncio.timeout(5):
            assert await file.seek(7) == 7 and len(await file.read(10)) == 10
            await file.close()

    for turns in range(1, 9):
        closed, used = loop_factory(), loop_factory()

        async def begin():
            file = await wakeloop.open(path, "rb+")
            return file, [closed.create_task(repeat(file)) for _ in range(tasks)]

        file, kept = closed.run_until_complete(begin())
        for _ in range(turns):
            closed.call_soon(closed.stop)
            closed.run_forever()
            time.sleep(0.001)
        closed.close()
        used.run_until_complete(use(file))
        used.close()
        for task in kept:
            task._log_destroy_pending = False


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
            at_once = 0
            for _ in range(20):
                await file.seek(0)
                call = file.read(4096)
                try:
                    assert call.send(None) is None, "it waits"
                    call.close()
                except StopIteration:
                    at_once += 1
            # A task that never waits yields to the loop now and then.
            assert at_once >= 15

    run(main())


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
