"""Text files of `wakeloop.open`: what depends on the text that was read ahead, and on the state of the encoding."""

import asyncio
import builtins
import copy
import inspect
import io
import os
import pickle

import pytest

from tests.support.files import cancelled

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from wakeloop._files.text_buffer import TextBuffer  # noqa: E402


def test_a_closed_file_gives_no_line_that_was_read_ahead(run, tmp_path):
    (tmp_path / "file").write_text("one\ntwo\n")

    async def main(close):
        file = await wakeloop.open(tmp_path / "file")
        assert await anext(file) == "one\n"
        await close(file)
        with pytest.raises(ValueError, match=r"^I/O operation on closed file\.$"):
            await anext(file)

    run(main(wakeloop.TextFile.close))
    run(main(lambda file: file.buffer.close()))


def test_tasks_that_iterate_over_a_file_take_lines_in_turn(run, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def main():
        opening = asyncio.ensure_future(wakeloop.open(fifo))
        writer = await wakeloop.spawn_blocking(os.open, fifo, os.O_WRONLY)
        taken = []

        async def iterate(name):
            async for line in file:
                taken.append(name + line)

        async with await opening as file:
            tasks = [asyncio.ensure_future(iterate(name)) for name in "ab"]
            await asyncio.sleep(0)
            os.write(writer, b"0\n1\n2\n3\n")
            os.close(writer)
            await asyncio.gather(*tasks)
        assert taken == ["a0\n", "b1\n", "a2\n", "b3\n"]

    run(main())


async def outcome(operation, *arguments):
    """The result of an operation of either file, or its exception."""
    try:
        result = operation(*arguments)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        return type(error), str(error)


async def both(path, mode, options, operations, content=b""):
    """Does the operations on a file of io and on one of ours. Returns what they gave, and the content at the end."""
    seen = []
    for library in (builtins, wakeloop):
        path.write_bytes(content)
        file = library.open(path, mode, **options)
        file = await file if inspect.isawaitable(file) else file
        results = [await outcome(getattr(file, name), *arguments) for name, *arguments in operations]
        await outcome(file.close)
        seen.append((results, path.read_bytes()))
    return seen


def test_lines_before_one_that_cannot_be_encoded_are_written(run, tmp_path):
    operations = [("writelines", ["written", "\ud800", "not"]), ("write", "text"), ("writelines", ["a", 3, "b"])]

    async def main():
        expected, found = await both(tmp_path / "file", "w", {"encoding": "utf-16"}, operations)
        assert found == expected and found[1].decode("utf-16") == "writtentexta"

    run(main())


@pytest.mark.parametrize("mode", ["r", "r+", "w", "w+", "a", "a+"])
@pytest.mark.parametrize("closed", [False, True])
def test_what_takes_nothing_is_refused_where_io_refuses_it(run, tmp_path, mode, closed):
    operations = [("close",)] if closed else []
    operations += [("readline", 0), ("read", 0), ("read", None), ("readlines", 0), ("readlines", "1")]
    operations += [("writelines", []), ("write", ""), ("tell",), ("seek", 0), ("truncate", None), ("flush",)]
    operations += [("write", b""), ("write", None), ("readable",), ("seekable",)]

    async def main():
        expected, found = await both(tmp_path / "file", mode, {"encoding": "utf-8"}, operations, b"one\ntwo\n")
        assert found == expected

    run(main())


def test_an_append_is_where_tell_says(run, tmp_path):
    operations = [("seek", 0), ("readline",), ("seek", 0), ("write", "APPENDED\n"), ("tell",), ("write", "more\n")]
    operations += [("seek", 28), ("read",)]

    async def main():
        content = b"first\nsecond\nthird\n"
        expected, found = await both(tmp_path / "file", "a+", {"encoding": "utf-8"}, operations, content)
        assert found == expected and found[0][4] == 28 and found[0][-1] == "more\n"

    run(main())


def test_a_write_of_no_lines_leaves_what_was_read_ahead(run, tmp_path):
    operations = [("readline",), ("writelines", []), ("read",)]

    async def main():
        expected, found = await both(tmp_path / "file", "r+", {"encoding": "utf-8"}, operations, b"one\ntwo\n")
        assert found == expected == (["one\n", None, "two\n"], b"one\ntwo\n")

    run(main())


@pytest.mark.parametrize("lines", [1, 3, 2000])
@pytest.mark.parametrize("operation", [("write", "X"), ("truncate", None), ("read", 5), ("readline",), ("tell",)])
def test_an_iteration_has_read_no_further_than_in_io(run, tmp_path, lines, operation):
    content = b"".join(b"line %d\n" % number for number in range(5000))

    async def main():
        seen = []
        for library in (builtins, wakeloop):
            path = tmp_path / library.__name__
            path.write_bytes(content)
            opened = library.open(path, "r+", encoding="utf-8")
            file = await opened if inspect.isawaitable(opened) else opened
            step = anext if library is wakeloop else next
            results = [await outcome(step, file) for _ in range(lines)]
            name, *arguments = operation
            results.append(await outcome(getattr(file, name), *arguments))
            await outcome(file.close)
            seen.append((results, path.read_bytes()))
        assert seen[0] == seen[1]

    run(main())


@pytest.mark.parametrize("size", [10, 9000, -1])
def test_a_read_behind_an_iteration_and_a_truncate_goes_on_as_in_io(run, tmp_path, size):
    content = b"".join(b"line %d\n" % number for number in range(5000))

    async def main():
        seen = []
        for library in (builtins, wakeloop):
            path = tmp_path / library.__name__
            path.write_bytes(content)
            opened = library.open(path, "r+", encoding="utf-8")
            file = await opened if inspect.isawaitable(opened) else opened
            step = anext if library is wakeloop else next
            results = [await outcome(step, file)]
            # More than one chunk was read, and the file is cut behind it.
            for name, *arguments in ("truncate", 40_000), ("read", size), ("read",):
                results.append(await outcome(getattr(file, name), *arguments))
            await outcome(file.close)
            seen.append(results)
        assert seen[0] == seen[1]

    run(main())


def test_tell_is_disabled_in_an_iteration_as_in_io(run, tmp_path):
    (tmp_path / "file").write_text("one\ntwo\n")

    async def main():
        async with wakeloop.open(tmp_path / "file") as file:
            async for _ in file:
                with pytest.raises(OSError, match="^telling position disabled by next\\(\\) call$"):
                    await file.tell()
            assert await file.tell() == 8
            await file.seek(0)
            await anext(file)
            await file.flush()
            assert await file.tell() == 4

    run(main())


def test_a_cancelled_write_that_waits_has_no_effect(run, tmp_path):
    path = tmp_path / "file"

    async def waits_and_is_cancelled(file, awaitable):
        await file.buffer._hold()
        await cancelled(awaitable)
        file.buffer._end_turn()

    async def main():
        async with wakeloop.open(path, "w", encoding="utf-16") as file:
            await waits_and_is_cancelled(file, file.write("lost"))
            await waits_and_is_cancelled(file, file.writelines(["lost"]))
            await file.write("kept")
        assert path.read_bytes() == "kept".encode("utf-16")
        path.write_text("first\nsecond\n")
        async with wakeloop.open(path, "r+") as file:
            assert await file.readline() == "first\n"
            await waits_and_is_cancelled(file, file.write("lost"))
            await waits_and_is_cancelled(file, file.truncate(0))
            await waits_and_is_cancelled(file, file.seek(0))
            assert await file.tell() == 6 and await file.read() == "second\n"
        assert path.read_text() == "first\nsecond\n"

    run(main())


def test_a_write_behind_a_cancelled_fsync_begins_with_the_mark_of_the_encoding(run, tmp_path):
    path = tmp_path / "file"

    async def main():
        for _ in range(50):
            async with wakeloop.open(path, "w", encoding="utf-16") as file:
                for awaitable in (file.fsync(), file.write("lost")):
                    task = asyncio.ensure_future(awaitable)
                    await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                await file.write("kept")
            assert path.read_text("utf-16") in ("kept", "lostkept")

    run(main())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-be", "utf-16", "iso2022_jp"])
def test_a_file_that_grows_is_read_on_where_io_reads_on(run, tmp_path, encoding):
    pieces = ["\ufeff" if encoding == "utf-16-be" else "a", "b\nc", "d\r", "\ne", "", "f\n" + "g" * 20_000, "\nあ\n"]
    options = {"encoding": "utf-16" if encoding == "utf-16-be" else encoding}

    async def main():
        (tmp_path / "file").write_bytes(b"")
        with builtins.open(tmp_path / "file", **options) as plain:
            async with wakeloop.open(tmp_path / "file", **options) as file:
                for name in ("readline", "read", "readlines") * 3:
                    for piece in pieces:
                        with builtins.open(tmp_path / "file", "ab") as other:
                            other.write(piece.encode(encoding).removeprefix(b"\xff\xfe"))
                        assert await outcome(getattr(file, name)) == await outcome(getattr(plain, name))

    run(main())


def test_a_file_is_reconfigured_and_detached(run, tmp_path):
    path = tmp_path / "file"

    async def main():
        file = await wakeloop.open(path, "w+", encoding="latin-1")
        await file.write("é\n")
        await file.reconfigure(encoding="utf-8", newline="\r\n", line_buffering=True, write_through=True)
        assert file.encoding == "utf-8" and file.line_buffering and file.write_through
        await file.write("é\n")
        assert path.read_bytes() == b"\xe9\n\xc3\xa9\r\n"
        await file.seek(1)
        assert await file.readline() == "\né\r\n"
        with pytest.raises(io.UnsupportedOperation, match="after the first read"):
            await file.reconfigure(encoding="latin-1")
        await file.seek(3)
        binary = await file.detach()
        assert await binary.tell() == 3 and await binary.read(1) == b"\xa9"
        for operation in (file.read, file.close, lambda: file.write("")):
            with pytest.raises(ValueError, match="^underlying buffer has been detached$"):
                await operation()
        await binary.close()

    run(main())


def test_lines_of_a_pipe_are_given_as_soon_as_they_are_there(run):
    async def main():
        reader, writer = os.pipe()
        async with wakeloop.open(reader, encoding="utf-8") as file:
            os.write(writer, "one\ntwo\nthré".encode()[:-1])
            assert await anext(file) == "one\n" and await anext(file) == "two\n"
            await cancelled(anext(file), 3)
            os.write(writer, "é".encode()[1:] + b"e\nfo")
            assert await file.readline() == "thrée\n" and await file.read(1) == "f"
            os.close(writer)
            assert [line async for line in file] == ["o"] and await file.read() == ""

    run(main())


def test_a_long_line_of_a_pipe_is_not_decoded_for_each_piece(run, monkeypatch):
    size, decoded = 400_000, 0

    class Buffer(TextBuffer):
        def read1(self, size):
            nonlocal decoded
            chunk = super().read1(size)
            decoded += len(chunk)
            return chunk

    monkeypatch.setattr("wakeloop._files.text.TextBuffer", Buffer)

    async def main():
        reader, writer = os.pipe()
        async with wakeloop.open(reader, encoding="utf-8") as file:
            for read in (file.readline, file.__anext__, lambda: file.read(size)):
                reading = asyncio.ensure_future(read())
                await wakeloop.spawn_blocking(os.write, writer, b"x" * (size - 1) + b"\n")
                assert len(await reading) == size
        os.close(writer)

    run(main())
    assert decoded < 10 * 3 * size


def test_a_text_file_can_be_neither_copied_nor_pickled(run, tmp_path):
    async def main():
        async with wakeloop.open(tmp_path / "file", "w") as file:
            for refused in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=r"^cannot pickle 'wakeloop\.TextFile' object$"):
                    refused(file)

    run(main())


