"""Wrong arguments, method by method: the exception is asyncio's, and the loop runs on.

The table runs on asyncio's own loop of this interpreter first. The type of the exception there is the one we must
raise. Where asyncio silently accepts an argument (it calls the callable later, or never), so must we.
"""

import asyncio
import contextlib
import functools
import gc
import socket
import sys
import warnings

import pytest

from tests.loop.test_scheduling import run_once
from tests.support.protocol import Recording


class Hostile:
    """Fails in every operation."""

    def __index__(self):
        raise ZeroDivisionError

    __float__ = __bool__ = __len__ = __iter__ = __call__ = __radd__ = __index__


def function(*args):
    pass


THINGS = {
    "none": None,
    "text": "text",
    "bytes": b"bytes",
    "minus one": -1,
    "huge": 2**70,
    "float": 1.5,
    "list": [],
    "object": object(),
    "type": int,
    "hostile": Hostile(),
}

#: Method -> the arguments of a valid call. Each argument is replaced in turn by every wrong object above.
METHODS = {
    "call_later": (1000, function),
    "call_at": (1000, function),
    "run_until_complete": (None,),
    "run_in_executor": (None, function),
    "set_exception_handler": (None,),
    "set_task_factory": (None,),
    "add_reader": ("socket", function),
    "add_writer": ("socket", function),
    "remove_reader": ("socket",),
    "remove_writer": ("socket",),
    "add_signal_handler": (10, function),
    "remove_signal_handler": (10,),
}

#: asyncio accepts these and fails when it runs, if it ever does. We need not copy that.
LATE = {("call_at", 0), ("call_later", 1), ("call_at", 1), ("run_in_executor", 1), ("add_reader", 1), ("add_writer", 1)}

#: asyncio's answer is an accident of its code: it takes None for an empty list, and compares before it converts.
ACCIDENTS = {
    ("writelines", "none as argument 1"),
    ("set_write_buffer_limits", "hostile as argument 1"),
}

SOCK_METHODS = {
    "sock_recv": ("socket", 10),
    "sock_recv_into": ("socket", bytearray(10)),
    "sock_sendall": ("socket", b"data"),
    "sock_accept": ("socket",),
    "sock_connect": ("socket", ("127.0.0.1", 1)),
}

TRANSPORT_METHODS = {
    "write": (b"data",),
    "writelines": ([b"data"],),
    "set_write_buffer_limits": (1000,),
    "get_extra_info": ("name",),
}


