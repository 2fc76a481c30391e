"""When listening sockets, and others that the program has made itself, join the network.

The kernel queues connections from listen() on, whoever accepts them. So a socket joins when the program calls listen() while
the loop runs. One that was there before the run joins when the program waits for it, or, if no other thread lives that may
serve it, when somebody connects to its address. A datagram socket joins when the program waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import stat
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from ... import _core
from ..._asyncio import events
from .._state import TestingLoop
from ._socket import adopt, is_adoptable, receives
from ._state import NetworkState

#: The loops that run with a network.
_loops: list[TestingLoop] = []
#: The sockets of which listen() is called at present, by their ids.
_listening: set[int] = set()
#: A socket that is not open. It leads to the definition of the method.
_any = socket.socket.__new__(socket.socket)


@contextlib.contextmanager
def joining(loop: TestingLoop) -> Iterator[None]:
    """Let sockets join the loop's network with listen(), for the block."""
    if loop.network is None:
        yield
        return
    if not _loops:
        _core._redirect(_any.listen, _listen)
    _loops.append(loop)
    try:
        yield
    finally:
        _loops.remove(loop)
        if not _loops:
            _core._redirect(_any.listen, None)


def _listen(sock: Any, *arguments: Any) -> Any:
    """Stands in for listen() of a real socket."""
    if type(sock) is not socket.socket or id(sock) in _listening or (loop := _loop_here()) is None:
        return NotImplemented
    _listening.add(id(sock))
    try:
        sock.listen(*arguments)
    finally:
        _listening.discard(id(sock))
    if not is_adoptable(loop.network, sock):
        return None
    try:
        _join(loop, sock, arguments[0] if arguments else None)
    except OSError as error:
        # An address that no host has: it stays real.
        if error.errno == errno.EADDRINUSE:
            raise
    return None


def _loop_here() -> TestingLoop | None:
    """The loop of this thread, or the one whose program has started the thread."""
    running = events._get_running_loop()
    if running is not None:
        return running if running in _loops else None
    current = threading.current_thread()
    return next((loop for loop in reversed(_loops) if loop._started_thread(current)), None)


def _join(loop: TestingLoop, sock: socket.socket, backlog: int | None = None) -> None:
    adopt(loop.network, sock, backlog)
    loop._move_watch(sock.fileno())


class Earlier:
    """The sockets that were there before a run."""

    def __init__(self) -> None:
        self._found: list[weakref.ref[socket.socket]] | None = None

    def forget(self) -> None:
        """A run begins: look again when they are needed."""
        self._found = None

    def at(self, loop: TestingLoop, family: int, address: Any) -> None:
        """Let a socket join that listens at an address, if this thread is the only one that can serve it."""
        others = set(threading.enumerate()) - {threading.current_thread()}
        if any(not loop._started_thread(thread) for thread in others):
            return
        if self._found is None:
            self._found = [weakref.ref(each) for each in _sockets() if receives(loop.network, each)]
        for reference in self._found:
            sock = reference()
            if sock is not None and receives(loop.network, sock) and _is_at(sock, family, address):
                with contextlib.suppress(OSError):
                    _join(loop, sock)


def waited_for(network: NetworkState, fileobj: Any, descriptor: Any) -> bool:
    """Let a socket join for which the program begins to wait. Returns whether it has."""
    sock = fileobj
    if not isinstance(sock, socket.socket):
        sock = _socket_of(network, descriptor)
    if sock is None or not receives(network, sock):
        return False
    adopt(network, sock)
    return True


def _sockets() -> list[socket.socket]:
    return [each for each in gc.get_objects() if type(each) is socket.socket and each.fileno() >= 0]


def _socket_of(network: NetworkState, descriptor: Any) -> socket.socket | None:
    """The program's object of a descriptor, if others may look for that socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as same:
            if not receives(network, same):
                return None
    except (OSError, TypeError):
        return None
    return next((each for each in _sockets() if each.fileno() == descriptor), None)


def _is_at(sock: socket.socket, family: int, address: Any) -> bool:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX or family == socket.AF_UNIX:
        if sock.family != family:
            return False
        with contextlib.suppress(OSError, TypeError, ValueError):
            return os.fsencode(name) == os.fsencode(address) or os.path.samefile(name, address)
        return False
    return isinstance(address, tuple) and len(address) > 1 and name[1] == address[1]
