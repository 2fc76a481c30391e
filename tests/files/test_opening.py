"""How `wakeloop.open` opens a file: paths, modes, openers, descriptors and wrong arguments, as the built-in open."""

import asyncio
import builtins
import os
import threading

import pytest

from tests.support.files import content_path  # noqa: F401

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


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


def test_the_warning_about_line_buffering_names_the_line_that_opens_the_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.warns(RuntimeWarning, match="line buffering") as ours:
        opening = wakeloop.open(path, "rb", 1)
    with pytest.warns(RuntimeWarning, match="line buffering") as theirs, open(path, "rb", 1):
        pass
    assert ours[0].filename == theirs[0].filename == __file__
    assert str(ours[0].message) == str(theirs[0].message)
    with pytest.warns(RuntimeWarning, match="never awaited"):
        del opening


@pytest.mark.parametrize("opened", ["wakeloop.open", "TemporaryFile", "NamedTemporaryFile"])
def test_tasks_that_enter_the_same_object_have_a_file_each(run, path, tmp_path, opened):
    async def main():
        opening = wakeloop.open(path, "rb") if opened == "wakeloop.open" else getattr(wakeloop.fs, opened)(dir=tmp_path)
        all_in, first_out, files = asyncio.Barrier(3), asyncio.Event(), []

        async def use(number):
            async with opening as file:
                files.append(file)
                await all_in.wait()
                if number:
                    await first_out.wait()
                    assert not file.closed
                    await file.seek(0)
            assert file.closed
            first_out.set()

        await asyncio.gather(*map(use, range(3)))
        assert len(set(files)) == 3 and all(file.closed for file in files)
        async with opening as outer, opening as inner:
            assert outer is not inner
        assert outer.closed and inner.closed
        with pytest.raises(RuntimeError):
            await opening.__aexit__(None, None, None)
        assert os.listdir(tmp_path) == ["file"]

    run(main())


def test_a_block_that_is_left_in_another_task_closes_the_file(run, path):
    async def main():
        opening = wakeloop.open(path, "rb")
        file = await asyncio.ensure_future(opening.__aenter__())
        await opening.__aexit__(None, None, None)
        assert file.closed

    run(main())


@pytest.mark.parametrize("errors", ["", "nosuchhandler"])
def test_an_unknown_handler_of_errors_fails_where_it_is_needed(run, path, errors):
    path.write_bytes(b"a\xff\n")

    async def main():
        async with wakeloop.open(path, encoding="utf-8", errors=errors) as file:
            assert file.errors == errors
            with pytest.raises(LookupError, match=f"unknown error handler name '{errors}'"):
                await file.read()

    run(main())


def test_a_mode_of_none_is_refused_with_the_words_of_the_built_in_open(path):
    with pytest.raises(TypeError) as expected:
        open(path, None)
    with pytest.raises(TypeError) as raised:
        wakeloop.open(path, None)
    assert str(raised.value) == str(expected.value)
