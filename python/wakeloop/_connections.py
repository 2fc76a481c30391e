"""Which connections the native core makes by itself; asyncio's own code makes the others."""

from __future__ import annotations

import inspect
import socket
from typing import Any

from ._inherited import BaseEventLoop

# The native core connects to numeric hosts and ports, and supports only these options.
_PLAIN_OPTIONS = frozenset({"family", "proto", "flags"})
_PLAIN_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_KNOWN_OPTIONS = frozenset(inspect.signature(BaseEventLoop.create_connection).parameters)


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
