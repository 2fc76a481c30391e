"""wakeloop's own StreamReader and StreamWriter: asyncio's behaviour, on our loop and on asyncio's.

Random sequences of reads give what asyncio's reader gives. test_streams.py has what both kinds of streams do.
"""

import asyncio
import contextlib
import functools
import gc
import inspect
import random
import socket
import ssl
import sys
import warnings
import weakref

import pytest

import wakeloop
from tests.support import streams
from tests.support.streams import python_calls, turns

connection = functools.partial(streams.connection, wakeloop)


# -- random conversations --------------------------------------------------------------------------------


class Transport:
    """Records what a reader asks of its transport."""

    def __init__(self, log, can_pause):
        self._log, self._can_pause = log, can_pause

    def __repr__(self):
        return "<transport>"

    def pause_reading(self):
        self._log.append("pause")
        if not self._can_pause:
            raise NotImplementedError

    def resume_reading(self):
        self._log.append("resume")


def outcome(task):
    if task.cancelled():
        return "cancelled"
    if (error := task.exception()) is None:
        return type(task.result()), task.result()
    details = {name: getattr(error, name) for name in ("partial", "expected", "consumed") if hasattr(error, name)}
    return type(error), error.args, details, type(error.__context__)


def operation(reader, choose):
    """Returns a random read, as a coroutine."""
    separators = [b"\n", b"|", b"ab", b"a\n", b"", (b"|", b"\n"), (b"abc", b"b", b"ca"), (), "text", 5, None]
    return choose.choice(
        [
            lambda: reader.read(choose.choice([-1, 0, 1, 3, 1000, 5.5, True])),
            lambda: reader.readexactly(choose.choice([-1, 0, 1, 2, 7, 40, True, "x"])),
            lambda: reader.readline(),
            lambda: reader.readuntil(choose.choice(separators)),
            lambda: reader.readuntil(),
            lambda: anext(reader),
        ]
    )()


async def converse(kind, choose, looks_inside):
    """Returns what happens in a random sequence of operations with a reader of this kind. tests/fuzz calls this too."""
    log, tasks = [], []
    reader = kind(limit=choose.choice([1, 4, 10, 100, 65536]))
    if choose.random() < 0.8:
        reader.set_transport(Transport(log, choose.random() < 0.8))
    for _ in range(choose.randrange(5, 60)):
        what = choose.random()
        if what < 0.35:
            data = bytes(choose.choices(b"aabbc|\n", k=choose.choice([0, 1, 2, 5, 30])))
            with contextlib.suppress(AssertionError):
                reader.feed_data(choose.choice([bytes, bytearray, memoryview])(data))
        elif what < 0.38:
            reader.feed_eof()
        elif what < 0.40:
            reader.set_exception(choose.choice([OSError("broken"), asyncio.IncompleteReadError(b"part", 9)]))
        elif what < 0.75:
            tasks.append(asyncio.ensure_future(operation(reader, choose)))
        elif what < 0.80 and tasks:
            tasks[-1].cancel()
        elif what < 0.83 and looks_inside:
            reader._buffer.extend(b"|more\n")
        else:
            await turns(choose.randrange(4))
        shown = repr(reader)
        log.append((shown.split(" waiter=")[0], "waiter" in shown, shown.endswith(" paused>")))
        log.append((reader.at_eof(), type(reader.exception()), reader._paused, [task.done() for task in tasks]))
    reader.feed_eof()
    await turns(10)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    log.append(bytes(reader._buffer))
    return log, [outcome(task) for task in tasks]


@pytest.mark.parametrize("looks_inside", [False, True])
def test_random_reads_return_what_asyncios_reader_returns(run, looks_inside):
    async def main():
        for seed in range(400):
            theirs = await converse(asyncio.StreamReader, random.Random(seed), looks_inside)
            native = await converse(wakeloop.StreamReader, random.Random(seed), looks_inside)
            for step, (expected, found) in enumerate(zip(theirs[0], native[0])):
                assert expected == found, f"seed {seed}, step {step}"
            assert theirs == native, f"seed {seed}"

    run(main())


