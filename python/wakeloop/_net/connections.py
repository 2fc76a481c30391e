"""Connections: which ones the native core makes by itself, and how a server lists those of its clients.

asyncio's own code makes the others. Its Server lists its clients since Python 3.13.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .. import _core
from .._asyncio import base_events

# The native core connects to numeric hosts and ports, over these protocols only.
PLAIN_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
#: asyncio's create_connection has the parameter `all_errors` since Python 3.12.
HAS_ALL_ERRORS = sys.version_info >= (3, 12)


def without_all_errors(function: Any) -> Any:
    """Takes the last parameter of a method away if asyncio does not have it, so the interpreter refuses it at the call.

    In the method's body it is then a variable without a value.
    """
    if not HAS_ALL_ERRORS:
        function.__code__ = function.__code__.replace(co_kwonlyargcount=function.__code__.co_kwonlyargcount - 1)
        del function.__kwdefaults__["all_errors"]
    return function


def fixed_name(sock: socket.socket) -> Any:
    """The local address of every connection accepted from ``sock``, if they all have the same."""
    if sock.family == socket.AF_UNIX:
        return sock.getsockname()
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    name = sock.getsockname()
    return None if name[0] in ("0.0.0.0", "::", "") else name


if TYPE_CHECKING:
    Transports = weakref.WeakSet[asyncio.BaseTransport]
else:
    # The program may have put a function under that name before the import.
    Transports = _core.defined_class("_weakrefset", "WeakSet")


class Clients(_core.ClientCount, Transports):
    """The list of a server's transports. Native transports are only counted, until a program reads the list."""

    loop: _core.EventLoop | None = None
    _named: set[weakref.ref[asyncio.BaseTransport]]

    @property
    def data(self) -> set[weakref.ref[asyncio.BaseTransport]]:
        """The set that all methods of a WeakSet use."""
        if self.loop is not None:
            self.name(self.loop, self._named, self._remove)
        return self._named

    @data.setter
    def data(self, named: set[weakref.ref[asyncio.BaseTransport]]) -> None:
        self._named = named

    if TYPE_CHECKING:

        def _remove(self, item: weakref.ref[asyncio.BaseTransport]) -> None: ...

    def discard(self, item: asyncio.BaseTransport) -> None:
        # This does not use `data`, which would search all other connections each time that one ends.
        self.uncount(item)
        self._named.discard(weakref.ref(item))

    def __len__(self) -> int:
        # Until Python 3.13, a WeakSet removes items that die during an iteration at the end of it.
        return self.counted + len(self._named) - len(getattr(self, "_pending_removals", ()))


def count_clients(loop: _core.EventLoop, server: Any) -> None:
    """Makes a server of asyncio's own class count its clients, if it has none yet."""
    if type(server) is not base_events.Server:
        return
    before = getattr(server, "_clients", None)
    if type(before) is Transports and not before:
        server._clients = clients = Clients()
        clients.loop = loop
