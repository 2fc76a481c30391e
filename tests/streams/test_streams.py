"""StreamReader and StreamWriter over our transports: asyncio's, and wakeloop's own in their place."""

import asyncio
import inspect
import os
import socket
import sys

import pytest

import wakeloop
from tests.support.streams import turns

NAMES = ["StreamReader", "StreamReaderProtocol", "open_connection", "start_server"]


@pytest.fixture(params=["asyncio-streams", "wakeloop-streams"], autouse=True)
def replaced_streams(request, monkeypatch):
    """Runs each test with the names of `asyncio` as they are, and with those of wakeloop in their place."""
    if request.param == "wakeloop-streams":
        for name in NAMES:
            monkeypatch.setattr(asyncio, name, getattr(wakeloop, name))


class Conversation:
    """A stream to a server that runs `handler(reader, writer)`."""

    def __init__(self, handler, **options):
        self._handler, self._options = handler, options

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, **self._options)
        self.served = asyncio.get_running_loop().create_future()
        self.reader, self.writer = await asyncio.open_connection(*self.server.sockets[0].getsockname(), **self._options)
        return self.reader, self.writer

    async def _serve(self, reader, writer):
        try:
            await self._handler(reader, writer)
        finally:
            writer.close()
            if not self.served.done():
                self.served.set_result(None)

    async def __aexit__(self, *error):
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass
        await self.served
        self.server.close()
        await self.server.wait_closed()


def says(*pieces, pause=0.0):
    async def handler(reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return handler


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@pytest.mark.parametrize("pause", [0, 0.002])
def test_every_read_method_gets_its_part(run, pause):
    """All the pieces are in the buffer already, or arrive one by one while the reader waits."""

    async def main():
        pieces = (b"line one\n", b"line", b" two\nexactly", b" this", b"until|", b"after", b" some", b" rest")
        async with Conversation(says(*pieces, pause=pause)) as (reader, _):
            assert await reader.readline() == b"line one\n"
            assert await reader.readline() == b"line two\n"
            assert await reader.readexactly(12) == b"exactly this"
            assert await reader.readuntil(b"|") == b"until|"
            first = await reader.read(3)
            assert first == b"aft"
            assert not reader.at_eof()
            assert await reader.read() == b"er some rest"
            assert reader.at_eof()
            assert await reader.read() == await reader.read(10) == await reader.readline() == b""

    run(main())


def test_read_of_nothing_is_empty_and_negative_sizes_are_refused(run):
    async def main():
        async with Conversation(says(b"data")) as (reader, _):
            assert await reader.read(0) == b"" == await reader.readexactly(0)
            with pytest.raises(ValueError, match="readexactly size can not be less than zero"):
                await reader.readexactly(-1)
            with pytest.raises(ValueError, match="at least one-byte"):
                await reader.readuntil(b"")
            assert await reader.read(-1) == b"data"

    run(main())


def test_the_end_before_enough_data_is_an_incomplete_read(run):
    async def main():
        async with Conversation(says(b"short")) as (reader, _):
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await reader.readexactly(10)
            assert caught.value.partial == b"short" and caught.value.expected == 10
        async with Conversation(says(b"no separator")) as (reader, _):
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await reader.readuntil(b"\n")
            assert caught.value.partial == b"no separator" and caught.value.expected is None
        async with Conversation(says(b"last line")) as (reader, _):
            assert await reader.readline() == b"last line"

    run(main())


def test_a_line_beyond_the_limit_is_an_overrun(run):
    async def main():
        async with Conversation(says(b"x" * 300 + b"\nnext\n", pause=0.005), limit=100) as (reader, _):
            with pytest.raises(asyncio.LimitOverrunError) as caught:
                await reader.readuntil()
            assert caught.value.consumed > 100
            with pytest.raises(ValueError, match="chunk"):
                await reader.readline()
            assert await reader.readline() == b"next\n"

    run(main())


def test_a_separator_split_between_segments_is_found(run):
    async def main():
        async with Conversation(says(b"head\r\n\r", b"\nbody", pause=0.005)) as (reader, _):
            assert await reader.readuntil(b"\r\n\r\n") == b"head\r\n\r\n"
            assert await reader.read() == b"body"

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="tuples of separators are new in 3.13")
def test_the_first_of_several_separators_ends_the_read(run):
    async def main():
        async with Conversation(says(b"one;two\nthree")) as (reader, _):
            assert await reader.readuntil((b"\n", b";")) == b"one;"
            assert await reader.readuntil((b"\n", b";")) == b"two\n"

    run(main())


