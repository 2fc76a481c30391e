"""For the tests of `wakeloop.open`: a file of known content, a FIFO, and what they do with them."""

import asyncio
import builtins
import contextlib
import os
import sys
import textwrap

import pytest

from tests.support import script

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
CONTENT = b"".join(b"line %d\n" % number for number in range(100_000))


@pytest.fixture(name="path")
def content_path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(name="fifo")
def fifo_path(tmp_path):
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