@pytest.mark.parametrize("name", ["readline", "__anext__"])
def test_readline_handles_an_exception_that_set_exception_gives_it_while_it_waits(run, name):
    async def read(kind, exception, later=None):
        reader = kind(limit=10)
        task = asyncio.ensure_future(getattr(reader, name)())
        await turns()
        reader.set_exception(exception)
        if later is not None:
            reader.set_exception(later)
        await asyncio.wait([task])
        return outcome(task), repr(reader)

    async def main():
        for make in (
            lambda: asyncio.IncompleteReadError(b"part", 9),
            lambda: asyncio.LimitOverrunError("too long", 3),
            lambda: OSError("broken"),
        ):
            for later in (None, OSError("later"), asyncio.IncompleteReadError(b"later", 9)):
                expected = await read(asyncio.StreamReader, make(), later)
                assert await read(wakeloop.StreamReader, make(), later) == expected
        assert (await read(wakeloop.StreamReader, asyncio.IncompleteReadError(b"part", 9)))[0] == (bytes, b"part")

    run(main())


# -- what they are ---------------------------------------------------------------------------------------


def test_isinstance_sees_asyncios_stream_classes(run):
    async def main():
        async with connection() as (reader, writer, _):
            assert isinstance(reader, asyncio.StreamReader) and isinstance(writer, asyncio.StreamWriter)
            assert isinstance(writer.transport.get_protocol(), asyncio.StreamReaderProtocol)
            assert type(reader) is wakeloop.StreamReader and type(writer) is wakeloop.StreamWriter
            theirs_reader = {name for name in dir(asyncio.StreamReader)} | set(vars(asyncio.StreamReader()))
            theirs_writer = {name for name in dir(asyncio.StreamWriter)} | {"_transport", "_protocol", "_reader", "_loop"}
            assert theirs_reader - set(dir(reader)) == set() == theirs_writer - set(dir(writer))
            assert asyncio.iscoroutine(call := reader.read(1))
            call.close()
            assert (await writer._complete_fut) is None

    run(main())


@pytest.mark.native
def test_no_python_code_of_asyncios_runs_per_message(run):
    async def main():
        async with connection() as (reader, writer, far):
            with python_calls() as calls:
                for size in (1, 1000, 100_000):
                    far.settimeout(0)
                    reading = asyncio.ensure_future(reader.readexactly(size))
                    await turns()
                    sent = 0
                    while sent < size:
                        with contextlib.suppress(BlockingIOError):
                            sent += far.send(bytes(size - sent))
                        await asyncio.sleep(0)
                    assert await reading == bytes(size)
                    writer.write(b"answer")
                    await writer.drain()
            assert calls == []

    run(main())


def test_overridden_and_patched_methods_of_streams_are_called(run, monkeypatch):
    class Shouting(wakeloop.StreamReader):
        def feed_data(self, data):
            super().feed_data(data.upper())

        async def readuntil(self, separator=b"\n"):
            return b"<" + await super().readuntil(separator) + b">"

    async def main():
        reader = Shouting(limit=100)
        protocol = wakeloop.StreamReaderProtocol(reader)
        near, far = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=near)
        with far:
            far.send(b"line\nrest")
            assert await reader.readline() == b"<LINE\n>" and await reader.readexactly(4) == b"REST"
        transport.close()
        async with connection() as (reader, writer, far):
            calls, genuine = [], reader.feed_data
            reader.feed_data = lambda data: (calls.append(bytes(data)), genuine(data))
            far.send(b"one")
            assert await reader.readexactly(3) == b"one" == calls[0]
            del reader.feed_data
            monkeypatch.setattr(wakeloop.StreamReader, "readuntil", Shouting.readuntil)
            monkeypatch.setattr(sys.modules["wakeloop"].StreamReader, "feed_eof", lambda self: calls.append("eof"))
            far.send(b"two\n")
            with pytest.raises(TypeError):  # super() of another class
                await reader.readline()
            monkeypatch.undo()
            assert await reader.readline() == b"two\n"
            sent, write = [], writer.transport.write
            writer.transport.write = lambda data: (sent.append(data), write(data))
            writer.write(b"three")
            await writer.drain()
            await turns()
            assert sent == [b"three"] and far.recv(10) == b"three"

    run(main())


def test_the_private_buffer_of_a_reader_is_live(run):
    async def main():
        async with connection(limit=10) as (reader, writer, far):
            far.send(b"one two ")
            assert await reader.readexactly(4) == b"one "
            assert reader._buffer == b"two " and isinstance(reader._buffer, bytearray)
            reader._buffer.extend(b"by hand")
            assert await reader.readexactly(11) == b"two by hand"
            reading = asyncio.ensure_future(reader.readline())
            await turns()
            far.send(b"more\n")
            assert await reading == b"more\n"
            reader._limit = 2
            assert repr(reader).startswith("<StreamReader limit=2 transport=")

    run(main())


