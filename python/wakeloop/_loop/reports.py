"""Reports errors to the loop's exception handler and to asyncio's log.

Native code calls these functions through `_support`, with the arguments in the signatures here. The texts are
asyncio's, because log filters of programs match them. The logger is looked up for each line in the module of asyncio
that would log it, because tests replace it there.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import socket
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from .. import _core
from .._asyncio import (
    SelectorSocketTransport,
    base_events,
    constants,
    events,
    format_helpers,
    selector_events,
    trsock,
    unix_events,
)
from . import LoopState
from .debug import caller_stack, logger_of


#: Since 3.13 a report shows the arguments of a callback in debug mode only.
_HIDES_ARGUMENTS = "debug" in inspect.signature(format_helpers._format_callback_source).parameters


def callback_failed(loop: LoopState, handle: Any, exception: BaseException) -> None:
    """Calls the loop's exception handler for a callback that raised, as Handle._run does."""
    if _traceback_of(exception) is None:
        _raised_in_c(exception)
    shown = {"debug": loop.get_debug()} if _HIDES_ARGUMENTS else {}
    callback = format_helpers._format_callback_source(handle._callback, handle._args, **shown)
    context = {
        "message": f"Exception in callback {callback}",
        "exception": exception,
        "handle": handle,
    }
    if handle._source_traceback:
        context["source_traceback"] = handle._source_traceback
    loop.call_exception_handler(context)


def bare_callback_failed(loop: LoopState, handle: Any, exception: BaseException) -> None:
    """As callback_failed, for a callback without a handle of its own.

    Its source traceback shows where it ran, because nothing has noted where it was scheduled.
    """
    if loop.get_debug():
        handle._source_traceback = caller_stack()
    callback_failed(loop, handle, exception)


#: Reads the traceback of an exception, even if its class overrides the attribute.
_traceback_of = BaseException.__dict__["__traceback__"].__get__


def _raised_in_c(exception: BaseException) -> None:
    """Gives a traceback to an exception that C code has raised.

    With asyncio it always has one, and handlers read its last entry. It shows the code that runs the loop, which has
    called the callback.
    """
    frame = sys._getframe(1)
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    BaseException.with_traceback(exception, types.TracebackType(None, frame, frame.f_lasti, frame.f_lineno))
    # The frame lives as long as the traceback, and holds its local variables.
    del exception, frame


#: asyncio's transport classes, by the names of ours.
_KINDS: dict[str, Any] = {
    "StreamTransport": SelectorSocketTransport,
    "DatagramTransport": selector_events._SelectorDatagramTransport,
    "ReadPipeTransport": unix_events._UnixReadPipeTransport,
    "WritePipeTransport": unix_events._UnixWritePipeTransport,
}


def step_failed(
    loop: LoopState, transport: Any, step: str, context: Any, exception: BaseException, *args: Any
) -> None:
    """Reports that a protocol raised in a call by a transport.

    On asyncio that happens within a callback of the transport, which the report names.
    """
    kind = _KINDS[type(transport).__name__]
    handle = events.Handle(types.MethodType(getattr(kind, step), transport), args, loop, context)
    if handle._source_traceback:
        handle._source_traceback = caller_stack()
    callback_failed(loop, handle, exception)


def cannot_watch(loop: LoopState, transport: Any, context: Any, exception: BaseException) -> None:
    """Reports that the poller refuses a transport's file, such as /dev/null. The transport stays open, without events.

    On asyncio the callback fails that registers the file after connection_made().
    """
    kind: Any = _KINDS[type(transport).__name__]
    fd = transport._fileno if hasattr(transport, "_fileno") else transport._sock_fd
    # Before 3.12 a pipe transport passed the loop's own method to call_soon().
    owner, bound = (kind, transport) if hasattr(kind, "_add_reader") else (selector_events.BaseSelectorEventLoop, loop)
    callback = types.MethodType(owner._add_reader, bound)
    handle = events.Handle(callback, (fd, types.MethodType(kind._read_ready, transport)), loop, context)
    if handle._source_traceback:
        handle._source_traceback = caller_stack()
    callback_failed(loop, handle, exception)


def fatal_error(loop: LoopState, transport: Any, protocol: Any, exception: BaseException, message: str) -> None:
    """Reports an error that ends a transport, which the caller closes afterwards."""
    if isinstance(exception, OSError):
        if loop.get_debug():
            logger_of(transport).debug("%r: %s", transport, message, exc_info=exception)
    else:
        loop.call_exception_handler(
            {"message": message, "exception": exception, "transport": transport, "protocol": protocol}
        )


