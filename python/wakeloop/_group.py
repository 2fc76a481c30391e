"""Several event loops in one process: one in the calling thread, and one in each of some more threads.

`EventLoopGroup` is to `asyncio.Runner` what many loops are to one. `GroupServer` is to `asyncio.Server` what a listener
for many loops is to one. Everything here runs per loop or per connection, and only asyncio's own interfaces connect the
loops: `call_soon_threadsafe` from one to another, and a counter with one writer for each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ._inherited import base_events
from ._streams import StreamReader, StreamReaderProtocol, StreamWriter
from .loop import EventLoop, new_event_loop
from .metrics import LoopMetrics

__all__ = ("EventLoopGroup", "GroupServer")

_T = TypeVar("_T")
_Factory = Callable[[], asyncio.BaseProtocol]

#: How often the end of a server's connections is looked for, in seconds.
_LOOK = 0.02
#: How often at most when the group ends, and connections were aborted.
_LOOKS = 50
#: How long the accepting loop waits when the process has no descriptors or memory left, in seconds; as asyncio does.
_RETRY = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Member:
    """A loop of the group that runs in a thread of its own."""

    def __init__(self, name: str, debug: bool | None, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.failure: BaseException | None = None
        self._on_failure: Callable[[], None] | None = None
        self._runner = functools.partial(asyncio.Runner, debug=debug, loop_factory=factory)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self.thread = threading.Thread(target=self._run, name=name)

    def start(self, on_failure: Callable[[], None]) -> None:
        """Raises what the loop's factory raises."""
        self._on_failure = on_failure
        self.thread.start()
        self._started.wait()
        if self.loop is None:
            self.thread.join()
            raise self.failure or RuntimeError("the loop did not start")

    def _run(self) -> None:
        try:
            with self._runner() as runner:
                runner.run(self._until_stopped())
        except BaseException as failure:
            # A callback has raised SystemExit or KeyboardInterrupt, or the loop could not be made.
            self.failure = failure
            if self.loop is not None and self._on_failure is not None:
                self._on_failure()
        finally:
            self._started.set()

    async def _until_stopped(self) -> None:
        self._stop = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._started.set()
        await self._stop.wait()

    def stop(self) -> None:
        """Ends the loop as asyncio.run does: remaining tasks are cancelled, and waited for."""
        if self.loop is not None and self._stop is not None:
            # The loop may have ended by itself.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._stop.set)


