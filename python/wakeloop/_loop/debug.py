"""Debug mode: notes where objects were made, and logs what took long.

Native code calls these functions through `_support`, with the arguments in the signatures here.
"""

from __future__ import annotations

import socket
import sys
import traceback
from typing import Any

from .._asyncio import base_events, format_helpers, selector_events, unix_events
from . import LoopState



def check_callback(loop: LoopState, callback: object, method: str, check_thread: bool) -> traceback.StackSummary:
    """Makes the checks of asyncio's debug mode for a callback that is scheduled. Returns the stack of the caller."""
    if check_thread:
        loop._check_thread()
    loop._check_callback(callback, method)
    return caller_stack()


def caller_stack() -> traceback.StackSummary:
    """Returns the stack of the Python code that called native code."""
    stack: traceback.StackSummary = format_helpers.extract_stack(sys._getframe(2))
    return stack


def watcher_stack() -> Any:
    """Returns the stack of the code that watches a descriptor, without asyncio's methods that call the native ones."""
    frame = sys._getframe(1)
    if frame.f_code in _WATCHES and frame.f_back is not None:
        frame = frame.f_back
    return format_helpers.extract_stack(frame)


#: asyncio's methods that call `_add_reader` and `_add_writer`.
_WATCHES = [
    getattr(vars(selector_events.BaseSelectorEventLoop).get(name), "__code__", None)
    for name in ("add_reader", "add_writer")
]


def creation_stack() -> Any:
    """Returns the stack of the code that makes an object. Its native constructor calls this in debug mode."""
    return format_helpers.extract_stack(sys._getframe(1))


def callback_took(loop: LoopState, seconds: float, handle: Any) -> None:
    """Logs a callback that has run for longer than the loop's limit, in debug mode."""
    if seconds >= loop.slow_callback_duration:
        base_events.logger.warning(
            "Executing %s took %.3f seconds", base_events._format_handle(handle), seconds
        )


def native_took(loop: LoopState, seconds: float, transport: Any, protocol: Any) -> None:
    """As callback_took, for a transport that has called its protocol, or for a listener. Then the protocol is None."""
    if seconds >= loop.slow_callback_duration:
        # Over TLS, the protocol of the transport wraps that of the program.
        protocol = getattr(protocol, "_app_protocol", protocol)
        what = repr(transport) if protocol is None else f"{protocol!r} of {transport!r}"
        base_events.logger.warning("Executing %s took %.3f seconds", what, seconds)


def accepted(server: Any, conn: socket.socket, peer: Any) -> None:
    """Logs a new connection, in debug mode. The peer's address is None if accept() has returned one of another kind
    than native code can read, of a Unix socket for example."""
    if peer is None:
        try:
            peer = conn.getpeername()
        except OSError:  # The peer is gone.
            pass
    selector_events.logger.debug("%r got a new connection from %r: %r", server, peer, conn)


def logger_of(transport: Any) -> Any:
    """The logger of the module that defines asyncio's transport of the same kind."""
    return (unix_events if "Pipe" in type(transport).__name__ else selector_events).logger


def received_eof(transport: Any) -> None:
    selector_events.logger.debug("%r received EOF", transport)


def paused_reading(transport: Any) -> None:
    logger_of(transport).debug("%r pauses reading", transport)


def resumed_reading(transport: Any) -> None:
    logger_of(transport).debug("%r resumes reading", transport)


def closed_by_peer(transport: Any) -> None:
    unix_events.logger.info("%r was closed by peer", transport)
