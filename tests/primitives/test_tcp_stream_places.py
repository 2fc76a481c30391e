"""Where a `wakeloop.TcpStream` is read and written: on the loop's own thread, or by the runtime's workers.

A stream begins on the loop, and moves when that is faster. A program may notice only the speed. So each test makes a
stream move in one way, and checks what it reads and writes meanwhile. The number of sockets that the runtime watches
tells where the stream is.
"""

import asyncio
import contextlib
import errno
import gc
import os
import socket
import sys
import threading
import warnings
import weakref

import pytest

from tests.support.tcp_stream import connected, in_pieces
from tests.support import loops, script

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def on_runtime():
    return wakeloop.runtime_metrics().sockets


def turns(loop):
    """How many turns a loop has made. asyncio's loop does not count them."""
    return loop.metrics().turns if hasattr(loop, "metrics") else 0


@contextlib.contextmanager
def stays_on_the_loop(loop_name):
    """Whether the stream stays on the loop. On asyncio's loop, every stream that has waited is on the runtime."""
    before = on_runtime()
    yield
    assert on_runtime() == before or loop_name != "wakeloop"


@contextlib.contextmanager
def moves_to_the_runtime():
    before = on_runtime()
    yield
    assert on_runtime() == before + 1


def answer(peer, count):
    """Sends this many lines, one at a time, from a thread."""

    def work():
        with peer.makefile("rb") as lines:
            for _ in range(count):
                peer.sendall(lines.readline())

    thread = threading.Thread(target=work)
    thread.start()
    return thread


async def drain(peer, size):
    """Receives this many bytes in a thread."""

    def work():
        left = size
        while left:
            left -= len(peer.recv(min(left, 1_000_000)))

    await wakeloop.spawn_blocking(work)


async def settled(check):
    while not check():
        await asyncio.sleep(0.005)


def test_requests_and_responses_wake_no_other_thread(run, loop_name):
    async def main():
        async with connected() as (stream, peer):
            with stays_on_the_loop(loop_name):
                thread = answer(peer, 400)
                for number in range(100):
                    line = b"%d\n" % number
                    await stream.write_all(line)
                    assert await stream.readline() == line
                    await stream.write_all(line)
                    assert await stream.readexactly(len(line)) == line
                    await stream.write_all(line)
                    assert await stream.readuntil(b"\n") == line
                    await stream.write_all(line)
                    received = b""
                    while received != line:
                        received += await stream.read(100)
                thread.join()

    run(main())


def test_async_for_that_keeps_up_stays_on_the_loop(run, loop_name):
    async def main():
        async with connected() as (stream, peer):
            with stays_on_the_loop(loop_name):
                thread = answer(peer, 50)
                await stream.write_all(b"0\n")
                count = 0
                async for line in stream:
                    assert line == b"%d\n" % count
                    count += 1
                    if count == 50:
                        break
                    await stream.write_all(b"%d\n" % count)
                thread.join()

    run(main())


BULK = b"".join(b"%d\n" % number for number in range(3_000_000))


@pytest.mark.parametrize("read", ["lines", "all", "exact", "some"])
def test_a_reader_that_falls_behind_is_read_ahead(run, loop_name, read):
    async def main():
        async with connected() as (stream, peer):
            thread = in_pieces(peer, BULK, largest=5_000_000, end=read != "exact")
            # The sender is ahead from the start. On asyncio's loop the first wait is enough.
            await asyncio.sleep(0.05)
            received = bytearray()
            with moves_to_the_runtime():
                match read:
                    case "lines":
                        async for line in stream:
                            assert line.endswith(b"\n")
                            received += line
                    case "all":
                        received += await stream.read()
                    case "exact":
                        received += await stream.readexactly(len(BULK))
                    case "some":
                        while part := await stream.read(1000):
                            received += part
            assert received == BULK
            thread.join()

    run(main())


def test_a_write_that_does_not_fit_takes_a_waiting_read_along(run):
    async def main():
        async with connected() as (stream, peer):
            peer.sendall(b"begun ")
            assert await stream.read(1) == b"b"
            waiting = asyncio.ensure_future(stream.readline())
            await asyncio.sleep(0.01)
            size = 30_000_000
            blocked = asyncio.ensure_future(stream.write_all(bytes(size)))
            await asyncio.sleep(0.05)
            assert not waiting.done() and not blocked.done()
            with pytest.raises(RuntimeError, match="already reading"):
                await stream.read(1)
            peer.sendall(b"and ended\nnext\n")
            assert await waiting == b"egun and ended\n"
            assert await stream.readline() == b"next\n"
            await drain(peer, size)
            await blocked

    run(main())


def test_a_read_that_is_cancelled_when_its_stream_moves_takes_nothing(run):
    async def main():
        for patience in range(4):
            async with connected() as (stream, peer):
                waiting = asyncio.ensure_future(stream.readexactly(10))
                await asyncio.sleep(0.005)
                peer.sendall(b"01234")
                size = 30_000_000
                blocked = asyncio.ensure_future(stream.write_all(bytes(size)))
                for _ in range(patience):
                    await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                peer.sendall(b"56789")
                assert await stream.readexactly(10) == b"0123456789"
                blocked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await blocked

    run(main())