def test_async_for_iterates_over_lines(run):
    async def main():
        lines = [b"line %d\n" % number for number in range(500)]
        async with Conversation(says(b"".join(lines))) as (reader, _):
            assert [line async for line in reader] == lines

    run(main())


def test_feed_data_and_feed_eof_work_beside_the_transport(run):
    """A reader made by the user and never connected works like any other."""

    async def main():
        reader = asyncio.StreamReader()
        reading = asyncio.create_task(reader.readline())
        await asyncio.sleep(0)
        reader.feed_data(b"by ")
        reader.feed_data(b"hand\nrest")
        reader.feed_eof()
        assert await reading == b"by hand\n" and await reader.read() == b"rest"

    run(main())


@pytest.mark.parametrize("subclassed", ["reader", "protocol", "both"])
def test_subclasses_of_reader_and_protocol_get_every_call(run, subclassed):
    """A fast path that bypasses a method may only be used if nobody has replaced it."""
    calls = []

    class Reader(asyncio.StreamReader):
        def feed_data(self, data):
            calls.append(("feed_data", bytes(data)))
            super().feed_data(data)

        def feed_eof(self):
            calls.append("feed_eof")
            super().feed_eof()

    class Protocol(asyncio.StreamReaderProtocol):
        def data_received(self, data):
            calls.append(("data_received", data))
            super().data_received(data)

        def eof_received(self):
            calls.append("eof_received")
            return super().eof_received()

    async def main():
        near, far = socket.socketpair()
        reader = (asyncio.StreamReader if subclassed == "protocol" else Reader)()
        protocol = (asyncio.StreamReaderProtocol if subclassed == "reader" else Protocol)(reader)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=near)
        with far:
            far.send(b"data")
            assert await reader.readexactly(4) == b"data"
            far.shutdown(socket.SHUT_WR)
            assert await reader.read() == b""
        transport.close()
        await turns()

    run(main())
    of_protocol = [("data_received", b"data"), "eof_received"]
    of_reader = [("feed_data", b"data"), "feed_eof"]
    both = [call for pair in zip(of_protocol, of_reader) for call in pair]
    # connection_lost tells the reader of the end again.
    expected = {"reader": [*of_reader, "feed_eof"], "protocol": of_protocol, "both": [*both, "feed_eof"]}
    assert calls == expected[subclassed]


def test_methods_put_on_a_reader_instance_are_called(run):
    async def main():
        reader_calls = []

        async def handler(reader, writer):
            original = reader.feed_data
            reader.feed_data = lambda data: (reader_calls.append(bytes(data)), original(data))
            assert await reader.readexactly(5) == b"hello"

        async with Conversation(handler) as (_, writer):
            await asyncio.sleep(0.01)
            writer.write(b"hello")
        assert b"".join(reader_calls) == b"hello"

    run(main())


def test_drain_waits_for_a_slow_reader(run):
    async def main():
        reading = asyncio.Event()

        async def slow(reader, writer):
            await reading.wait()
            assert len(await reader.read()) == 32 << 20

        async with Conversation(slow) as (_, writer):
            writer.write(bytes(32 << 20))
            draining = [asyncio.create_task(writer.drain()) for _ in range(3)]
            await asyncio.sleep(0.03)
            assert not any(task.done() for task in draining)
            reading.set()
            await asyncio.gather(*draining)
            writer.write_eof()

    run(main())


def test_drain_raises_when_the_peer_resets(run):
    async def main():
        async def reset(reader, writer):
            writer.transport.abort()

        async with Conversation(reset) as (reader, writer):
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(bytes(100_000))
                    await writer.drain()

    run(main())


