"""Exceptions that nobody awaits: the exception handler, and the default handler."""

import asyncio
import contextlib
import ctypes
import gc
import os
import socket
import sys
import threading
import time
import traceback

import pytest

from tests.loop.test_scheduling import run_once


def fail(*args):
    raise ZeroDivisionError("failed")


def test_an_exception_in_a_callback_does_not_stop_the_loop_or_the_other_callbacks(loop):
    problems, seen = [], []
    loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
    for number in range(5):
        loop.call_soon(fail)
        loop.call_soon(seen.append, number)
    run_once(loop)
    assert seen == list(range(5)) and len(problems) == 5


def test_an_exception_in_a_c_callback_has_a_traceback(loop):
    reported = []
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    loop.call_soon(int, "x")
    loop.call_later(0, int, "y")
    run_once(loop)
    for error in reported:
        assert len(traceback.extract_tb(error.__traceback__)) == 1
        frame = error.__traceback__.tb_frame
        assert error not in frame.f_locals.values()
    assert len(reported) == 2


def test_the_traceback_of_an_exception_in_a_c_callback_shows_the_code_that_runs_the_loop(loop):
    reported = []
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    loop.call_soon(int, "x")
    run_once(loop)
    [entry] = traceback.extract_tb(reported[0].__traceback__)
    # asyncio calls the callback in Handle._run, and our loop in native code.
    assert "run" in entry.name and "run(" in entry.line


def test_an_exception_with_an_overridden_traceback_is_reported(loop):
    class Untraced(Exception):
        __traceback__ = property(lambda self: None)

    def fail():
        raise Untraced

    reported, seen = [], []
    loop.set_exception_handler(lambda loop, context: reported.append(type(context["exception"])))
    loop.call_soon(fail)
    loop.call_soon(seen.append, "the next")
    run_once(loop)
    assert reported == [Untraced] and seen == ["the next"]


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe", "call_at"])
def test_the_context_names_message_exception_and_handle(loop, schedule):
    contexts = []
    loop.set_exception_handler(lambda loop, context: contexts.append((loop, context)))
    delay = (0,) if schedule in ("call_later", "call_at") else ()
    handle = getattr(loop, schedule)(*delay, fail, 1)
    run_once(loop)
    (reported_by, context), = contexts
    assert reported_by is loop
    assert context["message"].startswith("Exception in callback fail(") and __file__ in context["message"]
    assert isinstance(context["exception"], ZeroDivisionError)
    assert context["handle"] is handle


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_the_default_handler_logs_as_asyncio_does(loop, asyncio_log, schedule):
    delay = (0,) if schedule == "call_later" else ()
    getattr(loop, schedule)(*delay, fail)
    asyncio_log.clear()
    run_once(loop)
    (record,) = asyncio_log.records
    assert record.name == "asyncio" and record.levelname == "ERROR"
    first, second = record.getMessage().splitlines()
    line = fail.__code__.co_firstlineno
    assert first == f"Exception in callback fail() at {__file__}:{line}"
    kind = "_ThreadSafeHandle" if schedule == "call_soon_threadsafe" and sys.version_info >= (3, 14) else "Handle"
    assert second.startswith("handle: <TimerHandle when=" if delay else f"handle: <{kind} fail() at ")
    assert record.exc_info[0] is ZeroDivisionError
    assert traceback.extract_tb(record.exc_info[2])[-1].name == "fail"


def test_the_default_handler_can_be_called_and_restored(loop, asyncio_log):
    assert loop.get_exception_handler() is None
    loop.set_exception_handler(lambda loop, context: loop.default_exception_handler(context))
    asyncio_log.clear()
    loop.call_soon(fail)
    run_once(loop)
    assert "Exception in callback fail()" in asyncio_log.text
    loop.set_exception_handler(None)
    assert loop.get_exception_handler() is None
    with pytest.raises(TypeError, match="A callable object or None is expected"):
        loop.set_exception_handler("handler")


def test_an_exception_in_the_exception_handler_is_logged_and_the_loop_runs_on(loop, asyncio_log):
    seen = []

    def handler(loop, context):
        raise KeyError("in the handler")

    loop.set_exception_handler(handler)
    loop.call_soon(fail)
    loop.call_soon(seen.append, "alive")
    run_once(loop)
    assert seen == ["alive"]
    assert "Unhandled error in exception handler" in asyncio_log.text and "in the handler" in asyncio_log.text


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_an_exception_in_an_overridden_call_exception_handler_leaves_run_forever(loop, schedule):
    class Strict(type(loop)):
        def call_exception_handler(self, context):
            raise LookupError from context["exception"]

    strict, seen = Strict(), []
    try:
        getattr(strict, schedule)(*[0] * (schedule == "call_later"), fail)
        strict.call_soon(seen.append, "next")
        strict.call_later(10, strict.stop)
        with pytest.raises(LookupError) as raised:
            strict.run_forever()
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        run_once(strict)
        assert seen == ["next"]
    finally:
        strict.close()


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_system_exit_and_keyboard_interrupt_leave_run_forever(loop, exception):
    def end():
        raise exception

    seen = []
    loop.call_soon(end)
    loop.call_soon(seen.append, "next run")
    with pytest.raises(exception):
        loop.run_forever()
    assert not loop.is_running()
    run_once(loop)
    assert seen == ["next run"]


