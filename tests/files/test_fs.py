"""`wakeloop.fs`: functions of os, shutil, glob, pathlib and tempfile, awaited from any loop."""

import asyncio
import builtins
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from wakeloop import fs  # noqa: E402


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one.txt").write_text("one")
    (tmp_path / "a" / "b" / "two.txt").write_text("two")
    (tmp_path / "link").symlink_to("a")
    return tmp_path


QUESTIONS = {
    "stat": os.stat,
    "lstat": os.lstat,
    "listdir": os.listdir,
    "exists": os.path.exists,
    "lexists": os.path.lexists,
    "isfile": os.path.isfile,
    "isdir": os.path.isdir,
    "islink": os.path.islink,
    "ismount": os.path.ismount,
    "getsize": os.path.getsize,
    "realpath": os.path.realpath,
    "readlink": os.readlink,
    "read_bytes": lambda path: Path(path).read_bytes(),
    "read_text": lambda path: Path(path).read_text(),
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("place", ["a", "a/one.txt", "link", "missing", "a/one.txt/under", "nul\0", b"a"])
def test_a_question_has_the_answer_and_the_error_of_its_original(run, tree, monkeypatch, name, place):
    monkeypatch.chdir(tree)

    async def main():
        try:
            return await getattr(fs, name)(place)
        except Exception as error:
            return type(error), str(error)

    try:
        expected = QUESTIONS[name](place)
    except Exception as error:
        expected = type(error), str(error)
    assert run(main()) == expected


@pytest.mark.parametrize("name", ["remove", "unlink", "rmdir", "mkdir", "listdir", "truncate", "chmod", "rmtree"])
def test_paths_with_nul_raise_value_error(run, name):
    with pytest.raises(ValueError, match="null"):
        run(as_coroutine(getattr(fs, name)("a\0b", *([1] if name in ("truncate", "chmod") else []))))


async def as_coroutine(awaitable):
    return await awaitable


def test_files_are_made_moved_and_removed(run, tmp_path):
    async def main():
        one, two = tmp_path / "one", tmp_path / "two"
        assert await fs.write_bytes(one, b"data") == 4 and await fs.read_bytes(one) == b"data"
        assert await fs.write_text(one, "é\n", "utf-16", newline="\r\n") == 2
        assert await fs.read_text(one, "utf-16", newline="") == "é\r\n"
        for copy in (fs.copy, fs.copy2, fs.copyfile):
            assert await copy(one, two) == two and two.read_bytes() == one.read_bytes()
        assert await fs.samefile(one, one) and not await fs.samefile(one, two)
        await fs.rename(one, tmp_path / "three")
        await fs.replace(two, tmp_path / "three")
        assert await fs.listdir(tmp_path) == ["three"]
        await fs.link(tmp_path / "three", one)
        await fs.symlink("three", two)
        assert (await fs.stat(one)).st_nlink == 2 and await fs.readlink(two) == "three"
        await fs.chmod(one, 0o600)
        await fs.utime(one, (5, 6))
        await fs.truncate(one, 1)
        assert (await fs.stat(one)).st_mtime > 6 and await fs.getsize(one) == 1 and await fs.access(one, os.R_OK)
        await fs.unlink(two)
        await fs.remove(one)
        await fs.touch(one)
        with pytest.raises(FileExistsError):
            await fs.touch(one, exist_ok=False)
        assert (await fs.statvfs(one)).f_bsize and (await fs.disk_usage(one)).total

    run(main())


def test_directories_are_made_copied_walked_and_removed(run, tree):
    async def main():
        await fs.mkdir(tree / "new")
        await fs.makedirs(tree / "new" / "x" / "y", exist_ok=True)
        await fs.removedirs(tree / "new" / "x" / "y")
        assert not await fs.exists(tree / "new")
        await fs.copytree(tree / "a", tree / "c")
        assert [step async for step in fs.walk(tree)] == list(os.walk(tree))
        seen = []
        async for folder, folders, _ in fs.walk(tree):
            folders[:] = [name for name in folders if name != "b"]
            seen.append(os.path.basename(folder))
        assert "b" not in seen and "c" in seen
        errors = []
        assert [step async for step in fs.walk(tree / "missing", onerror=errors.append)] == [] and len(errors) == 1
        entries = await fs.scandir(tree / "a")
        assert {entry.name: entry.is_dir() for entry in entries} == {"one.txt": False, "b": True}
        assert sorted(await fs.glob("**/*.txt", root_dir=tree / "a", recursive=True)) == ["b/two.txt", "one.txt"]
        await fs.move(tree / "c", tree / "d")
        await fs.renames(tree / "d", tree / "e" / "f")
        await fs.rmtree(tree / "e")
        await fs.rmdir(tree / "missing") if await fs.isdir(tree / "missing") else None
        assert sorted(await fs.listdir(tree)) == ["a", "link"]

    run(main())


def test_functions_run_on_another_thread(run, tree):
    async def main():
        threads = []
        async for _ in fs.walk(tree / "missing", onerror=lambda error: threads.append(threading.get_ident())):
            pass
        assert threads and threads[0] != threading.get_ident()

    run(main())


def test_many_run_at_once(run, tree):
    async def main():
        found = await asyncio.gather(*(fs.exists(tree / name) for name in ["a", "missing"] * 500))
        assert found == [True, False] * 500

    run(main())


@pytest.mark.parametrize("mode", ["w+b", "w+"])
@pytest.mark.parametrize("name", ["TemporaryFile", "NamedTemporaryFile"])
def test_a_temporary_file_is_written_read_and_gone(run, tmp_path, mode, name):
    async def main():
        data = b"data\n" if "b" in mode else "data\n"
        async with getattr(fs, name)(mode, dir=tmp_path, suffix=".x") as file:
            await file.write(data)
            await file.seek(0)
            assert [line async for line in file] == [data]
            if name == "NamedTemporaryFile":
                assert await fs.listdir(tmp_path) == [os.path.basename(file.name)] and file.name.endswith(".x")
        assert file.closed and await fs.listdir(tmp_path) == []

    run(main())


def test_a_temporary_file_without_a_name_can_be_awaited(run, tmp_path):
    async def main():
        file = await fs.TemporaryFile(dir=tmp_path)
        await file.write(b"x")
        await file.close()
        with pytest.raises(TypeError, match="async with"):
            await fs.NamedTemporaryFile(dir=tmp_path)
        async with fs.NamedTemporaryFile(dir=tmp_path, delete=False) as named:
            pass
        assert await fs.exists(named.name)

    run(main())


def test_wrong_arguments_of_temporary_files_raise_what_tempfile_raises(run, tmp_path):
    async def main(name, **options):
        async with getattr(fs, name)(**options):
            pass

    for name in ("TemporaryFile", "NamedTemporaryFile"):
        for options in ({"mode": "zb"}, {"dir": tmp_path / "missing"}, {"mode": "w+b", "encoding": "utf-8"}):
            with pytest.raises((ValueError, OSError)) as expected:
                getattr(tempfile, name)(**options)
            with pytest.raises(type(expected.value)):
                run(main(name, **options))


@pytest.mark.parametrize("name", ["TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory"])
def test_a_cancelled_temporary_leaves_nothing(run, tmp_path, name):
    async def main():
        async def use():
            async with getattr(fs, name)(dir=tmp_path):
                await asyncio.sleep(10)

        for turns in range(30):
            task = asyncio.ensure_future(use())
            for _ in range(turns // 3):
                await asyncio.sleep(0.0001 * (turns % 3))
            task.cancel()
            await asyncio.wait([task])
        while os.listdir(tmp_path):
            await asyncio.sleep(0.005)

    run(main())


def test_a_temporary_directory_is_removed_with_its_content(run, tmp_path):
    async def main():
        async with fs.TemporaryDirectory(dir=tmp_path, prefix="p") as folder:
            assert os.path.basename(folder).startswith("p")
            await fs.write_bytes(Path(folder) / "file", b"")
        assert os.listdir(tmp_path) == []

    run(main())


def test_fs_is_imported_when_it_is_first_used():
    code = "import sys, wakeloop; print('wakeloop.fs' in sys.modules); print(wakeloop.fs.stat.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "wakeloop.fs"]


def test_modes_and_times_are_copied(run, tmp_path):
    async def main():
        one, two = tmp_path / "one", tmp_path / "two"
        one.touch()
        two.touch()
        os.chmod(one, 0o640)
        os.utime(one, (5, 6))
        await fs.copymode(one, two)
        assert two.stat().st_mode == one.stat().st_mode and two.stat().st_mtime > 6
        await fs.copystat(one, two)
        assert two.stat().st_mtime == 6

    run(main())


def test_a_directory_for_temporary_files_is_made(run, tmp_path):
    async def main():
        made = await fs.mkdtemp("end", "begin", tmp_path)
        assert os.listdir(tmp_path) == [os.path.basename(made)] and await fs.mkdtemp(dir=os.fsencode(tmp_path))
        assert os.path.basename(made).startswith("begin") and made.endswith("end") and os.stat(made).st_mode & 0o77 == 0

    run(main())


def test_no_name_of_fs_is_a_class_or_function_that_blocks():
    modules = {getattr(value, "__module__", None) for name, value in vars(fs).items() if not name.startswith("_")}
    assert modules.isdisjoint(["pathlib", "os", "posix", "shutil", "tempfile", "glob", "io", "_io"])


BLOCKS = ["open", "walk", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory"]


@pytest.mark.parametrize("name", sorted({*fs.__all__} - {*BLOCKS}))
def test_a_function_of_fs_is_a_coroutine_function(name):
    assert inspect.iscoroutinefunction(getattr(fs, name))


def test_every_name_of_fs_has_a_docstring():
    assert builtins.all(getattr(fs, name).__doc__ for name in fs.__all__)
    assert shutil.copy.__doc__ != fs.copy.__doc__
