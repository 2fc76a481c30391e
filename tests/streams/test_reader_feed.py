"""Data goes natively from the transport into asyncio's StreamReader, unless a program could notice.

If a method or an attribute is replaced, on a class or on an instance, before or during a connection, the replacement
gets the calls that asyncio would make.
"""

import asyncio
import os
import random
import socket
import sys

import pytest

from tests.support.builds import needs_reader_feed
from tests.support.streams import connection, python_calls, turns
from wakeloop._net.streams import STANDS_IN

READER, PROTOCOL = asyncio.StreamReader, asyncio.StreamReaderProtocol


@needs_reader_feed
@pytest.mark.native
@pytest.mark.parametrize("debug", [False, True])
def test_no_python_code_runs_between_the_socket_and_the_stream_reader(run, debug):
    assert STANDS_IN, f"asyncio of {sys.version_info[:2]} has other streams than those we know"

    async def main():
        async with connection() as (reader, _, far):
            reading = asyncio.ensure_future(reader.readexactly(8))
            await turns()
            with python_calls() as calls:
                far.send(b"12345678")
                assert await reading == b"12345678"
                far.send(b"more")
                await asyncio.sleep(0.01)
            assert "data_received" not in calls and "feed_data" not in calls
            assert reader._buffer == b"more"

    run(main(), debug=debug)


@needs_reader_feed
@pytest.mark.native
def test_a_pipe_feeds_its_reader_in_the_same_way(run):
    async def main():
        ours, theirs = os.pipe()
        reader = asyncio.StreamReader()
        with open(theirs, "wb", buffering=0) as far:
            pipe = open(ours, "rb", buffering=0)
            protocol = asyncio.StreamReaderProtocol(reader)
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
            with python_calls() as calls:
                far.write(b"line\nrest")
                assert await reader.readline() == b"line\n"
                assert await reader.readexactly(4) == b"rest"
            assert "data_received" not in calls and "feed_data" not in calls
        assert await reader.read() == b""
        transport.close()
        await turns()

    run(main())


@pytest.mark.parametrize("owner, name", [(READER, "feed_data"), (READER, "_wakeup_waiter"), (PROTOCOL, "data_received")])
def test_a_method_replaced_on_its_class_is_called_from_then_on(run, monkeypatch, owner, name):
    genuine, calls = getattr(owner, name), []

    def replacement(self, *args):
        calls.append(args)
        return genuine(self, *args)

    async def main():
        async with connection() as (reader, _, far):
            for number in range(3):
                far.send(b"before")
                assert await reader.readexactly(6) == b"before" and len(calls) == number * 2
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, replacement)
                    far.send(b"during")
                    assert await reader.readexactly(6) == b"during" and len(calls) == number * 2 + 1
                    far.send(b"twice!")
                    assert await reader.readexactly(6) == b"twice!" and len(calls) == number * 2 + 2

    run(main())


def test_a_replaced_property_of_the_reader_is_used(run, monkeypatch):
    genuine, asked = PROTOCOL._stream_reader, []

    def getter(self):
        asked.append(self)
        return genuine.fget(self)

    async def main():
        async with connection() as (reader, _, far):
            far.send(b"one")
            assert await reader.readexactly(3) == b"one"
            monkeypatch.setattr(PROTOCOL, "_stream_reader", property(getter))
            far.send(b"two")
            assert await reader.readexactly(3) == b"two" and asked

    try:
        run(main())
    finally:
        monkeypatch.undo()


def test_replaced_code_of_a_reader_method_runs(run):
    genuine, seen = READER.feed_data.__code__, []

    def other(self, data):
        self._seen.append(bytes(data))
        self._buffer.extend(data)
        self._wakeup_waiter()

    async def main():
        async with connection() as (reader, _, far):
            reader._seen = seen
            far.send(b"one")
            assert await reader.readexactly(3) == b"one"
            READER.feed_data.__code__ = other.__code__
            far.send(b"two")
            assert await reader.readexactly(3) == b"two" and seen == [b"two"]

    try:
        run(main())
    finally:
        READER.feed_data.__code__ = genuine


def test_a_method_put_on_an_instance_in_mid_stream_is_called(run):
    async def main():
        async with connection() as (reader, writer, far):
            protocol = writer.transport.get_protocol()
            for owner, name in ((reader, "feed_data"), (reader, "_wakeup_waiter"), (protocol, "data_received")):
                far.send(b"before")
                assert await reader.readexactly(6) == b"before"
                genuine, calls = getattr(owner, name), []
                setattr(owner, name, lambda *args: (calls.append(args), genuine(*args)))
                far.send(b"during")
                assert await reader.readexactly(6) == b"during" and len(calls) == 1, name
                delattr(owner, name)
                far.send(b"after!")
                assert await reader.readexactly(6) == b"after!" and len(calls) == 1, name

    run(main())


