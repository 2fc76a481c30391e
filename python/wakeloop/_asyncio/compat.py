"""Which of asyncio's functions, classes and modules our loop replaces, and whether they are unpatched.

Programs and their tests patch asyncio: to block traffic, to resolve names themselves, to use transports of their own.
Our loop asks one of the questions here before it does something without asyncio's code. If the answer is no, asyncio's
code runs, and with it the patch.

Native code was written against known versions of asyncio's functions. Whether this Python has these versions is checked
once, at import, by the names that the functions refer to (`names_within`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from .. import _core
from . import Handle, SelectorEventLoop, base_events, events, selector_events, sslproto, unix_events

#: The methods that asyncio's stream transport calls on a socket. If one is overridden or patched, it has to be called.
STREAM_CALLS = (
    "close",
    "detach",
    "family",
    "fileno",
    "getpeername",
    "getsockname",
    "recv",
    "recv_into",
    "send",
    "sendmsg",
    "setsockopt",
    "shutdown",
    "type",
)
#: The methods that asyncio's datagram transport calls.
_DATAGRAM_CALLS = ("close", "fileno", "getpeername", "getsockname", "recvfrom", "send", "sendto")
#: The methods with which asyncio makes sockets for connections, and accepts them.
_MAKING_CALLS = ("__init__", "__new__", "_accept", "accept", "connect", "getsockopt", "setblocking")


def names_within(function: Any, module: Any) -> set[str]:
    """All names that a module's own function and the functions within it refer to; empty for any other function."""
    if not isinstance(function, types.FunctionType) or function.__globals__ is not vars(module):
        return set()
    code = function.__code__
    names = set(code.co_names)
    for const in code.co_consts:
        if type(const) is types.CodeType:
            names.update(const.co_names)
    return names


#: Does asyncio refuse a second transport on the same socket? It does since Python 3.12.
REFUSES_SECOND_TRANSPORT = sys.version_info >= (3, 12) or "_ensure_fd_no_transport" in names_within(
    getattr(selector_events.BaseSelectorEventLoop, "_make_socket_transport", None), selector_events
)


def probe_c_caller(stub: asyncio.AbstractEventLoop) -> tuple[type, ...]:
    """Makes a C task call call_soon on a stub loop, which notes the tuple of keyword names that C code passes.

    Returns the classes of C code of which each task, each future and each await of one has an instance.
    """

    async def nothing() -> None:
        pass

    coroutine = nothing()
    try:
        # The task has a name, so that the first task of the program is still "Task-1".
        # It is the original class: the program may have replaced asyncio.Task before the import.
        task: Any = asyncio.tasks._CTask(coroutine, loop=stub, name="probe")  # type: ignore[attr-defined]
        # The stub never runs the task, and that must not cause a warning.
        task._log_destroy_pending = False
        asyncio.tasks._unregister_task(task)
        return type(task), asyncio.futures._CFuture, type(task.__await__())  # type: ignore[attr-defined]
    finally:
        coroutine.close()


def _transport(module: Any, name: str, *bases: type) -> tuple[tuple[Any, ...], ...]:
    """A transport class of asyncio's under its name, and all the methods that it and its private bases define.

    A patch of one of them may call the original, which reads private attributes that only asyncio's transports have.
    """
    kind = getattr(module, name)
    return _class_under(module, name, dict.fromkeys(method for owner in (kind, *bases) for method in _functions(owner)))


def _class_under(module: Any, name: str, methods: Iterable[str]) -> tuple[tuple[Any, ...], ...]:
    """A class under its name in a module, and methods of it. A program may have put a function there."""
    kind = getattr(module, name)
    return ((module, name), (kind, *methods)) if isinstance(kind, type) else ((module, name),)


def _functions(kind: type) -> list[str]:
    """The names of the methods and properties that a class defines, and of the number by which it bounds its reads."""
    return [
        name
        for name, value in vars(kind).items()
        if isinstance(value, (types.FunctionType, property)) or name == "max_size"
    ]


def _methods(parts: tuple[tuple[Any, ...], ...]) -> list[Any]:
    """The functions of a transport class, of which `_transport` has returned the names."""
    (module, name), (kind, *names) = parts[:2]
    if kind is not getattr(module, name):
        return []
    return [found for name in names if isinstance(found := getattr(kind, name), types.FunctionType)]


