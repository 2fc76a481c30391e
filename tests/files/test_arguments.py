"""Arguments of the methods of files of `wakeloop.open`: files of io take, and refuse, the same, in each state."""

import array
import builtins
import os

import pytest

from tests.support.files import LINUX

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("arguments", [(2**63,), (-(2**64), 1), (2**200, 2)])
def test_a_seek_beyond_all_offsets_raises_what_io_raises(run, tmp_path, buffering, arguments):
    path = tmp_path / "file"
    path.touch()
    with builtins.open(path, "rb", buffering) as file, pytest.raises((ValueError, OverflowError)) as expected:
        file.seek(*arguments)

    async def main():
        async with wakeloop.open(path, "rb", buffering) as file:
            with pytest.raises(expected.type):
                await file.seek(*arguments)

    run(main())


@pytest.mark.parametrize("buffering", [2**31, -(2**70), 1.0, "1"], ids=repr)
def test_a_size_of_the_buffer_that_is_none_raises_at_once(tmp_path, buffering):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises((OverflowError, TypeError)) as expected:
        builtins.open(path, "rb", buffering)
    for opened in (wakeloop.open, lambda *arguments: wakeloop.fs.TemporaryFile(*arguments[1:])):
        with pytest.raises(expected.type):
            opened(path, "rb", buffering)


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value()

    def __repr__(self):
        return "index"