def test_a_reader_with_a_materialised_dict_is_fed_natively(run):
    async def main():
        async with connection() as (reader, writer, far):
            protocol, calls = writer.transport.get_protocol(), []
            vars(reader)["note"] = vars(protocol)["note"] = "the dicts exist now"
            for object in (reader, protocol):
                far.send(b"one")
                assert await reader.readexactly(3) == b"one"
                object.__dict__ = dict(vars(object))
                far.send(b"two")
                assert await reader.readexactly(3) == b"two"
            vars(reader)["feed_data"] = lambda data: (calls.append(data), READER.feed_data(reader, data))
            far.send(b"three")
            assert await reader.readexactly(5) == b"three" and calls == [b"three"]

    run(main())


def test_an_attribute_that_was_replaced_is_used(run):
    class Louder(bytearray):
        def extend(self, data):
            super().extend(data.upper())

    async def main():
        loop = asyncio.get_running_loop()
        async with connection() as (reader, _, far):
            reader._buffer = bytearray(b"more ")
            far.send(b"data")
            assert await reader.readexactly(9) == b"more data"
            reader._buffer = Louder()
            far.send(b"loud")
            assert await reader.readexactly(4) == b"LOUD"
            reader._buffer, waiter = bytearray(), loop.create_future()
            reader._waiter = waiter
            far.send(b"wake")
            await waiter
            assert reader._waiter is None and await reader.readexactly(4) == b"wake"

    run(main())


def test_a_class_attribute_that_shadows_an_instance_is_used(run, monkeypatch):
    async def main():
        async with connection() as (reader, _, far):
            far.send(b"one")
            assert await reader.readexactly(3) == b"one"
            other = bytearray()
            monkeypatch.setattr(READER, "_buffer", property(lambda self: other), raising=False)
            far.send(b"two")
            assert await reader.readexactly(3) == b"two"
            far.send(b"three")
            await asyncio.sleep(0.01)
            assert other == b"three"
            monkeypatch.undo()
            assert reader._buffer == b""

    try:
        run(main())
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("owner", "method", "attribute"),
    [
        (READER, "__setattr__", "_waiter"),
        (READER, "__getattribute__", "_waiter"),
        (PROTOCOL, "__getattribute__", "_stream_reader_wr"),
    ],
)
def test_a_class_that_watches_its_attributes_sees_that_data_arrives(run, monkeypatch, owner, method, attribute):
    genuine, seen = getattr(object, method), []

    def watching(self, name, *value):
        seen.append(name)
        return genuine(self, name, *value)

    async def main():
        async with connection() as (reader, _, far):
            far.send(b"before")
            assert await reader.readexactly(6) == b"before"
            reader._waiter = waiter = asyncio.get_running_loop().create_future()
            monkeypatch.setattr(owner, method, watching, raising=False)
            far.send(b"during")
            await waiter
            assert attribute in seen
            monkeypatch.undo()
            seen.clear()
            assert await reader.readexactly(6) == b"during" and reader._waiter is None
            far.send(b"after")
            assert await reader.readexactly(5) == b"after" and not seen

    try:
        run(main())
    finally:
        monkeypatch.undo()


def test_a_protocol_set_in_mid_stream_gets_later_data(run):
    class Other(asyncio.Protocol):
        def __init__(self):
            self.data = bytearray()

        def data_received(self, data):
            self.data += data

    async def main():
        async with connection() as (reader, writer, far):
            far.send(b"one")
            assert await reader.readexactly(3) == b"one"
            transport, other = writer.transport, Other()
            protocol = transport.get_protocol()
            transport.set_protocol(other)
            far.send(b"two")
            while not other.data:
                await asyncio.sleep(0)
            transport.set_protocol(protocol)
            far.send(b"three")
            assert await reader.readexactly(5) == b"three" and other.data == b"two"

    run(main())


def test_more_than_twice_the_limit_pauses_the_transport_until_it_is_read(run):
    async def main():
        async with connection(limit=100) as (reader, writer, far):
            far.send(b"x" * 200)
            await asyncio.sleep(0.01)
            assert writer.transport.is_reading() and len(reader._buffer) == 200
            far.send(b"y")
            await asyncio.sleep(0.01)
            assert not writer.transport.is_reading() and reader._paused and len(reader._buffer) == 201
            far.send(b"z" * 50)
            await asyncio.sleep(0.01)
            assert len(reader._buffer) == 201
            await reader.readexactly(100)
            assert not writer.transport.is_reading()
            await reader.readexactly(1)
            assert writer.transport.is_reading()
            assert await reader.readexactly(150) == b"x" * 99 + b"y" + b"z" * 50

    run(main())