def test_a_waiting_read_continues_after_the_private_buffer_was_accessed(run):
    async def main():
        for read in ("read", "readexactly", "readline", "readuntil", "all"):
            async with connection() as (reader, writer, far):
                coroutine = {
                    "read": lambda: reader.read(100),
                    "readexactly": lambda: reader.readexactly(5),
                    "readline": reader.readline,
                    "readuntil": lambda: reader.readuntil((b"\n",) if sys.version_info >= (3, 13) else b"\n"),
                    "all": reader.read,
                }[read]()
                reading = asyncio.ensure_future(coroutine)
                await turns()
                assert reader._buffer == b""
                far.send(b"1234\n")
                if read == "all":
                    far.close()
                assert await reading == b"1234\n"

    run(main())


def take(call):
    """What a call returns that does not have to wait."""
    with pytest.raises(StopIteration) as returned:
        call.send(None)
    return returned.value.value


@pytest.mark.parametrize("reads", ["search", "woken in vain", "woken before an error"])
def test_a_waiting_read_goes_on_where_it_was_after_the_private_buffer_was_accessed(run, reads):
    async def play(kind):
        reader = kind()
        if reads == "search":
            # The search for a newline goes on behind the bytes that it has seen, although another read has taken them.
            reader.feed_data(b"aaaa")
            reading = asyncio.ensure_future(reader.readline())
            await turns()
            reader.feed_data(b"bbbb")
            await turns()
            assert reader._buffer == b"aaaabbbb"
            taken = take(reader.read(6))
            reader.feed_data(b"x\ny\nz\nlonger\n")
            reader.feed_eof()
        elif reads == "woken in vain":
            reading = asyncio.ensure_future(reader.read(5))
            await turns()
            assert reader._buffer == b""
            reader.feed_data(b"12")
            taken = take(reader.read(5))
        else:
            reading = asyncio.ensure_future(reader.readexactly(3))
            await turns()
            assert reader._buffer == b""
            reader.feed_data(b"123")
            reader.set_exception(OSError("too late"))
            taken = None
        return await asyncio.wait_for(reading, 10), taken

    async def main():
        assert await play(wakeloop.StreamReader) == await play(asyncio.StreamReader)

    run(main())


# -- coroutines --------------------------------------------------------------------------------------------


def test_a_call_does_nothing_before_it_is_awaited_and_warns_if_it_never_is(run):
    async def main():
        async with connection() as (reader, writer, far):
            far.send(b"data")
            while not repr(reader).startswith("<StreamReader 4 bytes"):
                await asyncio.sleep(0)
            with pytest.warns(RuntimeWarning, match=r"coroutine 'StreamReader.read' was never awaited"):
                reader.read(10)
            with pytest.warns(RuntimeWarning, match=r"coroutine 'StreamWriter.drain' was never awaited"):
                writer.drain()
            call = reader.read(10)
            assert (call.__name__, call.__qualname__) == ("read", "StreamReader.read")
            assert await call == b"data"
            with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
                await call

    run(main())


def test_calls_are_taken_by_everything_that_takes_coroutines(run):
    async def main():
        async with connection() as (reader, _, far):
            far.send(b"abcdef\n")
            assert await asyncio.wait_for(reader.readexactly(1), 5) == b"a"
            assert await asyncio.create_task(reader.readexactly(1)) == b"b"
            assert await asyncio.gather(reader.read(1), reader.read(1)) == [b"c", b"d"]
            assert await asyncio.shield(reader.readexactly(1)) == b"e"
            task = asyncio.ensure_future(reader.readexactly(100))
            await turns()
            assert "readexactly" in repr(task) and "wait_for=<Future pending" in repr(task)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.001)
            assert await reader.readline() == b"f\n"
            call = reader.readexactly(1)
            with pytest.raises(ZeroDivisionError):
                call.throw(ZeroDivisionError("thrown"))
            with pytest.raises(StopIteration) as stop:
                far.send(b"x")
                await asyncio.sleep(0.01)
                reader.read(1).send(None)
            assert stop.value.value == b"x"

    run(main())


@pytest.mark.parametrize("kind", [asyncio.StreamReader, wakeloop.StreamReader], ids=["asyncio", "wakeloop"])
@pytest.mark.parametrize("end", ["throw", "close"])
@pytest.mark.parametrize("error", [None, ZeroDivisionError], ids=["ends", "fails"])
def test_a_read_that_awaits_a_programs_coroutine_ends_with_it(run, kind, end, error):
    async def waits(name):
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if error:
                raise error

    async def main():
        reader = kind()
        read = reader.read(1)
        # It is a native call by now.
        reader._wait_for_data = waits
        read.send(None)
        assert (inspect.getcoroutinestate(read), read.cr_await is None) == ("CORO_SUSPENDED", False)
        arguments = [ValueError("thrown")] if end == "throw" else []
        expected = error or (ValueError if end == "throw" else None)
        with pytest.raises(expected) if expected else contextlib.nullcontext():
            getattr(read, end)(*arguments)
        assert (inspect.getcoroutinestate(read), read.cr_await) == ("CORO_CLOSED", None)

    run(main())