@pytest.mark.parametrize(
    "arguments",
    [(2**168,), (2**63,), ("0",), (0, 1.0), (0, None), (0, "2")],
    ids=repr,
)
def test_a_seek_to_what_is_no_position_raises_what_io_raises(run, tmp_path, arguments):
    (tmp_path / "file").write_text("text")
    with builtins.open(tmp_path / "file") as file, pytest.raises(Exception) as expected:  # noqa: PT011
        file.seek(*arguments)

    async def main():
        async with wakeloop.open(tmp_path / "file") as file:
            with pytest.raises(expected.type):
                await file.seek(*arguments)
            assert await file.read() == "text"

    run(main())


def test_a_position_in_text_with_too_large_a_state_raises_what_io_raises(run, tmp_path):
    # The state of this decoder between its shift characters has more than 32 bits.
    (tmp_path / "file").write_text("가나다", encoding="iso2022_kr")
    with builtins.open(tmp_path / "file", encoding="iso2022_kr") as file:
        file.read(1)
        with pytest.raises(OverflowError) as expected:
            file.tell()

    async def main():
        async with wakeloop.open(tmp_path / "file", encoding="iso2022_kr") as file:
            await file.read(1)
            with pytest.raises(OverflowError, match=str(expected.value)):
                await file.tell()
            assert await file.read() == "나다"

    run(main())


