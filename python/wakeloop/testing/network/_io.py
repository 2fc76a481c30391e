"""The part of a testing loop that does its I/O on a simulated network.

`SimulatedIO` stands before an event loop's class. The methods that make sockets make simulated ones, and those that
wait for descriptors know the simulated ones. Everything else is asyncio's own code, which cannot tell the difference.
"""

from __future__ import annotations

import asyncio
import functools
import os
import selectors
import socket
from typing import TYPE_CHECKING, Any

from ..._asyncio import SelectorEventLoop, base_events, selector_events, unix_events
from .._schedule import Schedule
from ._listeners import Earlier, waited_for
from ._network import Network
from ._rebound import rebound
from ._socket import Calls, SimulatedSocket, adopt, is_adoptable, is_simulated

if TYPE_CHECKING:
    _Base = SelectorEventLoop
else:
    _Base = object

#: asyncio's own loop, below the native methods.
_Selector: Any = selector_events.BaseSelectorEventLoop
_Unix: Any = unix_events._UnixSelectorEventLoop
_Plain: Any = base_events.BaseEventLoop


class SimulatedIO(_Base):
    """A mixin for an event loop's class: I/O on a simulated network, if the loop has one.

    The loop calls `_attach_network` once, and `_simulated_events` where it polls.
    """

    __module__ = "wakeloop.testing.network"
    __slots__ = ()

    #: The simulated network, None for real I/O.
    network: Network | None
    #: Decides what asyncio leaves open.
    schedule: Schedule

    def _attach_network(self, network: Network | None) -> None:
        """Do I/O on a network from now on. RuntimeError if it belongs to another open loop."""
        if network is not None:
            if not isinstance(network, Network):
                raise TypeError(f"a Network was expected, not {type(network).__qualname__}")
            network.attach(self)
        self.network = network
        self._earlier_sockets = Earlier()

    def _simulated_events(self) -> list[asyncio.Handle]:
        """The handles that wait for simulated descriptors which are ready, in the order of a poll."""
        network = self.network
        if network is None:
            return []
        schedule = self.schedule
        return network.poll.collect(self.time(), None if schedule.is_fifo else schedule.choose)

    def _joins(self, sock: Any, address: Any = None) -> bool:
        """Whether a socket is on the network. One that the program has made joins it now, if it belongs there."""
        network = self.network
        if network is None:
            return False
        if is_simulated(sock):
            return True
        if not is_adoptable(network, sock, address):
            return False
        adopt(network, sock)
        return True

    # -- descriptors -------------------------------------------------------------------------------

    def _watch(self, fd: Any, kind: str, callback: Any, args: tuple[Any, ...], options: Any) -> Any:
        """Let a callback wait for a simulated descriptor. None if the descriptor is real."""
        network = self.network
        if network is None:
            return None
        number = fd if isinstance(fd, int) else _number_of(fd)
        endpoint = network.endpoint_of(number)
        if endpoint is None and kind == "reader" and waited_for(network, fd, number):
            endpoint = network.endpoint_of(number)
        if endpoint is None:
            return None
        self._check_closed()
        handle = asyncio.Handle(callback, args, self, options.get("context"))
        network.poll.watch(number, endpoint, kind, handle)
        return handle

    def _move_watch(self, fd: int) -> None:
        """The socket of a descriptor has joined the network: let what waits for it wait there."""
        assert self.network is not None
        _, reader, writer = super()._watch_of(fd)  # type: ignore[misc]
        for handle, remove, add in (
            (reader, super()._remove_reader, self._add_reader),  # type: ignore[misc]
            (writer, super()._remove_writer, self._add_writer),  # type: ignore[misc]
        ):
            if handle is not None:
                callback, args, context = handle._callback, handle._args, handle._context
                remove(fd)
                add(fd, callback, *args, context=context)

    def _unwatch(self, fd: Any, kind: str) -> bool | None:
        """Let nothing wait for a simulated descriptor. None if the descriptor is real."""
        network = self.network
        if network is None:
            return None
        number = fd if isinstance(fd, int) else _number_of(fd)
        if network.endpoint_of(number) is None:
            return None
        return network.poll.unwatch(number, kind) and not self.is_closed()

    def _add_reader(self, fd: Any, callback: Any, *args: Any, **options: Any) -> Any:
        handle = self._watch(fd, "reader", callback, args, options)
        return super()._add_reader(fd, callback, *args, **options) if handle is None else handle  # type: ignore[misc]

    def _add_writer(self, fd: Any, callback: Any, *args: Any, **options: Any) -> Any:
        handle = self._watch(fd, "writer", callback, args, options)
        return super()._add_writer(fd, callback, *args, **options) if handle is None else handle  # type: ignore[misc]

    def _remove_reader(self, fd: Any) -> Any:
        removed = self._unwatch(fd, "reader")
        return super()._remove_reader(fd) if removed is None else removed  # type: ignore[misc]

    def _remove_writer(self, fd: Any) -> Any:
        removed = self._unwatch(fd, "writer")
        return super()._remove_writer(fd) if removed is None else removed  # type: ignore[misc]

    def _watch_of(self, fd: int) -> Any:
        """The events that a descriptor waits for, and the handles: what the selector shows of it."""
        network = self.network
        if network is None or network.endpoint_of(fd) is None:
            return super()._watch_of(fd)  # type: ignore[misc]
        reader, writer = network.poll.handles(fd)
        events = (selectors.EVENT_READ if reader else 0) | (selectors.EVENT_WRITE if writer else 0)
        return events, reader, writer

    def _watched(self) -> list[int]:
        """The descriptors that something waits for."""
        found: list[int] = super()._watched()  # type: ignore[misc]
        return found if self.network is None else found + self.network.poll.watched()

    # -- transports --------------------------------------------------------------------------------

    def _make_socket_transport(
        self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None, **options: Any
    ) -> Any:
        if not is_simulated(sock):
            return super()._make_socket_transport(sock, protocol, waiter, extra=extra, server=server, **options)
        return _Selector._make_socket_transport(self, sock, protocol, waiter, extra=extra, server=server, **options)

    def _make_ssl_transport(
        self, rawsock: Any, protocol: Any, sslcontext: Any, waiter: Any = None, **options: Any
    ) -> Any:
        if not is_simulated(rawsock):
            return super()._make_ssl_transport(rawsock, protocol, sslcontext, waiter, **options)
        return _Selector._make_ssl_transport(self, rawsock, protocol, sslcontext, waiter, **options)

    def _make_datagram_transport(
        self, sock: Any, protocol: Any, address: Any = None, waiter: Any = None, extra: Any = None
    ) -> Any:
        if not self._joins(sock):
            return super()._make_datagram_transport(sock, protocol, address, waiter, extra)
        return _Selector._make_datagram_transport(self, sock, protocol, address, waiter, extra)

    def _start_serving(self, protocol_factory: Any, sock: Any, *args: Any, **options: Any) -> None:
        if self._joins(sock):
            _Selector._start_serving(self, protocol_factory, sock, *args, **options)
        else:
            super()._start_serving(protocol_factory, sock, *args, **options)

    async def _sock_sendfile_native(self, sock: Any, file: Any, offset: int, count: int | None) -> int:
        if is_simulated(sock):
            try:
                os.fstat(file.fileno())
            except (AttributeError, OSError) as error:
                raise asyncio.SendfileNotAvailableError("not a regular file") from error
            sent: int = await _Plain._sock_sendfile_fallback(self, sock, file, offset, count)
            return sent
        return await super()._sock_sendfile_native(sock, file, offset, count)

    # -- connections, sockets and names ------------------------------------------------------------

    if not TYPE_CHECKING:
        # For type checkers, typeshed's overloads are better than these signatures.

        async def create_connection(self, protocol_factory, host=None, port=None, **options):
            """Connect to a server; see asyncio.loop.create_connection."""
            if self.network is None:
                return await super().create_connection(protocol_factory, host, port, **options)
            return await _Plain.create_connection(self, protocol_factory, host, port, **options)

        async def _connect_sock(self, exceptions, addr_info, local_addr_infos=None):
            connect = super()._connect_sock
            if self.network is not None:
                connect = functools.partial(rebound(_Plain._connect_sock), self)
            try:
                return await connect(exceptions, addr_info, local_addr_infos)
            finally:
                # This frame is in the tracebacks of these exceptions: asyncio lets go of them too.
                del exceptions, connect

        async def create_server(self, protocol_factory, host=None, port=None, **options):
            """Make a server; see asyncio.loop.create_server."""
            starts, options["start_serving"] = options.get("start_serving", True), False
            if self.network is None:
                server = await super().create_server(protocol_factory, host, port, **options)
                return await _started(server, starts)
            sock = options.get("sock")
            if sock is not None and host is None and port is None:
                self._joins(sock)
            server = await rebound(_Plain.create_server)(self, protocol_factory, host, port, **options)
            return await _started(server, starts)

        async def create_unix_connection(self, protocol_factory, path=None, **options):
            """Connect to a Unix server; see asyncio.loop.create_unix_connection."""
            if self.network is None:
                return await super().create_unix_connection(protocol_factory, path, **options)
            return await rebound(_Unix.create_unix_connection)(self, protocol_factory, path, **options)

        async def create_unix_server(self, protocol_factory, path=None, **options):
            """Make a Unix server; see asyncio.loop.create_unix_server."""
            starts, options["start_serving"] = options.get("start_serving", True), False
            if self.network is None:
                server = await super().create_unix_server(protocol_factory, path, **options)
            else:
                server = await rebound(_Unix.create_unix_server)(self, protocol_factory, path, **options)
            return await _started(server, starts)

        async def create_datagram_endpoint(self, protocol_factory, local_addr=None, remote_addr=None, **options):
            """Make a datagram transport; see asyncio.loop.create_datagram_endpoint. Those of AF_UNIX are real."""
            arguments = protocol_factory, local_addr, remote_addr
            if self.network is None or options.get("family") == base_events.socket.AF_UNIX:
                return await super().create_datagram_endpoint(*arguments, **options)
            return await rebound(_Plain.create_datagram_endpoint)(self, *arguments, **options)

        async def getaddrinfo(self, host, port, *, family=0, type=0, proto=0, flags=0):
            """As socket.getaddrinfo, on the network."""
            network = self.network
            if network is None:
                return await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)
            await self._wait_for_names(network)
            return network.names.getaddrinfo(host, port, family, type, proto, flags)

        async def getnameinfo(self, sockaddr, flags=0):
            """As socket.getnameinfo, on the network."""
            network = self.network
            if network is None:
                return await super().getnameinfo(sockaddr, flags)
            await self._wait_for_names(network)
            return network.names.getnameinfo(sockaddr, flags)

        async def sock_connect(self, sock, address):
            """Connect a non-blocking socket; see asyncio.loop.sock_connect."""
            base_events._check_ssl_socket(sock)
            if self.network is not None and isinstance(sock, socket.socket | SimulatedSocket):
                self._earlier_sockets.at(self, sock.family, address)
            if self._joins(sock, address):
                return await _Selector.sock_connect(self, sock, address)
            return await super().sock_connect(sock, address)

        async def sock_accept(self, sock):
            """Accept a connection; see asyncio.loop.sock_accept."""
            base_events._check_ssl_socket(sock)
            if self._joins(sock):
                return await _Selector.sock_accept(self, sock)
            return await super().sock_accept(sock)

        async def sock_recv(self, sock, n):
            """Receive at most n bytes; see asyncio.loop.sock_recv."""
            if isinstance(sock, Calls):
                return await _Selector.sock_recv(self, sock, n)
            return await super().sock_recv(sock, n)

        async def sock_recv_into(self, sock, buf):
            """Receive into a buffer; see asyncio.loop.sock_recv_into."""
            if isinstance(sock, Calls):
                return await _Selector.sock_recv_into(self, sock, buf)
            return await super().sock_recv_into(sock, buf)

        async def sock_recvfrom(self, sock, bufsize):
            """Receive a datagram; see asyncio.loop.sock_recvfrom."""
            base_events._check_ssl_socket(sock)
            if self._joins(sock):
                return await _Selector.sock_recvfrom(self, sock, bufsize)
            return await super().sock_recvfrom(sock, bufsize)

        async def sock_recvfrom_into(self, sock, buf, nbytes=0):
            """Receive a datagram into a buffer; see asyncio.loop.sock_recvfrom_into."""
            base_events._check_ssl_socket(sock)
            if self._joins(sock):
                return await _Selector.sock_recvfrom_into(self, sock, buf, nbytes)
            return await super().sock_recvfrom_into(sock, buf, nbytes)

        async def sock_sendall(self, sock, data):
            """Send all of the data; see asyncio.loop.sock_sendall."""
            if isinstance(sock, Calls):
                return await _Selector.sock_sendall(self, sock, data)
            return await super().sock_sendall(sock, data)

        async def sock_sendto(self, sock, data, address):
            """Send a datagram; see asyncio.loop.sock_sendto."""
            base_events._check_ssl_socket(sock)
            if self._joins(sock, address):
                return await _Selector.sock_sendto(self, sock, data, address)
            return await super().sock_sendto(sock, data, address)

    async def _wait_for_names(self, network: Network) -> None:
        """Wait as long as a name's resolution takes: at least for the loop's next turn, as for an executor."""
        found: asyncio.Future[None] = self.create_future()
        delay = network.uniform("latency", *network.lookup_delay)
        self.call_later(delay, _finish, found) if delay else self.call_soon(_finish, found)
        await found


async def _started(server: asyncio.Server, starts: bool) -> asyncio.Server:
    """Begin to serve, as asyncio's create_server does. A cancellation there loses asyncio's server, which goes on."""
    try:
        if starts:
            await server.start_serving()
    except BaseException:
        server.close()
        raise
    return server


def _finish(found: asyncio.Future[None]) -> None:
    if not found.done():
        found.set_result(None)


def _number_of(fileobj: Any) -> Any:
    try:
        return int(fileobj.fileno())
    except (AttributeError, TypeError, ValueError):
        # asyncio refuses it with a text of its own.
        return None
