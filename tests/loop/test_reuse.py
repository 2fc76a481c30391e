"""A recycled object looks like a new one to the collector, to `next`, and to code that kept the previous object."""

import asyncio
import contextlib
import contextvars
import gc
import socket
import struct
import sys
import tracemalloc
import warnings
import weakref

import pytest

import wakeloop
from tests.support.builds import needs_ordered_collector


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def sockets():
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        yield near, far


async def some_waits(count=3):
    """Reads that each wait for a future, so that the loop has recycled objects before a test looks."""
    loop = asyncio.get_running_loop()
    async with sockets() as (near, far):
        for _ in range(count):
            task = asyncio.ensure_future(loop.sock_recv(near, 1))
            await turns()
            far.send(b"x")
            assert await asyncio.wait_for(task, 10) == b"x"
        reader, writer = await wakeloop.open_connection(sock=near.dup())
        for _ in range(count):
            task = asyncio.ensure_future(reader.readexactly(1))
            await turns()
            far.send(b"x")
            assert await asyncio.wait_for(task, 10) == b"x"
        writer.close()
        await writer.wait_closed()
    await turns()


def futures():
    return [thing for thing in gc.get_objects() if type(thing) is asyncio.Future]


# -- futures and the collector -------------------------------------------------------------------------


@needs_ordered_collector
def test_connections_reset_by_the_peer_leave_nothing_to_log(run, asyncio_log):
    """The collector is off until the end: on asyncio's loop too, a collection between the creation of a protocol and that
    of its future makes the next full one end the future first, which then logs the exception."""

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async def connected(stack, port):
        loop = asyncio.get_running_loop()
        peers = [stack.enter_context(socket.socket()) for _ in range(30)]
        for peer in peers:
            peer.setblocking(False)
            await loop.sock_connect(peer, ("127.0.0.1", port))
        for peer in peers:
            await loop.sock_sendall(peer, b"x")
            assert await loop.sock_recv(peer, 1) == b"x"
        return peers

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with contextlib.ExitStack() as stack:
            await connected(stack, port)
            for peer in await connected(stack, port):
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.05)
        server.close()
        await server.wait_closed()

    gc.collect()
    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()
    gc.collect()
    assert [record.getMessage() for record in asyncio_log.records if record.levelname == "ERROR"] == []


class Holder:
    """Looks at the exception of its future when it is collected, as StreamReaderProtocol does."""

    def __init__(self, future=None):
        self.future = future or asyncio.get_running_loop().create_future()
        self.future.set_exception(ValueError("seen by its holder"))
        self.cycle = self

    def __del__(self):
        self.future.exception()


@needs_ordered_collector
@pytest.mark.parametrize("older", ["holder", "future"])
def test_finalizers_in_a_dead_cycle_run_in_the_order_of_creation(run, asyncio_log, older):
    async def main():
        await some_waits()
        future = asyncio.get_running_loop().create_future() if older == "future" else None
        Holder(future)
        del future
        gc.collect()

    run(main())
    assert [record.getMessage().partition("\n")[0] for record in asyncio_log.records if record.levelname == "ERROR"] == (
        [] if older == "holder" else ["Future exception was never retrieved"]
    )


def test_a_new_future_is_in_the_youngest_generation(run):
    async def main():
        await some_waits()
        gc.collect()
        future = asyncio.get_running_loop().create_future()
        assert any(thing is future for thing in gc.get_objects(generation=0))
        assert not gc.is_finalized(future)

    run(main())


def test_no_future_is_left_when_nobody_waits(run):
    async def main():
        gc.collect()
        before = len(futures())
        await some_waits()
        assert len(futures()) == before

    run(main())


def test_a_reference_to_a_finished_future_is_the_last_one(run):
    class Thing:
        pass

    async def main():
        loop = asyncio.get_running_loop()
        async with sockets() as (near, far):
            for _ in range(5):
                task = asyncio.ensure_future(loop.sock_recv(near, 1))
                await turns()
                future = task._fut_waiter
                far.send(b"x")
                await asyncio.wait_for(task, 10)
                del task
                await turns()
                like_it = loop.create_future()
                assert sys.getrefcount(future) == sys.getrefcount(like_it)
                future.thing = thing = Thing()
                gone = weakref.ref(future), weakref.ref(thing)
                del future, thing
                assert [reference() for reference in gone] == [None, None]

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


# -- the StopIteration that ends an await --------------------------------------------------------------


async def received(near, far):
    far.send(b"hello")
    return b"hello", asyncio.get_running_loop().sock_recv(near, 100)


async def received_into(near, far):
    far.send(b"hello")
    return 5, asyncio.get_running_loop().sock_recv_into(near, bytearray(100))


async def received_from(near, far):
    far.send(b"hello")
    return (b"hello", None), asyncio.get_running_loop().sock_recvfrom(near, 100)


async def sent(near, far):
    return None, asyncio.get_running_loop().sock_sendall(near, b"hello")


