"""Servers on all loops of an EventLoopGroup.

Only asyncio's own interfaces connect the loops: `call_soon_threadsafe` from one to another, and a counter with one
writer for each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

__all__ = ("Changes", "Factory", "GroupServer", "OneEach", "OneForAll")

Factory = Callable[[], asyncio.BaseProtocol]

#: How long wait_closed() waits for connections that it has aborted, in seconds. Their loops may be blocked.
_ABORTED = 0.02
#: How long the accepting loop waits when the process has no descriptors or memory left, in seconds; as asyncio does.
_RETRY = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Changes:
    """Wakes tasks that wait for a change which any thread can make."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def notify(self) -> None:
        """There was a change. Any thread may call this."""
        with self._lock:
            waiting = list(self._waiting.items())
        for event, loop in waiting:
            # The loop may be closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    async def wait_for(self, test: Callable[[], bool]) -> None:
        """Wait until the test is true. It is made at once, and after each change."""
        event = asyncio.Event()
        # Added before the test: a change that the test does not see wakes this task.
        with self._lock:
            self._waiting[event] = asyncio.get_running_loop()
        try:
            while not test():
                await event.wait()
                event.clear()
        finally:
            with self._lock:
                del self._waiting[event]


class GroupServer:
    """A server on every loop of an EventLoopGroup, as asyncio.Server is one on one loop.

    Made by EventLoopGroup.start_server and create_server. `async with` closes it at the end of the block, and waits for
    its connections. The methods are for the loop that has made it.
    """

    __module__ = "wakeloop"

    #: The group sets it.
    _graceful_timeout: float | None

    def __init__(
        self,
        run_on: Callable[..., Awaitable[Any]],
        loops: tuple[asyncio.AbstractEventLoop, ...],
        make: Callable[[asyncio.AbstractEventLoop], Factory],
        first: asyncio.Server,
        options: dict[str, Any],
    ) -> None:
        self._run_on, self._loops, self._make, self._options = run_on, loops, make, options
        self._home = asyncio.get_running_loop()
        self._first = first
        self._serving = self._closed = False
        #: It was closed, or a loop has lost its last connection.
        self._changes = Changes()
        self._forever: asyncio.Future[None] | None = None
        self._addresses = [(sock.family, sock.getsockname()) for sock in first.sockets]

    async def _open(self) -> None:
        raise NotImplementedError

    async def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def _abort(self) -> None:
        raise NotImplementedError

    def _watch(self) -> None:
        """Asks the loops of a closed server to notify `_changes` when they have lost their last connection."""

    @property
    def connections(self) -> list[int]:
        """How many connections each loop has, in the order of the loops."""
        raise NotImplementedError

    @property
    def addresses(self) -> list[Any]:
        """The addresses that the server listens on, as socket.getsockname gives them."""
        return [address for _, address in self._addresses]

    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return self._serving

    async def start_serving(self) -> None:
        """Begin to accept connections. Calling it twice is fine. Raises RuntimeError after close()."""
        if self._closed:
            raise RuntimeError(f"server {self!r} is closed")
        if not self._serving:
            await self._begin()
            if self._closed:
                # It was closed meanwhile, and some loops may have begun after that.
                self._end()
            else:
                self._serving = True

    async def serve_forever(self) -> None:
        """Accept connections until this is cancelled; then close the server."""
        if self._forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        self._forever = self._home.create_future()
        try:
            await self.start_serving()
            await self._forever
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._forever = None

    def close(self) -> None:
        """Stop listening on every loop. Open connections go on. Closing twice is fine."""
        if self._closed:
            return
        self._closed, self._serving = True, False
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._end()
        self._changes.notify()

    async def wait_closed(self) -> None:
        """Wait until close() was called, and all connections have ended.

        After `graceful_timeout` seconds, those that are left are aborted; before Python 3.13, where a server with a
        socket for each loop does not know its connections, they are left to the end of the group.
        """
        await self._changes.wait_for(lambda: self._closed)
        try:
            async with asyncio.timeout(self._graceful_timeout):
                await self._emptied()
        except TimeoutError:
            self._abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ABORTED):
                    await self._emptied()

    async def _emptied(self) -> None:
        """Waits until the closed server has no connections."""
        self._watch()
        await self._changes.wait_for(lambda: not any(self.connections))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.close()
        await self.wait_closed()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "serving" if self._serving else "open"
        return f"<wakeloop.GroupServer {state} addresses={self.addresses!r} loops={len(self._loops)}>"

    def _post(self, loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> bool:
        """Calls a function on a loop's thread, unless the loop is closed."""
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True


class OneEach(GroupServer):
    """A listening socket for each loop; the system chooses one for each connection (SO_REUSEPORT)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._servers: list[tuple[asyncio.AbstractEventLoop, asyncio.Server]] = [(self._home, self._first)]

    async def _open(self) -> None:
        options = {
            name: value
            for name, value in self._options.items()
            if name in ("backlog", "ssl", "ssl_handshake_timeout", "ssl_shutdown_timeout", "keep_alive")
        }
        for loop in self._loops:
            if loop is not self._home:
                for family, address in self._addresses:
                    sock = _listening_socket(family, address)
                    try:
                        self._servers.append((loop, await self._run_on(loop, self._open_on, loop, sock, options)))
                    except BaseException:
                        sock.close()
                        raise

    async def _open_on(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, options: dict[str, Any]
    ) -> asyncio.Server:
        return await loop.create_server(self._make(loop), sock=sock, start_serving=False, **options)

    async def _begin(self) -> None:
        for loop, server in self._servers:
            await self._run_on(loop, server.start_serving)

    def _end(self) -> None:
        for loop, server in self._servers:
            if loop is self._home:
                server.close()
            else:
                self._post(loop, server.close)

    def _abort(self) -> None:
        for loop, server in self._servers:
            if hasattr(server, "abort_clients"):
                self._post(loop, server.abort_clients)

    def _watch(self) -> None:
        for loop, server in self._servers:
            self._post(loop, self._report_end, server)

    def _report_end(self, server: asyncio.Server) -> None:
        """Called on the server's loop, which has closed it."""
        waiters = getattr(server, "_waiters", None)
        if waiters is None:
            self._changes.notify()
        else:
            waiters.append(_Waiter(self._changes))

    @property
    def connections(self) -> list[int]:
        counts = dict.fromkeys(self._loops, 0)
        for loop, server in self._servers:
            counts[loop] += _clients_of(server)
        return list(counts.values())


class _Waiter:
    """Stands among the futures of wait_closed() in an asyncio.Server, which get a result when its last client has left.

    Before Python 3.12, wait_closed() itself does not wait for that.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def done(self) -> bool:
        return False

    def set_result(self, _: object) -> None:
        self._changes.notify()


def _listening_socket(family: int, address: Any) -> socket.socket:
    """A socket beside another one that has the same address, with the options that asyncio sets."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _clients_of(server: asyncio.Server) -> int:
    """How many connections a server has. Python 3.13 keeps a set of them, and earlier versions a count."""
    clients = getattr(server, "_clients", None)
    count: int = len(clients) if clients is not None else getattr(server, "_active_count", 0)
    return count


class OneForAll(GroupServer):
    """One loop accepts, and hands each connection to the loop with the fewest."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The sockets are asyncio's; these are the same ones, of which this server disposes.
        self._sockets = [sock.dup() for sock in self._first.sockets]
        self._first.close()
        self._shares = [_Share(loop, self._make(loop), self._options, self._changes) for loop in self._loops]
        self._accepting: list[asyncio.Task[None]] = []
        self._turn = 0

    async def _open(self) -> None:
        for sock in self._sockets:
            sock.setblocking(False)

    async def _begin(self) -> None:
        for sock in self._sockets if not self._accepting else ():
            sock.listen(self._options.get("backlog", 100))
            self._accepting.append(self._home.create_task(self._accept(sock)))

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._home.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._home.call_exception_handler(
                    {"message": "socket.accept() out of system resource", "exception": error, "socket": listener}
                )
                await asyncio.sleep(_RETRY)
                continue
            self._hand_over(connection, address)

    def _hand_over(self, connection: socket.socket, address: Any) -> None:
        """Gives a connection to the loop with the fewest. Among equals they take turns."""
        self._turn += 1
        shares = self._shares
        first = self._turn % len(shares)
        share = min(shares[first:] + shares[:first], key=lambda share: share.connections)
        share.handed += 1
        if not self._post(share.loop, share.take, connection, address):
            share.handed -= 1
            self._changes.notify()
            connection.close()

    def _end(self) -> None:
        for task in self._accepting:
            task.cancel()
        for sock in self._sockets:
            # The cancelled tasks have not run yet.
            self._home.remove_reader(sock.fileno())
            sock.close()

    def _abort(self) -> None:
        for share in self._shares:
            self._post(share.loop, share.abort)

    @property
    def connections(self) -> list[int]:
        return [share.connections for share in self._shares]


class _Share:
    """The connections of one loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, factory: Factory, options: dict[str, Any], changes: Changes
    ) -> None:
        self.loop = loop
        self._factory, self._options, self._changes = factory, options, changes
        #: Each has one writer: the accepting loop's thread, and the thread of this loop.
        self.handed = self.ended = 0
        self._transports: set[asyncio.BaseTransport] = set()
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return self.handed - self.ended

    def take(self, connection: socket.socket, address: Any) -> None:
        """Called on this loop's thread."""
        task = self.loop.create_task(self._serve(connection, address))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _serve(self, connection: socket.socket, address: Any) -> None:
        client = _Client(self)
        loop: Any = self.loop
        try:
            connection.setblocking(False)
            protocol = self._factory()
            waiter = loop.create_future()
            extra = {"peername": address}
            ssl = self._options.get("ssl")
            if ssl:
                timeouts = {
                    name: self._options[name]
                    for name in ("ssl_handshake_timeout", "ssl_shutdown_timeout")
                    if self._options.get(name) is not None
                }
                transport = loop._make_ssl_transport(
                    connection, protocol, ssl, waiter=waiter, server_side=True, extra=extra, server=client, **timeouts
                )
            else:
                transport = loop._make_socket_transport(connection, protocol, waiter=waiter, extra=extra, server=client)
            client.transport = transport
            if client.attached:
                self._transports.add(transport)
            try:
                await waiter
            except BaseException:
                transport.close()
                raise
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except Exception as error:
            # As asyncio does: a client that fails the handshake, or leaves during it, is nobody's error.
            if loop.get_debug():
                message = "Error on transport creation for incoming connection"
                loop.call_exception_handler({"message": message, "exception": error})
        finally:
            if not client.attached:
                connection.close()
                self._count_end()

    def forget(self, client: _Client) -> None:
        self._count_end()
        if client.transport is not None:
            self._transports.discard(client.transport)

    def _count_end(self) -> None:
        self.ended += 1
        if self.ended == self.handed:
            self._changes.notify()

    def abort(self) -> None:
        for transport in list(self._transports):
            abort = getattr(transport, "abort", transport.close)
            abort()


class _Client:
    """Stands for the server of one connection: its transport says when it begins and ends."""

    def __init__(self, share: _Share) -> None:
        self._share = share
        self.attached = False
        self.transport: asyncio.BaseTransport | None = None

    def _attach(self, *_transport: object) -> None:
        self.attached = True

    def _detach(self, *_transport: object) -> None:
        self._share.forget(self)
