"""The cold paths of the native core: errors, debug mode, and what happens once in a connection's life.

Called from Rust with the arguments in the signatures here. The texts are asyncio's, because people's log
filters know them.
"""

from __future__ import annotations

import _socket
import asyncio
import errno
import inspect
import os
import socket
import stat
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._inherited import base_events, constants, events, format_helpers, selector_events, transports, trsock, unix_events

if TYPE_CHECKING:
    from .loop import EventLoop

# asyncio's own logger is looked up through its module each time: tests replace it there.


def probe_c_caller(stub_class: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Let a C task make its first call_soon on a stub loop, which records how it was called."""

    async def nothing() -> None:
        pass

    coroutine = nothing()
    try:
        # Named, so that the first task of the program is still "Task-1".
        task: Any = asyncio.Task(coroutine, loop=stub_class(), name="probe")
        # The stub never runs it: that is no reason to warn.
        task._log_destroy_pending = False
        asyncio.tasks._unregister_task(task)
    finally:
        coroutine.close()


_LEADING = {
    "call_soon": ("callback",),
    "call_soon_threadsafe": ("callback",),
    "call_later": ("delay", "callback"),
    "call_at": ("when", "callback"),
}


def by_keyword(loop: EventLoop, method: str, *args: Any, **kwargs: Any) -> Any:
    """Make positional what a caller has named, and call again."""
    values = list(args)
    for name in _LEADING[method][len(args) :]:
        if name not in kwargs:
            raise TypeError(f"{method}() missing 1 required positional argument: {name!r}")
        values.append(kwargs.pop(name))
    return getattr(loop, method)(*values, **kwargs)


#: call_later of a loop whose call_at is somebody's own, who sees every timer there: asyncio's, which calls that.
later = base_events.BaseEventLoop.call_later


def new_gate() -> threading.Event:
    """What a thread waits at that cancels a handle while its callback runs in the loop's thread."""
    return threading.Event()


def clock() -> float:
    """The time as asyncio's loop asks for it."""
    return time.monotonic()


#: Since 3.13 the arguments of a callback are named in debug mode only.
_HIDES_ARGUMENTS = "debug" in inspect.signature(format_helpers._format_callback_source).parameters


def callback_failed(loop: EventLoop, handle: Any, exception: BaseException) -> None:
    """A callback raised: tell the loop's exception handler, as Handle._run does."""
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


def bare_callback_failed(loop: EventLoop, handle: Any, exception: BaseException) -> None:
    """The same for a callback that had no handle until now: where it was scheduled is not known, only where it ran."""
    if loop.get_debug():
        handle._source_traceback = caller_stack()
    callback_failed(loop, handle, exception)


#: The traceback that a raise has put there, whatever the exception's class shows.
_traceback_of = BaseException.__dict__["__traceback__"].__get__


def _raised_in_c(exception: BaseException) -> None:
    """Give it a traceback, which asyncio's always has: handlers look at the last entry."""
    frame = sys._getframe()
    BaseException.with_traceback(exception, types.TracebackType(None, frame, frame.f_lasti, frame.f_lineno))
    # The frame lives as long as the traceback, with what it names.
    del exception, frame


def step_failed(
    loop: EventLoop, transport: Any, step: str, context: Any, exception: BaseException, *args: Any
) -> None:
    """The same for a protocol that a transport has called: it was within a step of asyncio's transport."""
    kind = _KINDS[type(transport).__name__]
    handle = events.Handle(types.MethodType(getattr(kind, step), transport), args, loop, context)
    if handle._source_traceback:
        handle._source_traceback = caller_stack()
    callback_failed(loop, handle, exception)


#: asyncio's transports, by the names of ours.
_KINDS: dict[str, Any] = {
    "StreamTransport": selector_events._SelectorSocketTransport,
    "DatagramTransport": selector_events._SelectorDatagramTransport,
    "ReadPipeTransport": unix_events._UnixReadPipeTransport,
    "WritePipeTransport": unix_events._UnixWritePipeTransport,
}


def callback_took(loop: EventLoop, seconds: float, handle: Any) -> None:
    """Debug mode: log a callback that held the loop for long."""
    if seconds >= loop.slow_callback_duration:
        base_events.logger.warning(
            "Executing %s took %.3f seconds", base_events._format_handle(handle), seconds
        )


def buffer_limits(high: Any, low: Any) -> tuple[Any, Any]:
    """(low, high) as a transport of asyncio has them that is given these."""
    marks = types.SimpleNamespace()
    transports._FlowControlMixin._set_write_buffer_limits(marks, high=high, low=low)
    return marks._low_water, marks._high_water


def native_took(loop: EventLoop, seconds: float, transport: Any, protocol: Any) -> None:
    """The same for a transport that called its protocol, or for a listener, whose protocol is None."""
    if seconds >= loop.slow_callback_duration:
        # Over TLS the protocol of the transport is asyncio's or ours; the program's is behind it.
        protocol = getattr(protocol, "_app_protocol", protocol)
        what = repr(transport) if protocol is None else f"{protocol!r} of {transport!r}"
        base_events.logger.warning("Executing %s took %.3f seconds", what, seconds)


def check_callback(loop: EventLoop, callback: object, method: str, check_thread: bool) -> traceback.StackSummary:
    """Debug mode: the checks that asyncio makes on scheduling, and where it happened."""
    if check_thread:
        loop._check_thread()
    loop._check_callback(callback, method)
    return caller_stack()


def caller_stack() -> traceback.StackSummary:
    """The stack of whoever called into the native core."""
    stack: traceback.StackSummary = format_helpers.extract_stack(sys._getframe(2))
    return stack


def default_loop() -> Any:
    """The loop of a stream that was made without one."""
    if hasattr(events, "_get_event_loop"):
        return events._get_event_loop()
    return events.get_event_loop()


def creation_stack() -> Any:
    """Debug mode: where the object is made whose native half asks."""
    return format_helpers.extract_stack(sys._getframe(1))


def check_socket(loop: EventLoop, sock: socket.socket) -> None:
    """What asyncio's sock_* methods check first."""
    base_events._check_ssl_socket(sock)
    if loop._debug and sock.gettimeout() != 0:
        raise ValueError("the socket must be non-blocking")


def inherited_sock_call(loop: EventLoop, name: str, *args: Any) -> Any:
    """asyncio's own coroutine for a socket that is not an ordinary one."""
    return getattr(selector_events.BaseSelectorEventLoop, name)(loop, *args)


def fatal_error(loop: EventLoop, transport: Any, protocol: Any, exception: BaseException, message: str) -> None:
    """A transport cannot go on; the core closes it after this."""
    if isinstance(exception, OSError):
        if loop.get_debug():
            base_events.logger.debug("%r: %s", transport, message, exc_info=exception)
    else:
        loop.call_exception_handler(
            {"message": message, "exception": exception, "transport": transport, "protocol": protocol}
        )


def read_pipe_failed(loop: EventLoop, transport: Any, protocol: Any, exception: BaseException, message: str) -> None:
    """As fatal_error, for a pipe that is read: a terminal's EIO is its ordinary end, the rest is news."""
    if isinstance(exception, OSError) and exception.errno == errno.EIO:
        if loop.get_debug():
            base_events.logger.debug("%r: %s", transport, message, exc_info=exception)
    else:
        protocol_failed(loop, transport, protocol, exception, message)


def protocol_failed(loop: EventLoop, transport: Any, protocol: Any, exception: BaseException, message: str) -> None:
    """pause_writing or resume_writing raised; the connection goes on."""
    loop.call_exception_handler(
        {"message": message, "exception": exception, "transport": transport, "protocol": protocol}
    )


def close_failed(loop: EventLoop, transport: Any, exception: BaseException) -> None:
    """Most likely somebody has closed the descriptor of a transport, which may be another's by now."""
    loop.call_exception_handler(
        {
            "message": f"Exception in callback {type(transport).__name__}._call_connection_lost()",
            "exception": exception,
            "transport": transport,
        }
    )


def refuse_stream_data(transport: Any, data: object) -> None:
    """What cannot be written, refused in the words that asyncio has for it in this version."""
    selector_events._SelectorSocketTransport.write(transport, data)


def write_after_lost() -> None:
    """The fifth write to a connection that is gone, and every one after it."""
    base_events.logger.warning("socket.send() raised exception.")


def pipe_write_after_lost() -> None:
    """The same for a pipe."""
    base_events.logger.warning("pipe closed by peer or os.write(pipe, data) raised exception.")


def closed_by_peer(transport: Any) -> None:
    base_events.logger.info("%r was closed by peer", transport)


def fail_waiter(waiter: asyncio.Future[Any], error: Exception | None = None) -> None:
    """Without an error: the connection ended while a sendfile waited for its buffer to drain."""
    if not waiter.done():
        waiter.set_exception(error or ConnectionError("Connection is closed by peer"))


def unclosed_transport(transport: Any) -> None:
    warnings.warn(f"unclosed transport {transport!r}", ResourceWarning, source=transport)


def received_eof(transport: Any) -> None:
    base_events.logger.debug("%r received EOF", transport)


def paused_reading(transport: Any) -> None:
    base_events.logger.debug("%r pauses reading", transport)


def resumed_reading(transport: Any) -> None:
    base_events.logger.debug("%r resumes reading", transport)


#: The class itself: its name may lead to somebody's mock later on.
Socket = socket.socket

#: What a transport does with a socket. Whoever has overridden one of these wants to be asked.
_SOCKET_CALLS = ("recv", "recv_into", "send", "sendmsg", "shutdown", "close", "detach", "fileno")


def is_ordinary_socket(sock: object) -> bool:
    """Whether reading and writing the descriptor is the same as asking the object: else asyncio's transport does."""
    kind = type(sock)
    return kind is Socket or (
        issubclass(kind, Socket)
        and all(getattr(kind, name) is getattr(Socket, name) for name in _SOCKET_CALLS)
    )


def socket_details(sock: socket.socket, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What get_extra_info() knows of a socket. A peer's name that is given already stays."""
    details = dict(extra or ())
    details["socket"] = trsock.TransportSocket(sock)
    for name, ask in (("sockname", sock.getsockname), ("peername", sock.getpeername)):
        if name == "peername" and name in details:
            continue
        try:
            details[name] = ask()
        except OSError:
            details[name] = None
    return details


def pipe_details(
    loop: EventLoop, pipe: Any, extra: Mapping[str, Any] | None, refusal: str
) -> tuple[Any, dict[str, Any], bool]:
    """(who owns the descriptor, what get_extra_info() knows, whether the other end's close is noticed).

    Raises ValueError with the given text for what is no pipe.
    """
    details = dict(extra or ())
    details["pipe"] = pipe
    fd = pipe.fileno()
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        raise ValueError(refusal)
    os.set_blocking(fd, False)
    notices_close = stat.S_ISSOCK(mode) or (stat.S_ISFIFO(mode) and not sys.platform.startswith("aix"))
    if loop._source_of(fd) is not None or loop._watch_of(fd)[0]:
        pipe = _Duplicate(pipe)
    return pipe, details, notices_close


class _Duplicate:
    """A descriptor of its own for the second transport of a pipe: most often a terminal, read and written.

    The core has one place per descriptor.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._fd = pipe, os.dup(pipe.fileno())

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self.__del__()
        self._pipe.close()

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


# The families whose addresses the native datagram transport understands; others get asyncio's.
DATAGRAM_FAMILIES = frozenset(
    getattr(socket, name) for name in ("AF_INET", "AF_INET6", "AF_UNIX") if hasattr(socket, name)
)


def _datagram_rules() -> tuple[bool, int]:
    """Whether this asyncio sends empty datagrams, and what it counts for each beside its data (3.13: 8)."""
    kind = selector_events._SelectorDatagramTransport

    class Blocked:
        """As much of a transport as sendto() looks at while another datagram waits."""

        _address, _conn_lost, _buffer_size = None, 0, 0
        _header_size = getattr(kind, "_header_size", 0)

        def __init__(self) -> None:
            self._buffer = [None]

        def _maybe_pause_protocol(self) -> None:
            pass

    transport: Any = Blocked()
    try:
        kind.sendto(transport, b"")
        sends_empty = len(transport._buffer) > 1
        transport._buffer_size = 0
        kind.sendto(transport, b"x")
    except AttributeError:
        # A newer asyncio that looks at more: as the newest one known.
        return True, 8
    return sends_empty, transport._buffer_size - 1


DATAGRAM_RULES = _datagram_rules()


def _original(name: str) -> object:
    """A function of the socket module, unless somebody has replaced it already: then nothing is it."""
    function = getattr(socket, name)
    home = getattr(function, "__globals__", None) is vars(socket) or function is getattr(_socket, name)
    return function if home else object()


# The two that the native lookups stand for. Who patches the socket module is called instead.
getaddrinfo, getnameinfo = _original("getaddrinfo"), _original("getnameinfo")
# Likewise for its sockets, which native connections do without.
socket_class = Socket if Socket.__module__ == "socket" else object()


def adopt_socket(fd: int) -> socket.socket:
    """A socket object for a descriptor that the native accept made; it owns the descriptor from now on."""
    sock = Socket.__new__(Socket)
    try:
        Socket.__init__(sock, fileno=fd)
        sock.setblocking(False)
    except BaseException:
        # Not its own yet: whoever asked still has it.
        sock.detach()
        raise
    return sock


def accepted(server: Any, fd: int) -> None:
    """A connection came in, in debug mode; the descriptor stays whose it is."""
    conn = Socket(fileno=fd)
    try:
        peer = conn.getpeername()
    except OSError:  # gone already
        peer = None
    try:
        base_events.logger.debug("%r got a new connection from %r: %s", server, peer, repr(conn))
    finally:
        conn.detach()


def closed_socket(family: int, kind: int = socket.SOCK_STREAM) -> socket.socket | None:
    """What is left of a connection's socket for somebody who asks for it only when it is closed."""
    internet = family in (socket.AF_INET, socket.AF_INET6) and kind == socket.SOCK_STREAM
    try:
        sock = Socket(family, kind, socket.IPPROTO_TCP if internet else 0)
    except OSError:
        return None
    sock.close()
    return sock


def connecting_socket(fd: int, family: int) -> socket.socket:
    """The socket of a connection on its way, for an audit hook; it owns the descriptor from now on."""
    return Socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)


def connect_failed(waiter: asyncio.Future[Any], code: int, address: object) -> None:
    """A connection on its way came to nothing."""
    if not waiter.done():
        waiter.set_exception(OSError(code, f"Connect call failed {address}"))


def connection_failed(loop: EventLoop, exception: BaseException, protocol: asyncio.BaseProtocol | None) -> None:
    """Debug mode: an incoming connection got no transport."""
    context: dict[str, Any] = {
        "message": "Error on transport creation for incoming connection",
        "exception": exception,
    }
    if protocol is not None:
        context["protocol"] = protocol
    loop.call_exception_handler(context)


def accept_broken(loop: EventLoop, sock: socket.socket, exception: BaseException) -> None:
    """accept() failed in a way that waiting does not mend."""
    loop.call_exception_handler(
        {
            "message": "Exception in callback BaseSelectorEventLoop._accept_connection()",
            "exception": exception,
            "socket": trsock.TransportSocket(sock),
        }
    )


def accept_exhausted(
    loop: EventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    sock: socket.socket,
    server: Any,
    backlog: int,
    exception: BaseException,
) -> None:
    """Out of descriptors or memory: the listener rests and tries again."""
    loop.call_exception_handler(
        {
            "message": "socket.accept() out of system resource",
            "exception": exception,
            "socket": trsock.TransportSocket(sock),
        }
    )

    def again() -> None:
        # The server may have been closed meanwhile.
        if sock.fileno() >= 0:
            loop._start_serving(factory, sock, None, server, backlog)

    loop.call_later(constants.ACCEPT_RETRY_DELAY, again)