class EventLoopGroup:
    """Runs several event loops in one process, each in a thread of its own.

    It is used as asyncio.Runner is, and `run` does what that of a Runner does. The coroutine runs on the first loop, in
    the calling thread, where signal handlers run as well. The other loops run in threads, from the first use of the
    group to its end. At the end all tasks of all loops are cancelled and waited for, and the loops are closed.

    `size` is the number of loops, by default that of the processors that the process may use. `debug` and
    `loop_factory` are those of asyncio.Runner, with wakeloop's loop as the default. Raises ValueError if `size` is less
    than 1.
    """

    __module__ = "wakeloop"

    def __init__(
        self,
        size: int | None = None,
        *,
        debug: bool | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
        thread_name_prefix: str = "wakeloop",
    ) -> None:
        if size is not None and size < 1:
            raise ValueError("size must be at least 1")
        factory = loop_factory or new_event_loop
        self._runner = asyncio.Runner(debug=debug, loop_factory=factory)
        count = _processors() if size is None else size
        self._members = [_Member(f"{thread_name_prefix}-{number}", debug, factory) for number in range(1, count)]
        self._loops: tuple[asyncio.AbstractEventLoop, ...] | None = None
        self._closed = False
        self._main: asyncio.Task[Any] | None = None
        self._terminated = False
        #: Those that may still have connections.
        self._servers: set[GroupServer] = set()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _start(self) -> tuple[asyncio.AbstractEventLoop, ...]:
        if self._closed:
            raise RuntimeError("EventLoopGroup is closed")
        if self._loops is None:
            loops = [self._runner.get_loop()]
            try:
                for member in self._members:
                    member.start(self._member_failed)
                    assert member.loop is not None
                    loops.append(member.loop)
            except BaseException:
                self.close()
                raise
            self._loops = tuple(loops)
        return self._loops

    def close(self) -> None:
        """Cancel what runs on the loops, wait for it, and close the loops. Closing twice is fine.

        The first loop ends last, so that the others may still use it while they end. Raises RuntimeError in the thread
        of a running loop.
        """
        if self._closed:
            return
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("EventLoopGroup.close() cannot be called from a running event loop")
        self._closed = True
        if self._loops is not None and self._servers:
            self._runner.run(self._end_servers())
        for member in self._members:
            member.stop()
        # What ends on the other loops may wait for the first one.
        if any(member.thread.is_alive() for member in self._members):
            self._runner.run(self._joined())
        self._runner.close()

    async def _end_servers(self) -> None:
        """Closes what the program has not closed, and ends the connections that are left."""
        servers = list(self._servers)
        for server in servers:
            server.close()
            server._abort()
        # The transports report their end in the next turns of their loops. A loop may be blocked.
        for _ in range(_LOOKS):
            if not any(any(server.connections) for server in servers):
                break
            await asyncio.sleep(_LOOK)

    async def _joined(self) -> None:
        while any(member.thread.is_alive() for member in self._members):
            await asyncio.sleep(_LOOK)

    # -- running ---------------------------------------------------------------------------------

    @property
    def loops(self) -> tuple[asyncio.AbstractEventLoop, ...]:
        """The loops. The first one runs in the thread that calls `run`."""
        return self._start()

    def run(self, coro: Coroutine[Any, Any, _T], *, context: Context | None = None) -> _T:
        """Run a coroutine on the first loop, in this thread, and return its result, as asyncio.Runner.run does.

        Ctrl-C cancels it, and then this raises KeyboardInterrupt. In the main thread SIGTERM does the same, unless the
        program handles it, and then this raises SystemExit with the code 143. If another loop is stopped by a
        SystemExit or KeyboardInterrupt, the coroutine is cancelled, and this raises that.
        """
        try:
            loops = self._start()
        except BaseException:
            coro.close()
            raise
        self._terminated = False
        with self._handling_sigterm(loops[0]):
            try:
                result = self._runner.run(self._as_main(coro), context=context)
            except asyncio.CancelledError:
                self._raise_failure()
                if self._terminated:
                    raise SystemExit(128 + signal.SIGTERM) from None
                raise
        self._raise_failure()
        return result

    def _raise_failure(self) -> None:
        """Raises what has stopped another loop."""
        for member in self._members:
            if member.failure is not None:
                raise member.failure from None

    async def _as_main(self, coro: Coroutine[Any, Any, _T]) -> _T:
        self._main = asyncio.current_task()
        try:
            return await coro
        finally:
            self._main = None

    @contextlib.contextmanager
    def _handling_sigterm(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        handled = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        )
        if handled:
            loop.add_signal_handler(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            if handled and not loop.is_closed():
                loop.remove_signal_handler(signal.SIGTERM)

    def _terminate(self) -> None:
        self._terminated = True
        if self._main is not None:
            self._main.cancel()

    def _member_failed(self) -> None:
        def cancel() -> None:
            if self._main is not None:
                self._main.cancel()

        # The first loop may be closed.
        with contextlib.suppress(RuntimeError):
            self._runner.get_loop().call_soon_threadsafe(cancel)

    async def run_on(
        self, loop: asyncio.AbstractEventLoop, function: Callable[..., Awaitable[_T]], *args: Any
    ) -> _T:
        """Await `function(*args)` in a task of another loop of the group, from any of its loops.

        Cancelling this cancels that task, and waits for its end.
        """
        here = asyncio.get_running_loop()
        if loop is here:
            return await function(*args)
        outcome: asyncio.Future[asyncio.Task[_T]] = here.create_future()
        tasks: list[asyncio.Task[_T]] = []

        async def call() -> _T:
            return await function(*args)

        def deliver(task: asyncio.Task[_T]) -> None:
            with contextlib.suppress(RuntimeError):  # this loop may be closed
                here.call_soon_threadsafe(outcome.set_result, task)

        def start() -> None:
            task = loop.create_task(call())
            tasks.append(task)
            task.add_done_callback(deliver)

        def cancel() -> None:
            tasks[0].cancel()

        loop.call_soon_threadsafe(start)
        try:
            await asyncio.wait([outcome])
        except asyncio.CancelledError:
            while not outcome.done():
                loop.call_soon_threadsafe(cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([outcome])
            raise
        return outcome.result().result()

    async def run_on_each(self, function: Callable[..., Awaitable[_T]], *args: Any) -> list[_T]:
        """Await `function(*args)` on every loop at once, and return the results in the order of the loops.

        If one fails, the others are cancelled, and this raises an exception group, as asyncio.TaskGroup does.
        """
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.run_on(loop, function, *args)) for loop in self._start()]
        return [task.result() for task in running]

    def metrics(self) -> list[LoopMetrics]:
        """Return the metrics() of every loop, in the order of the loops. Other loops than wakeloop's are left out."""
        return [loop.metrics() for loop in self._start() if isinstance(loop, EventLoop)]

    # -- servers ---------------------------------------------------------------------------------

    async def create_server(
        self,
        protocol_factory: _Factory,
        host: str | list[str] | None = None,
        port: int | None = None,
        *,
        reuse_port: bool = True,
        graceful_timeout: float | None = None,
        **options: Any,
    ) -> GroupServer:
        """Serve TCP on every loop, and return a GroupServer. `protocol_factory` is called on the loop of each connection.

        With `reuse_port`, each loop has a listening socket of its own, and the system chooses one for each connection.
        Without, the loop that calls this accepts, and hands each connection to the loop with the fewest connections of
        this server. `graceful_timeout` is how many seconds `wait_closed` waits for connections to end; None means any
        time. `options` are those of asyncio's loop.create_server.
        """
        return await self._serve(lambda _: protocol_factory, host, port, reuse_port, graceful_timeout, options)

    async def start_server(
        self,
        client_connected_cb: Callable[[StreamReader, StreamWriter], Awaitable[None] | None],
        host: str | list[str] | None = None,
        port: int | None = None,
        *,
        limit: int = 65536,
        reuse_port: bool = True,
        graceful_timeout: float | None = None,
        **options: Any,
    ) -> GroupServer:
        """Serve streams on every loop, as asyncio.start_server does on one; see create_server for the parameters.

        `client_connected_cb(reader, writer)` is called on the loop of each connection.
        """

        def make(loop: asyncio.AbstractEventLoop) -> _Factory:
            def factory() -> asyncio.BaseProtocol:
                reader = StreamReader(limit=limit, loop=loop)
                connected: Any = client_connected_cb
                return StreamReaderProtocol(reader, connected, loop=loop)

            return factory

        return await self._serve(make, host, port, reuse_port, graceful_timeout, options)

    async def _serve(
        self,
        make: Callable[[asyncio.AbstractEventLoop], _Factory],
        host: Any,
        port: Any,
        reuse_port: bool,
        graceful_timeout: float | None,
        options: dict[str, Any],
    ) -> GroupServer:
        here = asyncio.get_running_loop()
        loops = self._start()
        if here not in loops:
            raise RuntimeError("a server is started from a loop of the group")
        starts = options.pop("start_serving", True)
        first = await here.create_server(make(here), host, port, start_serving=False, reuse_port=reuse_port, **options)
        server: GroupServer = (_OneEach if reuse_port else _OneForAll)(self, loops, make, first, options)
        server._graceful_timeout = graceful_timeout
        self._servers = {other for other in self._servers if other.is_serving() or any(other.connections)}
        self._servers.add(server)
        try:
            await server._open()
            if starts:
                await server.start_serving()
        except BaseException:
            server.close()
            raise
        return server


