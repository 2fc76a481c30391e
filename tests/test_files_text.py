"""Text files of `wakeloop.open`: what depends on the text that was read ahead, and on the state of the encoding."""

import asyncio
import builtins
import copy
import os
import pickle

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


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


def test_lines_that_cannot_be_encoded_leave_the_encoder_as_it_was(run, tmp_path):
    async def main():
        async with wakeloop.open(tmp_path / "file", "w", encoding="utf-16") as file:
            with pytest.raises(UnicodeEncodeError):
                await file.writelines(["never written", "\ud800"])
            await file.write("text")
        with builtins.open(tmp_path / "file", encoding="utf-16") as file:
            assert file.read() == "text"

    run(main())


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
def test_the_position_is_right_behind_text_that_cannot_be_decoded(run, tmp_path, operation):
    # The second of the chunks that are decoded at a time cannot be.
    (tmp_path / "file").write_bytes(b"a" * 8190 + b"\n" + b"b" + b"\xff" * 8192 + b"c" * 100)

    async def main():
        async with wakeloop.open(tmp_path / "file", encoding="utf-8") as file:
            read = getattr(file, operation)
            assert await read(8191) == "a" * 8190 + "\n"
            with pytest.raises(UnicodeDecodeError):
                await read(8191)
            assert await file.tell() == 8191
            assert await file.read(1) == "b" and await file.tell() == 2 * 8192
            assert await file.read() == "c" * 100

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
