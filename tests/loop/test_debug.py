"""Debug mode logs what asyncio logs, at the same points."""

import asyncio
import logging
import os
import re
import socket
import struct
import sys
import threading
import time

import pytest

from tests.loop.test_scheduling import run_once


@pytest.fixture
def debug(loop):
    loop.set_debug(True)
    loop.slow_callback_duration = 60
    return loop


def callback(*args):
    pass


def sluggish(seconds=0.03):
    time.sleep(seconds)


def test_a_slow_callback_is_logged(debug, asyncio_log):
    debug.slow_callback_duration = 0.01
    debug.call_soon(sluggish)
    run_once(debug)
    (record,) = [record for record in asyncio_log.records if record.levelno == logging.WARNING]
    line = sluggish.__code__.co_firstlineno
    message = record.getMessage()
    assert record.name == "asyncio"
    assert message.startswith(f"Executing <Handle sluggish() at {__file__}:{line} created at {__file__}:")
    assert message.endswith(" seconds") and 0.03 <= float(message.split()[-2]) < 10


@pytest.mark.parametrize("schedule", ["call_soon", "call_soon_threadsafe", "call_later"])
def test_a_slow_callback_that_fails_is_logged_by_its_name(debug, asyncio_log, schedule):
    debug.slow_callback_duration = 0.01
    debug.set_exception_handler(lambda loop, context: None)

    def failing(number):
        time.sleep(0.02)
        raise ZeroDivisionError

    getattr(debug, schedule)(*[0.001][: schedule == "call_later"], failing, 5)
    debug.call_later(0.002, debug.stop)
    debug.run_forever()
    [line] = [line for line in asyncio_log.messages if line.startswith("Executing <")]
    assert ".failing(5) at " in line


def test_a_slow_step_of_a_task_is_logged_with_the_task(run, asyncio_log):
    async def main():
        asyncio.get_running_loop().slow_callback_duration = 0.01
        asyncio.current_task().set_name("the slow one")
        await asyncio.sleep(0)
        time.sleep(0.03)
        await asyncio.sleep(0)

    run(main(), debug=True)
    assert "Executing <Task pending name='the slow one' coro=<" in asyncio_log.text


class Sluggish(asyncio.Protocol):
    """Takes its time in one of its methods."""

    def __init__(self, method):
        self.lost = asyncio.get_running_loop().create_future()
        setattr(self, method, lambda *args: (getattr(type(self), method)(self, *args), sluggish())[0])

    def connection_lost(self, exc):
        self.lost.set_result(None)


@pytest.mark.parametrize("method", ["connection_made", "data_received", "eof_received", "connection_lost"])
@pytest.mark.parametrize("kind", ["connection", "pipe", "tls"])
def test_a_slow_method_of_a_protocol_is_logged(run, loop_name, tls, asyncio_log, kind, method):
    """asyncio names the transport's method that called the protocol. Our transports have no such method, so the log
    names the protocol.
    """

    async def main():
        loop = asyncio.get_running_loop()
        if kind == "pipe":
            end, writer = os.pipe()
            _, protocol = await loop.connect_read_pipe(lambda: Sluggish(method), os.fdopen(end, "rb", 0))
            peer = os.fdopen(writer, "wb", 0)
        else:
            tcp = {"ssl": tls.client(), "server_hostname": "localhost"} if kind == "tls" else {}
            server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls.server() if tcp else None)
            address = server.sockets[0].getsockname()
            _, protocol = await loop.create_connection(lambda: Sluggish(method), *address, **tcp)
            server.close()
            peer = await served.get()
        peer.write(b"data")
        await asyncio.sleep(0.01)
        peer.close()
        await protocol.lost
        await asyncio.sleep(0.01)

    async def serve(reader, writer):
        await served.put(writer)

    async def watched():
        asyncio.get_running_loop().slow_callback_duration = 0.02
        await main()

    served = asyncio.Queue()
    run(watched(), debug=True)
    slow = [record.getMessage() for record in asyncio_log.records if record.getMessage().startswith("Executing <")]
    if loop_name == "wakeloop":
        slow = [line for line in slow if "Sluggish" in line]
    assert slow and all(line.endswith(" seconds") for line in slow)


