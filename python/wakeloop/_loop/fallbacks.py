"""Rare cases that native code leaves to asyncio: calls with keywords, sockets of other types, unusual data.

Native code calls these functions through `_support`, with the arguments in the signatures here.
"""

from __future__ import annotations

import collections
import socket
import threading
import types
import warnings
from typing import Any

from .. import _core
from .._asyncio import BaseEventLoop, SelectorEventLoop, SelectorSocketTransport, base_events, events, transports
from . import LoopState


_LEADING = {
    "call_soon": ("callback",),
    "call_soon_threadsafe": ("callback",),
    "call_later": ("delay", "callback"),
    "call_at": ("when", "callback"),
}


def by_keyword(loop: LoopState, method: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls the method again with its leading arguments by position, which the caller has given by keyword.

    Returns NotImplemented if one of them is missing.
    """
    values = list(args)
    for name in _LEADING[method][len(args) :]:
        if name not in kwargs:
            return NotImplemented
        values.append(kwargs.pop(name))
    # Not the loop's own method: that may be the override of a subclass, which has called this one by keyword.
    return getattr(_core.EventLoop, method)(loop, *values, **kwargs)


#: asyncio's call_later, for a loop whose call_at is overridden: it calls the override.
later = BaseEventLoop.call_later


def new_gate() -> threading.Event:
    """Makes the event for which a thread waits that cancels a handle while its callback runs in the loop's thread."""
    return threading.Event()


def run_nothing() -> None:
    """Lets Python raise what another thread has raised in this one: it does so when a function begins."""


def default_loop() -> Any:
    """The loop of a stream that is made without one."""
    if hasattr(events, "_get_event_loop"):
        return events._get_event_loop()
    return events.get_event_loop()


def shown_buffer(pieces: tuple[tuple[bytes, int], ...], in_pieces: bool) -> Any:
    """Returns what waits in a write buffer as asyncio has it. Of each piece, so many bytes were sent already."""
    rest = [memoryview(data)[sent:] for data, sent in pieces]
    return collections.deque(rest) if in_pieces else bytearray().join(rest)


def bool_as_descriptor() -> None:
    """Warns of a bool that the program passes as a descriptor, as CPython does since 3.13."""
    warnings.warn("bool is used as a file descriptor", RuntimeWarning, stacklevel=2)


def check_socket(loop: LoopState, sock: socket.socket) -> None:
    """Makes the checks with which asyncio's sock_* methods begin."""
    base_events._check_ssl_socket(sock)
    if loop._debug and sock.gettimeout() != 0:
        raise ValueError("the socket must be non-blocking")


def inherited_sock_call(loop: LoopState, name: str, *args: Any) -> Any:
    """Returns asyncio's own coroutine, for a socket of a subclass or of another type, or because it is patched."""
    return getattr(SelectorEventLoop, name)(loop, *args)


def buffer_limits(high: Any, low: Any) -> tuple[Any, Any]:
    """Returns (low, high) as one of asyncio's transports computes them from these limits."""
    marks = types.SimpleNamespace()
    transports._FlowControlMixin._set_write_buffer_limits(marks, high=high, low=low)
    return marks._low_water, marks._high_water


_writelines = SelectorSocketTransport.writelines


def skips_piece(item: object) -> bool:
    """Does this Python's asyncio ignore the item of writelines()? It raises asyncio's error for a wrong item."""
    blank: Any = types.SimpleNamespace(_eof=False, _empty_waiter=None, _conn_lost=0, _buffer=collections.deque())
    try:
        _writelines(blank, [item])
    except AttributeError:
        # It is bytes-like for asyncio, and would be sent.
        return False
    return not blank._buffer


def refuse_stream_data(transport: Any, data: object) -> None:
    """Raises the error of this Python's asyncio transport for data that is not bytes-like."""
    SelectorSocketTransport.write(transport, data)
