"""CPython's own functions that make sockets, made to take simulated ones.

asyncio's `create_server` and four others call `socket.socket`. Here is their code with another `socket` in place of the
module's name, so that argument checks, order and errors are those of the Python that runs.
"""

from __future__ import annotations

import asyncio
import socket
import types
from collections.abc import Callable, Iterable
from typing import Any

from ._socket import SimulatedSocket


class _SocketModule:
    """The socket module, with simulated sockets of the running loop's network."""

    def __getattr__(self, name: str) -> Any:
        return getattr(socket, name)

    @staticmethod
    def socket(family: int = socket.AF_INET, type: int = socket.SOCK_STREAM, proto: int = 0) -> SimulatedSocket:
        loop: Any = asyncio.get_running_loop()
        return SimulatedSocket(loop.network, family, type, proto)


def _ordered(values: Iterable[Any]) -> list[Any]:
    """Replaces set() in `create_server`, which iterates over one: the order must be the same in each process."""
    return list(dict.fromkeys(values))


_NAMES = {"socket": _SocketModule(), "set": _ordered}


def rebound(function: Any) -> Callable[..., Any]:
    """A function of asyncio's, with simulated sockets. What is patched in its module at present stays patched."""
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, **_NAMES},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
