"""Operations on files of `wakeloop.open` behind so many others that were done at once that a read would yield first."""

import asyncio
import builtins

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

CONTENT = b"line\n" * 100_000


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    return tmp_path / "file"


async def begun_and_cancelled(awaitable):
    task = asyncio.ensure_future(awaitable)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


OPERATIONS = {
    "seek": (lambda file: file.seek(5), CONTENT, 5),
    "pwrite": (lambda file: file.pwrite(b"LINE", 0), b"LINE" + CONTENT[4:], 200_000),
    "truncate": (lambda file: file.truncate(10), CONTENT[:10], 200_000),
    "close": (lambda file: file.close(), CONTENT, None),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_cancelled_in_its_turn_is_done(run, path, name):
    operation, content, position = OPERATIONS[name]

    async def main():
        async with wakeloop.open(path, "rb+") as file:
            await file.read(200_000)
            await begun_and_cancelled(operation(file))
            if position is None:
                assert file.closed
            else:
                assert await file.tell() == position

    run(main())
    assert path.read_bytes() == content


def test_a_seek_of_text_that_is_cancelled_moves_nothing_or_everything(run, path):
    async def main():
        async with wakeloop.open(path) as file:
            for _ in range(50_000):
                await file.readline()
            await begun_and_cancelled(file.seek(5))
            position, rest = await file.tell(), await file.read()
            with builtins.open(path) as plain:
                plain.seek(position)
                assert rest == plain.read()

    run(main())
