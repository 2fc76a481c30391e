"""Sockets: which of them native code may use, what get_extra_info() shows, and objects for native descriptors."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _core
from .._asyncio import selector_events, trsock
from .._asyncio.compat import STREAM_CALLS

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
else:
    TransportSocket = _core.defined_class("asyncio.trsock", "TransportSocket")


#: The class itself: programs and their tests put others under its name.
Socket = _core.Socket


def is_ordinary_socket(sock: object) -> bool:
    """Whether native code may use the descriptor instead of the object. If not, asyncio's transport calls the object."""
    kind = type(sock)
    return kind is Socket or (
        issubclass(kind, Socket)
        and all(getattr(kind, name) is getattr(Socket, name) for name in STREAM_CALLS)
    )


def accepting_socket(sock: Any) -> socket.socket | None:
    """The socket that accepts when `sock.accept()` is called; None if that is not known.

    gunicorn wraps its sockets in objects that pass each call on.
    """
    if isinstance(sock, Socket):
        return sock
    owner = getattr(getattr(sock, "accept", None), "__self__", None)
    return owner if type(owner) is Socket else None


def socket_details(sock: socket.socket, extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the values that get_extra_info() shows for a socket. A peer name in `extra` is kept."""
    details = dict(extra or ())
    details["socket"] = trsock.TransportSocket(sock)
    for name, ask in (("sockname", sock.getsockname), ("peername", sock.getpeername)):
        if name == "peername" and name in details:
            continue
        try:
            details[name] = ask()
        except OSError:
            details[name] = None
    return details


class StreamSocket(TransportSocket):
    """The result of get_extra_info("socket") for a stream. A write may wait for the next one, so it is sent before the
    program uses the socket in a way to which their order matters."""

    __slots__ = ("_transport",)

    def __init__(self, sock: socket.socket, transport: Any) -> None:
        super().__init__(sock)
        # Weak: the transport keeps this object.
        self._transport = weakref.ref(transport)

    def _send_writes(self) -> None:
        transport = self._transport()
        if transport is not None:
            transport._send_writes()

    def dup(self) -> socket.socket:
        """A duplicate, to which nothing is sent before what was written so far."""
        self._send_writes()
        return super().dup()

    def shutdown(self, how: int) -> None:
        """Shut down one or both halves of the connection, after what was written so far."""
        self._send_writes()
        super().shutdown(how)


# Programs and error messages show the name of the class: it is asyncio's.
StreamSocket.__name__ = StreamSocket.__qualname__ = TransportSocket.__name__
StreamSocket.__module__ = TransportSocket.__module__


def adopt_socket(fd: int, proto: int = -1, family: int = -1, kind: int = -1) -> socket.socket:
    """A socket object for the descriptor of a native transport; it owns the descriptor from now on."""
    sock = Socket.__new__(Socket)
    try:
        Socket.__init__(sock, family, kind, proto, fd)
        sock.setblocking(False)
    except BaseException:
        # The caller still owns the descriptor.
        sock.detach()
        raise
    return sock


def accepted_socket(listener: socket.socket, fd: int) -> socket.socket:
    """The socket of a connection, with the arguments that accept() passes, for audit hooks and the log of debug mode."""
    return adopt_socket(fd, listener.proto, listener.family, listener.type)


def closed_socket(family: int, proto: int = -1, kind: int = socket.SOCK_STREAM) -> socket.socket | None:
    """A closed socket, for a program that asks a closed connection for its socket."""
    if proto < 0:
        internet = family in (socket.AF_INET, socket.AF_INET6) and kind == socket.SOCK_STREAM
        proto = socket.IPPROTO_TCP if internet else 0
    try:
        sock = Socket(family, kind, proto)
    except OSError:
        return None
    sock.close()
    return sock


#: The address families of the native datagram transport. Sockets of other families get asyncio's.
DATAGRAM_FAMILIES = frozenset(
    getattr(socket, name) for name in ("AF_INET", "AF_INET6", "AF_UNIX") if hasattr(socket, name)
)


def _datagram_rules() -> tuple[bool, int]:
    """Whether asyncio sends empty datagrams, and how many bytes it counts for the header of each (8 since 3.13)."""
    kind = selector_events._SelectorDatagramTransport

    class Blocked:
        """The attributes that sendto() reads and writes while another datagram waits."""

        _address, _conn_lost, _buffer_size = None, 0, 0
        _header_size = getattr(kind, "_header_size", 0)

        def __init__(self) -> None:
            self._buffer = [None]

        def _maybe_pause_protocol(self) -> None:
            pass

    transport: Any = Blocked()
    try:
        kind.sendto(transport, b"")
        sends_empty = len(transport._buffer) > 1
        transport._buffer_size = 0
        kind.sendto(transport, b"x")
    except AttributeError:
        # A newer asyncio reads other attributes: assume the rules of the newest one known.
        return True, 8
    return sends_empty, transport._buffer_size - 1


DATAGRAM_RULES = _datagram_rules()
