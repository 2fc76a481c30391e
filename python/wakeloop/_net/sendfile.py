"""The steps before and after a file is sent. The sending itself is native.

Arguments, fallbacks and the order of steps are those of asyncio's ``sendfile`` and ``sock_sendfile``, which call the
functions here.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import sys
from asyncio import SendfileNotAvailableError
from typing import Any

from .. import _core
from .._asyncio import SelectorEventLoop, compat
from .._loop import LoopState

_LARGEST = (1 << 63) - 1
_set_position: Any = getattr(SelectorEventLoop, "_sock_sendfile_update_filepos", None)
# A newer asyncio sets the file's position even if nothing was sent, and its function does not take the total.
_POSITION_NEEDS_TOTAL = _set_position is not None and "total_sent" in inspect.signature(_set_position).parameters


def is_ours() -> bool:
    """Whether asyncio would call Linux's sendfile(2). On other systems, or if it is patched, asyncio's code runs."""
    return sys.platform == "linux" and _set_position is not None and compat.sends_files()


async def from_transport(loop: LoopState, transport: Any, file: Any, offset: int, count: int | None) -> int:
    """Does the work of asyncio's ``_sendfile_native``. It calls ``sock_sendfile``, which checks the arguments and calls
    `to_socket`."""
    resume_reading = transport.is_reading()
    transport.pause_reading()
    drained = transport._make_empty_waiter()
    try:
        await drained
        if transport.is_closing():
            raise ConnectionError("Connection is closed by peer")
        if is_ours():
            return await loop.sock_sendfile(transport._sock, file, offset, count, fallback=False)
        # The transport's descriptor stays registered as it is; a duplicate waits for room instead.
        with transport._sock.dup() as sock:
            sock.setblocking(False)
            return await loop.sock_sendfile(sock, file, offset, count, fallback=False)
    finally:
        transport._reset_empty_waiter()
        if resume_reading:
            transport.resume_reading()


async def to_socket(loop: LoopState, sock: Any, file: Any, offset: int, count: int | None) -> int:
    """Does the work of asyncio's ``_sock_sendfile_native``."""
    try:
        fileno = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        raise SendfileNotAvailableError("not a regular file")
    try:
        size = os.fstat(fileno).st_size
    except OSError:
        raise SendfileNotAvailableError("not a regular file")
    if not (count or size):
        return 0
    sent: int
    error: BaseException | None
    try:
        sent, error = await _begin(loop, sock, fileno, offset, min(count, _LARGEST) if count else None)
    except OSError as problem:
        sent, error = 0, problem
    try:
        loop._sock_sendfile_update_filepos(fileno, offset + sent, *((sent,) if _POSITION_NEEDS_TOTAL else ()))
        if error is None:
            return sent
        if isinstance(error, OSError) and error.errno is not None:
            if sent == 0:
                # The file is probably of a kind that sendfile(2) does not support, because it cannot be mapped.
                raise SendfileNotAvailableError("os.sendfile call failed")
            if error.errno == errno.ENOTCONN:
                raise ConnectionError("socket is not connected", errno.ENOTCONN) from error
        raise error
    finally:
        # The traceback of the error refers to this frame, which would be a cycle.
        del error


def _begin(loop: LoopState, sock: Any, fileno: int, offset: int, count: int | None) -> Any:
    """Starts sending. Returns an awaitable of the number of sent bytes and the error."""
    descriptor = sock.fileno()
    transport = loop._source_of(descriptor) if descriptor >= 0 else None
    if type(transport) is _core.StreamTransport and transport._sock is sock:
        sending = _core.send_file(transport, fileno, offset, count)
        if sending is not None:
            return sending
    loop._ensure_fd_no_transport(descriptor)
    return loop._sock_send_file(sock, fileno, offset, count)