@pytest.mark.parametrize("operation", ["read", "readline"])
def test_a_file_goes_on_as_in_io_behind_text_that_cannot_be_decoded(run, tmp_path, operation):
    # The second of the chunks that are decoded at a time cannot be.
    content = b"a" * 8190 + b"\n" + b"b" + b"\xff" * 8192 + b"c" * 100
    operations = [(operation, 8191)] * 2 + [("tell",), ("read", 1), ("tell",), ("read",)]

    async def main():
        expected, found = await both(tmp_path / "file", "r", {"encoding": "utf-8"}, operations, content)
        assert found == expected and found[0][1][0] is UnicodeDecodeError and found[0][-1] == "c" * 99

    run(main())


def test_a_position_behind_a_restored_one_is_right_whatever_was_decoded_before(run, tmp_path):
    # Where a line may end with "\r", the position behind it needs the byte that follows to be restored.
    (tmp_path / "file").write_bytes(("😀" * 1000 + "\ra" + "b" * 100).encode())

    async def main():
        async with wakeloop.open(tmp_path / "file", encoding="utf-8", newline="") as file:
            assert await file.read(1001) == "😀" * 1000 + "\r"
            await file.seek(await file.tell())
            assert await file.read(1) == "a" and await file.tell() == 4002
            assert await file.read() == "b" * 100

    run(main())