def outcome(call):
    """Returns the type of the exception that `call` raises, or None."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def variations(table):
    for method, good in table.items():
        yield method, "no arguments", ()
        yield method, "too many", (*good, *[None] * 9) if method not in ("call_later", "call_at", "run_in_executor", "add_reader", "add_writer", "add_signal_handler") else ()  # fmt: skip
        for position in range(len(good)):
            if (method, position) in LATE:
                continue
            for name, thing in THINGS.items():
                case = f"{name} as argument {position + 1}"
                if (method, case) not in ACCIDENTS:
                    yield method, case, (*good[:position], thing, *good[position + 1 :])


def on_a_loop(factory, method, arguments):
    loop = factory()
    near, far = socket.socketpair()
    try:
        near.setblocking(False)
        arguments = tuple(near if argument == "socket" else argument for argument in arguments)
        result = outcome(lambda: getattr(loop, method)(*arguments))
        loop.remove_reader(near), loop.remove_writer(near)
        loop.set_task_factory(None)
        alive(loop)
        return result
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        near.close()
        far.close()


@pytest.mark.parametrize("maker", ["datagram", "read pipe", "write pipe", "connection"])
@pytest.mark.parametrize("protocol", [None, object()])
def test_a_factory_that_makes_no_protocol_fails_the_call(run, maker, protocol):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            with warnings.catch_warnings(), pytest.raises(AttributeError, match="connection_made"):
                warnings.simplefilter("ignore", ResourceWarning)
                if maker == "datagram":
                    await loop.create_datagram_endpoint(lambda: protocol, local_addr=("127.0.0.1", 0))
                elif maker == "connection":
                    await loop.create_connection(lambda: protocol, sock=near)
                else:
                    await getattr(loop, f"connect_{maker.replace(' ', '_')}")(lambda: protocol, near)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    run(main())


@pytest.mark.parametrize("method, good", [("call_soon", (print,)), ("call_later", (1, print)), ("call_at", (1, print))])
def test_a_keyword_that_is_not_known_is_named(loop, method, good):
    with pytest.raises(TypeError, match="unexpected keyword argument 'contxt'"):
        getattr(loop, method)(*good, contxt=None)


@pytest.mark.parametrize("name", ["loop", "method", "self"])
@pytest.mark.parametrize("method, good", [("call_soon", {}), ("call_later", {"delay": 1}), ("call_at", {"when": 1})])
def test_a_wrong_keyword_beside_right_ones_is_named(loop, method, good, name):
    refused = "multiple values for argument" if name == "self" else "an unexpected keyword argument"
    with pytest.raises(TypeError, match=rf"^BaseEventLoop.{method}\(\) got {refused} '{name}'$"):
        getattr(loop, method)(callback=print, **good, **{name: None})


def alive(loop):
    seen = []
    loop.call_soon(seen.append, 1)
    run_once(loop)
    assert seen == [1]
    assert loop.run_until_complete(asyncio.sleep(0.0001, 2)) == 2


def differences(expected, found):
    return {case: f"{found[case]}, asyncio {expected[case]}" for case in expected if found[case] is not expected[case]}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_loop_methods_raise_what_asyncio_raises(loop_factory, method):
    cases = {(m, name): arguments for m, name, arguments in variations({method: METHODS[method]})}
    expected = {case: on_a_loop(asyncio.SelectorEventLoop, method, arguments) for case, arguments in cases.items()}
    found = {case: on_a_loop(loop_factory, method, arguments) for case, arguments in cases.items()}
    assert differences(expected, found) == {}


@pytest.mark.parametrize("method", SOCK_METHODS)
def test_sock_methods_raise_what_asyncio_raises(loop_factory, method):
    def attempt(factory, arguments):
        loop = factory()
        near, far = socket.socketpair()
        near.setblocking(False)

        async def call():
            given = tuple(near if argument == "socket" else argument for argument in arguments)
            async with asyncio.timeout(0.01):
                await getattr(loop, method)(*given)

        try:
            result = outcome(lambda: loop.run_until_complete(call()))
            alive(loop)
            return result
        finally:
            loop.close()
            near.close()
            far.close()

    cases = {(m, name): arguments for m, name, arguments in variations({method: SOCK_METHODS[method]})}
    expected = {case: attempt(asyncio.SelectorEventLoop, arguments) for case, arguments in cases.items()}
    found = {case: attempt(loop_factory, arguments) for case, arguments in cases.items()}
    assert differences(expected, found) == {}


@pytest.mark.parametrize("method", TRANSPORT_METHODS)
def test_transport_methods_raise_what_asyncio_raises(loop_factory, method):
    def attempt(factory, arguments):
        loop = factory()
        near, far = socket.socketpair()
        transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))
        try:
            result = outcome(lambda: getattr(transport, method)(*arguments))
            alive(loop)
            return result
        finally:
            transport.abort()
            run_once(loop)
            loop.close()
            far.close()

    cases = {(m, name): arguments for m, name, arguments in variations({method: TRANSPORT_METHODS[method]})}
    expected = {case: attempt(asyncio.SelectorEventLoop, arguments) for case, arguments in cases.items()}
    found = {case: attempt(loop_factory, arguments) for case, arguments in cases.items()}
    assert differences(expected, found) == {}


@pytest.mark.parametrize("thing", [None, "text", 5, object(), Hostile()], ids=lambda thing: type(thing).__name__)
def test_a_callback_that_cannot_be_called_is_reported_when_it_runs(loop, thing):
    problems = []
    loop.set_exception_handler(lambda loop, context: problems.append(type(context["exception"])))
    loop.call_soon(thing)
    loop.call_soon_threadsafe(thing)
    loop.call_later(0, thing)
    run_once(loop)
    assert problems == [ZeroDivisionError if isinstance(thing, Hostile) else TypeError] * 3
    alive(loop)


@pytest.mark.parametrize("context", ["text", 5, object(), {}])
def test_a_context_argument_of_a_wrong_type_is_refused_or_reported(loop, context, asyncio_log):
    """Python's own loops find out when they enter the context. A native loop may refuse it at once."""
    called, problems = [], []
    loop.set_exception_handler(lambda loop, context: problems.append(type(context["exception"])))
    failure = outcome(lambda: loop.call_soon(called.append, 1, context=context)) or outcome(lambda: run_once(loop))
    assert called == []
    assert issubclass(failure or problems[0], (TypeError, AttributeError))
    alive(loop)