VALUES = {"bytes": received, "int": received_into, "tuple": received_from, "None": sent}
STEPS = {
    "next": lambda steps: next(steps),
    "send": lambda steps: steps.send(None),
}


@pytest.mark.parametrize("begin", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_an_await_ends_with_a_stop_iteration_that_has_the_value(run, begin, step):
    async def main():
        caught = []
        for _ in range(3):
            async with sockets() as (near, far):
                value, awaitable = await begin(near, far)
                with pytest.raises(StopIteration) as raised:
                    step(awaitable.__await__())
                assert raised.value.value == value
                assert raised.value.args == (() if value is None else (value,))
                assert raised.value.__context__ is None and raised.value.__cause__ is None
                caught.append(raised.value)
                await some_waits(1)
        assert len(set(map(id, caught))) == 3
        assert [stop.value for stop in caught] == 3 * [value]
        assert len({id(stop.__traceback__) for stop in caught}) == 3

    run(main())


def test_the_stop_iteration_of_a_waiting_read_has_the_value(run):
    async def main():
        async with sockets() as (near, far):
            for number in range(3):
                steps = asyncio.get_running_loop().sock_recv(near, 100).__await__()
                future = steps.send(None)
                assert asyncio.isfuture(future)
                future._asyncio_future_blocking = False
                far.send(b"%d" % number)
                while not future.done():
                    await asyncio.sleep(0)
                with pytest.raises(StopIteration) as raised:
                    next(steps)
                assert raised.value.args == (b"%d" % number,)

    run(main())


def test_a_stop_iteration_during_an_exception_has_the_context_that_a_coroutines_has(run):
    async def main():
        async with sockets() as (near, far):
            far.send(b"hello")
            steps = asyncio.get_running_loop().sock_recv(near, 100).__await__()
            outer = ValueError()
            try:
                raise outer
            except ValueError:
                with pytest.raises(StopIteration) as raised:
                    next(steps)
            assert raised.value.__context__ is (outer if sys.version_info < (3, 14) else None)

    run(main())


@pytest.mark.parametrize("begin", [received, received_into], ids=["bytes", "int"])
def test_a_stop_iteration_is_referenced_only_where_it_is_caught(run, begin):
    async def main():
        async with sockets() as (near, far):
            await some_waits()
            _, awaitable = await begin(near, far)
            try:
                next(awaitable.__await__())
            except StopIteration as stop:
                try:
                    raise StopIteration(1)
                except StopIteration as like_it:
                    assert sys.getrefcount(stop) == sys.getrefcount(like_it) + (like_it.__context__ is stop)
                    del like_it
                assert any(thing is stop for thing in gc.get_objects(generation=0))

    run(main())


@pytest.mark.native
def test_native_reads_end_with_a_stop_iteration_that_has_the_value(run):
    async def main():
        async with sockets() as (near, far):
            reader, writer = await wakeloop.open_connection(sock=near.dup())
            for read, value in [
                (lambda: reader.readexactly(5), b"hello"),
                (lambda: reader.read(5), b"hello"),
                (lambda: reader.readline(), b"hello\n"),
                (lambda: reader.readuntil(b"lo"), b"hello"),
                (lambda: reader.__anext__(), b"hello\n"),
            ]:
                far.send(value)
                await asyncio.sleep(0.01)
                with pytest.raises(StopIteration) as raised:
                    next(read().__await__())
                assert raised.value.args == (value,) and raised.value.value == value
            writer.close()
            await writer.wait_closed()

    run(main())


@pytest.mark.native
def test_a_tcp_stream_ends_an_await_with_a_stop_iteration_that_has_the_value(run, runtime):
    async def main():
        async with await wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            near = await wakeloop.TcpStream.connect("127.0.0.1", listener.port)
            far = await listener.accept()
            async with near, far:
                caught = []
                for _ in range(3):
                    await far.write_all(b"hello")
                    await asyncio.sleep(0.01)
                    with pytest.raises(StopIteration) as raised:
                        next(near.readexactly(5).__await__())
                    assert raised.value.args == (b"hello",)
                    caught.append(raised.value)
                assert len(set(map(id, caught))) == 3

    run(main())


def test_an_awaitable_that_somebody_holds_does_not_keep_its_result(run):
    async def main():
        loop = asyncio.get_running_loop()
        async with sockets() as (near, far):
            far.send(b"hello")
            awaitable = loop.sock_recv(near, 100)
            data = await awaitable
            alike = bytes(bytearray(b"hello"))
            assert sys.getrefcount(data) == sys.getrefcount(alike)

    run(main())


def test_data_that_a_read_returns_has_no_other_owner(run):
    async def main():
        loop = asyncio.get_running_loop()
        message = bytes(bytearray(2000))
        async with sockets() as (near, far):
            far.send(message)
            from_socket = await loop.sock_recv(near, len(message))
        near, far = socket.socketpair()
        with far:
            reader, writer = await wakeloop.open_connection(sock=near)
            far.send(message)
            from_reader = await reader.readexactly(len(message))
            writer.close()
            await writer.wait_closed()
        for data in (from_socket, from_reader):
            assert data == message
            del data
        assert sys.getrefcount(from_socket) == sys.getrefcount(from_reader) == sys.getrefcount(message)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("keep", [lambda data: data, memoryview, lambda data: [data], lambda data: iter(data)])
def test_data_that_was_written_stays_as_it_is_for_code_that_holds_it(run, keep):
    async def main():
        near, far = socket.socketpair()
        with far:
            reader, writer = await wakeloop.open_connection(sock=near)
            kept = []
            for number in range(1, 20):
                far.send(bytes([number]) * 1024)
                data = await reader.readexactly(1024)
                kept.append(keep(data))
                writer.write(data)
                del data
                await writer.drain()
                await turns()
                assert far.recv(2000) == bytes([number]) * 1024
            for number, each in enumerate(kept, 1):
                assert bytes(each[0] if isinstance(each, list) else each) == bytes([number]) * 1024
            writer.close()
            await writer.wait_closed()

    run(main())


@pytest.mark.native
def test_data_in_used_memory_has_a_hash_of_its_own(run):
    async def main():
        near, far = socket.socketpair()
        with far:
            reader, writer = await wakeloop.open_connection(sock=near)
            for number in range(1, 20):
                far.send(bytes([number]) * 1024)
                data = await reader.readexactly(1024)
                assert hash(data) == hash(bytes(bytearray([number]) * 1024))
                writer.write(data)
                del data
                await writer.drain()
                await turns()
            writer.close()
            await writer.wait_closed()

    run(main())


def test_objects_of_a_class_of_bytes_die_when_they_are_sent(run):
    class Data(bytes):
        def __del__(self):
            died.append(len(self))

    async def main():
        near, far = socket.socketpair()
        with far:
            _, writer = await wakeloop.open_connection(sock=near)
            writer.write(Data(1024))
            await turns()
            assert died == [1024]
            writer.close()
            await writer.wait_closed()

    died = []
    run(main())


# -- how much is kept ----------------------------------------------------------------------------------


def test_of_many_messages_that_were_sent_only_a_few_are_kept(run):
    count, size = 1000, 1024

    class Keeping(asyncio.Protocol):
        def __init__(self):
            self.messages, self.news = [], asyncio.Event()

        def data_received(self, data):
            self.messages.append(data)
            self.news.set()

    async def main():
        loop = asyncio.get_running_loop()
        async with sockets() as (near, far):
            transport, protocol = await loop.create_connection(Keeping, sock=near)
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(count):
                protocol.news.clear()
                far.send(bytes(size))
                await protocol.news.wait()
            assert [len(message) for message in protocol.messages] == count * [size]
            assert tracemalloc.get_traced_memory()[0] - before > count * size
            while protocol.messages:
                transport.write(protocol.messages.pop())
            left = count * size
            while left:
                left -= len(await loop.sock_recv(far, 1 << 16))
            kept = tracemalloc.get_traced_memory()[0] - before
            transport.abort()
            await turns()
            return kept

    tracemalloc.start()
    try:
        assert run(main()) < count * size / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["callback", "timer", "awaitable"])