class GroupServer:
    """A server on every loop of an EventLoopGroup, as asyncio.Server is one on one loop.

    Made by EventLoopGroup.start_server and create_server. `async with` closes it at the end of the block, and waits for
    its connections. The methods are for the loop that has made it.
    """

    __module__ = "wakeloop"

    def __init__(
        self,
        group: EventLoopGroup,
        loops: tuple[asyncio.AbstractEventLoop, ...],
        make: Callable[[asyncio.AbstractEventLoop], _Factory],
        first: asyncio.Server,
        options: dict[str, Any],
    ) -> None:
        self._group, self._loops, self._make, self._options = group, loops, make, options
        self._home = asyncio.get_running_loop()
        self._first = first
        self._graceful_timeout: float | None = None
        self._serving = self._closed = False
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

    async def wait_closed(self) -> None:
        """Wait until close() was called, and all connections have ended.

        After `graceful_timeout` seconds, those that are left are aborted; before Python 3.13, where a server with a
        socket for each loop does not know its connections, they are left to the end of the group.
        """
        while not self._closed:
            await asyncio.sleep(_LOOK)
        timeout = self._graceful_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(self.connections):
            if deadline is not None and time.monotonic() >= deadline:
                self._abort()
                await asyncio.sleep(_LOOK)
                return
            await asyncio.sleep(_LOOK)

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


class _OneEach(GroupServer):
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
                        self._servers.append((loop, await self._group.run_on(loop, self._open_on, loop, sock, options)))
                    except BaseException:
                        sock.close()
                        raise

    async def _open_on(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, options: dict[str, Any]
    ) -> asyncio.Server:
        return await loop.create_server(self._make(loop), sock=sock, start_serving=False, **options)

    async def _begin(self) -> None:
        for loop, server in self._servers:
            await self._group.run_on(loop, server.start_serving)

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

    @property
    def connections(self) -> list[int]:
        counts = dict.fromkeys(self._loops, 0)
        for loop, server in self._servers:
            counts[loop] += _clients_of(server)
        return list(counts.values())


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


class _OneForAll(GroupServer):
    """One loop accepts, and hands each connection to the loop with the fewest."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # The sockets are asyncio's; these are the same ones, of which this server disposes.
        self._sockets = [sock.dup() for sock in self._first.sockets]
        self._first.close()
        self._shares = [_Share(loop, self._make(loop), self._options) for loop in self._loops]
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

    def __init__(self, loop: asyncio.AbstractEventLoop, factory: _Factory, options: dict[str, Any]) -> None:
        self.loop = loop
        self._factory, self._options = factory, options
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
                self.ended += 1

    def forget(self, client: _Client) -> None:
        self.ended += 1
        if client.transport is not None:
            self._transports.discard(client.transport)

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
