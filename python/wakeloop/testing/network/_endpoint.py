"""An endpoint: what the kernel has behind the descriptor of a socket. This is the part that all kinds share."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

from ._host import Address, Host, error
from ._state import NetworkState

_BUFFERS = {socket.SO_SNDBUF: "send_capacity", socket.SO_RCVBUF: "receive_capacity"}

_SMALLEST = 1152
#: An option of a socket is an int, and Linux has it as four bytes.
_INT = 4


class Endpoint:
    """The state of one socket. Its methods are the calls of a socket that never block."""

    type: int

    def __init__(self, network: NetworkState, host: Host, family: int, proto: int) -> None:
        self.network = network
        self.host = host
        self.family = family
        self.proto = proto
        #: The simulated descriptor; -1 if no program has the socket.
        self.fd = -1
        #: All of them: a socket of the program may have several.
        self.descriptors: list[int] = []
        self.address: Address | None = None
        self.port = 0
        self.scope: tuple[int, int] = (0, 0)
        #: The errno of a failure that happened between two calls; the next call raises it.
        self.failure = 0
        self.send_capacity = network.send_buffer
        self.receive_capacity = network.receive_buffer
        self._options: dict[tuple[int, int], Any] = {}

    # -- readiness ---------------------------------------------------------------------------------

    def ready(self) -> tuple[bool, bool]:
        """Whether a poll reports the socket as readable, and as writable."""
        raise NotImplementedError

    def changed(self) -> None:
        """Let the poll look at the socket."""
        for descriptor in self.descriptors:
            self.network.poll.notify(descriptor)

    def take_failure(self) -> None:
        """Raise a failure that happened between two calls, once."""
        if self.failure:
            number, self.failure = self.failure, 0
            raise error(number)

    # -- names -------------------------------------------------------------------------------------

    def sockname(self) -> Any:
        """What getsockname() returns."""
        if self.address is None:
            return self.name_of(ipaddress.ip_address("::" if self.family == socket.AF_INET6 else "0.0.0.0"), 0)
        return self.name_of(self.address, self.port)

    def peername(self) -> Any:
        """What getpeername() returns, or OSError."""
        raise error(errno.ENOTCONN)

    def name_of(self, address: Address, port: int) -> Any:
        """An address as a program of this socket's family sees it."""
        if self.family != socket.AF_INET6:
            return str(address), port
        text = f"::ffff:{address}" if address.version == 4 else str(address)
        return text, port, 0, 0

    def parse(self, call: str, name: Any) -> tuple[Address, int]:
        """The address and the port that a program gives to a call. Errors are those of the socket module."""
        family = "AF_INET6" if self.family == socket.AF_INET6 else "AF_INET"
        if not isinstance(name, tuple):
            raise TypeError(f"{call}(): {family} address must be tuple, not {type(name).__name__}")
        if not (len(name) == 2 or (self.family == socket.AF_INET6 and 2 <= len(name) <= 4)):
            expected = "a pair (host, port)" if family == "AF_INET" else "a tuple (host, port[, flowinfo[, scopeid]])"
            raise TypeError(f"{call}(): {family} address must be {expected}")
        host, port = name[:2]
        if not isinstance(port, int):
            raise TypeError(f"'{type(port).__name__}' object cannot be interpreted as an integer")
        if not 0 <= port <= 65535:
            raise OverflowError(f"{call}(): port must be 0-65535.")
        found: Address = self.network.names.address_of(self.host, host, self.family)
        return found, port

    @property
    def is_six_only(self) -> bool:
        """Whether an IPv6 socket takes no packets of IPv4."""
        return bool(self.option(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))

    def rank(self, target: Address) -> int:
        """How well the bound address takes what is sent to a target: exact before any, 0 if it does not."""
        mine = self.address
        if mine is None:
            return 0
        if mine == target:
            return 3
        if not mine.is_unspecified:
            return 0
        if mine.version == target.version:
            return 2
        return int(mine.version == 6 and not self.is_six_only)

    # -- options -----------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether the socket accepts connections."""
        return False

    def option(self, level: int, name: int) -> Any:
        """An option that was set, or 0."""
        return self._options.get((level, name), 0)

    def set_option(self, level: int, name: int, value: Any) -> None:
        """What setsockopt() does."""
        if level == socket.SOL_SOCKET and name in _BUFFERS:
            # Linux doubles the size, for what it needs besides the data. That is much in the receiver's buffer.
            size = max(_as_int(value), _SMALLEST)
            setattr(self, _BUFFERS[name], size if name == socket.SO_RCVBUF else 2 * size)
            self._options[level, name] = 2 * size
            self.changed()
            return
        self._options[level, name] = value

    def get_option(self, level: int, name: int, size: int = 0) -> Any:
        """What getsockopt() returns."""
        value = self._ask(level, name)
        if not size:
            return _as_int(value)
        return value[:size] if isinstance(value, bytes) else int(value).to_bytes(_INT, "little")[:size]

    def _ask(self, level: int, name: int) -> Any:
        if level == socket.SOL_SOCKET:
            if name in _BUFFERS:
                return self.option(level, name) or getattr(self, _BUFFERS[name])
            if name == socket.SO_ERROR:
                number, self.failure = self.failure, 0
                return number
            fixed = {
                socket.SO_TYPE: self.type,
                socket.SO_DOMAIN: self.family,
                socket.SO_PROTOCOL: self.proto,
                socket.SO_ACCEPTCONN: int(self.is_listening),
            }
            if name in fixed:
                return fixed[name]
        return self.option(level, name)

    # -- calls -------------------------------------------------------------------------------------

    def bind(self, name: Any) -> None:
        """Give the socket a name of its own."""
        address, port = self.parse("bind", name)
        if self.address is not None:
            raise error(errno.EINVAL)
        self.host.bind(self, address, port)

    def autobind(self, target: Address) -> Address:
        """Bind the socket to a free port if it is not bound, and return its own address for packets to a target."""
        source = self.host.source_for(target)
        if self.address is None:
            self.host.bind(self, source, 0)
        elif self.address.is_unspecified:
            self.host.release(self)
            self.address = source
            self.host.add(self)
        elif self.address.is_loopback != source.is_loopback:
            # Linux does not let packets of the loopback out.
            raise error(errno.EINVAL)
        return self.address  # type: ignore[return-value]

    def listen(self, backlog: int) -> None:
        """Accept connections."""
        raise error(errno.EOPNOTSUPP)

    def accept(self) -> tuple[Endpoint, Any]:
        """The next connection that was made to this socket, and its peer's name."""
        raise error(errno.EOPNOTSUPP)

    def connect(self, name: Any, failure: int = 0) -> None:
        """Begin a connection, or one that fails later with an errno."""
        raise NotImplementedError

    def receive_from(self, size: int, peek: bool = False) -> tuple[bytes, Any]:
        """The next data, and for a datagram where it is from."""
        raise NotImplementedError

    def send(self, data: memoryview, name: Any = None) -> int:
        """Send data, and return how many bytes were taken."""
        raise NotImplementedError

    def check_target(self, name: Any) -> None:
        """Refuse what is no address to send to."""
        self.parse("sendto", name)

    def shutdown(self, how: int) -> None:
        """Close one direction, or both."""
        raise error(errno.ENOTCONN)

    def close(self) -> None:
        """What the kernel does when a program closes the socket."""
        raise NotImplementedError

    def forget_descriptor(self) -> None:
        """Take the descriptor back: no program has the socket any more."""
        for descriptor in self.descriptors:
            self.network.close_descriptor(descriptor)
        self.fd, self.descriptors = -1, []


def _as_int(value: Any) -> int:
    if isinstance(value, (bytes, bytearray)):
        return int.from_bytes(value[:_INT], "little", signed=True)
    return int(value)
