"""The ports of event loops that are not wakeloop's own: how the Rust runtime reaches them."""

from __future__ import annotations

import asyncio
import weakref

from ._core import ForeignPort

# The loop's own reader callback is what keeps a port alive, so closing the loop closes its descriptors.
_ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[ForeignPort]] = weakref.WeakKeyDictionary()


def port_of(loop: asyncio.AbstractEventLoop) -> ForeignPort:
    """The port of ``loop``, made on first use. Called on the loop's own thread, while it runs."""
    known = _ports.get(loop)
    port = known() if known is not None else None
    if port is None:
        port = ForeignPort()
        loop.add_reader(port.fileno(), port.drain)
        _ports[loop] = weakref.ref(port)
    return port