def file_at(kind, folder, content):
    """The thing to open: a file on disk, or what has no page cache, so that each read of it waits."""
    if kind == "disk":
        path = folder / "file"
        path.write_bytes(content)
        return path
    if kind == "pipe":
        reader, writer = os.pipe()
        os.write(writer, content)
        os.close(writer)
        return reader
    memory = os.memfd_create("content")
    os.write(memory, content)
    os.lseek(memory, 0, os.SEEK_SET)
    return memory


async def both_at(kind, folder, content, options, operations):
    """Does the operations on a file of io and on one of ours, and returns what they gave."""
    seen = []
    for library in (builtins, wakeloop):
        file = library.open(file_at(kind, folder, content), **options)
        file = await file if inspect.isawaitable(file) else file
        results = []
        for name, *arguments in operations:
            if name == "next":
                result = await outcome(anext if library is wakeloop else next, file)
                result = "end" if result == (StopIteration, "") else result
            elif name == "reconfigure":
                result = await outcome(lambda file: file.reconfigure(line_buffering=True), file)
            else:
                result = await outcome(getattr(file, name), *arguments)
            results.append("end" if result == (StopAsyncIteration, "") else result)
        await outcome(file.close)
        seen.append(results)
    return seen


MEMORY = ["memory"] if hasattr(os, "memfd_create") else []
PLACES = ["disk", "pipe", *MEMORY]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize(
    ("encoding", "errors", "content", "operations"),
    [
        ("utf-8", "surrogateescape", b"abc\xe3\x81", [("read", 4), ("read", 4)]),
        ("utf-8", "surrogateescape", b"abc\xe3\x81", [("read", 3), ("readline", 1), ("next",), ("next",)]),
        ("utf-8", "backslashreplace", b"abc\xe3", [("read", 5), ("read", 1), ("readline",), ("read",)]),
        ("utf-8", "replace", b"abc\r\xe3", [("readline",), ("readline",), ("readline",)]),
        ("utf-8", "replace", b"abc\r\xe3", [("readlines", 1), ("readlines",)]),
        ("utf-8", "replace", b"\xe3", [("readline", 0), ("readline",), ("read",)]),
        ("utf-7", "strict", b"ab+AGEAYgBj", [("read", 3), ("read", 5), ("read",)]),
    ],
)
def test_text_that_is_given_at_the_end_of_the_file_may_be_taken_in_parts(
    run, tmp_path, kind, encoding, errors, content, operations
):
    async def main():
        options = {"encoding": encoding, "errors": errors}
        expected, found = await both_at(kind, tmp_path, content, options, operations)
        assert found == expected

    run(main())


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "shift_jis"])
@pytest.mark.parametrize("last", [b"\xe3", b"\xff\xff\xff"])
def test_text_before_a_rest_that_cannot_be_decoded_is_given(run, tmp_path, kind, encoding, last):
    content = "a\nb\nc\nd\n".encode(encoding) + last
    operations = [("readline",), ("read",), ("next",), ("readline",), ("read", 2), ("next",), ("readline",)]

    async def main():
        expected, found = await both_at(kind, tmp_path, content, {"encoding": encoding}, operations)
        assert found == expected

    run(main())


