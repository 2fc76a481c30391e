"""Socket objects of the simulated network.

`SimulatedSocket` is what asyncio's own code gets here from `socket.socket(...)`. `AdoptedSocket` is a socket object that
the program has made itself, and given to the loop: its class changes, so all that the program does with it from then on
happens on the network. Its real descriptor stays open and idle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
import warnings
import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

from ._datagram import DatagramEndpoint
from ._endpoint import Endpoint
from ._host import current_host, error
from ._state import NetworkState
from ._stream import StreamEndpoint
from ._unix_stream import UnixEndpoint, find_unix_listener

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_PEEK = int(socket.MSG_PEEK)
_CUT = int(socket.MSG_TRUNC)
#: The bits of a socket's type that are no part of it.
_TYPE_FLAGS = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC

#: Larger sizes are checked by the socket module.
_LARGEST = 1 << 30


def make_endpoint(network: NetworkState, family: int, kind: int, proto: int) -> Endpoint:
    """The endpoint of a new socket on the host where the calling code runs."""
    if family not in (*_INTERNET, socket.AF_UNIX) or (family == socket.AF_INET6 and not network.ipv6):
        raise error(errno.EAFNOSUPPORT)
    host = current_host(network)
    if kind == socket.SOCK_STREAM:
        made = UnixEndpoint if family == socket.AF_UNIX else StreamEndpoint
        return made(network, host, family, proto)
    if kind == socket.SOCK_DGRAM and family in _INTERNET:
        return DatagramEndpoint(network, host, family, proto)
    raise error(errno.ESOCKTNOSUPPORT)


class Calls:
    """The methods of a socket, over an endpoint. They never block."""

    __slots__ = ()

    @property
    def _endpoint(self) -> Endpoint:
        raise NotImplementedError

    def _open_endpoint(self) -> Endpoint:
        endpoint = self._endpoint
        if endpoint.fd < 0:
            raise error(errno.EBADF)
        return endpoint

    # -- names and options -------------------------------------------------------------------------

    def getsockname(self) -> Any:
        return self._open_endpoint().sockname()

    def getpeername(self) -> Any:
        return self._open_endpoint().peername()

    def getsockopt(self, level: int, name: int, size: int = 0, /) -> Any:
        return self._open_endpoint().get_option(level, name, size)

    def setsockopt(self, level: int, name: int, value: Any, size: int = 0, /) -> None:
        self._open_endpoint().set_option(level, name, value)

    # -- connections -------------------------------------------------------------------------------

    def bind(self, address: Any, /) -> None:
        endpoint = self._open_endpoint()
        endpoint.network.faults.raise_at("bind", endpoint, address)
        endpoint.bind(address)

    def listen(self, backlog: int = 128, /) -> None:
        endpoint = self._open_endpoint()
        endpoint.network.faults.raise_at("listen", endpoint)
        endpoint.listen(backlog)

    def connect(self, address: Any, /) -> None:
        endpoint = self._open_endpoint()
        failure = endpoint.network.faults.connect_fault(endpoint, address)
        try:
            endpoint.connect(address, failure)
        except BlockingIOError:
            self._would_block("connect")
            raise

    def connect_ex(self, address: Any, /) -> int:
        try:
            self.connect(address)
        except OSError as exception:
            return exception.errno or 0
        return 0

    def accept(self) -> tuple[SimulatedSocket, Any]:
        endpoint = self._open_endpoint()
        endpoint.network.faults.raise_at("accept", endpoint)
        try:
            child, address = endpoint.accept()
        except BlockingIOError:
            self._would_block("accept")
            raise
        endpoint.changed()
        return SimulatedSocket(endpoint.network, endpoint=child), address

    def shutdown(self, how: int, /) -> None:
        if how not in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            raise error(errno.EINVAL)
        self._open_endpoint().shutdown(how)

    # -- data --------------------------------------------------------------------------------------

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        _check_size("recv", size)
        # The socket module does not ask the kernel for nothing.
        return self._receive(size, flags)[0] if size else b""

    def recvfrom(self, size: int, flags: int = 0, /) -> tuple[bytes, Any]:
        _check_size("recvfrom", size)
        return self._receive(size, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return self._receive_into("recv_into", buffer, nbytes, flags)[0]

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        return self._receive_into("recvfrom_into", buffer, nbytes, flags)

    def recvmsg(self, size: int, ancillary_size: int = 0, flags: int = 0, /) -> tuple[bytes, list[Any], int, Any]:
        _check_size("recvmsg", size)
        return self._receive_message(size, flags)

    def recvmsg_into(
        self, buffers: Iterable[Any], ancillary_size: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Any], int, Any]:
        with contextlib.ExitStack() as stack:
            rooms = []
            for buffer in buffers:
                view = stack.enter_context(_view("recvmsg_into", buffer, writable=True))
                rooms.append(stack.enter_context(view.cast("B")))
            data, *rest = self._receive_message(sum(map(len, rooms)), flags)
            place = 0
            for room in rooms:
                part = data[place : place + len(room)]
                room[: len(part)] = part
                place += len(part)
            return (len(data), *rest)

    def _receive_message(self, size: int, flags: int) -> tuple[bytes, list[Any], int, Any]:
        if self._endpoint.type != socket.SOCK_DGRAM:
            data, address = self._receive(size, flags)
            return data, [], 0, address
        # One byte more shows whether the datagram is cut.
        data, address = self._receive(size + 1, flags)
        return data[:size], [], _CUT if len(data) > size else 0, address

    def _receive_into(self, call: str, buffer: Any, size: int, flags: int) -> tuple[int, Any]:
        _check_size(call, size, buffer)
        with _view(call, buffer, writable=True) as view, view.cast("B") as room:
            if size > len(room):
                _refuse(call, buffer, size)
            size = size or len(room)
            data, address = self._receive(size, flags) if size or call == "recvfrom_into" else (b"", None)
            room[: len(data)] = data
            return len(data), address

    def _receive(self, size: int, flags: int) -> tuple[bytes, Any]:
        endpoint = self._open_endpoint()
        faults = endpoint.network.faults
        faults.raise_at("recv", endpoint)
        if endpoint.type == socket.SOCK_STREAM:
            size = faults.shortened("recv", endpoint, size)
        try:
            received = endpoint.receive_from(size, bool(flags & _PEEK))
        except BlockingIOError:
            self._would_block("recv")
            raise
        endpoint.changed()
        return received

    def send(self, data: Any, flags: int = 0, /) -> int:
        with _view("send", data) as view:
            return self._send(view, None)

    def sendto(self, data: Any, *rest: Any) -> int:
        if not 1 <= len(rest) <= 2:
            _refuse("sendto", data, *rest)
        with _view("sendto", data, *rest) as view:
            self._endpoint.check_target(rest[-1])
            return self._send(view, rest[-1])

    def sendmsg(self, buffers: Iterable[Any], ancillary: Any = (), flags: int = 0, address: Any = None, /) -> int:
        if tuple(ancillary):
            raise error(errno.EOPNOTSUPP)
        with memoryview(b"".join(buffers)) as view:
            return self._send(view, address)

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        with _view("sendall", data) as view, view.cast("B") as rest:
            sent = 0
            while sent < len(rest):
                sent += self._send(rest[sent:], None)

    def _send(self, data: memoryview, address: Any) -> int:
        endpoint = self._open_endpoint()
        faults = endpoint.network.faults
        with data.cast("B") as whole:
            faults.raise_at("send", endpoint, address)
            size = len(whole)
            if endpoint.type == socket.SOCK_STREAM:
                size = faults.shortened("send", endpoint, size)
            with whole[:size] as part:
                try:
                    sent = endpoint.send(part, address)
                except BlockingIOError:
                    self._would_block("send")
                    raise
        endpoint.changed()
        return sent

    def _would_block(self, call: str) -> None:
        if self.gettimeout() != 0:
            raise RuntimeError(
                f"{call}() would block the thread on a simulated socket, and nothing could end that: "
                "call setblocking(False), and the loop's sock_* methods"
            )

    def gettimeout(self) -> float | None:
        """The timeout of a call in seconds, 0 for a non-blocking socket."""
        raise NotImplementedError


#: A real socket that is not open. It refuses wrong arguments with the texts of the socket module.
_closed = socket.socket.__new__(socket.socket)


def _refuse(call: str, *arguments: Any) -> NoReturn:
    """Raise what the socket module raises for wrong arguments."""
    getattr(_closed, call)(*arguments)
    raise error(errno.EBADF)


def _check_size(call: str, size: Any, *before: Any) -> None:
    if type(size) is not int or not 0 <= size <= _LARGEST:
        with contextlib.suppress(OSError):
            _refuse(call, *before, size)


def _view(call: str, data: Any, *more: Any, writable: bool = False) -> memoryview:
    try:
        view = memoryview(data)
    except TypeError:
        _refuse(call, data, *more)
    if not view.c_contiguous or (writable and view.readonly):
        _refuse(call, data, *more)
    return view


def _close(endpoint: Endpoint) -> None:
    """Close an endpoint, if it is open. Nobody notices any more once its loop is closed."""
    if endpoint.fd < 0:
        return
    if endpoint.network.is_running:
        endpoint.close()
    else:
        endpoint.forget_descriptor()


class SimulatedSocket(Calls):
    """A socket of the simulated network. Its descriptor is a number that no real one has."""

    __slots__ = ("__weakref__", "_socket_endpoint", "_timeout")

    def __init__(
        self,
        network: NetworkState,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        *,
        endpoint: Endpoint | None = None,
    ) -> None:
        if endpoint is None:
            endpoint = make_endpoint(network, family, type & ~_TYPE_FLAGS, proto)
        self._socket_endpoint = endpoint
        self._timeout: float | None = 0.0 if type & socket.SOCK_NONBLOCK else None
        network.open_descriptor(endpoint)

    @property
    def _endpoint(self) -> Endpoint:
        return self._socket_endpoint

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AddressFamily(self._endpoint.family)

    @property
    def type(self) -> socket.SocketKind:
        return socket.SocketKind(self._endpoint.type)

    @property
    def proto(self) -> int:
        return self._endpoint.proto

    def fileno(self) -> int:
        return self._endpoint.fd

    def setblocking(self, flag: bool, /) -> None:
        self.settimeout(None if flag else 0.0)

    def settimeout(self, value: float | None, /) -> None:
        if value is not None and value < 0:
            raise ValueError("Timeout value out of range")
        self._timeout = value

    def gettimeout(self) -> float | None:
        return self._timeout

    def getblocking(self) -> bool:
        return self._timeout != 0

    def get_inheritable(self) -> bool:
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        pass

    def dup(self) -> SimulatedSocket:
        raise error(errno.EOPNOTSUPP)

    def detach(self) -> int:
        # A simulated descriptor is of no use without its object.
        raise error(errno.EOPNOTSUPP)

    def close(self) -> None:
        _close(self._endpoint)

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        endpoint = getattr(self, "_socket_endpoint", None)
        if endpoint is not None and endpoint.fd >= 0:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            _close(endpoint)

    def __repr__(self) -> str:
        closed = " [closed]" if self._endpoint.fd < 0 else ""
        return f"<{type(self).__name__}{closed} fd={self.fileno()}, {self._endpoint!r}>"


#: The endpoints of the sockets that programs have made.
_adopted: weakref.WeakKeyDictionary[socket.socket, Endpoint] = weakref.WeakKeyDictionary()


class AdoptedSocket(Calls, socket.socket):  # type: ignore[misc]  # accept() returns one of the network
    """A socket that the program has made, and that is on the simulated network now."""

    __slots__ = ()

    @property
    def _endpoint(self) -> Endpoint:
        return _adopted[self]

    def _open_endpoint(self) -> Endpoint:
        if self.fileno() < 0:
            raise error(errno.EBADF)
        return super()._open_endpoint()

    def gettimeout(self) -> float | None:
        return socket.socket.gettimeout(self)

    def getsockopt(self, level: int, name: int, size: int = 0, /) -> Any:
        if level == socket.SOL_SOCKET:
            return super().getsockopt(level, name, size)
        return socket.socket.getsockopt(self, level, name, size)

    def setsockopt(self, level: int, name: int, value: Any, size: int = 0, /) -> None:
        # The real socket refuses what is no option.
        if value is None:
            socket.socket.setsockopt(self, level, name, value, size)
        else:
            socket.socket.setsockopt(self, level, name, value)
        super().setsockopt(level, name, value, size)

    def dup(self) -> AdoptedSocket:
        made = socket.socket(self.family, self.type, self.proto, fileno=socket.dup(self.fileno()))
        made.settimeout(self.gettimeout())
        adopt(self._endpoint.network, made)
        return made  # type: ignore[return-value]

    def detach(self) -> int:
        _leave(self._endpoint, self.fileno())
        return socket.socket.detach(self)

    def close(self) -> None:
        _leave(self._endpoint, self.fileno())
        socket.socket.close(self)

    def __repr__(self) -> str:
        closed = " [closed]" if self.fileno() < 0 else ""
        return f"<{type(self).__name__}{closed} fd={self.fileno()}, {self._endpoint!r}>"


#: The options that a program may have set before its socket is adopted.
_CARRIED = [
    (socket.SOL_SOCKET, socket.SO_REUSEADDR),
    (socket.SOL_SOCKET, socket.SO_REUSEPORT),
    (socket.SOL_SOCKET, socket.SO_BROADCAST),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
]


def adopt(network: NetworkState, sock: socket.socket, backlog: int | None = None) -> None:
    """Move a socket that the program has made, and that has no peer, to the simulated network.

    It takes its name and whether it listens along. Several objects may stand for one socket, as after dup(). TypeError if
    it is an instance of another class.
    """
    if type(sock) is not socket.socket:
        raise TypeError(f"{type(sock).__qualname__} cannot be moved to the simulated network: only socket.socket can")
    status = os.fstat(sock.fileno())
    inode = status.st_dev, status.st_ino
    endpoint = network.adopted.get(inode)
    if endpoint is None or endpoint.fd < 0:
        endpoint = network.adopted[inode] = _endpoint_for(network, sock, backlog)
    network.open_descriptor(endpoint, sock.fileno())
    _adopted[sock] = endpoint
    sock.__class__ = AdoptedSocket
    # A socket that is never closed is closed by its destructor.
    weakref.finalize(sock, _leave, endpoint, sock.fileno()).atexit = False


def _endpoint_for(network: NetworkState, sock: socket.socket, backlog: int | None) -> Endpoint:
    endpoint = make_endpoint(network, sock.family, sock.type, sock.proto)
    for level, name in _CARRIED:
        value = sock.getsockopt(level, name)
        if value:
            endpoint.set_option(level, name, value)
    if sock.family == socket.AF_INET6:
        endpoint.set_option(
            socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        )
    name = sock.getsockname()
    if isinstance(endpoint, UnixEndpoint):
        endpoint.take_name(name)
    elif name[1]:
        endpoint.bind(name)
    if _is_listening(sock):
        endpoint.listen(_backlog_of(sock) if backlog is None else backlog)
    return endpoint


def _is_listening(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _backlog_of(sock: socket.socket) -> int:
    """How many connections a listening socket of the kernel queues. Linux says so of TCP sockets (tcpi_sacked)."""
    if sys.platform != "linux" or sock.family not in _INTERNET:
        return 128
    return int(struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32), 28)[0])


def _leave(endpoint: Endpoint, descriptor: int) -> None:
    """Close one of the descriptors of an adopted socket, and with the last one the endpoint."""
    if descriptor not in endpoint.descriptors:
        return
    others = [each for each in endpoint.descriptors if each != descriptor]
    if others:
        endpoint.network.close_descriptor(descriptor)
        endpoint.fd, endpoint.descriptors = others[0], others
    else:
        _close(endpoint)


def is_adoptable(network: NetworkState, sock: Any, address: Any = None) -> bool:
    """Whether a real socket belongs on the network: one of the internet, a Unix socket that listens, or one for the path of
    a simulated server.

    A socket that has a real peer, such as one of a socketpair(), stays real.
    """
    if not isinstance(sock, socket.socket) or isinstance(sock, AdoptedSocket) or sock.fileno() < 0:
        return False
    if sock.family == socket.AF_UNIX:
        if sock.type != socket.SOCK_STREAM:
            return False
        if address is None:
            return _is_listening(sock)
        try:
            return find_unix_listener(network, address) is not None
        except (OSError, TypeError):
            return False
    if sock.family not in _INTERNET or sock.type not in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        return False
    try:
        sock.getpeername()
    except OSError:
        return True
    return False


def receives(network: NetworkState, sock: Any) -> bool:
    """Whether others may connect or send to a real socket that belongs on the network."""
    if type(sock) is not socket.socket or not is_adoptable(network, sock):
        return False
    if sock.type == socket.SOCK_DGRAM:
        return bool(sock.getsockname()[1])
    return _is_listening(sock)


def is_simulated(sock: Any) -> bool:
    """Whether a socket is on a simulated network."""
    return isinstance(sock, Calls)
