"""`async with` on an operation that opens something, without an await of its own."""

import asyncio
import errno
import gc
import weakref

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_async_with_opens_and_closes_streams_listeners_and_sockets(run):
    async def main():
        async with wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            assert type(listener) is wakeloop.TcpListener
            async with (
                wakeloop.TcpStream.connect(listener.host, listener.port) as stream,
                listener.accept() as other,
            ):
                await stream.write_all(b"line\n")
                assert await other.readline() == b"line\n"
            assert stream.is_closing() and other.is_closing() and not listener.is_closing()
        assert listener.is_closing()
        async with wakeloop.UdpSocket.bind("127.0.0.1", 0) as one:
            async with wakeloop.UdpSocket.connect("127.0.0.1", one.port) as two:
                await two.send(b"data")
                assert await one.recv() == b"data"
        assert one.is_closing() and two.is_closing()
        async with wakeloop.start_echo_server("127.0.0.1", 0) as server:
            assert server.is_serving() and repr(server) == f"<wakeloop.EchoServer 127.0.0.1:{server.port}>"
        assert not server.is_serving() and repr(server) == f"<wakeloop.EchoServer closed 127.0.0.1:{server.port}>"

    run(main())


def test_an_operation_is_awaited_as_before(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        async with listener, await wakeloop.TcpStream.connect("127.0.0.1", listener.port) as stream:
            assert type(stream) is wakeloop.TcpStream
        assert listener.is_closing() and stream.is_closing()

    run(main())


def test_an_exception_in_the_body_closes_the_stream_and_goes_on(run):
    async def main():
        with pytest.raises(ZeroDivisionError):
            async with wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
                1 / 0
        assert listener.is_closing()

    run(main())


def test_a_failure_to_open_leaves_nothing_to_close(run):
    async def main():
        async with wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            with pytest.raises(OSError):
                async with wakeloop.start_echo_server("127.0.0.1", listener.port):
                    pytest.fail("the body ran")

    run(main())


def test_what_cannot_be_opened_names_its_address_as_asyncio_does(run):
    async def main():
        async with wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            port = listener.port
            in_use = f"error while attempting to bind on address ('127.0.0.1', {port}): address already in use"
            for opening in (wakeloop.start_echo_server, wakeloop.TcpListener.bind):
                with pytest.raises(OSError) as raised:
                    await opening("127.0.0.1", port)
                assert (raised.value.errno, raised.value.strerror) == (errno.EADDRINUSE, in_use)
        with pytest.raises(ConnectionAbortedError):
            async with wakeloop.TcpListener.bind("127.0.0.1", 0) as closing:
                accepting = asyncio.ensure_future(closing.accept())
                await asyncio.sleep(0)
            await accepting
        with pytest.raises(OSError, match="the listener is closed"):
            await closing.accept()
        # Nobody listens there any more.
        with pytest.raises(ConnectionRefusedError) as raised:
            await wakeloop.TcpStream.connect("127.0.0.1", port, timeout=20)
        assert raised.value.errno == errno.ECONNREFUSED
        assert raised.value.strerror == f"Connect call failed ('127.0.0.1', {port})"

    run(main())


def test_a_task_that_is_cancelled_while_it_opens_leaves_nothing_open(run):
    async def main():
        async def accept(listener):
            async with listener.accept():
                pytest.fail("the body ran")

        async with wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            task = asyncio.create_task(accept(listener))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main())


def test_what_was_opened_is_not_kept_after_the_end(run):
    async def main():
        operation = wakeloop.TcpListener.bind("127.0.0.1", 0)
        async with operation as listener:
            kept = weakref.ref(listener)
        del listener
        gc.collect()
        assert kept() is None
        with pytest.raises(RuntimeError, match="already awaited TcpListener.bind"):
            async with operation:
                pytest.fail("the body ran")
        with pytest.raises(RuntimeError, match="has opened nothing"):
            operation.__aexit__(None, None, None)

    run(main())


def test_an_operation_that_opens_nothing_is_refused_before_it_starts(run):
    async def main():
        operation = wakeloop.sleep(0)
        with pytest.raises(TypeError, match=r"sleep\(\) opens nothing that 'async with' could close"):
            async with operation:
                pytest.fail("the body ran")
        await operation

    run(main())