def test_unknown_keywords_are_type_errors(loop):
    for call in (
        lambda: loop.call_soon(function, unknown=1),
        lambda: loop.call_later(1, function, unknown=1),
        lambda: loop.call_at(1, function, unknown=1),
        lambda: loop.call_soon_threadsafe(function, unknown=1),
        lambda: loop.time(1),
        lambda: loop.stop(1),
        lambda: loop.create_future(1),
        lambda: loop.call_soon(),
        lambda: loop.call_later(),
        lambda: loop.call_later(1),
        lambda: loop.get_debug(1),
        lambda: loop.is_running(1),
    ):
        with pytest.raises(TypeError):
            call()
    alive(loop)


def test_keywords_work_where_asyncio_has_them(loop):
    called = []
    loop.call_soon(callback=lambda: called.append("call_soon"))
    loop.call_later(delay=0, callback=lambda: called.append("call_later"))
    loop.call_at(when=0, callback=lambda: called.append("call_at"))
    loop.call_soon_threadsafe(callback=lambda: called.append("call_soon_threadsafe"))
    run_once(loop)
    assert sorted(called) == ["call_at", "call_later", "call_soon", "call_soon_threadsafe"]


def test_a_subclass_may_pass_arguments_on_by_keyword(loop_factory):
    with contextlib.closing(loop_factory()) as loop:
        kind = type(loop)

    class Loop(kind):
        def call_soon(self, callback, *args, **options):
            return super().call_soon(functools.partial(callback, *args), **options)

        def call_at(self, when, callback, *args, **options):
            return super().call_at(when=when, callback=functools.partial(callback, *args), **options)

        def call_later(self, delay, callback, *args, **options):
            return super().call_later(delay=delay, callback=functools.partial(callback, *args), **options)

    async def main():
        loop, called = asyncio.get_running_loop(), []
        loop.call_soon(called.append, "soon")
        loop.call_at(loop.time(), called.append, "at")
        loop.call_later(0, called.append, "later")
        while len(called) < 3:
            await asyncio.sleep(0)
        assert called == ["soon", "at", "later"]

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_attributes_of_a_protocol_that_fail_end_only_the_connection(run):
    """An attribute of a protocol is looked up when it is called."""

    class Treacherous(asyncio.Protocol):
        def __init__(self):
            self.lost = asyncio.get_running_loop().create_future()

        def connection_lost(self, exc):
            self.lost.set_result(exc)

        @property
        def data_received(self):
            raise ZeroDivisionError

    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        near, far = socket.socketpair()
        with far:
            _, protocol = await loop.create_connection(Treacherous, sock=near)
            far.send(b"x")
            assert isinstance(await protocol.lost, ZeroDivisionError)
            assert [type(problem["exception"]) for problem in problems] == [ZeroDivisionError]
            assert far.recv(1) == b""
        near, far = socket.socketpair()
        with far:
            transport, protocol = await loop.create_connection(Recording, sock=near)
            far.send(b"alive")
            assert await protocol.received(5) == b"alive"
            transport.close()
            await protocol.lost

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="shorter stacks before 3.12")
def test_deep_recursion_in_a_callback_is_an_exception_like_any_other(loop):
    def recurse():
        recurse()

    problems = []
    loop.set_exception_handler(lambda loop, context: problems.append(type(context["exception"])))
    loop.call_soon(recurse)
    run_once(loop)
    assert problems == [RecursionError]
    alive(loop)