@pytest.mark.parametrize("limit", [None, "long"])
def test_a_limit_for_slow_callbacks_that_is_no_number_is_an_error_of_run_forever(debug, limit):
    seen = []
    debug.slow_callback_duration = limit
    debug.call_soon(seen.append, 1)
    debug.call_soon(seen.append, 2)
    debug.call_later(0.1, debug.stop)
    with pytest.raises(TypeError, match="not supported between instances of 'float' and "):
        debug.run_forever()
    assert seen == [1] and not debug.is_running()
    debug.slow_callback_duration = 60
    run_once(debug)
    assert seen == [1, 2]


def test_an_error_of_the_line_about_a_slow_callback_leaves_run_forever(debug, asyncio_log):
    class Nameless:
        def __call__(self):
            pass

        def __repr__(self):
            raise ZeroDivisionError

    debug.slow_callback_duration = 0
    debug.call_soon(Nameless())
    debug.call_soon(debug.stop)
    with pytest.raises(ZeroDivisionError):
        debug.run_forever()
    debug.slow_callback_duration = 60
    run_once(debug)


def test_a_fast_callback_is_not_logged(debug, asyncio_log):
    debug.call_soon(callback)
    run_once(debug)
    assert [record for record in asyncio_log.records if record.levelno >= logging.WARNING] == []


