"""Connections: which ones the native core makes by itself, and how a server lists those of its clients.

asyncio's own code makes the others. Its Server lists its clients since Python 3.13.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import weakref
from typing import TYPE_CHECKING, Any

from .. import _core
from .._asyncio import BaseEventLoop, base_events

# The native core connects to numeric hosts and ports, and supports only these options.
_PLAIN_OPTIONS = frozenset({"family", "proto", "flags"})
_PLAIN_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
#: The signature of asyncio's method.
SIGNATURE = inspect.signature(BaseEventLoop.create_connection)
_KNOWN_OPTIONS = frozenset(SIGNATURE.parameters)


def is_plain(options: dict[str, Any]) -> bool:
    """Does the native core support all given options of create_connection?"""
    if not options:
        return True
    return _PLAIN_OPTIONS.issuperset(_given(options)) and options.get("proto", 0) in _PLAIN_PROTOCOLS


def _given(options: dict[str, Any]) -> set[str]:
    """The options that are set, or that asyncio of this version does not know."""
    return {
        name
        for name, value in options.items()
        if not (value is None or value is False) or name not in _KNOWN_OPTIONS
    }


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
