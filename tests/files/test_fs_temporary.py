"""Temporary files and directories of `wakeloop.fs` whose block ends in the middle of something."""

import asyncio
import builtins
import gc
import os

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from wakeloop import fs  # noqa: E402


def test_a_temporary_file_whose_close_is_cancelled_writes_into_no_other_file(run, tmp_path):
    async def main():
        entered = asyncio.Event()
        file = None

        async def use():
            nonlocal file
            async with fs.NamedTemporaryFile(dir=tmp_path) as file:
                await file.write(b"temporary")
                await file._hold()
                entered.set()

        task = asyncio.ensure_future(use())
        await entered.wait()
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and os.listdir(tmp_path) == []
        # A descriptor that was closed behind the file's back has the number of the next file.
        with builtins.open(tmp_path / "other", "wb+") as other:
            file._end_turn()
            await file.write(b", and more")
            await file.seek(0)
            assert await file.read() == b"temporary, and more"
            await file.close()
            assert other.read() == b""

    run(main())


def test_a_temporary_file_outlives_the_object_that_has_opened_it(run, tmp_path):
    async def main():
        file = await fs.NamedTemporaryFile(dir=tmp_path).__aenter__()
        gc.collect()
        await file.write(b"temporary")
        await file.close()
        assert await fs.read_bytes(file.name) == b"temporary"
        del file
        gc.collect()
        assert os.listdir(tmp_path) == []

    run(main())
