"""Functions of `wakeloop.fs` in tasks that are cancelled: what they change meets nothing that the task does next."""

import asyncio
import os
import shutil
import threading
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from wakeloop import fs  # noqa: E402


class Held:
    """A function that waits until it may go on, and then does what another one does."""

    def __init__(self, function):
        self.function, self.begun, self.may_go_on, self.calls = function, threading.Event(), threading.Event(), 0

    def __call__(self, *arguments):
        self.calls += 1
        self.begun.set()
        self.may_go_on.wait()
        return self.function(*arguments)

    async def wait_until_begun(self):
        await asyncio.get_running_loop().run_in_executor(None, self.begun.wait)


@pytest.fixture
def source(tmp_path):
    for name in ("a/1", "a/2", "b/1", "b/2", "c"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "source"


@pytest.mark.parametrize("name", ["copytree", "move"])
@pytest.mark.parametrize("cancellations", [1, 3])
def test_a_cancelled_copy_of_a_tree_stops_before_the_next_file_and_then_ends(
    run, source, tmp_path, monkeypatch, name, cancellations
):
    def no_rename(*names):
        raise OSError("another file system")

    async def main():
        held = Held(shutil.copy2)
        task = asyncio.ensure_future(getattr(fs, name)(source, tmp_path / "target", copy_function=held))
        await held.wait_until_begun()
        for _ in range(cancellations):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        held.may_go_on.set()
        await asyncio.wait([task])
        assert task.cancelled() and held.calls == 1
        # Nobody writes there any more.
        shutil.rmtree(tmp_path / "target")
        assert sum(len(names) for _, _, names in os.walk(source)) == 5

    monkeypatch.setattr(os, "rename", no_rename)
    run(main())


def test_a_cancelled_copy_in_a_temporary_directory_leaves_nothing(run, source, tmp_path):
    (tmp_path / "base").mkdir()

    async def use(held):
        async with fs.TemporaryDirectory(dir=tmp_path / "base") as folder:
            await fs.copytree(source, folder + "/copy", copy_function=held)

    async def main():
        for _ in range(10):
            held = Held(shutil.copy2)
            task = asyncio.ensure_future(use(held))
            await held.wait_until_begun()
            task.cancel()
            held.may_go_on.set()
            await asyncio.wait([task])
            assert task.cancelled() and os.listdir(tmp_path / "base") == []

    run(main())


def test_a_cancelled_change_has_ended_when_the_task_has(run, tmp_path, monkeypatch):
    async def main():
        held = Held(Path.write_bytes)
        monkeypatch.setattr(Path, "write_bytes", lambda *arguments: held(*arguments))
        task = asyncio.ensure_future(fs.write_bytes(tmp_path / "file", b"data"))
        await held.wait_until_begun()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        held.may_go_on.set()
        await asyncio.wait([task])
        assert task.cancelled() and (tmp_path / "file").read_bytes() == b"data"

    run(main())


def test_a_cancelled_change_that_fails_logs_nothing(run, tmp_path, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError

    async def main():
        held = Held(fail)
        monkeypatch.setattr(Path, "write_bytes", lambda *arguments: held(*arguments))
        task = asyncio.ensure_future(fs.write_bytes(tmp_path / "file", b"data"))
        await held.wait_until_begun()
        task.cancel()
        held.may_go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())


def test_a_question_that_is_cancelled_ends_at_once(run, tmp_path, monkeypatch):
    async def main():
        held = Held(lambda *arguments: b"")
        monkeypatch.setattr(Path, "read_bytes", lambda *arguments: held(*arguments))
        task = asyncio.ensure_future(fs.read_bytes(tmp_path / "file"))
        await held.wait_until_begun()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        held.may_go_on.set()

    run(main())


@pytest.mark.parametrize("name", ["TemporaryDirectory", "NamedTemporaryFile"])
def test_what_is_temporary_is_removed_when_a_task_ends_whose_block_was_cancelled(run, tmp_path, name):
    async def main():
        async def use():
            async with getattr(fs, name)(dir=tmp_path):
                entered.set()

        for turns in range(200):
            entered = asyncio.Event()
            task = asyncio.ensure_future(use())
            await entered.wait()
            for _ in range(turns % 5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert os.listdir(tmp_path) == []

    with warnings.catch_warnings():
        # What tempfile itself removes, when it is garbage, blocks the loop, and warns.
        warnings.simplefilter("error")
        run(main())


def test_a_cancelled_mkdtemp_leaves_nothing(run, tmp_path):
    async def main():
        for turns in range(100):
            task = asyncio.ensure_future(fs.mkdtemp(dir=tmp_path))
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await fs.rmdir(task.result())
        while os.listdir(tmp_path):
            await asyncio.sleep(0.001)

    run(main())