def test_any_other_base_exception_goes_to_the_handler(loop):
    class Odd(BaseException):
        pass

    def raise_odd():
        raise Odd

    problems = []
    loop.set_exception_handler(lambda loop, context: problems.append(type(context["exception"])))
    loop.call_soon(raise_odd)
    run_once(loop)
    assert problems == [Odd]


def test_a_future_whose_exception_was_never_retrieved_is_reported(run, asyncio_log):
    async def main():
        asyncio.get_running_loop().create_future().set_exception(KeyError("never seen"))
        gc.collect()
        await asyncio.sleep(0)

    run(main())
    assert "Future exception was never retrieved" in asyncio_log.text


def test_a_task_whose_exception_was_never_retrieved_is_reported(run, asyncio_log):
    async def failing():
        raise KeyError("never seen")

    async def main():
        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        del task
        gc.collect()

    run(main())
    assert "Task exception was never retrieved" in asyncio_log.text


def test_a_failing_watcher_is_reported_with_its_handle(loop):
    from tests.support.sockets import socketpair

    contexts = []
    loop.set_exception_handler(lambda loop, context: (contexts.append(context), loop.stop()))
    with socketpair() as (near, far):
        loop.add_reader(near, fail)
        far.send(b"x")
        loop.run_forever()
        loop.remove_reader(near)
    assert contexts[0]["message"].startswith("Exception in callback fail()")
    assert isinstance(contexts[0]["handle"], asyncio.Handle)


def test_exceptions_do_not_keep_the_callbacks_arguments(loop):
    import weakref

    class Thing:
        pass

    thing = Thing()
    watched = weakref.ref(thing)
    loop.set_exception_handler(lambda loop, context: None)
    loop.call_soon(fail, thing)
    run_once(loop)
    del thing
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("debug", [False, True])
def test_the_arguments_of_a_failed_callback_are_named_as_asyncio_names_them(loop, loop_name, debug):
    """Since 3.13 only in debug mode, because the arguments may be secret."""
    messages = []

    def report(loop, context):
        messages.append(context["message"])

    def fail(secret):
        raise ValueError

    reference = asyncio.SelectorEventLoop()
    try:
        for each in (loop, reference):
            each.set_debug(debug)
            each.set_exception_handler(report)
            each.call_soon(fail, "the password")
            each.call_soon(each.stop)
            each.run_forever()
    finally:
        reference.close()
    assert messages[0] == messages[1]


class Failing(asyncio.Protocol, asyncio.DatagramProtocol):
    """Fails in one of its methods."""

    def __init__(self, method):
        setattr(self, method, fail)