def test_a_reader_is_notified_if_its_stream_moves_and_closes_at_once(run):
    async def main():
        async with connected() as (stream, _):
            waiting = asyncio.ensure_future(stream.readline())
            await asyncio.sleep(0.005)
            blocked = asyncio.ensure_future(stream.write_all(bytes(30_000_000)))
            await asyncio.sleep(0)
            stream.close()
            with pytest.raises(ConnectionAbortedError):
                await waiting
            with pytest.raises(OSError):
                await blocked

    run(main())


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_an_end_that_comes_with_the_last_bytes_is_read_after_them(run, how):
    async def main():
        for wait in (False, True):
            async with connected() as (stream, peer):
                waiting = asyncio.ensure_future(stream.readexactly(5))
                if wait:
                    await asyncio.sleep(0.005)
                peer.sendall(b"last words\nhalf")
                if how == "reset":
                    assert await waiting == b"last "
                    assert await stream.readline() == b"words\n"
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    peer.close()
                    with pytest.raises(ConnectionResetError):
                        await stream.readexactly(10)
                    assert await stream.read(100) == b"half"
                    for read in (stream.readexactly(10), stream.readline(), stream.read(100)):
                        with pytest.raises(ConnectionResetError) as raised:
                            await read
                        assert raised.value.errno == errno.ECONNRESET
                else:
                    peer.close()
                    assert await waiting == b"last "
                    assert await stream.readline() == b"words\n"
                    with pytest.raises(asyncio.IncompleteReadError) as cut:
                        await asyncio.wait_for(stream.readexactly(10), 5)
                    assert cut.value.partial == b"half"
                    assert await stream.read() == b""

    run(main())


def test_a_long_item_in_many_small_pieces_wakes_its_reader_once(run):
    async def main():
        async with connected() as (stream, peer):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = os.urandom(60_000)
            thread = in_pieces(peer, data, largest=300, end=False)
            assert await stream.readexactly(len(data)) == data
            thread.join()

    run(main())


@pytest.mark.parametrize("second", ["wakeloop", "asyncio"])
@pytest.mark.parametrize("close_first", [True, False])
def test_a_stream_outlives_its_loop(loop_factory, second, close_first):
    """The loops run one after the other in one thread. Data that arrived in the first is not lost."""
    server = socket.create_server(("127.0.0.1", 0))

    async def begin():
        stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
        peer, _ = server.accept()
        peer.sendall(b"one\ntwo\nth")
        assert await stream.readline() == b"one\n"
        waiting = asyncio.ensure_future(stream.readexactly(100))
        await asyncio.sleep(0.005)
        waiting.cancel()
        await asyncio.wait([waiting])
        return stream, peer

    async def go_on(stream, peer):
        assert await stream.readline() == b"two\n"
        waiting = asyncio.ensure_future(stream.readline())
        await asyncio.sleep(0.005)
        peer.sendall(b"ree\nfour\n")
        assert await waiting == b"three\n"
        await stream.write_all(b"answer")
        assert peer.recv(10) == b"answer"

    with server, contextlib.ExitStack() as stack:
        one, two = loop_factory(), loops.factory(second)()
        stack.callback(one.close)
        stack.callback(two.close)
        stream, peer = one.run_until_complete(begin())
        stack.callback(peer.close)
        stack.callback(stream.close)
        if close_first:
            one.close()
        two.run_until_complete(go_on(stream, peer))
        if not close_first:
            one.run_until_complete(finish(stream))


async def finish(stream):
    assert await stream.readline() == b"four\n"


def test_a_stream_is_taken_over_while_its_loop_sleeps_in_another_thread(loop_factory):
    server = socket.create_server(("127.0.0.1", 0))
    began, ended = threading.Event(), threading.Event()
    found = {}

    async def begin():
        stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
        found["peer"], _ = server.accept()
        found["stop"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        found["peer"].sendall(b"one\n")
        assert await stream.readline() == b"one\n"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stream.readline(), 0.005)
        found["stream"] = stream
        began.set()
        await found["stop"].wait()
        ended.set()

    async def take_over():
        for _ in range(100):
            waiting = asyncio.ensure_future(found["stream"].readline())
            await asyncio.sleep(0)
            found["peer"].sendall(b"two\n")
            assert await waiting == b"two\n"

    def run(coroutine):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(coroutine)

    with server:
        thread = threading.Thread(target=run, args=(begin(),))
        thread.start()
        assert began.wait(10)
        try:
            run(take_over())
            # The first loop sleeps on: the descriptor has left its poller.
            before = turns(found["loop"])
            run(take_over())
            assert turns(found["loop"]) - before < 5
        finally:
            found["loop"].call_soon_threadsafe(found["stop"].set)
            thread.join()
        found["stream"].close()
        found["peer"].close()