def test_data_for_an_unreferenced_reader_is_dropped(run):
    async def main():
        near, far = socket.socketpair()
        protocol = PROTOCOL(READER())
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=near)
        with far:
            far.send(b"data")
            await asyncio.sleep(0.01)
            assert protocol._stream_reader is None and not transport.is_closing()
            transport.close()
            await turns()

    run(main())


def test_a_read_that_was_cancelled_or_ended_by_hand_gets_nothing(run):
    async def main():
        async with connection() as (reader, _, far):
            reading = asyncio.ensure_future(reader.readexactly(4))
            await turns()
            waiter = reader._waiter
            far.send(b"data")
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert waiter.cancelled() and await reader.readexactly(4) == b"data"

    run(main())


def test_debug_mode_changes_nothing_for_a_reader(run, asyncio_log):
    async def main():
        async with connection(limit=10) as (reader, _, far):
            assert reader._source_traceback
            for size in (5, 20, 21, 100):
                far.send(b"x" * size)
                assert await reader.readexactly(size) == b"x" * size
            far.send(b"12345")
            await asyncio.sleep(0.01)
            assert repr(reader).startswith("<StreamReader 5 bytes limit=10 transport=<")

    run(main(), debug=True)


@pytest.mark.parametrize("limit", [2**14, 2**16, 2**20])
def test_large_messages_arrive_whole_in_pieces_of_every_size(run, limit):
    """Large messages are received directly into the reader's buffer, after what is there already."""
    message = random.Random(limit).randbytes(300_000)
    sizes = [100_000, 40_000, 33_000, 1, 90_000, 36_999, 0]
    assert sum(sizes) <= len(message)

    async def main():
        loop = asyncio.get_running_loop()
        async with connection(limit=limit) as (reader, writer, far):
            far.settimeout(None)
            for _ in range(3):
                sending = loop.run_in_executor(None, far.sendall, message)
                received = [await reader.readexactly(size) for size in sizes]
                received.append(await reader.readexactly(len(message) - sum(sizes)))
                await sending
                assert b"".join(received) == message
                assert not reader._buffer
            # Nothing but what was sent, at the end as well.
            await loop.run_in_executor(None, far.sendall, message[:50_000])
            far.shutdown(socket.SHUT_WR)
            assert await reader.read(-1) == message[:50_000]
            assert reader.at_eof() and not reader._buffer

    run(main())


def problems_of(loop):
    """Collects what the loop tells its exception handler. It is logged as well."""
    problems = []

    def handle(loop, context):
        problems.append((type(context["exception"]), context["message"].partition(":")[2].strip()))
        loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    return problems


def test_data_for_a_reader_that_ended_is_a_fatal_error(run, asyncio_log):
    async def main():
        problems = problems_of(asyncio.get_running_loop())
        async with connection() as (reader, writer, far):
            reader.feed_eof()
            far.send(b"late")
            while reader.exception() is None:
                await asyncio.sleep(0)
            assert writer.is_closing()
        assert problems == [(AssertionError, "protocol.data_received() call failed.")]

    run(main())


@pytest.mark.parametrize(("before", "limit"), [(0, 2**16), (40_000, 2**20)], ids=["small", "after-large"])
def test_data_for_a_buffer_with_a_memoryview_is_a_fatal_error_and_does_not_change_it(run, asyncio_log, before, limit):
    """asyncio cannot append to it then. Large data, which is received into the buffer itself, makes no difference."""

    async def main():
        loop = asyncio.get_running_loop()
        problems = problems_of(loop)
        async with connection(limit=limit) as (reader, writer, far):
            reading = asyncio.ensure_future(reader.readexactly(before))
            await loop.run_in_executor(None, far.sendall, bytes(before))
            await reading
            far.send(b"one")
            while not reader._buffer:
                await asyncio.sleep(0)
            with memoryview(reader._buffer) as view:
                far.send(b"two")
                while reader.exception() is None:
                    await asyncio.sleep(0)
                assert view == b"one"
            assert isinstance(reader.exception(), BufferError) and writer.is_closing() and reader._buffer == b"one"
        assert problems == [(BufferError, "protocol.data_received() call failed.")]

    run(main())
    assert "data_received() call failed" in asyncio_log.text
