"""The order in which the operations of many tasks on a file of `wakeloop.open` happen."""

import asyncio
import random
import socket
import sys

import pytest

from tests.support.files import CONTENT, LINUX, content_path, drop_from_cache  # noqa: F401
from tests.support.protocol import Recording

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_writes_of_many_tasks_happen_in_the_order_of_their_awaits(run, tmp_path, mode):
    async def main():
        pieces = [f"{number:05d}\n" * random.choice([1, 100, 30_000]) for number in range(60)]
        expected = "".join(pieces)
        async with wakeloop.open(tmp_path / "new", mode) as file:
            await asyncio.gather(*(file.write(piece if mode == "w" else piece.encode()) for piece in pieces))
        assert (tmp_path / "new").read_text() == expected

    run(main())


@pytest.mark.parametrize("mode", ["rb", "r"])
@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=LINUX)])
def test_reads_of_many_tasks_happen_in_the_order_of_their_awaits(run, path, mode, cold):
    async def main():
        sizes = [random.choice([1, 100, 5000, 70_000]) for _ in range(100)]
        async with wakeloop.open(path, mode) as file:
            if cold:
                drop_from_cache(path)
            got = await asyncio.gather(*(file.read(size) for size in sizes))
        joined = "".join(got) if mode == "r" else b"".join(got).decode()
        assert joined == CONTENT.decode()[: sum(sizes)]

    run(main())


def test_a_close_waits_for_the_operations_before_it(run, tmp_path):
    async def main():
        file = await wakeloop.open(tmp_path / "new", "wb")
        writes = [file.write(b"x" * 300_000) for _ in range(5)]
        await asyncio.gather(*writes, file.close())
        assert file.closed and (tmp_path / "new").stat().st_size == 1_500_000
        with pytest.raises(ValueError, match="write to closed file"):
            await file.write(b"y")

    run(main())


def test_reads_at_offsets_run_beside_each_other_and_move_nothing(run, path):
    async def main():
        async with wakeloop.open(path, "rb+") as file:
            await file.read(10)
            drop_from_cache(path) if sys.platform == "linux" else None
            offsets = [random.randrange(len(CONTENT)) for _ in range(200)]
            got = await asyncio.gather(*(file.pread(3000, offset) for offset in offsets))
            assert got == [CONTENT[offset : offset + 3000] for offset in offsets]
            assert await file.pread(10, len(CONTENT)) == b"" and await file.tell() == 10
            assert await file.pwrite(b"OVER", 2) == 4
            assert await file.pread(8, 0) == b"liOVER\nl" and await file.read(3) == CONTENT[10:13]
            await file.seek(0)
            await file.write(b"kept")
            assert await file.pread(6, 0) == b"keptER" and await file.tell() == 4

    run(main())


def test_a_read_sees_what_was_written_at_an_offset_that_was_read_ahead(run, path):
    async def main():
        async with wakeloop.open(path, "rb+") as file:
            assert await file.read(10) == CONTENT[:10]
            await file.pwrite(b"OVER", 12)
            assert await file.read(10) == CONTENT[10:12] + b"OVER" + CONTENT[16:20]

    run(main())


def test_sendfile_sends_to_a_transport_in_turn(run, path):
    async def main():
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        transport, near = await loop.create_connection(Recording, sock=ours)
        _, far = await loop.create_connection(Recording, sock=theirs)
        async with wakeloop.open(path, "rb") as file:
            await file.read(5)
            sent, rest = await asyncio.gather(file.sendfile(transport, 10, 1000), file.read(5))
            assert sent == 1000 and rest == CONTENT[1010:1015]
            with pytest.raises(RuntimeError):
                transport.close()
                await file.sendfile(transport)
            assert await file.read(5)
        await far.lost
        await near.lost
        assert bytes(far.data) == CONTENT[10:1010]
        far.transport.close()

    run(main())