def test_a_reader_that_does_not_read_stops_the_sender(run):
    """The reader's own limit pauses the transport, so a sender cannot fill the memory."""

    async def main():
        finished = asyncio.Event()

        async def idle(reader, writer):
            await finished.wait()
            assert len(reader._buffer) < 1 << 20
            while await reader.read(1 << 20):
                pass

        async with Conversation(idle) as (_, writer):
            writer.write(bytes(64 << 20))
            await asyncio.sleep(0.05)
            assert writer.transport.get_write_buffer_size() > 32 << 20
            finished.set()
            await writer.drain()

    run(main())


def test_the_writers_get_extra_info_describes_its_connection(run):
    async def main():
        async with Conversation(echo) as (reader, writer):
            assert writer.can_write_eof() and not writer.is_closing()
            assert writer.get_extra_info("peername")[0] == "127.0.0.1"
            assert writer.get_extra_info("nothing", "default") == "default"
            assert isinstance(writer.transport, asyncio.Transport)
            writer.writelines([b"one ", bytearray(b"two "), memoryview(b"three")])
            writer.write_eof()
            assert await reader.read() == b"one two three"
            writer.close()
            assert writer.is_closing()
            await writer.wait_closed()

    run(main())


def test_cancelling_a_read_leaves_the_stream_usable(run):
    async def main():
        async with Conversation(echo) as (reader, writer):
            for number in range(50):
                reading = asyncio.create_task(reader.readexactly(4))
                await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
                writer.write(b"%04d" % number)
                assert await reader.readexactly(4) == b"%04d" % number
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.005):
                    await reader.readline()

    run(main())


def test_two_readers_at_once_are_refused(run):
    async def main():
        async with Conversation(echo) as (reader, _):
            reading = asyncio.create_task(reader.read(1))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another coroutine is already waiting"):
                await reader.read(1)
            reading.cancel()

    run(main())


def test_data_written_before_close_arrives(run):
    async def main():
        async def handler(reader, writer):
            assert await reader.read() == b"x" * 5_000_000

        async with Conversation(handler) as (_, writer):
            writer.write(b"x" * 5_000_000)
            writer.close()
            await writer.wait_closed()

    run(main())


def test_large_and_small_messages_keep_their_boundaries(run):
    async def main():
        async with Conversation(echo) as (reader, writer):
            for size in (1, 100, 65535, 65536, 65537, 300_000, 2, 1_000_000, 1):
                message = os.urandom(size)
                writer.write(size.to_bytes(4, "big"))
                writer.write(message)
                assert int.from_bytes(await reader.readexactly(4), "big") == size
                assert await reader.readexactly(size) == message

    run(main())


@pytest.mark.skipif(
    "Unhandled exception in client_connected_cb" not in inspect.getsource(asyncio.StreamReaderProtocol.connection_made),
    reason="an early 3.11 does not tell of it",
)
def test_an_exception_in_a_handler_is_reported_and_the_server_runs_on(run):
    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context))

        async def handler(reader, writer):
            if await reader.readline() == b"fail\n":
                raise ZeroDivisionError
            writer.write(b"fine")
            writer.close()

        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        for word, answer in ((b"fail\n", b""), (b"ok\n", b"fine")):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(word)
            if answer:
                assert await reader.read() == answer
            else:
                while not problems:
                    await asyncio.sleep(0.001)
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert isinstance(problems[0]["exception"], ZeroDivisionError)
        assert "Unhandled exception in client_connected_cb" in problems[0]["message"]

    run(main())


def test_hundreds_of_streams_echo_at_once(run):
    async def main():
        server = await asyncio.start_server(closing_echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()

        async def client(number):
            reader, writer = await asyncio.open_connection(*address)
            for turn in range(10):
                message = f"{number} {turn}\n".encode()
                writer.write(message)
                assert await reader.readline() == message
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(client(number) for number in range(200)))
        server.close()
        await server.wait_closed()

    async def closing_echo(reader, writer):
        await echo(reader, writer)
        writer.close()

    run(main())