async def fail_in(method):
    """Makes the loop call that method of a protocol."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        if method == "datagram_received":
            ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            transport, _ = await loop.create_datagram_endpoint(lambda: Failing(method), sock=ours)
        elif method == "pipe_data_received":
            reading, writing = os.pipe()
            pipe = open(reading, "rb", 0)
            transport, _ = await loop.connect_read_pipe(lambda: Failing("data_received"), pipe)
            stack.callback(os.close, writing)
            os.write(writing, b"x")
            await asyncio.sleep(0.01)
            transport.close()
            await asyncio.sleep(0.01)
            return
        else:
            ours, peer = socket.socketpair()
            transport, _ = await loop.create_connection(lambda: Failing(method), sock=ours)
        stack.callback(peer.close)
        peer.send(b"x")
        await asyncio.sleep(0.01)
        if method == "pause_writing":
            transport.write(b"x" * 1_000_000)
            assert sys.exc_info()[1] is None
        elif method == "eof_received":
            peer.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.01)
        transport.abort()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "method",
    [
        "connection_made",
        "data_received",
        "eof_received",
        "connection_lost",
        "pause_writing",
        "datagram_received",
        "pipe_data_received",
    ],
)
def test_sys_exc_info_is_the_protocols_exception_in_the_exception_handler(run, method):
    """So `logging.exception()`, and other code that reads `sys.exc_info()`, reports it."""
    reported = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append((context["exception"], sys.exc_info()[1])))
        await fail_in(method)
        assert sys.exc_info()[1] is None

    run(main())
    assert reported
    for exception, handled in reported:
        assert isinstance(exception, ZeroDivisionError) and handled is exception


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe", "add_reader", "done_callback"])
def test_sys_exc_info_is_the_callbacks_exception_in_the_exception_handler(run, schedule):
    reported = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append((context["exception"], sys.exc_info()[1])))
        ours, peer = socket.socketpair()
        with ours, peer:
            if schedule == "add_reader":

                def ready():
                    loop.remove_reader(ours)
                    fail()

                loop.add_reader(ours, ready)
                peer.send(b"x")
            elif schedule == "done_callback":
                future = loop.create_future()
                future.add_done_callback(fail)
                future.set_result(None)
            else:
                getattr(loop, schedule)(*((0,) if schedule == "call_later" else ()), fail)
            await asyncio.sleep(0.01)
        assert sys.exc_info()[1] is None

    run(main())
    ((exception, handled),) = reported
    assert isinstance(exception, ZeroDivisionError) and handled is exception


def test_a_report_inside_a_coroutine_does_not_change_the_callers_handled_exception(loop):
    seen = []
    loop.set_exception_handler(lambda loop, context: None)

    async def write(writing, written):
        ours, peer = socket.socketpair()
        with peer:
            transport, _ = await loop.create_connection(lambda: Failing("pause_writing"), sock=ours)
            transport.write(b"x" * 1_000_000)
            writing.set_result(None)
            await written
            seen.append(sys.exc_info()[1])
            transport.abort()
            await asyncio.sleep(0.01)

    async def main():
        writing, written = loop.create_future(), loop.create_future()
        task = loop.create_task(write(writing, written))
        await writing
        written.set_result(None)
        await task

    try:
        raise KeyError("handled while the loop runs")
    except KeyError as error:
        loop.run_until_complete(main())
        assert seen == [error]
    # The coroutine that resumes, when its caller handles no exception any more, keeps nothing of it.
    writing, written = loop.create_future(), loop.create_future()
    task = loop.create_task(write(writing, written))

    async def begin():
        await writing

    seen.clear()
    try:
        raise KeyError("handled while the coroutine begins")
    except KeyError:
        loop.run_until_complete(begin())
    written.set_result(None)
    loop.run_until_complete(task)
    assert seen == [None]


class Interrupt(Exception):
    """What a thread raises in another."""


def raise_in(thread):
    """Raises Interrupt in a thread when it does not run: in its poll."""
    sleeps = 0
    while sleeps < 3:
        time.sleep(0.01)
        with open(f"/proc/self/task/{thread.native_id}/stat") as file:
            sleeps = sleeps + 1 if file.read().rpartition(") ")[2][0] == "S" else 0
    raise_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert raise_exception(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt)) == 1


@pytest.mark.parametrize("what", ["timer", "thread", "watcher", "protocol", "task"])
def test_an_exception_that_another_thread_raises_in_a_waiting_loop_leaves_run_forever(loop_factory, what):
    """As tools do that stop a thread. No callback gets it."""
    reports, left, waits = [], [], threading.Event()
    ours, theirs = socket.socketpair()

    def wait_in_a_loop():
        loop = loop_factory()
        loop.set_exception_handler(lambda loop, context: reports.append(context))
        if what == "timer":
            loop.call_later(0.2, lambda: loop.stop())
        elif what == "watcher":
            ours.setblocking(False)
            loop.add_reader(ours, lambda: loop.stop())
        elif what == "protocol":

            class Stopping(asyncio.Protocol):
                def data_received(self, data):
                    loop.stop()

            transport, _ = loop.run_until_complete(loop.create_connection(Stopping, sock=ours))
        elif what == "task":
            task = loop.create_task(asyncio.sleep(0.2))
            task.add_done_callback(lambda task: loop.stop())
        loops.append(loop)
        loop.call_soon(waits.set)
        try:
            loop.run_forever()
        except Interrupt:
            left.append(True)
        loop.call_later(0.2, loop.stop)
        loop.run_forever()
        if what == "watcher":
            loop.remove_reader(ours)
        elif what == "protocol":
            transport.close()
            loop.run_until_complete(asyncio.sleep(0))
        elif what == "task":
            loop.run_until_complete(task)

    loops = []
    thread = threading.Thread(target=wait_in_a_loop, daemon=True)
    thread.start()
    with ours, theirs:
        assert waits.wait(10)
        raise_in(thread)
        if what == "thread":
            loops[0].call_soon_threadsafe(lambda: loops[0].stop())
        theirs.send(b"x")
        thread.join(10)
        assert not thread.is_alive()
    assert left == [True] and reports == []
    loops[0].close()
