"""The parameters of the methods of asyncio in whose place native ones are.

A native method answers `inspect` as the method of asyncio does. If it refuses its arguments, it calls a stand-in, a
function of Python with the same parameters that does nothing. So the interpreter words the error, as for asyncio.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from . import Handle, SelectorEventLoop, TimerHandle, events, selector_events, sslproto, streams, unix_events

#: asyncio's classes, by the names of the native ones in their place.
_CLASSES: dict[str, Any] = {
    "EventLoop": SelectorEventLoop,
    "Handle": Handle,
    "TimerHandle": TimerHandle,
    "ThreadSafeHandle": getattr(events, "_ThreadSafeHandle", Handle),
    "StreamTransport": selector_events._SelectorSocketTransport,
    "DatagramTransport": selector_events._SelectorDatagramTransport,
    "ReadPipeTransport": unix_events._UnixReadPipeTransport,
    "WritePipeTransport": unix_events._UnixWritePipeTransport,
    "SSLTransport": sslproto._SSLProtocolTransport,
    "StreamReader": streams.StreamReader,
    "StreamWriter": streams.StreamWriter,
}

_NOTHING = (lambda: None).__code__
_KINDS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_VARIABLE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _without_body(function: Any, flags: int) -> types.FunctionType:
    """A function with the name, the parameters and the place of another one."""
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & _VARIABLE).bit_count()
    empty = _NOTHING.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=count,
        co_varnames=code.co_varnames[:count],
        co_flags=_NOTHING.co_flags | code.co_flags & flags,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=function.__qualname__,
    )
    made = types.FunctionType(empty, {"__name__": function.__module__}, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _of_asyncio(kind: type, name: str) -> types.FunctionType | None:
    found = getattr(_CLASSES.get(kind.__name__), name, None)
    return found if type(found) is types.FunctionType else None


def asyncios_parameters(kind: type, name: str) -> types.FunctionType | None:
    """A function with the parameters of asyncio's method in whose place that of a native class is, if there is one."""
    found = _of_asyncio(kind, name)
    return None if found is None else _without_body(found, _VARIABLE | _KINDS)


def stand_in(kind: type, name: str) -> types.FunctionType | None:
    """A function that takes what asyncio's method takes, or else what a method of a native class takes."""
    found = _of_asyncio(kind, name) or vars(kind).get(name)
    return None if found is None else _without_body(found, _VARIABLE)