@pytest.mark.parametrize("make", [asyncio.StreamReader, wakeloop.StreamReader], ids=["asyncio", "wakeloop"])
def test_a_read_that_is_stepped_within_its_own_step_raises_and_goes_on(run, make):
    class Stepping:
        def pause_reading(self):
            pass

        def resume_reading(self):
            with pytest.raises(ValueError, match="^coroutine already executing$"):
                read.send(None)

    async def main():
        nonlocal read
        reader = make(limit=2)
        reader.set_transport(Stepping())
        reader.feed_data(b"12345")
        read = reader.readexactly(5)
        assert await read == b"12345"
        read = reader.readexactly(2)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(read, 0.01)

    read = None
    run(main())


def test_the_data_of_a_read_is_not_kept_when_it_is_done(run):
    async def main():
        async with connection() as (reader, _, far):
            far.send(b"some data that is not interned")
            data = await reader.read(100)
            assert sys.getrefcount(data) <= 2

    run(main())


@pytest.mark.skipif(not hasattr(asyncio.StreamWriter, "__del__"), reason="an early 3.11 does not warn")
def test_a_forgotten_connection_is_closed_with_a_warning(run):
    async def main():
        near, far = socket.socketpair()
        with far:
            reader, writer = await wakeloop.open_connection(sock=near)
            gone = weakref.ref(reader), weakref.ref(writer)
            with pytest.warns(ResourceWarning, match="unclosed <StreamWriter"):
                del reader, writer
                gc.collect()
            await turns()
            assert far.recv(1) == b"" and gone[1]() is None
            gc.collect()
            assert gone[0]() is None

    run(main())


def test_cycles_through_a_waiting_read_are_collected(run):
    async def main():
        reader = wakeloop.StreamReader()

        async def wait():
            reader.task = asyncio.current_task()
            await reader.read(1)

        task = asyncio.ensure_future(wait())
        await turns()
        task.cancel()
        await turns()
        gone = weakref.ref(reader)
        del reader, task, wait
        gc.collect()
        assert gone() is None

    run(main())


# -- servers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain_function", [False, True])
def test_the_callback_of_a_server_may_be_a_coroutine_or_a_function(run, plain_function):
    async def main():
        met = asyncio.get_running_loop().create_future()

        async def coroutine(reader, writer):
            met.set_result((reader, writer))

        def function(reader, writer):
            met.set_result((reader, writer))

        server = await wakeloop.start_server(function if plain_function else coroutine, "127.0.0.1", 0)
        reader, writer = await wakeloop.open_connection(*server.sockets[0].getsockname())
        theirs = await met
        assert [type(one) for one in theirs] == [wakeloop.StreamReader, wakeloop.StreamWriter]
        theirs[1].write(b"hello")
        theirs[1].close()
        assert await reader.read() == b"hello"
        writer.close()
        await asyncio.gather(writer.wait_closed(), theirs[1].wait_closed())
        server.close()
        await server.wait_closed()

    run(main())


def test_unix_sockets_have_the_same_streams(run, tmp_path):
    async def main():
        async def echo(reader, writer):
            async for line in reader:
                writer.write(line)
                await writer.drain()
            writer.close()

        server = await wakeloop.start_unix_server(echo, tmp_path / "s")
        reader, writer = await wakeloop.open_unix_connection(tmp_path / "s")
        for number in range(100):
            writer.write(b"line %d\n" % number)
            assert await reader.readline() == b"line %d\n" % number
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.parametrize("upgraded", [False, True])
def test_tls_from_the_start_or_in_mid_conversation(run, tls, upgraded):
    async def main():
        served = asyncio.get_running_loop().create_future()

        async def handler(reader, writer):
            if upgraded:
                assert await reader.readline() == b"upgrade\n"
                writer.write(b"go\n")
                await writer.start_tls(tls.server())
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                await writer.wait_closed()
            served.set_result(None)

        options = {} if upgraded else {"ssl": tls.server()}
        server = await wakeloop.start_server(handler, "127.0.0.1", 0, **options)
        options = {} if upgraded else {"ssl": tls.client(), "server_hostname": "localhost"}
        reader, writer = await wakeloop.open_connection(*server.sockets[0].getsockname(), **options)
        if upgraded:
            writer.write(b"upgrade\n")
            assert await reader.readline() == b"go\n"
            await writer.start_tls(tls.client(), server_hostname="localhost")
        assert writer.get_extra_info("cipher")
        for size in (1, 1000, 300_000):
            writer.write(bytes(size))
            await writer.drain()
            assert await reader.readexactly(size) == bytes(size)
        writer.close()
        await writer.wait_closed()
        await served
        server.close()
        await server.wait_closed()

    run(main())


