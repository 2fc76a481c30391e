"""Wrong arguments raise what asyncio raises for them, and functions that look at methods find functions."""

import asyncio
import contextlib
import inspect
import itertools
import os
import sys
import traceback
import types
from asyncio import base_events, events, selector_events, streams, unix_events
from unittest import mock

import pytest

KINDS = {
    "loop": asyncio.SelectorEventLoop,
    "handle": events.Handle,
    "timer": events.TimerHandle,
    "thread-safe handle": getattr(events, "_ThreadSafeHandle", events.Handle),
    "stream": selector_events._SelectorSocketTransport,
    "datagrams": selector_events._SelectorDatagramTransport,
    "read pipe": unix_events._UnixReadPipeTransport,
    "write pipe": unix_events._UnixWritePipeTransport,
    "server": base_events.Server,
    "reader": streams.StreamReader,
    "writer": streams.StreamWriter,
}


@contextlib.asynccontextmanager
async def one_of(kind, loop_name):
    """An object of that kind, as the loop that runs makes it."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        if kind == "loop":
            yield loop
        elif kind == "handle":
            yield loop.call_soon(int)
        elif kind == "thread-safe handle":
            yield loop.call_soon_threadsafe(int)
        elif kind == "timer":
            timer = loop.call_later(1000, int)
            stack.callback(timer.cancel)
            yield timer
        elif kind.endswith("pipe"):
            reading, writing = os.pipe()
            reader, _ = await loop.connect_read_pipe(asyncio.Protocol, open(reading, "rb", 0))
            writer, _ = await loop.connect_write_pipe(asyncio.Protocol, open(writing, "wb", 0))
            stack.callback(reader.close)
            stack.callback(writer.close)
            yield reader if kind == "read pipe" else writer
        elif kind == "datagrams":
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
            stack.callback(transport.close)
            yield transport
        else:
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            stack.callback(server.close)
            package = sys.modules[loop_name] if kind in ("reader", "writer") else asyncio
            reader, writer = await package.open_connection(*server.sockets[0].getsockname())
            stack.callback(writer.close)
            yield {"server": server, "stream": writer.transport, "reader": reader, "writer": writer}[kind]
    await asyncio.sleep(0.01)


def wrong_calls(function):
    """Arguments that the function does not take: too few, too many, unknown ones, and those given twice."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    keywords = [(), ("wrong",), tuple(names), *((name,) for name in names), *itertools.combinations(names, 2)]
    keywords += [(name, "wrong") for name in names]
    for count, given in itertools.product(range(len(parameters) + 3), keywords):
        values = (None,) * count, dict.fromkeys(given, 1)
        try:
            signature.bind(None, *values[0], **values[1])
        except TypeError:
            yield values


def error(function, values):
    """The error of a call. A coroutine is not begun: the call refuses its arguments."""
    positional, keywords = values
    try:
        made = function(*positional, **keywords)
        if inspect.isawaitable(made):
            made.close()
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"
    return "no error"


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_raise_the_error_of_asyncios_method(run, loop_name, kind):
    async def main():
        async with one_of(kind, loop_name) as object:
            for name, theirs in inspect.getmembers(KINDS[kind], inspect.isfunction):
                if name.startswith("_"):
                    continue
                ours, theirs = getattr(object, name), types.MethodType(theirs, object)
                for values in wrong_calls(theirs.__func__):
                    said = error(theirs, values)
                    if type(ours.__func__) is types.FunctionType:
                        # A method in Python is named with its own class.
                        said = said.replace(theirs.__qualname__, ours.__qualname__)
                    assert error(ours, values) == said, (name, values)

    run(main())


def test_the_traceback_of_a_wrong_call_ends_with_the_call(loop):
    for wrong in (
        lambda: loop.call_soon(),
        lambda: loop.call_later(callback=print),
        lambda: loop.time(1),
        lambda: loop.call_soon(print, name="x"),
        lambda: loop.sock_recv(1),
    ):
        with pytest.raises(TypeError) as info:
            wrong()
        assert [frame.name for frame in traceback.extract_tb(info.value.__traceback__)][-1] == "<lambda>"


def test_a_type_error_from_within_a_call_is_not_reworded(loop):
    class Wrong(float):
        def __radd__(self, other):
            raise TypeError("call_later() missing what it adds")

    with pytest.raises(TypeError):
        loop.call_later()
    with pytest.raises(TypeError, match=r"^call_later\(\) missing what it adds$"):
        loop.call_later(Wrong(1), print)


@pytest.mark.parametrize("name", ["call_soon", "call_later", "time", "create_task", "sock_recv", "stop"])
def test_a_method_of_the_class_is_a_function(loop, name):
    method = inspect.getattr_static(type(loop), name)
    theirs = getattr(asyncio.SelectorEventLoop, name)
    assert inspect.isfunction(method) and isinstance(method, type(lambda: 0))
    assert inspect.isfunction(getattr(type(loop), name)) and inspect.ismethod(getattr(loop, name))
    assert inspect.signature(method) == inspect.signature(theirs)
    assert inspect.getfullargspec(method) == inspect.getfullargspec(theirs)
    assert name in dict(inspect.getmembers(type(loop), inspect.isfunction))
    assert method.__closure__ is None
    assert inspect.getsource(method) == inspect.getsource(theirs)


@pytest.mark.parametrize("name", ["call_soon", "time", "create_future"])
def test_an_autospec_of_a_method_of_the_class_takes_the_loop(loop, name):
    with mock.patch.object(type(loop), name, autospec=True, return_value=3) as patched:
        arguments = (print,) if name == "call_soon" else ()
        assert getattr(loop, name)(*arguments) == 3
        assert patched.call_args == mock.call(loop, *arguments)
        with pytest.raises(TypeError, match="too many|unexpected"):
            getattr(loop, name)(*arguments, wrong=1)
