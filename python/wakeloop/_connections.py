"""Which connections the native core makes and accepts by itself; asyncio's own code does the others."""

from __future__ import annotations

import asyncio
import inspect
import socket
from typing import Any

from ._inherited import SelectorEventLoop, asyncios

# What create_connection does by itself has numbers for host and port, and none of its other options.
_PLAIN_OPTIONS = frozenset({"family", "proto", "flags"})
_PLAIN_PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_KNOWN_OPTIONS = frozenset(inspect.signature(asyncio.BaseEventLoop.create_connection).parameters)


class Hooks:
    """Methods of a loop class that are called for a connection, as they are there.

    What a subclass, or somebody for one loop, has put in the place of one of them is to be called, and so is what stands
    on asyncio's own class in the place of one that ours stands in for.
    """

    def __init__(self, kind: type, *names: str) -> None:
        self._functions = [(name, getattr(kind, name)) for name in names]
        self._asyncios = [(name, getattr(asyncios, name)) for name in names if hasattr(asyncios, name)]

    def are_untouched(self, loop: Any) -> bool:
        """Does this loop have all of them as they are, and asyncio's class those of its own?"""
        for name, function in self._functions:
            if getattr(getattr(loop, name), "__func__", None) is not function:
                return False
        for name, function in self._asyncios:
            if getattr(SelectorEventLoop, name) is not function:
                return False
        return True


def is_plain(options: dict[str, Any]) -> bool:
    """Do the options of create_connection ask for nothing but what the core does?"""
    if not options:
        return True
    return _PLAIN_OPTIONS.issuperset(_given(options)) and options.get("proto", 0) in _PLAIN_PROTOCOLS


def _given(options: dict[str, Any]) -> set[str]:
    """The options that ask for something, or that this asyncio does not know."""
    return {
        name
        for name, value in options.items()
        if not (value is None or value is False) or name not in _KNOWN_OPTIONS
    }


def fixed_name(sock: socket.socket) -> Any:
    """The address every connection accepted from ``sock`` has on our side, if there is one such address."""
    if sock.family == socket.AF_UNIX:
        return sock.getsockname()
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    name = sock.getsockname()
    return None if name[0] in ("0.0.0.0", "::", "") else name
