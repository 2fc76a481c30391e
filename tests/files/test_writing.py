"""What a file of `wakeloop.open` writes when the disk is full, the reader is gone, or the data changes.

tests/files/test_differential.py compares the writes themselves with those of `io`.
"""

import asyncio
import errno
import os

import pytest

from tests.support.files import LINUX, fifo_path, run_program  # noqa: F401

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


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
        assert (tmp_path / "new").read_bytes() == b"x" * 1_000_000 + b"a"

    run(main())
