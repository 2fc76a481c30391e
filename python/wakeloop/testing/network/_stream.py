"""The endpoint of a stream: a TCP socket as Linux has it.

A socket listens, or it connects, or it is a child: made by a connection that reaches a listener. Which error a call
raises, and in which order errors, data and the end of the stream appear, is Linux's (net/ipv4/tcp.c).
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import struct
from collections import deque
from enum import Enum, auto
from typing import Any

from ._endpoint import Endpoint
from ._flow import HEADER, Flow
from ._host import Address, Host, error
from ._link import SEGMENT, Direction

#: How often Linux sends a SYN again (net.ipv4.tcp_syn_retries): after 1, 2, 4 ... seconds, 127 in all.
SYN_RETRIES = 6
#: How long Linux asks for the hardware address of a neighbour: three times, a second each.
NEIGHBOUR_TIMEOUT = 3.0

_LINGER_AT_ONCE = struct.pack("ii", 1, 0)


class State(Enum):
    """The states of a stream socket. A socket starts NEW; a child starts CONNECTED."""

    NEW = auto()
    LISTENING = auto()
    CONNECTING = auto()
    CONNECTED = auto()
    #: The connection has ended: by a reset, a timeout, or in both directions.
    DEAD = auto()


class StreamEndpoint(Endpoint):
    """A stream socket of the internet families."""

    type: int = socket.SOCK_STREAM
    #: A failure is raised before the end of the stream is reported.
    _fails_before_end = False

    def __init__(self, network: Any, host: Host, family: int, proto: int = 0) -> None:
        super().__init__(network, host, family, proto)
        self.state = State.NEW
        self.peer: StreamEndpoint | None = None
        self.out: Flow | None = None
        self._peer_name: Any = None
        self._buffer = bytearray()
        #: The peer has sent a FIN.
        self._has_end = False
        self._is_shut = [False, False]  # for receiving, for sending
        #: The program has closed the socket, but the kernel still delivers what was sent.
        self.is_orphan = False
        #: The program of a slow host may not read yet.
        self._must_wait = False
        #: connect() was called, and not again since the connection was made or has failed.
        self._has_begun = False
        # A listener's.
        self._backlog = 0
        self._queue: deque[StreamEndpoint] = deque()
        self._timer: asyncio.TimerHandle | None = None
        #: The children whose handshake has not ended.
        self._incomplete: list[StreamEndpoint] = []
        # A child's.
        self._listener: StreamEndpoint | None = None

    # -- readiness ---------------------------------------------------------------------------------

    @property
    def is_sending(self) -> bool:
        """Whether the kernel still sends what the program has written, and what was lost of it."""
        return self.state is State.CONNECTED

    @property
    def is_listening(self) -> bool:
        """Whether the socket accepts connections."""
        return self.state is State.LISTENING

    @property
    def window(self) -> int:
        """How many bytes the peer may send. Small windows are not announced, as in TCP.

        A peer that does not know that the connection has ended here sends something, and gets a RST for it.
        """
        if self.state is not State.CONNECTED:
            return SEGMENT
        room = self.receive_capacity - len(self._buffer)
        return room if room >= min(SEGMENT, self.receive_capacity // 2) else 0

    def ready(self) -> tuple[bool, bool]:
        """Whether a poll reports the socket as readable, and as writable."""
        if self.state is State.LISTENING:
            return bool(self._queue), False
        if self.state in (State.NEW, State.DEAD) or self.failure:
            # EPOLLHUP or EPOLLERR: asyncio's selector wakes both directions for it.
            return True, True
        if self.state is State.CONNECTING:
            return False, False
        at_end = self._has_end or self._is_shut[0]
        is_shut = self._is_shut[1]
        if at_end and is_shut:
            return True, True
        return (bool(self._buffer) or at_end) and not self._must_wait, is_shut or self._is_writable()

    def _room(self) -> int:
        """How many bytes the next send() takes."""
        assert self.out is not None
        return self.send_capacity - self.out.used

    def _is_writable(self) -> bool:
        return 3 * self._room() >= self.send_capacity

    # -- names -------------------------------------------------------------------------------------

    def peername(self) -> Any:
        """What getpeername() returns, or OSError."""
        if self.state is not State.CONNECTED:
            raise error(errno.ENOTCONN)
        return self._peer_name

    # -- connecting --------------------------------------------------------------------------------

    def listen(self, backlog: int) -> None:
        """Accept connections."""
        if self.state not in (State.NEW, State.LISTENING):
            raise error(errno.EINVAL)
        if self.address is None:
            self.host.bind(self, self._any_address(), 0)
        elif self.state is State.NEW and self.host.conflicts(self):
            raise error(errno.EADDRINUSE)
        self._backlog = max(backlog, 0)
        self.state = State.LISTENING
        self.changed()

    def accept(self) -> tuple[StreamEndpoint, Any]:
        """The next connection that was made to this socket, and its peer's name."""
        if self.state is not State.LISTENING:
            raise error(errno.EINVAL)
        if not self._queue:
            raise error(errno.EAGAIN)
        child = self._queue.popleft()
        child._listener = None
        return child, child._peer_name

    def connect(self, name: Any, failure: int = 0) -> None:
        """Begin a connection, or one that fails: it is in progress at best, and `ready` and SO_ERROR say how it ends.

        The first call after that returns its result too, as on Linux.
        """
        address, port = self.parse("connect", name)
        if self._has_begun and self.state is not State.CONNECTING:
            self._has_begun = False
            if self.state is State.CONNECTED:
                return
            self.take_failure()
            raise error(errno.ECONNABORTED)
        self._check_connects()
        if address.is_unspecified:
            address = self.host.source_for(address)
        source = self.autobind(address)
        self._peer_name = self.name_of(address, port)
        self.failure = 0
        self.state = State.CONNECTING
        self._has_begun = True
        self._has_end = False
        self._is_shut = [False, False]
        if failure:
            self._connect_fails(failure)
        else:
            self._send_syn(source, address, port, 0)
        raise error(errno.EINPROGRESS)

    def _check_connects(self) -> None:
        if self.state is State.CONNECTING:
            raise error(errno.EALREADY)
        if self.state in (State.CONNECTED, State.LISTENING):
            raise error(errno.EISCONN)

    def _send_syn(self, source: Address, target: Address, port: int, tries: int) -> None:
        network = self.network
        host = network.host_at(target, self.host)
        if host is None and self.host.is_neighbour(target):
            self._timer = network.call_later(NEIGHBOUR_TIMEOUT, self._connect_fails, errno.EHOSTUNREACH)
            return
        if tries > SYN_RETRIES:
            self._connect_fails(errno.ETIMEDOUT)
            return
        if host is not None and network.answers(host, source):
            forward = network.direction(self.host, host)
            arrival, lost = forward.send(HEADER)
            if not lost:
                network.call_when(arrival, self._syn_arrives, host, source, target, port, forward, forward.mark)
        if self.state is State.CONNECTING:
            self._timer = network.call_later(2.0**tries, self._send_syn, source, target, port, tries + 1)

    def _stop_connecting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _syn_arrives(
        self, host: Host, source: Address, target: Address, port: int, forward: Direction, mark: int
    ) -> None:
        if self.state is not State.CONNECTING or forward.mark != mark:
            return
        backward = self.network.direction(host, self.host)
        arrival, lost = backward.send(HEADER)
        listener = find_listener(host, target, port)
        if listener is None:
            if not lost:
                self.network.call_when(arrival, self._connect_fails, errno.ECONNREFUSED, backward, backward.mark)
            return
        child = self.peer
        if child is None or child._listener is not listener:
            if len(listener._queue) + len(listener._incomplete) > listener._backlog:
                return  # The SYN is dropped, and will be sent again.
            child = listener.make_child(self, source, target)
            listener._incomplete.append(child)
            self.peer = child
        if not lost:
            self.network.call_when(arrival, self._established, child, backward, backward.mark)

    def make_child(self, client: StreamEndpoint, source: Address, target: Address) -> StreamEndpoint:
        """The endpoint of a connection to this listener."""
        child = type(self)(self.network, self.host, self.family, self.proto)
        child._options = dict(self._options)
        child.send_capacity, child.receive_capacity = self.send_capacity, self.receive_capacity
        child.address, child.port = target, self.port
        child._peer_name = child.name_of(source, client.port)
        child.state = State.CONNECTED
        child._listener = self
        child.peer = client
        self.host.add(child)
        there, back = self._directions(client)
        child.out = Flow(child, client, back, there)
        client.out = Flow(client, child, there, back)
        return child

    def _directions(self, client: StreamEndpoint) -> tuple[Direction, Direction]:
        return self.network.direction(client.host, self.host), self.network.direction(self.host, client.host)

    def _established(self, child: StreamEndpoint, backward: Direction, mark: int) -> None:
        if backward.mark != mark or self.peer is not child or self.state is not State.CONNECTING:
            return
        self._stop_connecting()
        self.state = State.CONNECTED
        self.network.note_connection(self, child)
        assert self.out is not None
        self.out.greet()
        self.changed()

    def _connect_fails(self, number: int, direction: Direction | None = None, mark: int = 0) -> None:
        if self.state is not State.CONNECTING or (direction is not None and direction.mark != mark):
            return
        self._stop_connecting()
        self.state = State.NEW
        self._is_shut = [True, True]
        self.failure = number
        child, self.peer, self.out = self.peer, None, None
        if child is not None:
            child.on_reset()
        self.changed()

    def _any_address(self) -> Address:
        return ipaddress.ip_address("::" if self.family == socket.AF_INET6 else "0.0.0.0")

    # -- data --------------------------------------------------------------------------------------

    def receive_from(self, size: int, peek: bool = False) -> tuple[bytes, Any]:
        """The next data, b"" at the end of the stream; OSError if there is none yet."""
        if self._buffer:
            if self._must_wait:
                raise error(errno.EAGAIN)
            data = bytes(self._buffer[:size])
            if not peek:
                del self._buffer[:size]
                self._after_read(len(data))
            return data, None
        if self._has_end and not self._fails_before_end:
            return b"", None
        self.take_failure()
        if self._has_end or self._is_shut[0] or self.state is State.DEAD:
            return b"", None
        if self.state in (State.NEW, State.LISTENING):
            raise error(errno.ENOTCONN)
        raise error(errno.EAGAIN)

    def _after_read(self, size: int) -> None:
        rate = self.host.read_rate
        if rate is not None:
            self._must_wait = True
            self.network.call_later(size / rate, self._may_read_again)
        if self.peer is not None and self.peer.out is not None:
            self.peer.out.window_opens()

    def _may_read_again(self) -> None:
        self._must_wait = False
        self.changed()

    def send(self, data: memoryview, name: Any = None) -> int:
        """Send data, and return how many bytes the buffer took."""
        self.take_failure()
        if self.state is State.CONNECTING:
            raise error(errno.EAGAIN)
        if self.state is not State.CONNECTED or self._is_shut[1] or self.out is None:
            raise error(errno.EPIPE)
        room = self._room()
        if room <= 0 and data:
            raise error(errno.EAGAIN)
        taken = data[:room]
        self.out.write(taken)
        return len(taken)

    def shutdown(self, how: int) -> None:
        """Close one direction, or both."""
        if self.state is State.LISTENING:
            if how != socket.SHUT_WR:
                self._stop_listening()
                self.state = State.NEW
                self.changed()
            return
        if self.state is State.CONNECTING:
            self._connect_fails(0)
            return
        if self.state is not State.CONNECTED:
            raise error(errno.ENOTCONN)
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self._is_shut[0] = True
        if how in (socket.SHUT_WR, socket.SHUT_RDWR) and not self._is_shut[1]:
            self._is_shut[1] = True
            assert self.out is not None
            self.out.finish()
        self.changed()

    def close(self) -> None:
        """What the kernel does when a program closes the socket: it delivers what was sent, or sends a RST."""
        self.forget_descriptor()
        if self.state is State.LISTENING:
            self._stop_listening()
        elif self.state is State.CONNECTED:
            if self._buffer or self.option(socket.SOL_SOCKET, socket.SO_LINGER) == _LINGER_AT_ONCE:
                self.reset()
                return
            self.is_orphan = True
            assert self.out is not None
            if not self.out.is_finished:
                self.out.finish()
            self._end_if_done()
            return
        elif self.state is State.CONNECTING:
            self._connect_fails(0)
        self._end()

    def reset(self) -> None:
        """End the connection with a RST."""
        if self.out is not None:
            self.out.reset()
        self._end()

    def fail(self, number: int) -> None:
        """End the connection without telling the peer. The program's next call raises the error."""
        if self.state is State.DEAD:
            return
        if not self.is_orphan:
            self.failure = number
        self._end()

    # -- from the network --------------------------------------------------------------------------

    def on_segment(self, data: bytes, is_last: bool) -> bool:
        """A segment arrives. Returns whether it is acknowledged."""
        if self.state is not State.CONNECTED:
            # Nobody knows this connection here.
            self._answer_reset()
            return False
        self._enter_queue()
        if self.is_orphan and data:
            self._answer_reset()
            self._end()
            return False
        if data:
            self._buffer += data
        if is_last:
            self._has_end = True
        if data or is_last:
            self.changed()
        if is_last:
            self._end_if_done()
        return True

    def on_acknowledgement(self) -> None:
        """Some of what was sent has arrived."""
        if self.out is not None:
            self.changed()
            # A FIN may have arrived with it.
            self._end_if_done()

    def on_reset(self) -> None:
        """A RST arrives."""
        if self.state is State.CONNECTING:
            self._connect_fails(errno.ECONNREFUSED)
            return
        if self.state is not State.CONNECTED:
            return
        if self._listener is not None and self in self._listener._incomplete:
            self._listener._incomplete.remove(self)
        if not self.is_orphan:
            self.failure = errno.EPIPE if self._has_end else errno.ECONNRESET
        self._end()

    def _answer_reset(self) -> None:
        if self.out is not None:
            self.out.reset()

    def _enter_queue(self) -> None:
        """The handshake of a child has ended with the first segment of its client."""
        listener = self._listener
        if listener is not None and self in listener._incomplete:
            listener._incomplete.remove(self)
            listener._queue.append(self)
            listener.changed()

    # -- the end -----------------------------------------------------------------------------------

    def _stop_listening(self) -> None:
        for child in [*self._queue, *self._incomplete]:
            child.reset()
        self._queue.clear()
        self._incomplete.clear()

    def _end_if_done(self) -> None:
        """End the connection if both directions have. What has arrived can still be read."""
        out = self.out
        if out is not None and out.is_finished and self._has_end and not out.is_busy:
            self._end()

    def _end(self) -> None:
        if self.out is not None:
            self.out.stop()
        self.state = State.DEAD
        self._is_shut = [True, True]
        if self.address is not None:
            self.host.release(self)
        self.changed()
        if self.peer is not None and self.peer.out is not None:
            self.peer.out.probe()

    # -- for scripts -------------------------------------------------------------------------------

    def stall(self, stalled: bool) -> None:
        """Let no packet from here pass, or let them pass again."""
        if self.out is not None:
            self.out.is_stalled = stalled
            if stalled:
                self.out.probe()
            else:
                self.out.resume()

    def __repr__(self) -> str:
        state = "orphaned" if self.is_orphan else self.state.name.lower()
        peer = f" to {self._peer_name}" if self._peer_name and self.state is not State.LISTENING else ""
        return f"<TCP socket of {self.host.name} at {self.sockname()}{peer}, {state}>"


def find_listener(host: Host, address: Address, port: int) -> StreamEndpoint | None:
    """The listener of a host that takes connections to an address."""
    found: list[StreamEndpoint] = []
    best = 0
    for user in host.users(socket.SOCK_STREAM, port):
        if not (user.is_listening and isinstance(user, StreamEndpoint)):
            continue
        rank = user.rank(address)
        if not rank:
            continue
        if rank > best:
            found, best = [], rank
        if rank == best:
            found.append(user)
    if not found:
        return None
    return found[host.network.choose("listener", len(found))]
