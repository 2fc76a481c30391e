"""How a file of `wakeloop.open` ends: closed, without references, after a fork, or with the process."""

import asyncio
import gc
import os
import weakref

import pytest

from tests.support.files import cancelled, content_path, fifo_path, run_program  # noqa: F401

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


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


def test_a_file_that_is_not_closed_warns_and_writes_what_it_kept(run, tmp_path):
    async def main():
        file = await wakeloop.open(tmp_path / "new", "wb")
        await file.write(b"kept")
        with pytest.warns(ResourceWarning, match="unclosed file"):
            del file
            gc.collect()
        assert (tmp_path / "new").read_bytes() == b"kept"

    run(main())


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_file_without_references_is_freed_in_the_middle_of_a_read(run, fifo):
    async def main():
        opening = asyncio.ensure_future(wakeloop.open(fifo, "rb"))
        writer = await wakeloop.spawn_blocking(os.open, fifo, os.O_WRONLY)
        file = await opening
        gone, descriptor = weakref.ref(file), file.fileno()
        await cancelled(file.read(5), 2)
        del file, opening
        gc.collect()
        while gone() is not None or os.path.exists(f"/dev/fd/{descriptor}"):
            await asyncio.sleep(0.001)
            gc.collect()
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