SIZES = [0, 1, -1, -2, None, True, 1.5, "1", 2**31, 2**63, -(2**63) - 1, Index(lambda: 3), Index(lambda: 1 // 0)]
CALLS = [(name, size) for name in ("read", "readline", "readlines", "read1", "peek", "truncate") for size in SIZES]
CALLS += [("truncate", 100_000), ("truncate", 2**63 - 1), ("truncate", -(2**63))]
CALLS += [("seek", *arguments) for arguments in [(0,), (3,), (-1,), (10**6,), (2**63 - 1,), (2**63,), (-(2**63),), (None,)]]
CALLS += [("seek", *arguments) for arguments in [(1.5,), ("1",), (Index(lambda: 3),), (Index(lambda: 1 // 0),), (0, 1)]]
CALLS += [("seek", *arguments) for arguments in [(0, 2), (-1, 1), (-1, 2), (-100, 2), (1, 1), (2**63 - 1, 1), (2**63 - 1, 2)]]
# SEEK_DATA, SEEK_HOLE, and what is nothing.
CALLS += [("seek", *arguments) for arguments in [(1, 3), (1, 4), (10**6, 3), (0, 5), (0, -1), (0, 2**31), (0, None), (0, 1.0)]]
CALLS += [(name,) for name in ("tell", "flush", "close", "isatty", "readable", "writable", "seekable", "__aenter__")]
# Each is made anew for each call.
BUFFERS = [lambda: bytearray(), lambda: bytearray(5), lambda: memoryview(bytearray(8))[::2], lambda: memoryview(b"abc")]
BUFFERS += [lambda: array.array("i", [1, 2, 3]), lambda: memoryview(bytearray(6)).cast("B", (2, 3)), lambda: bytearray(99)]
BUFFERS += [lambda: b"abc", lambda: "abc", lambda: None, lambda: 3, lambda: [1, 2]]
CALLS += [(name, buffer) for name in ("readinto", "write") for buffer in BUFFERS]
LINES = [lambda: [], lambda: [b"a", b"b"], lambda: b"ab", lambda: "", lambda: "ab", lambda: None, lambda: 5, lambda: [None]]
LINES += [lambda: [b"a", "b", b"c"], lambda: (b"x" * count for count in range(3)), lambda: {b"a": 1}, lambda: [bytearray(2)]]
LINES += [lambda: (b"x" * (1 // count) for count in (1, 0)), lambda: [b"x" * 20, None], lambda: [memoryview(b"abc"), [1]]]
CALLS += [("writelines", lines) for lines in LINES]
STATES = {"new": [], "read": [("read", 5)], "written": [("write", b"0123")], "at the end": [("seek", 0, 2)], "closed": [("close",)]}
CONTENT = b"line one\nline two\n\nlast" * 3


def differs(mode, buffering, state, call):
    """Does io itself differ, or has it no such method?"""
    name, arguments = call[0], call[1:]
    if name in ("read1", "peek"):
        # How much there is depends on how much was read ahead. CPython's BufferedRandom loses data in a read1 behind a write.
        return buffering == 0 or "r" not in mode or state in ("read", "written")
    # Whether the argument is looked at first depends on the version of Python.
    return name == "read" and arguments not in [(), (0,), (1,)] and mode in ("wb", "ab", "xb")


def shown(result):
    if isinstance(result, TypeError):
        # The texts differ between versions of Python.
        return TypeError
    if isinstance(result, Exception):
        return f"{type(result).__name__}: {result}"
    return result


def made(arguments):
    return [argument() if callable(argument) and not isinstance(argument, Index) else argument for argument in arguments]


def follow(file, state, call):
    """Yields calls, and takes their results. Returns what was seen."""
    seen = []
    for name, *arguments in STATES[state]:
        yield name, arguments
    arguments = made(call[1:])
    result = yield call[0].replace("__aenter__", "__enter__"), arguments
    if call[0] == "truncate" and not isinstance(result, Exception):
        # io gives the argument itself.
        result = int(result) if not isinstance(result, Index) else result.value()
    seen.append("itself" if result is file else shown(result))
    if call[0] == "readinto" and isinstance(arguments[0], bytearray):
        seen.append(bytes(arguments[0]))
    for name in ("tell", "close", "close"):
        seen.append(shown((yield name, [])))
    return seen


def with_io(path, mode, buffering, state, call):
    with builtins.open(path, mode, buffering) as file:
        script, result = follow(file, state, call), None
        while True:
            try:
                name, arguments = script.send(result)
            except StopIteration as end:
                return end.value
            try:
                result = getattr(file, name)(*arguments)
            except Exception as error:
                result = error


async def with_ours(path, mode, buffering, state, call):
    async with wakeloop.open(path, mode, buffering) as file:
        script, result = follow(file, state, call), None
        while True:
            try:
                name, arguments = script.send(result)
            except StopIteration as end:
                return end.value
            try:
                result = getattr(file, name.replace("__enter__", "__aenter__"))(*arguments)
                if hasattr(result, "__await__"):
                    result = await result
            except Exception as error:
                result = error


@pytest.mark.parametrize("mode", ["rb", "wb", "ab", "xb", "rb+", "wb+", "ab+"])
@pytest.mark.parametrize("buffering", [-1, 0, 10])
def test_each_call_in_each_state_does_what_it_does_on_a_file_of_io(run, tmp_path, mode, buffering):
    def content():
        # The file may be very long.
        with builtins.open(path, "rb") as file:
            return os.path.getsize(path), file.read(200)

    def new():
        path.unlink(missing_ok=True)
        if "x" not in mode:
            path.write_bytes(CONTENT)

    async def main():
        for state in STATES:
            for call in CALLS:
                if differs(mode, buffering, state, call):
                    continue
                new()
                expected = with_io(path, mode, buffering, state, call), content()
                new()
                found = await with_ours(path, mode, buffering, state, call), content()
                assert found == expected, (state, call)

    path = tmp_path / "file"
    run(main())


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("offset", [-1, -2, -(2**63), 2**63, -(2**63) - 1, 2**63 - 1])
@pytest.mark.parametrize("length", [0, 4])
def test_a_wrong_offset_raises_what_os_raises_and_moves_nothing(run, tmp_path, buffering, offset, length):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)

    def outcome(function, *arguments):
        try:
            return function(*arguments)
        except (OSError, OverflowError) as error:
            return type(error), str(error)

    async def awaited(function, *arguments):
        try:
            return await function(*arguments)
        except (OSError, OverflowError) as error:
            return type(error), str(error)

    async def main():
        async with wakeloop.open(path, "rb+", buffering) as file:
            descriptor = file.fileno()
            assert await file.read(4) == b"line"
            if length or offset != 2**63 - 1:
                assert await awaited(file.pread, length, offset) == outcome(os.pread, descriptor, length, offset)
            expected = outcome(os.pwrite, descriptor, b"x" * length, offset)
            assert await awaited(file.pwrite, b"x" * length, offset) == expected
            assert await file.tell() == 4 and await file.read(4) == b" one"
        assert path.read_bytes() == CONTENT

    run(main())


@LINUX
def test_a_position_beyond_the_last_offset_is_an_error(run):
    async def main():
        # A file in memory, which may be as long as offsets are.
        async with wakeloop.open(os.memfd_create("file"), "rb+") as file:
            await file.seek(2**63 - 10)
            await file.write(b"x" * 9)
            assert await file.tell() == 2**63 - 1
            await file.write(b"x")
            with pytest.raises(OSError, match="too large"):
                await file.tell()
            with pytest.raises(OSError):
                await file.flush()
            with pytest.raises(OSError):
                await file.seek(1, 1)
            with pytest.raises(OSError):
                await file.close()

    run(main())