def test_add_reader_on_a_streams_descriptor_keeps_working(run, loop_name):
    async def main():
        loop = asyncio.get_running_loop()
        async with connected() as (stream, peer):
            seen = []
            loop.add_reader(stream.fileno(), seen.append, 1)
            waiting = asyncio.ensure_future(stream.readline())
            await asyncio.sleep(0.005)
            peer.sendall(b"line\n")
            assert await waiting == b"line\n"
            assert loop.remove_reader(stream.fileno())
            if loop_name == "wakeloop":
                assert not loop.remove_reader(stream.fileno())

    run(main())


def test_streams_work_on_reused_descriptors(run):
    """What the loop remembers of a descriptor ends with the stream."""

    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        for number in range(50):
            one, other = await asyncio.gather(
                wakeloop.TcpStream.connect("127.0.0.1", listener.port), listener.accept()
            )
            waiting = asyncio.ensure_future(one.readline())
            await asyncio.sleep(0)
            await other.write_all(b"%d\n" % number)
            assert await waiting == b"%d\n" % number
            pending = asyncio.ensure_future(other.readline())
            await asyncio.sleep(0)
            for stream in (one, other):
                stream.close()
            with pytest.raises(ConnectionAbortedError):
                await pending
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            async with await listener.accept() as other:
                await other.write_all(b"asyncio\n")
                assert await reader.readline() == b"asyncio\n"
            writer.close()
            await writer.wait_closed()
        listener.close()

    run(main())


def test_a_stream_is_usable_from_python_code_that_runs_during_a_read(run):
    """The constructor of an exception is Python code, and a trace function may do anything there."""

    constructors = [
        kind.__init__.__code__ for kind in (asyncio.LimitOverrunError, asyncio.IncompleteReadError)
    ]

    async def main():
        for how in ("close", "closed", "fileno", "write"):
            async with connected(limit=10) as (stream, peer):
                seen = []

                def trace(frame, event, _argument):
                    if frame.f_code in constructors and not seen:
                        seen.append(how)
                        match how:
                            case "close":
                                stream.close()
                            case "closed":
                                assert not stream.is_closing()
                            case "fileno":
                                assert stream.fileno() >= 0
                            case "write":
                                with pytest.raises(StopIteration):
                                    stream.write_all(b"x").send(None)

                peer.sendall(b"longer than the limit\n")
                for wrong in (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                    if wrong is asyncio.IncompleteReadError:
                        if stream.is_closing():
                            break
                        peer.shutdown(socket.SHUT_WR)
                        seen.clear()
                    read = stream.readuntil() if wrong is asyncio.LimitOverrunError else stream.readexactly(100)
                    await asyncio.sleep(0.005)
                    before = sys.gettrace()
                    sys.settrace(trace)
                    try:
                        with pytest.raises(wrong):
                            await read
                    finally:
                        sys.settrace(before)
                    assert seen == [how]

    run(main())


@pytest.mark.native
def test_a_dropped_loop_frees_its_stream(loop_factory):
    server = socket.create_server(("127.0.0.1", 0))

    async def begin():
        stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
        peer, _ = server.accept()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stream.readline(), 0.005)
        return stream, peer

    with server:
        loop = loop_factory()
        stream, peer = loop.run_until_complete(begin())
        loop.attribute = stream  # a cycle: the stream leads to the loop
        gone = weakref.ref(loop)
        with peer, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # recorded, it would keep what it is about
            del loop, stream
            gc.collect()
            assert gone() is None
            assert peer.recv(1) == b""


@pytest.mark.native
def test_a_forked_child_leaves_the_parents_registration_alone(loop_name):
    done = script.run_script(
        loop_name,
        """
        import os, socket, wakeloop
        async def main():
            with socket.create_server(("127.0.0.1", 0)) as server:
                stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
                peer, _ = server.accept()
                pending = asyncio.ensure_future(stream.readline())
                await asyncio.sleep(0.01)
                if not (child := os.fork()):
                    stream.close()
                    pending.cancel()
                    os._exit(0)
                os.waitpid(child, 0)
                for _ in range(3):
                    peer.sendall(b"still there\\n")
                    print(await pending, flush=True)
                    pending = asyncio.ensure_future(stream.readline())
                    await asyncio.sleep(0.001)
                stream.close()
                peer.close()
                await asyncio.wait([pending])
                print(type(pending.exception()).__name__)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        options=("-W", "ignore::DeprecationWarning"),
    )
    assert (done.code, done.out, done.err) == (0, "b'still there\\n'\n" * 3 + "ConnectionAbortedError\n", "")


def test_a_read_that_begins_while_another_one_begins_to_wait_is_refused():
    """The loop's create_future is Python code, which runs when the first read begins to wait."""

    async def main():
        loop, refused = asyncio.get_running_loop(), []
        make = loop.create_future

        def create_future():
            del loop.create_future
            with pytest.raises(RuntimeError, match="another task is already reading") as raised:
                stream.read(1).send(None)
            refused.append(raised.type)
            return make()

        async with connected() as (stream, peer):
            loop.create_future = create_future
            read = asyncio.ensure_future(stream.read(3))
            await asyncio.sleep(0)
            peer.sendall(b"one")
            assert await read == b"one" and refused == [RuntimeError]

    asyncio.run(main())