def test_a_large_readexactly_does_not_allocate_before_the_data_arrives(run):
    async def main():
        async with connection() as (reader, _, far):
            reading = asyncio.ensure_future(reader.readexactly(1 << 40))
            await turns()
            far.send(b"x" * 1000)
            await asyncio.sleep(0.01)
            assert reader.at_eof() is False
            far.close()
            with pytest.raises(asyncio.IncompleteReadError) as caught:
                await reading
            assert caught.value.partial == b"x" * 1000 and caught.value.expected == 1 << 40

    run(main())


@pytest.mark.parametrize("size", [32 * 1024, 100_000, 1 << 20, 3_000_001])
def test_large_reads_arrive_whole_with_what_follows_kept(run, size):
    async def main():
        data, cancelled = random.Random(size).randbytes(2 * size + 10), asyncio.Event()

        async def send(reader, writer):
            writer.write(data)
            await cancelled.wait()
            writer.close()

        server = await wakeloop.start_server(send, "127.0.0.1", 0)
        reader, writer = await wakeloop.open_connection(*server.sockets[0].getsockname())
        assert await reader.readexactly(size) == data[:size]
        assert await reader.readexactly(10) == data[size : size + 10]
        reading = asyncio.ensure_future(reader.readexactly(size + 1))
        await asyncio.sleep(0.01)
        reading.cancel()
        await turns()
        cancelled.set()
        assert await reader.read() == data[size + 10 :]
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    run(main())


def test_invalid_limits_are_refused_and_unusual_ones_are_used(run):
    async def main():
        for limit in (0, -5):
            with pytest.raises(ValueError, match="Limit cannot be <= 0"):
                wakeloop.StreamReader(limit=limit)
        with pytest.raises(TypeError):
            wakeloop.StreamReader(limit="many")
        reader = wakeloop.StreamReader(limit=2.5)
        reader.feed_data(b"123\n")
        with pytest.raises(asyncio.LimitOverrunError):
            await reader.readuntil()

    run(main())


def test_objects_that_were_never_initialised_raise_and_do_not_crash(run):
    async def main():
        reader, writer = object.__new__, object.__new__
        with pytest.raises(TypeError):
            reader(wakeloop.StreamReader)
        bare = wakeloop.StreamReader.__new__(wakeloop.StreamReader)
        with pytest.raises(AttributeError):
            await bare.read(1)
        assert bare.at_eof() is False and repr(bare)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            unfinished = wakeloop.StreamWriter.__new__(wakeloop.StreamWriter)
            with pytest.raises(AttributeError):
                unfinished.write(b"x")
            with pytest.raises(AttributeError):
                await unfinished.drain()
            unfinished._transport = Closed()

    class Closed:
        def is_closing(self):
            return True

    run(main())


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="until Python 3.11 making an object may run the collector")
def test_a_collection_within_a_read_may_replace_the_buffer(run):
    async def main():
        reader = wakeloop.StreamReader()
        line = b"a line of some length\n"

        def replace(phase, info):
            reader._buffer = bytearray(line * 50)

        threshold, slices = gc.get_threshold(), []
        gc.callbacks.append(replace)
        try:
            for count in range(300):
                reader._buffer = bytearray(line * 50)
                # CPython keeps one slice for reuse, and a new one is what makes it run the collector here.
                slices.append(slice(count))
                gc.set_threshold(1 + count % 20)
                assert await reader.readline() == line
                assert await reader.read(5) == line[:5]
                assert len(await reader.readexactly(100)) == 100
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(replace)

    run(main())


def test_a_reader_remembers_in_debug_mode_where_it_was_made(run):
    async def main():
        reader = wakeloop.StreamReader()
        line = sys._getframe().f_lineno - 1
        assert (reader._source_traceback[-1].filename, reader._source_traceback[-1].lineno) == (__file__, line)

    run(main(), debug=True)