def test_without_debug_nothing_is_timed(loop, asyncio_log):
    loop.slow_callback_duration = 0.001
    loop.call_soon(sluggish, 0.01)
    run_once(loop)
    assert [record for record in asyncio_log.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("method, delay", [("call_soon", ()), ("call_later", (0,)), ("call_at", (0,))])
def test_scheduling_from_another_thread_is_refused(debug, method, delay):
    errors = []

    def attempt():
        try:
            getattr(debug, method)(*delay, callback)
        except RuntimeError as error:
            errors.append(str(error))

    def start():
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    debug.call_soon(start)
    run_once(debug)
    assert errors == ["Non-thread-safe operation invoked on an event loop other than the current one"]


def test_a_loop_that_does_not_run_may_be_filled_from_any_thread(debug):
    seen = []
    thread = threading.Thread(target=debug.call_soon, args=(seen.append, "called"))
    thread.start()
    thread.join()
    run_once(debug)
    assert seen == ["called"]


@pytest.mark.parametrize("method, delay", [("call_soon", ()), ("call_later", (0,)), ("call_soon_threadsafe", ())])
def test_debug_mode_refuses_coroutines_and_other_objects_as_callbacks(debug, method, delay):
    async def coroutine():
        pass

    schedule = getattr(debug, method)
    with pytest.raises(TypeError, match=f"coroutines cannot be used with {method.replace('call_later', 'call_at')}"):
        schedule(*delay, coroutine)
    with pytest.raises(TypeError, match="a callable object was expected by .*, got 'not callable'"):
        schedule(*delay, "not callable")


def test_handles_remember_where_they_were_created(debug):
    handle = debug.call_soon(callback)
    line = sys._getframe().f_lineno - 1
    assert handle._source_traceback[-1].lineno == line
    assert handle._source_traceback[-1].filename == __file__
    timer = debug.call_later(10, callback)
    assert timer._source_traceback[-1].lineno == line + 4
    timer.cancel()


@pytest.mark.parametrize("method", ["add_reader", "add_writer", "_add_reader", "_add_writer"])
def test_the_handle_of_a_watcher_remembers_where_it_was_created(debug, method):
    def program(sock):
        getattr(debug, method)(sock, callback)
        watch = [handle for handle in debug._selector.get_key(sock).data if handle is not None]
        getattr(debug, method.replace("add", "remove"))(sock)
        return watch

    sock, peer = socket.socketpair()
    with sock, peer:
        [handle] = program(sock)
        frames = [frame.name for frame in handle._source_traceback]
        assert "program" in frames[-3:]


def test_the_report_of_a_watcher_that_removed_itself_shows_its_callback(debug):
    def failing():
        debug.remove_reader(near)
        raise ZeroDivisionError

    contexts = []
    debug.set_exception_handler(lambda loop, context: contexts.append(context))
    near, far = socket.socketpair()
    with near, far:
        far.send(b"x")
        debug.add_reader(near, failing)
        run_once(debug)
    (context,) = contexts
    line = failing.__code__.co_firstlineno
    assert re.match(rf"<Handle cancelled .*failing\(\) at {__file__}:{line} created at ", repr(context["handle"]))


def test_tasks_remember_where_they_were_created(run):
    async def coroutine():
        pass

    async def main():
        loop = asyncio.get_running_loop()
        plain, named = loop.create_task(coroutine()), loop.create_task(coroutine(), name="named")
        line = sys._getframe().f_lineno - 1
        stacks = [plain._source_traceback, named._source_traceback]
        assert [(stack[-1].filename, stack[-1].lineno) for stack in stacks] == [(__file__, line)] * 2
        loop.set_task_factory(lambda loop, coro, **options: asyncio.Task(coro, loop=loop, **options))
        made = loop.create_task(coroutine())
        assert f" created at {__file__}:{line + 4}>" in repr(made)
        stack = made._source_traceback
        assert [stack[-1].name, stack[-2].name, stack[-3].name] == ["<lambda>", "create_task", "main"]
        assert stack[-2].filename == asyncio.base_events.__file__
        await asyncio.gather(plain, named, made)

    run(main(), debug=True)


def test_without_debug_handles_remember_nothing(loop):
    assert loop.call_soon(callback)._source_traceback is None


def test_the_exception_handler_gets_the_source_traceback(debug, asyncio_log):
    contexts = []
    debug.set_exception_handler(lambda loop, context: contexts.append(context))
    debug.call_soon(int, "not a number")
    line = sys._getframe().f_lineno - 1
    run_once(debug)
    assert contexts[0]["source_traceback"][-1].lineno == line
    debug.set_exception_handler(None)
    debug.call_soon(int, "not a number")
    run_once(debug)
    assert "Object created at (most recent call last):" in asyncio_log.text


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_the_exception_handler_gets_a_source_traceback_if_connection_made_fails(debug, kind):
    class Failing(asyncio.Protocol):
        def connection_made(self, transport):
            raise ZeroDivisionError

    async def main():
        connect = debug.connect_accepted_socket if kind == "socket" else debug.connect_read_pipe
        transport, _ = await connect(Failing, ours)
        transport.close()
        await asyncio.sleep(0)

    contexts = []
    debug.set_exception_handler(lambda loop, context: contexts.append(context))
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    with ours, peer:
        debug.run_until_complete(main())
    (context,) = contexts
    assert isinstance(context["exception"], ZeroDivisionError)
    assert context["source_traceback"] and context["source_traceback"] == context["handle"]._source_traceback


def test_coroutine_origins_are_tracked_while_a_debug_loop_runs(loop):
    depths = []
    before = sys.get_coroutine_origin_tracking_depth()
    loop.set_debug(True)
    loop.call_soon(lambda: depths.append(sys.get_coroutine_origin_tracking_depth()))
    run_once(loop)
    assert depths[0] > 0 and sys.get_coroutine_origin_tracking_depth() == before


def test_debug_can_be_switched_while_the_loop_runs(run, asyncio_log):
    async def main():
        loop = asyncio.get_running_loop()
        assert loop.get_debug() is False
        loop.set_debug(True)
        assert loop.get_debug() is True
        await asyncio.sleep(0)
        assert loop.call_soon(callback)._source_traceback
        loop.set_debug(False)
        assert loop.call_soon(callback)._source_traceback is None
        await asyncio.sleep(0)

    run(main())


def test_the_environment_switches_debug_on(loop_name):
    import os
    import subprocess

    from tests.support.loops import PRELUDE

    source = PRELUDE[loop_name] + "loop = new_loop(); print(loop.get_debug()); loop.close()"
    for value, expected in (("1", "True\n"), ("", "False\n")):
        environment = {**os.environ, "PYTHONASYNCIODEBUG": value}
        assert subprocess.check_output([sys.executable, "-c", source], env=environment, text=True) == expected
    assert subprocess.check_output([sys.executable, "-X", "dev", "-c", source], text=True) == "True\n"


def test_everything_works_in_debug_mode(run, asyncio_log):
    """Callbacks, timers, threads, streams and subprocesses all work on the slower paths of debug mode."""

    async def echo(reader, writer):
        writer.write(await reader.readexactly(5))
        writer.close()

    async def main():
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 60
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert await loop.run_in_executor(None, int, "5") == 5
        await asyncio.gather(*(asyncio.sleep(0.001) for _ in range(100)))
        process = await asyncio.create_subprocess_exec("/bin/echo", "child", stdout=asyncio.subprocess.PIPE)
        assert (await process.communicate())[0] == b"child\n"

    run(main(), debug=True)


def test_a_new_connection_is_logged_with_its_server_and_its_peer(run, asyncio_log):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        await asyncio.sleep(0.01)
        name = transport.get_extra_info("sockname")
        logged = [record.getMessage() for record in asyncio_log.records]
        [line] = [line for line in logged if "got a new connection" in line]
        assert line.startswith(f"{server!r} got a new connection from {name!r}: <socket.socket fd=")
        transport.close()
        server.close()
        await asyncio.sleep(0.01)

    run(main(), debug=True)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_failed_write_is_logged_with_an_empty_write_buffer(run, asyncio_log, size):
    async def main():
        ours, peer = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        transport.pause_reading()
        peer.close()
        transport.write(b"x" * size)
        await asyncio.sleep(0.01)

    run(main(), debug=True)
    (message,) = [record.message for record in asyncio_log.records if "Fatal write error" in record.message]
    assert "write=<idle, bufsize=0>>: Fatal write error on socket transport" in message


def test_a_connection_whose_peer_is_gone_when_it_is_accepted_is_logged_too(run, asyncio_log):
    async def main():
        loop = asyncio.get_running_loop()
        protocols = []
        server = await loop.create_server(lambda: protocols.append(Lost()) or protocols[0], "127.0.0.1", 0)
        # The kernel connects it before the loop accepts, and resets it when it is closed.
        with socket.create_connection(server.sockets[0].getsockname()) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            name = gone.getsockname()
        assert not protocols
        while not protocols:
            await asyncio.sleep(0)
        await protocols[0].lost
        [line] = [line for line in asyncio_log.messages if "new connection" in line]
        assert line.startswith(f"{server!r} got a new connection from {name!r}: <socket.socket ")
        server.close()
        await server.wait_closed()

    run(main(), debug=True)


def test_a_transport_logs_what_happens_to_its_reading(run, asyncio_log):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with far:
            transport, protocol = await loop.create_connection(Lost, sock=near)
            transport.pause_reading()
            transport.resume_reading()
        await protocol.lost
        pauses = [("DEBUG", "%r pauses reading"), ("DEBUG", "%r resumes reading")]
        assert lines_about(transport, asyncio_log) == [*pauses, ("DEBUG", "%r received EOF")]

        reading, writing = os.pipe()
        with open(writing, "wb", 0):
            transport, protocol = await loop.connect_read_pipe(Lost, open(reading, "rb", 0))
            transport.pause_reading()
            transport.resume_reading()
        await protocol.lost
        assert lines_about(transport, asyncio_log) == [*pauses, ("INFO", "%r was closed by peer")]

        reading, writing = os.pipe()
        with open(reading, "rb", 0):
            transport, protocol = await loop.connect_write_pipe(Lost, open(writing, "wb", 0))
        await protocol.lost
        assert lines_about(transport, asyncio_log) == [("INFO", "%r was closed by peer")]

    run(main(), debug=True)


class Lost(asyncio.Protocol):
    def __init__(self):
        self.lost = asyncio.get_running_loop().create_future()

    def connection_lost(self, error):
        self.lost.set_result(error)


def lines_about(transport, asyncio_log):
    """The level and the format of each line whose first value is this transport."""
    about = [record for record in asyncio_log.records if record.args and record.args[0] is transport]
    return [(record.levelname, record.msg) for record in about]
