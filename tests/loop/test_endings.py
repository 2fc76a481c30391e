"""The end of servers, transports and loops: warnings for objects that were not closed, and the default executor."""

import asyncio
import gc
import inspect
import re
import socket
import sys
import threading
import time
import warnings
import weakref

import pytest

from tests.support.builds import FREE_THREADED
from tests.support.protocol import HalfOpen, Recording, close, pair
from tests.support.script import run_script


def test_an_unclosed_server_warns_when_its_loop_is_freed(loop_factory):
    """The warning is for its listening socket, as in asyncio: the server object itself is pure Python."""
    loop = loop_factory()
    server = loop.run_until_complete(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
    descriptor = server.sockets[0].fileno()
    loop.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del server, loop
        gc.collect()
    texts = [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    assert [text for text in texts if f"fd={descriptor}" in text], texts


def test_a_closed_server_is_freed_with_its_protocols(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        watched = weakref.ref(server)
        server.close()
        await server.wait_closed()
        del server
        gc.collect()
        assert watched() is None

    run(main())


def test_a_closed_transport_releases_its_protocol(run):
    async def main():
        near, far = await pair()
        watched = weakref.ref(near)
        transport = near.transport
        await close(near, far)
        assert transport.get_protocol() is near or transport.get_protocol() is None
        del near, far, transport
        await asyncio.sleep(0)
        gc.collect()
        assert watched() is None

    run(main())


def test_an_unclosed_transport_that_its_warning_revives_is_still_known_to_the_collector(loop_factory):
    loop, (ours, theirs) = loop_factory(), socket.socketpair()
    transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=ours))
    transport.pause_reading()
    loop.close()
    with theirs, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        del transport, _
        gc.collect()
    (revived,) = [warning.source for warning in caught if "unclosed transport" in str(warning.message)]
    assert gc.is_tracked(revived)
    watched = weakref.ref(revived)
    del revived, caught
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("end", ["close", "write_eof", "abort"])
def test_a_peer_on_the_same_loop_sees_eof_in_the_next_iterations(run, end):
    """A program may use both ends. After one was closed, every iteration polls the descriptors."""

    async def turns(count):
        for _ in range(count):
            await asyncio.sleep(0)

    async def main():
        near, far = await pair()
        await turns(5)
        getattr(near.transport, end)()
        await turns(5)
        assert far.ended.done() or far.lost.done()

    run(main())


def test_eof_received_is_called_again_when_reading_is_resumed_after_eof(run):
    """asyncio removes a half-closed socket from its selector, and resuming adds it again. So the next protocol gets
    eof_received too.
    """

    async def main():
        near, far = await pair(far=HalfOpen)
        near.transport.write_eof()
        await far.ended
        far.transport.pause_reading()
        second = HalfOpen()
        second.connection_made(far.transport)
        far.transport.set_protocol(second)
        far.transport.resume_reading()
        await second.ended
        assert far.calls.count("eof_received") == 1 and not far.transport.is_closing()
        far.transport.write(b"late")
        assert await near.received(4) == b"late"
        far.transport.close()
        await near.lost
        await second.lost

    run(main())


def test_loop_handle_task_and_transport_can_be_weakly_referenced(loop):
    async def main():
        near, far = await pair()
        task = asyncio.current_task()
        things = [near.transport, task, loop.call_soon(int), loop.call_later(0, int), loop, loop.create_future()]
        assert [weakref.ref(thing)() for thing in things] == things
        await close(near, far)

    loop.run_until_complete(main())


@pytest.mark.skipif(
    "timeouts.timeout(" not in inspect.getsource(asyncio.BaseEventLoop.shutdown_default_executor),
    reason="the timeout is new in 3.12, whose first releases wait without it",
)
def test_shutdown_default_executor_times_out(loop):
    """shutdown_default_executor(timeout) warns and returns. The thread ends when its work does."""
    release = threading.Event()
    future = loop.run_in_executor(None, release.wait, 10)
    try:
        with pytest.warns(RuntimeWarning, match="did not finishing joining its threads within 0.05 seconds"):
            loop.run_until_complete(loop.shutdown_default_executor(timeout=0.05))
    finally:
        release.set()
    assert loop.run_until_complete(future) is True


def test_the_executor_is_refused_after_its_shutdown(loop):
    loop.run_until_complete(loop.run_in_executor(None, int))
    loop.run_until_complete(loop.shutdown_default_executor())
    with pytest.raises(RuntimeError, match="Executor shutdown has been called"):
        loop.run_in_executor(None, int)


def test_an_async_generator_made_after_the_shutdown_warns(loop):
    async def generator():
        yield 1

    async def main():
        await loop.shutdown_asyncgens()
        with pytest.warns(ResourceWarning, match="was scheduled after loop.shutdown_asyncgens"):
            made = generator()
            await anext(made)
            await made.aclose()

    loop.run_until_complete(main())


def test_an_error_in_an_async_generators_cleanup_goes_to_the_handler(loop):
    contexts = []
    loop.set_exception_handler(lambda loop, context: contexts.append(context))

    async def generator():
        try:
            yield 1
        finally:
            raise ValueError("in the cleanup")

    async def main():
        main.kept = generator()
        await anext(main.kept)

    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert "an error occurred during closing of asynchronous generator" in contexts[0]["message"]
    assert isinstance(contexts[0]["exception"], ValueError) and contexts[0]["asyncgen"] is main.kept


def test_the_programs_async_generator_hooks_are_restored_after_a_run(loop):
    mine = (lambda generator: None, None)
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(*mine)
    try:
        loop.run_until_complete(asyncio.sleep(0))
        assert tuple(sys.get_asyncgen_hooks()) == mine
    finally:
        sys.set_asyncgen_hooks(*before)


def test_connect_accepted_socket_takes_over_a_connection_and_its_first_data(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with socket.create_connection(listener.getsockname()) as client:
                client.sendall(b"sent before anybody looked")
                accepted, _ = listener.accept()
                transport, protocol = await loop.connect_accepted_socket(Recording, accepted)
                assert await protocol.received(26) == b"sent before anybody looked"
                assert transport.get_extra_info("peername") == client.getsockname()
                transport.write(b"answer")
                transport.close()
                await protocol.lost
                assert accepted.fileno() == -1 and client.recv(100) == b"answer"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wrong:
            with pytest.raises(ValueError, match="A Stream Socket was expected"):
                await loop.connect_accepted_socket(Recording, wrong)
        with socket.socket() as idle:
            with pytest.raises(ValueError, match="ssl_handshake_timeout is only meaningful with ssl"):
                await loop.connect_accepted_socket(Recording, idle, ssl_handshake_timeout=1)

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="keep_alive is new in 3.13")
def test_keep_alive_is_set_on_the_listener_and_reaches_its_connections(run):
    async def main():
        loop, served = asyncio.get_running_loop(), []

        def serve():
            served.append(Recording())
            return served[-1]

        for wanted in (True, False, None):
            server = await loop.create_server(serve, "127.0.0.1", 0, keep_alive=wanted)
            listening = server.sockets[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            _, client = await loop.create_connection(Recording, *server.sockets[0].getsockname())
            await asyncio.wait_for(_accepted(served), 5)
            reached = served[-1].transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert (listening, reached) == (bool(wanted), bool(wanted))
            server.close()
            await close(client, served.pop())

    run(main())


async def _accepted(served):
    while not served or served[-1].transport is None:
        await asyncio.sleep(0)


def test_serve_forever_may_be_called_once_at_a_time_and_not_after_close(run):
    async def main():
        server = await asyncio.get_running_loop().create_server(Recording, "127.0.0.1", 0)
        serving = asyncio.ensure_future(server.serve_forever())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="is already being awaited on serve_forever"):
            await server.serve_forever()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(RuntimeError, match="is closed"):
            await server.serve_forever()
        assert server.sockets == ()

    run(main())


def test_a_slow_callback_is_one_that_takes_slow_callback_duration(run, asyncio_log):
    async def main():
        loop = asyncio.get_running_loop()
        assert loop.slow_callback_duration == 0.1
        loop.slow_callback_duration = 10
        loop.call_soon(time.sleep, 0.02)
        await asyncio.sleep(0.03)
        assert "Executing" not in asyncio_log.text
        loop.slow_callback_duration = 0.01
        loop.call_soon(time.sleep, 0.02)
        await asyncio.sleep(0.03)
        assert "Executing" in asyncio_log.text

    run(main(), debug=True)


UNCLOSED = """
async def make():
    loop = asyncio.get_running_loop()
    if KIND == "stream":
        near, kept_far = socket.socketpair()
        return (await loop.create_connection(asyncio.Protocol, sock=near))[0], kept_far.detach()
    if KIND == "datagram":
        return await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
    reading, writing = os.pipe()
    if KIND == "read pipe":
        return (await loop.connect_read_pipe(asyncio.Protocol, open(reading, "rb", 0)))[0], writing
    return (await loop.connect_write_pipe(asyncio.Protocol, open(writing, "wb", 0)))[0], reading

loop = new_loop()
kept = loop.run_until_complete(make())
if CLOSES:
    loop.close()
"""


@pytest.mark.parametrize("closes", [True, False], ids=["closed loop", "unclosed loop"])
@pytest.mark.parametrize("kind", ["stream", "datagram", "read pipe", "write pipe"])
def test_a_transport_that_is_left_open_at_exit_warns(loop_name, kind, closes):
    """Also while the interpreter ends, when modules are gone."""
    if FREE_THREADED and loop_name == "asyncio" and not closes:
        pytest.skip("there the collector may close asyncio's socket before its transport warns")
    before = f"import os, socket, sys\nKIND, CLOSES = {kind!r}, {closes}\n"
    outcome = run_script(loop_name, UNCLOSED, before=before, options=["-W", "always"])
    assert outcome.code == 0, outcome
    lines = [line for line in outcome.err.splitlines() if "ResourceWarning: unclosed transport" in line]
    ends = {"stream": "", "datagram": "", "read pipe": " open", "write pipe": " open"}
    assert len(lines) == 1 and re.search(rf"Transport fd=\d+{ends[kind]}>$", lines[0]), outcome
    assert ("unclosed event loop" in outcome.err) == (not closes), outcome


FREED_LAST = """
import builtins

class Last:
    def __init__(self, loop):
        self.loop = loop

    def __del__(self, print=print, TypeError=TypeError):
        loop = self.loop
        loop.call_soon(print, "called")
        if REPORTS:
            loop.call_soon_threadsafe(lambda: 1 / 0)
        loop.call_later(0, loop.stop)
        loop.run_forever()
        try:
            loop.call_later()
        except TypeError as error:
            print(str(error).partition(" missing")[2])

loop = new_loop()
loop.set_debug(DEBUG)
builtins.last = Last(loop)
del loop
"""


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
def test_what_is_freed_at_exit_can_use_its_loop(loop_name, debug):
    """An attribute of `builtins` is freed when no module can be imported any more."""
    # On 3.13 a traceback cannot be printed at that point.
    reports = sys.version_info[:2] != (3, 13)
    outcome = run_script(loop_name, FREED_LAST, before=f"import logging\nDEBUG, REPORTS = {debug}, {reports}\n")
    assert outcome.code == 0 and "called\n" in outcome.out, outcome
    assert "2 required positional arguments: 'delay' and 'callback'" in outcome.out, outcome
    assert "ImportError" not in outcome.err, outcome
    assert ("Exception in callback" in outcome.err and "ZeroDivisionError" in outcome.err) == reports, outcome
