"""Awaitables are stepped, thrown into and closed by hand, as a coroutine of Python can be."""

import asyncio
import inspect
import sys

import pytest

import wakeloop
from tests.support.sockets import socketpair

#: Calls that end at once.
CALLS = {
    "Event.wait": lambda event, file, sock: event.wait(),
    "File.read": lambda event, file, sock: file.read(),
    "sleep": lambda event, file, sock: wakeloop.sleep(0),
    "sock_sendall": lambda event, file, sock: asyncio.get_running_loop().sock_sendall(sock, b"x"),
    "a coroutine": lambda event, file, sock: asyncio.sleep(0),
}


@pytest.mark.native
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_call_that_is_over_can_be_closed_but_not_stepped_or_thrown_into(run, runtime, tmp_path, call):
    path = tmp_path / "file"
    path.write_bytes(b"")

    async def main():
        event = wakeloop.Event()
        event.set()
        async with wakeloop.open(path) as file:
            with socketpair() as (sock, _):
                made = call(event, file, sock)
                await made
        for use in (lambda: made.send(None), lambda: made.throw(ZeroDivisionError("thrown"))):
            with pytest.raises(RuntimeError, match="cannot reuse already awaited|already awaited"):
                use()
        with pytest.raises(TypeError, match="exceptions must be classes or instances"):
            made.throw(1)
        made.close()
        assert inspect.getcoroutinestate(made) == "CORO_CLOSED"

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="buffers cannot run code of Python")
def test_a_call_cannot_be_used_within_its_own_step(run):
    class Target:
        def __init__(self):
            self.seen = []

        def __buffer__(self, flags):
            for use in (lambda: call.send(None), lambda: call.throw(ZeroDivisionError()), lambda: call.close()):
                with pytest.raises(ValueError, match="^coroutine already executing$"):
                    use()
            self.seen.append((inspect.getcoroutinestate(call), call.cr_running))
            return memoryview(bytearray(1))

    async def main():
        nonlocal call
        with socketpair() as (sock, peer):
            peer.send(b"x")
            target = Target()
            call = asyncio.get_running_loop().sock_recv_into(sock, target)
            assert await call == 1
            assert target.seen == [("CORO_RUNNING", True)]

    call = None
    run(main())


@pytest.mark.native
def test_the_repr_says_what_was_called_and_of_which_object(run, runtime, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")

    async def main():
        loop, queue, event = asyncio.get_running_loop(), wakeloop.Queue(), wakeloop.Event()
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        address = server.host, server.port
        reader, writer = await wakeloop.open_connection(*address)
        with socketpair() as (sock, _):
            async with server, wakeloop.open(path, "rb") as file, wakeloop.TcpStream.connect(*address) as stream:
                made = [
                    (wakeloop.sleep(1), "sleep"),
                    (queue.get(), f"Queue.get on {queue!r}"),
                    (event.wait(), f"Event.wait on {event!r}"),
                    (stream.read(), f"TcpStream.read on {stream!r}"),
                    (file.read(), f"File.read on {file!r}"),
                    (loop.sock_recv(sock, 1), f"EventLoop.sock_recv on {sock!r}"),
                    (reader.read(), f"StreamReader.read on {reader!r}"),
                ]
                for awaitable, text in made:
                    assert repr(awaitable) == f"<wakeloop operation {text}>"
                    awaitable.close()
                    assert repr(awaitable) == f"<wakeloop operation {text.partition(' ')[0]}>"
                waiting = asyncio.create_task(stream.read())
                await asyncio.sleep(0)
                assert repr(waiting.get_coro()) == f"<wakeloop operation TcpStream.read on {stream!r}>"
                waiting.cancel()
                writer.close()
                await writer.wait_closed()

    run(main())
