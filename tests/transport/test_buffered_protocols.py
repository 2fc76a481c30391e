"""Buffered protocols: data is received into the buffer that ``get_buffer`` returns, which may be of several kinds."""

import asyncio
import os

import pytest

from tests.support.protocol import Buffered, close, pair


def test_a_buffered_protocol_receives_into_its_own_buffer(run):
    async def main():
        near, far = await pair(near=lambda: Buffered(1000))
        payload = os.urandom(100_000)
        far.transport.write(payload)
        far.transport.write_eof()
        await near.lost
        assert near.data == payload and near.ended and set(near.hints) == {-1}
        await close(far)

    run(main())


@pytest.mark.parametrize("empty", [bytearray(), b""], ids=repr)
def test_an_empty_buffer_is_a_fatal_error(run, empty, asyncio_log):
    class Empty(Buffered):
        def get_buffer(self, sizehint):
            return empty

    async def main():
        near, far = await pair(near=Empty)
        far.transport.write(b"x")
        error = await near.lost
        assert isinstance(error, RuntimeError) and "empty buffer" in str(error)
        await close(far)

    run(main())


def test_get_buffer_returning_an_object_without_a_length_is_a_fatal_error(run, asyncio_log):
    class Nothing(Buffered):
        def get_buffer(self, sizehint):
            return None

    async def main():
        near, far = await pair(near=Nothing)
        far.transport.write(b"x")
        error = await near.lost
        assert isinstance(error, TypeError) and str(error) == "object of type 'NoneType' has no len()"
        await close(far)

    run(main())


@pytest.mark.parametrize("buffer", [b"constant", memoryview(b"constant"), memoryview(bytearray(8))[::2], "text"], ids=repr)
def test_a_buffer_that_cannot_be_written_to_is_a_fatal_read_error(run, buffer):
    class Constant(Buffered):
        def get_buffer(self, sizehint):
            return buffer

    async def main():
        loop, contexts = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: contexts.append(context))
        near, far = await pair(near=Constant)
        far.transport.write(b"x")
        error = await near.lost
        words = f"recv_into() argument 1 must be read-write bytes-like object, not {type(buffer).__name__}"
        assert isinstance(error, TypeError) and str(error) == words
        assert [context["message"] for context in contexts] == ["Fatal read error on socket transport"]
        await close(far)

    run(main())


@pytest.mark.parametrize("stop", ["close", "abort", "pause_reading"])
def test_available_data_is_received_even_if_get_buffer_pauses_or_closes_the_transport(run, stop):
    class Stopping(Buffered):
        def get_buffer(self, sizehint):
            getattr(self.transport, stop)()
            return super().get_buffer(sizehint)

    async def main():
        near, far = await pair(near=Stopping)
        far.transport.write(b"last words")
        while not near.hints:
            await asyncio.sleep(0)
        assert near.data == b"last words"
        await close(near, far)

    run(main())


class Exact(Buffered):
    """Has room for a record, and none behind it."""

    def get_buffer(self, sizehint):
        self.hints.append(sizehint)
        assert len(self.data) < 16, "there is no room"
        self.buffer = bytearray(16 - len(self.data))
        return self.buffer


def test_a_protocol_whose_buffer_is_full_is_asked_for_another_one_only_when_there_is_data(run):
    async def main():
        near, far = await pair(near=Exact)
        far.transport.write(b"0123456789abcdef")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert near.data == b"0123456789abcdef" and not near.transport.is_closing() and len(near.hints) == 1
        near.data = bytearray()
        far.transport.write(b"another record..")
        while not near.data:
            await asyncio.sleep(0.001)
        assert near.data == b"another record.." and len(near.hints) == 2
        far.transport.close()
        near.data = bytearray()
        assert await near.lost is None and near.ended

    run(main())


def test_resuming_without_data_asks_for_no_buffer(run):
    async def main():
        near, far = await pair(near=lambda: Buffered(100))
        near.transport.pause_reading()
        await asyncio.sleep(0.001)
        near.transport.resume_reading()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert near.hints == []
        near.transport.pause_reading()
        far.transport.write(b"data")
        await asyncio.sleep(0.001)
        near.transport.resume_reading()
        while near.data != b"data":
            await asyncio.sleep(0.001)
        assert near.hints == [-1]
        await close(near, far)

    run(main())
