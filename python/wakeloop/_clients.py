"""Who is connected to a server, as asyncio's Server keeps it since Python 3.13."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from . import _core
from ._inherited import base_events

if TYPE_CHECKING:
    Transports = weakref.WeakSet[asyncio.BaseTransport]
else:
    Transports = weakref.WeakSet


class Clients(_core.ClientCount, Transports):
    """The list of a server's transports. Those of the core are only counted, until somebody looks into it."""

    loop: _core.EventLoop | None = None
    _named: set[weakref.ref[asyncio.BaseTransport]]

    @property
    def data(self) -> set[weakref.ref[asyncio.BaseTransport]]:
        """What all the methods of a WeakSet work on."""
        if self.loop is not None:
            self.name(self.loop, self._named, self._remove)
        return self._named

    @data.setter
    def data(self, named: set[weakref.ref[asyncio.BaseTransport]]) -> None:
        self._named = named

    if TYPE_CHECKING:

        def _remove(self, item: weakref.ref[asyncio.BaseTransport]) -> None: ...

    def discard(self, item: asyncio.BaseTransport) -> None:
        # Not by way of `data`: for each connection that ends, all others would be looked for.
        self.uncount(item)
        self._named.discard(weakref.ref(item))

    def __len__(self) -> int:
        # Until Python 3.13 what has gone during an iteration is taken out behind it.
        return self.counted + len(self._named) - len(getattr(self, "_pending_removals", ()))


def count_clients(loop: _core.EventLoop, server: Any) -> None:
    """Has a server of asyncio's own class that has no client yet count those to come."""
    if type(server) is not base_events.Server:
        return
    before = getattr(server, "_clients", None)
    if type(before) is weakref.WeakSet and not before:
        server._clients = clients = Clients()
        clients.loop = loop
