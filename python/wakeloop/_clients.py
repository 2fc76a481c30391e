"""The clients of a server, which asyncio's Server lists since Python 3.13."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from . import _core
from ._inherited import base_events

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