def test_of_many_objects_that_end_at_once_only_a_few_are_kept(run, kind):
    count = 5000

    async def main():
        loop = asyncio.get_running_loop()
        async with sockets() as (near, _):
            make, end = {
                "callback": (lambda: loop.call_soon(int), "cancel"),
                "timer": (lambda: loop.call_later(100, int), "cancel"),
                "awaitable": (lambda: loop.sock_recv(near, 1), "close"),
            }[kind]
            gc.collect()
            before = sys.getallocatedblocks()
            objects = [make() for _ in range(count)]
            assert sys.getallocatedblocks() - before >= count - 300
            while objects:
                getattr(objects.pop(), end)()
            await turns()
            gc.collect()
            return sys.getallocatedblocks() - before

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # they are never awaited
        assert run(main()) < count / 4


# -- contexts ------------------------------------------------------------------------------------------


def test_a_token_belongs_to_the_context_of_its_callback_alone(run):
    async def main():
        loop = asyncio.get_running_loop()
        variable = contextvars.ContextVar("variable", default="unset")
        tokens, errors, seen = [], [], []

        def begin():
            seen.append(variable.get())
            tokens.append(variable.set("begun"))

        def end():
            try:
                variable.reset(tokens.pop())
            except ValueError:
                errors.append(variable.get())

        for _ in range(5):
            loop.call_soon(begin)
            await asyncio.sleep(0)
            loop.call_soon(end)
            await asyncio.sleep(0)
        assert seen == 5 * ["unset"] and errors == 5 * ["unset"]

    run(main())