def test_as_much_text_is_lost_as_in_io_where_a_part_cannot_be_decoded(run, tmp_path):
    # A larger read decodes more at a time, and so loses more.
    content = "é".encode() * 20_000 + b"\xff" + "é".encode() * 20_000
    operations = [("read", 8192)] * 4

    async def main():
        for kind in ("disk", *MEMORY):
            expected, found = await both_at(kind, tmp_path, content, {"encoding": "utf-8"}, operations)
            assert found == expected and found[2][0] is UnicodeDecodeError

    run(main())


@pytest.mark.parametrize("kind", ["disk", *MEMORY])
@pytest.mark.parametrize(
    ("content", "operations"),
    [
        (b"\xff\n", [("next",), ("tell",)]),
        (b"a\n\xff\n", [("next",), ("next",), ("tell",)]),
        (b"ab\xff\n", [("readlines",), ("tell",), ("read",), ("tell",)]),
        (b"ab\xe3", [("next",), ("flush",), ("tell",)]),
        (b"a\nb\nc\n", [("next",), ("flush",), ("next",), ("tell",)]),
        (b"a\nb\nc\n", [("next",), ("reconfigure",), ("next",), ("tell",)]),
        (b"ab\xff\ncd\n", [("next",), ("reconfigure",), ("tell",)]),
        (b"ab\xff\ncd\n", [("read", 1), ("read", 3), ("tell",)]),
    ],
)
def test_an_iteration_and_a_flush_disable_and_enable_tell_as_in_io(run, tmp_path, kind, content, operations):
    async def main():
        expected, found = await both_at(kind, tmp_path, content, {"encoding": "utf-8"}, operations)
        assert found == expected

    run(main())


def test_a_file_that_is_reconfigured_in_an_iteration_has_the_position_of_the_next_line(run, tmp_path):
    (tmp_path / "file").write_text("one\ntwo\n")

    async def main():
        async with wakeloop.open(tmp_path / "file") as file:
            await anext(file)
            await file.reconfigure(line_buffering=True)
            assert await file.tell() == 4 and await file.readline() == "two\n"

    run(main())


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs a file without a page cache to look at")
@pytest.mark.parametrize("errors", ["surrogateescape", "backslashreplace"])
@pytest.mark.parametrize("end", [b"\x1b~{(", b""])
def test_lines_that_were_read_ahead_are_decoded_once_more_from_the_same_state(run, errors, end):
    """A decoder of ISO 2022 ignores all escapes behind a broken one, and its reset() leaves it so."""
    content = b'\n\r\x1b$B$"' + end
    options = {"encoding": "iso2022_jp_2", "errors": errors, "newline": ""}

    async def main():
        descriptor = os.memfd_create("damaged")
        os.write(descriptor, content)
        with builtins.open(os.dup(descriptor), **options) as other:
            other.seek(0)
            expected = [other.readlines(1), other.read(7), other.read()]
        async with wakeloop.open(descriptor, **options) as file:
            await file.seek(0)
            assert [await file.readlines(1), await file.read(7), await file.read()] == expected

    run(main())
