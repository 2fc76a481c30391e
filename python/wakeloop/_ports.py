"""The ports of event loops that are not wakeloop's own: how the Rust runtime reaches them."""

from __future__ import annotations

import asyncio
import weakref

from ._core import ForeignPort

_ports: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ForeignPort] = weakref.WeakKeyDictionary()


def port_of(loop: asyncio.AbstractEventLoop) -> ForeignPort:
    """The port of ``loop``, made on first use. Called on the loop's own thread, while it runs."""
    port = _ports.get(loop)
    if port is None:
        port = ForeignPort()
        loop.add_reader(port.fileno(), port.drain)
        _ports[loop] = port
    return port