def read_pipe_failed(loop: LoopState, transport: Any, protocol: Any, exception: BaseException, message: str) -> None:
    """As fatal_error, for a read pipe. For EIO, with which a terminal ends, it only logs, in debug mode."""
    if isinstance(exception, OSError) and exception.errno == errno.EIO:
        if loop.get_debug():
            logger_of(transport).debug("%r: %s", transport, message, exc_info=exception)
    else:
        protocol_failed(loop, transport, protocol, exception, message)


def protocol_failed(loop: LoopState, transport: Any, protocol: Any, exception: BaseException, message: str) -> None:
    """Reports a pause_writing() or resume_writing() that raised. The connection stays open."""
    loop.call_exception_handler(
        {"message": message, "exception": exception, "transport": transport, "protocol": protocol}
    )


def write_after_lost(lost: int) -> None:
    """Logs the fifth write to a lost connection, and every one after it."""
    if lost >= constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES:
        selector_events.logger.warning("socket.send() raised exception.")


def pipe_write_after_lost(lost: int) -> None:
    """As write_after_lost, for a pipe."""
    if lost >= constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES:
        unix_events.logger.warning("pipe closed by peer or os.write(pipe, data) raised exception.")


def fail_waiter(waiter: asyncio.Future[Any], error: Exception | None = None) -> None:
    """Fails a future. Without an error, the connection ended while sendfile() waited for the buffer to drain."""
    if not waiter.done():
        waiter.set_exception(error or ConnectionError("Connection is closed by peer"))


def _unclosed_transport(transport: Any, warn: Callable[..., None] = warnings.warn_explicit) -> None:
    """Warns as `__del__` of asyncio's transport does, and at the same place: filters of programs name its module."""
    place = _UNCLOSED[type(transport).__name__]
    warn(f"unclosed transport {transport!r}", ResourceWarning, *place, source=transport)


def _place_of_warning(kind: Any) -> tuple[str, int, str, dict[Any, Any]]:
    """Returns the file, line, module and registry of the warning in `__del__` of asyncio's class, after its `if`."""
    # The program may have put something else than a function there.
    code = getattr(kind.__del__, "__code__", _unclosed_transport.__code__)
    registry = sys.modules[kind.__module__].__dict__.setdefault("__warningregistry__", {})
    return code.co_filename, code.co_firstlineno + 2, kind.__module__, registry


_UNCLOSED = {name: _place_of_warning(kind) for name, kind in _KINDS.items()}


_core._warn_unclosed_with(_unclosed_transport)


def connect_failed(waiter: asyncio.Future[Any], code: int, address: object) -> None:
    """Fails the waiter of a connection that could not be made."""
    if not waiter.done():
        waiter.set_exception(OSError(code, f"Connect call failed {address}"))


def connection_failed(loop: LoopState, exception: BaseException, protocol: asyncio.BaseProtocol | None) -> None:
    """Reports, in debug mode, that an incoming connection got no transport."""
    context: dict[str, Any] = {
        "message": "Error on transport creation for incoming connection",
        "exception": exception,
    }
    if protocol is not None:
        context["protocol"] = protocol
    loop.call_exception_handler(context)


def accept_broken(loop: LoopState, sock: socket.socket, exception: BaseException) -> None:
    """Reports an error of accept() that a retry would not resolve."""
    loop.call_exception_handler(
        {
            "message": "Exception in callback BaseSelectorEventLoop._accept_connection()",
            "exception": exception,
            "socket": trsock.TransportSocket(sock),
        }
    )


def accept_by_asyncio(
    loop: Any, factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket, server: Any, backlog: int
) -> None:
    """Accepts connections with asyncio's code, which calls what the program has patched."""
    try:
        loop._accept_connection(factory, sock, None, server, backlog)
    except Exception as exception:
        accept_broken(loop, sock, exception)


def accept_exhausted(
    loop: LoopState,
    factory: Callable[[], asyncio.BaseProtocol],
    sock: socket.socket,
    server: Any,
    backlog: int,
    exception: BaseException,
) -> None:
    """Reports that accept() ran out of descriptors or memory, and starts the listener again after a delay."""
    loop.call_exception_handler(
        {
            "message": "socket.accept() out of system resource",
            "exception": exception,
            "socket": trsock.TransportSocket(sock),
        }
    )

    def again() -> None:
        # The server may have been closed in the meantime.
        if sock.fileno() >= 0:
            # Since Python 3.15 a server has a context, of which each connection gets a copy.
            context = getattr(server, "_context", None)
            options = {} if context is None else {"context": context}
            loop._start_serving(factory, sock, None, server, backlog, **options)

    loop.call_later(constants.ACCEPT_RETRY_DELAY, again)
