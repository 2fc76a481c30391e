"""The endpoint of datagrams: a UDP socket as Linux has it.

Datagrams may be lost, overtake each other and arrive twice. A connected socket gets to know that nobody receives at the
other end, at its next call; others do not.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections import deque
from typing import Any

from ._endpoint import Endpoint
from ._host import Address, Host, error
from ._link import Direction

#: The most that one datagram holds, and the bytes of its headers.
LARGEST = 65507
_LARGEST_LENGTH = 65535
HEADER = 28
#: What the kernel counts for a datagram in a buffer besides its data.
OVERHEAD = 256


class DatagramEndpoint(Endpoint):
    """A datagram socket of the internet families."""

    type: int = socket.SOCK_DGRAM

    def __init__(self, network: Any, host: Host, family: int, proto: int = 0) -> None:
        super().__init__(network, host, family, proto)
        self._remote: tuple[Address, int] | None = None
        self._received: deque[tuple[bytes, Any]] = deque()
        self._received_size = 0
        self._is_closed = False
        self._is_shut = [False, False]  # for receiving, for sending

    def ready(self) -> tuple[bool, bool]:
        """Whether a poll reports the socket as readable, and as writable."""
        return bool(self._received or self.failure or self._is_shut[0]), True

    def peername(self) -> Any:
        """What getpeername() returns, or OSError."""
        if self._remote is None:
            raise error(errno.ENOTCONN)
        return self.name_of(*self._remote)

    def connect(self, name: Any, failure: int = 0) -> None:
        """Set the peer: datagrams go there, and only those from there are received."""
        address, port = self.parse("connect", name)
        if address.is_unspecified:
            address = self.host.source_for(address)
        self.autobind(address)
        self._remote = address, port

    def receive_from(self, size: int, peek: bool = False) -> tuple[bytes, Any]:
        """The next datagram, cut to `size`, and where it is from."""
        self.take_failure()
        if not self._received:
            raise error(errno.EAGAIN)
        data, name = self._received[0]
        if not peek:
            self._received.popleft()
            self._received_size -= len(data) + OVERHEAD
        return data[:size], name

    def send(self, data: memoryview, name: Any = None) -> int:
        """Send a datagram to an address, or to the peer."""
        if len(data) > _LARGEST_LENGTH:
            raise error(errno.EMSGSIZE)
        if name is not None:
            target, port = self.parse("sendto", name)
        elif self._remote is None:
            raise error(errno.EDESTADDRREQ)
        else:
            target, port = self._remote
        self.take_failure()
        if port == 0:
            raise error(errno.EINVAL)
        if self._is_shut[1]:
            raise error(errno.EPIPE)
        if len(data) > LARGEST:
            raise error(errno.EMSGSIZE)
        if target.is_unspecified:
            target = self.host.source_for(target)
        if target == ipaddress.IPv4Address("255.255.255.255") and not self.option(
            socket.SOL_SOCKET, socket.SO_BROADCAST
        ):
            raise error(errno.EACCES)
        source = self._source_for(target)
        network = self.network
        host = network.host_at(target, self.host)
        if host is None or not network.answers(host, source):
            return len(data)
        sent, origin = bytes(data), (source, self.port)
        direction = network.direction(self.host, host)
        for arrival in direction.send_datagram(len(sent) + HEADER):
            network.call_when(arrival, self._arrives, host, target, port, sent, origin, direction, direction.mark)
        return len(sent)

    def _source_for(self, target: Address) -> Address:
        """The address that a datagram comes from. A socket that is not bound gets a port at its first datagram."""
        source = self.host.source_for(target)
        if self.address is None:
            self.host.bind(self, ipaddress.ip_address("::" if self.family == socket.AF_INET6 else "0.0.0.0"), 0)
        assert self.address is not None
        if self.address.is_unspecified:
            return source
        if self.address.is_loopback != source.is_loopback:
            raise error(errno.EINVAL)
        return self.address

    def _arrives(
        self,
        host: Host,
        target: Address,
        port: int,
        data: bytes,
        origin: tuple[Address, int],
        direction: Direction,
        mark: int,
    ) -> None:
        if direction.mark != mark:
            return
        receiver = _find_receiver(host, target, port, origin)
        if receiver is not None:
            receiver._receive(data, origin)
            return
        # The answer is an ICMP message: nobody has this port.
        back = self.network.direction(host, self.host)
        arrival, lost = back.send(HEADER + len(data))
        if not lost:
            self.network.call_when(arrival, self._refused, target, port, back, back.mark)

    def _receive(self, data: bytes, origin: tuple[Address, int]) -> None:
        if self._received_size + len(data) + OVERHEAD > self.receive_capacity:
            return  # There is no room: it is lost.
        self._received.append((data, self.name_of(*origin)))
        self._received_size += len(data) + OVERHEAD
        self.changed()

    def _refused(self, target: Address, port: int, direction: Direction, mark: int) -> None:
        if direction.mark == mark and self._remote == (target, port) and not self._is_closed:
            self.failure = errno.ECONNREFUSED
            self.changed()

    def shutdown(self, how: int) -> None:
        """Linux refuses it without a peer; with one it has no effect on the peer."""
        if self._remote is None:
            raise error(errno.ENOTCONN)
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self._is_shut[0] = True
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            self._is_shut[1] = True
        self.changed()

    def close(self) -> None:
        """Give the port back."""
        self.forget_descriptor()
        self._is_closed = True
        if self.address is not None:
            self.host.release(self)

    def __repr__(self) -> str:
        peer = "" if self._remote is None else f" to {self.name_of(*self._remote)}"
        return f"<UDP socket of {self.host.name} at {self.sockname()}{peer}>"


def _find_receiver(host: Host, target: Address, port: int, origin: tuple[Address, int]) -> DatagramEndpoint | None:
    """The socket of a host that receives a datagram: a connected one before others, an exact address before any."""
    best, found = 0, None
    for user in host.users(socket.SOCK_DGRAM, port):
        assert user.address is not None and isinstance(user, DatagramEndpoint)
        if user._remote is not None and user._remote != origin:
            continue
        rank = user.rank(target)
        if not rank:
            continue
        rank += 4 if user._remote is not None else 0
        # Of equal ones, Linux takes the last.
        if rank >= best:
            best, found = rank, user
    return found
