"""Files of `wakeloop.open` on pipes whose descriptor does not block."""

import asyncio
import os

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

LENGTH = 300_000


@pytest.mark.parametrize("buffering", [-1, 100])
def test_a_write_to_a_non_blocking_pipe_waits_for_room(run, buffering):
    async def main():
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        received = bytearray()
        async with wakeloop.open(reader, "rb") as source:
            async with wakeloop.open(writer, "wb", buffering) as target:
                writing = asyncio.ensure_future(target.write(b"x" * LENGTH))
                while len(received) < LENGTH:
                    received += await source.read1(50_000)
                assert await writing == LENGTH
            assert received == b"x" * LENGTH and await source.read() == b""

    run(main())


def test_a_read_of_a_non_blocking_pipe_waits_for_data(run):
    async def main():
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        async with wakeloop.open(reader, "rb") as source:
            reading = asyncio.ensure_future(source.read(4))
            await asyncio.sleep(0.01)
            assert not reading.done()
            os.write(writer, b"data")
            os.close(writer)
            assert await reading == b"data"

    run(main())