_base = selector_events._SelectorTransport
_streams = (
    *_transport(selector_events, "_SelectorSocketTransport", _base),
    (_core.Socket, *STREAM_CALLS),
)
_datagrams = (
    *_transport(selector_events, "_SelectorDatagramTransport", _base),
    (_core.Socket, *_DATAGRAM_CALLS),
)
# asyncio's transports of pipes read and write with these two functions.
_read_pipes = (
    *_transport(unix_events, "_UnixReadPipeTransport"),
    (unix_events, "os"),
    (os, "read"),
)
_write_pipes = (
    *_transport(unix_events, "_UnixWritePipeTransport"),
    (unix_events, "os"),
    (os, "write"),
)

#: May our loop make its own transports? One question for each kind.
makes_streams = _core.unpatched(((SelectorEventLoop, "_make_socket_transport"), *_streams))
makes_tls = _core.unpatched(((SelectorEventLoop, "_make_ssl_transport", "_make_socket_transport"), *_streams))
#: May a TLS connection use our SSLProtocol? It does not call each method of asyncio's.
makes_tls_protocols = _core.unpatched((
    *_transport(sslproto, "SSLProtocol"), *_transport(sslproto, "_SSLProtocolTransport"),
))
makes_datagrams = _core.unpatched(((SelectorEventLoop, "_make_datagram_transport"), *_datagrams))
makes_read_pipes = _core.unpatched(((SelectorEventLoop, "_make_read_pipe_transport"), *_read_pipes))
makes_write_pipes = _core.unpatched(((SelectorEventLoop, "_make_write_pipe_transport"), *_write_pipes))

#: The methods of the transports that the loop's methods make.
TRANSPORTS = {
    "_make_socket_transport": _methods(_streams),
    "_make_datagram_transport": _methods(_datagrams),
    "_make_read_pipe_transport": _methods(_read_pipes),
    "_make_write_pipe_transport": _methods(_write_pipes),
}

#: May our loop make its own handles? `Handle._run` may be patched: native handles call it then.
_handles = tuple(
    part
    for name in ("Handle", "TimerHandle", "_ThreadSafeHandle")
    if hasattr(events, name)
    for part in _class_under(events, name, (each for each in _functions(getattr(events, name)) if each != "_run"))
)
makes_handles = _core.unpatched((*_handles,))

#: May our transports call their protocols without a handle?
runs_without_handles = _core.unpatched(((Handle, "_run"),))

#: What the two questions above are about.
HANDLES = (*_handles, (Handle, "_run"))

#: May our loop make and accept sockets without the socket module?
makes_sockets = _core.unpatched((
    (base_events, "socket"), (socket, "socket"), (_core.Socket, *_MAKING_CALLS),
))
#: May our loop wait for the end of a connect without the socket's methods? The answer depends on the socket.
waits_for_connects = _core.unpatched(((_core.Socket, "fileno", "getsockopt"),))
#: Would a new pair of sockets be of Python's own class? The program may see that they are made.
makes_pairs = _core.unpatched((
    (selector_events, "socket"),
    (socket, "socket", "socketpair"),
    (_core.Socket, "__init__", "__new__", "setblocking"),
))
creates_connections = _core.unpatched(((SelectorEventLoop, "create_connection"),))
connects_sockets = _core.unpatched(((SelectorEventLoop, "sock_connect"),))

#: May our loop look names up without the socket module?
looks_up_names = _core.unpatched((
    (SelectorEventLoop, "getaddrinfo"), (base_events, "socket"), (socket, "getaddrinfo"),
))

runs_in_executor = _core.unpatched(((SelectorEventLoop, "run_in_executor"),))

# asyncio's child watchers. Until 3.13 they are public and belong to the policy, from 3.14 on they are private and
# belong to the loop.
_watcher_prefix = "" if sys.version_info < (3, 14) else "_"
PidfdChildWatcher: Any = _core.defined_class("asyncio.unix_events", f"{_watcher_prefix}PidfdChildWatcher")
ThreadedChildWatcher: Any = _core.defined_class("asyncio.unix_events", f"{_watcher_prefix}ThreadedChildWatcher")
#: The default one. Until 3.11, asyncio waits for each child in a thread.
DefaultChildWatcher: Any = ThreadedChildWatcher if sys.version_info < (3, 12) else PidfdChildWatcher

#: May our loop watch its children itself, unless the program has chosen a child watcher?
watches_children = _core.unpatched((
    *_class_under(unix_events, DefaultChildWatcher.__name__, _functions(DefaultChildWatcher)),
    *((events, name) for name in ("get_child_watcher", "get_event_loop_policy") if hasattr(events, name)),
))

#: May our loop call sendfile(2) without the os module? False where the system has none.
sends_files: Callable[[], bool] = (
    _core.unpatched(((unix_events, "os"), (os, "sendfile"))) if hasattr(os, "sendfile") else lambda: False
)