class Unnumbered:
    """A file whose fileno() fails."""

    def __init__(self, error):
        self.error = error

    def fileno(self):
        raise self.error


class Unprintable:
    def __repr__(self):
        raise LookupError


@pytest.mark.parametrize("method", ["_add_reader", "_remove_reader", "_add_writer", "_remove_writer"])
@pytest.mark.parametrize(
    "file",
    [
        *map(Unnumbered, [KeyboardInterrupt(), RuntimeError(), OSError(), AttributeError(), TypeError(), ValueError()]),
        Unprintable(),
        2**40,
    ],
    ids=lambda file: type(getattr(file, "error", file)).__name__,
)
def test_exceptions_of_a_file_object_propagate_as_in_asyncio(loop_factory, method, file):
    def attempt(factory):
        loop = factory()
        try:
            getattr(loop, method)(file, *[function] * method.startswith("_add"))
        except BaseException as error:
            return type(error)
        finally:
            alive(loop)
            loop.close()
        return None

    assert attempt(loop_factory) is attempt(asyncio.SelectorEventLoop)


def test_a_keyword_that_utf8_cannot_encode_is_a_type_error(loop):
    for call in (loop.call_soon, loop.sock_recv, loop.sock_sendall, loop.sock_recvfrom):
        with pytest.raises(TypeError):
            call(None, None, **{"\ud800": None})


@pytest.mark.filterwarnings("ignore:.*signature of throw:DeprecationWarning")
@pytest.mark.parametrize(
    "arguments",
    [(5,), (None,), (object,), (ValueError(), "value"), (ValueError, None, 5), ("text",)],
    ids=lambda arguments: repr(arguments),
)
def test_throwing_a_value_that_is_not_an_exception_into_a_socket_call_is_a_type_error(loop, arguments):
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        call = loop.sock_recv(near, 10)
        future = call.send(None)
        with pytest.raises(TypeError):
            call.throw(*arguments)
        future.cancel()
        call.close()
        loop.remove_reader(near)


@pytest.mark.filterwarnings("ignore:.*signature of throw:DeprecationWarning")
@pytest.mark.parametrize(
    "value",
    [None, "text", (1, 2), ValueError("its own"), UnicodeError("of a subclass"), KeyError("of another class")],
    ids=repr,
)
def test_throwing_a_class_and_a_value_raises_what_it_does_in_a_coroutine(loop, value):
    def raised(call):
        with pytest.raises(Exception) as caught:
            call.throw(ValueError, value)
        return caught.type, str(caught.value)

    async def waits():
        await asyncio.sleep(0)

    coroutine = waits()
    coroutine.send(None)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        call = loop.sock_recv(near, 10)
        call.send(None)
        assert raised(call) == raised(coroutine)
        loop.remove_reader(near)


class Exporter:
    """Claims to support the buffer protocol."""

    def __len__(self):
        return 3

    def __buffer__(self, flags):
        raise LookupError


def released():
    view = memoryview(bytearray(3))
    view.release()
    return view


@pytest.mark.parametrize("target", [b"fixed", memoryview(bytearray(9))[::2], released(), Exporter()], ids=lambda it: type(it).__name__)
def test_receiving_into_an_object_without_a_writable_buffer_is_a_type_error(loop, target):
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.send(b"x")
        with pytest.raises(TypeError):
            loop.run_until_complete(loop.sock_recv_into(near, target))


def test_a_limit_that_is_not_a_number_is_a_value_error(loop):
    near, far = socket.socketpair()
    with far:
        transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))
        with pytest.raises(ValueError):
            transport.set_write_buffer_limits(float("nan"))
        transport.abort()
        run_once(loop)
