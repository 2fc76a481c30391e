"""The event loop: the native core in front, CPython's own selector loop behind it.

What runs per callback or per packet is native (``_core.EventLoop``, first in the method order). What runs
once per connection, server or loop is inherited from the asyncio of the interpreter at hand, so argument
rules, happy eyeballs, subprocesses, signals and executors are CPython's own and follow it. This module is
what has to be said in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
import selectors
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Self, TypeVar, TypeVarTuple, Unpack

from . import _children, _clients, _connections, _core, _executor, _sendfile, _stepping, _support, _tls
from ._inherited import SelectorEventLoop, asyncios, base_events, constants, events
from ._selector import SelectorFacade
from ._wakeup import Loan

__all__ = ("EventLoop", "new_event_loop", "run")

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# What loop.start_tls() and loop.sendfile() ask a transport for.
_core.StreamTransport._start_tls_compatible = True
_core.StreamTransport._sendfile_compatible = constants._SendfileMode.TRY_NATIVE

# What asyncio's own code keeps on a loop. As slots they leave the instance dict unmade, and CPython finds
# ``loop.call_soon`` without a dict lookup (LOAD_ATTR_METHOD_LAZY_DICT): 230 instructions less per call. A
# name that this tuple lacks, or a user's own, goes to the dict as ever.
_STATE = (
    "_asyncgens",
    "_asyncgens_shutdown_called",
    "_child_threads",
    "_clock_resolution",
    "_coroutine_origin_tracking_enabled",
    "_coroutine_origin_tracking_saved_depth",
    "_current_handle",
    "_default_executor",
    "_exception_handler",
    "_executor_is_users",
    "_executor_shutdown_called",
    "_internal_fds",
    "_old_agen_hooks",
    "_pidfds",
    "_selector",
    "_signal_handlers",
    "_timer_cancelled_count",
    "_timer_list",
    "_transports",
    "_unix_server_sockets",
    "_wake_reader",
    "_wake_writer",
    "_wakeup",
    "_watcher",
    "slow_callback_duration",
)


class EventLoop(_core.EventLoop, SelectorEventLoop):
    """An asyncio event loop whose hot paths are native.

    Not thread-safe but for ``call_soon_threadsafe``, as every asyncio loop. Belongs to the process that
    made it: a forked child that runs it gets a RuntimeError.
    """

    __slots__ = _STATE

    _selector: Any
    _wake_reader: socket.socket | None
    _wake_writer: socket.socket | None
    _transports: Any
    _internal_fds: int
    _signal_handlers: dict[int, Any]
    _default_executor: Any
    _executor_is_users: bool
    _executor_shutdown_called: Any
    # Children that run, by the descriptors that tell of their end, and asyncio's threads where there are none.
    _pidfds: set[int]
    _child_threads: Any
    _wakeup: Loan | None
    _timer_list: _stepping.ScheduledView | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # A subclass whose __init__ never reaches ours still has to be closable.
        self = super().__new__(cls, *args, **kwargs)
        self._selector = self._wake_reader = self._wake_writer = None
        self._default_executor = self._executor_shutdown_called = None
        self._transports, self._signal_handlers, self._internal_fds = (), {}, 0
        self._pidfds, self._child_threads, self._wakeup = set(), None, None
        self._executor_is_users, self._timer_list = False, None
        return self

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        """A selector is taken as asyncio's loop takes one; only one with ways of its own is asked."""
        own = selector is None or _stepping.is_plain(selector)
        super().__init__(SelectorFacade(self, selector) if own else selector)
        if not own and selector is not None:
            _stepping.watch_core(self, selector)

    # -- running ---------------------------------------------------------------------------------

    if hasattr(base_events.BaseEventLoop, "_run_forever_setup"):

        def run_forever(self) -> None:
            """Run until stop() is called."""
            self._run_forever_setup()
            try:
                self._run_turns()
            finally:
                self._run_forever_cleanup()

    else:

        def run_forever(self) -> None:
            """Run until stop() is called."""
            self._check_closed()
            self._check_running()
            self._set_coroutine_origin_tracking(self._debug)
            hooks = sys.get_asyncgen_hooks()
            import threading

            try:
                self._thread_id = threading.get_ident()
                sys.set_asyncgen_hooks(
                    firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook
                )
                events._set_running_loop(self)
                self._run_turns()
            finally:
                self._stopping = False
                self._thread_id = None
                events._set_running_loop(None)
                self._set_coroutine_origin_tracking(False)
                sys.set_asyncgen_hooks(*hooks)

    def _run_turns(self) -> None:
        self._note_clock()
        if not _stepping.has_own_turn(self, EventLoop._run_once):
            self._run()
            return
        while True:
            self._run_once()
            if self._stopping:
                break

    def close(self) -> None:
        """Close the loop: nothing pending will run. Safe to call twice."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        try:
            _children.forget(self)
            super().close()
        finally:
            self._close_native()

    # -- waking up -------------------------------------------------------------------------------
    #
    # The core wakes itself through its own descriptor. asyncio's socket pair is needed only as the target
    # of signal.set_wakeup_fd(), so it is made when add_signal_handler first asks for it.

    def _make_self_pipe(self) -> None:
        # The core's own descriptor counts as asyncio's pair does.
        self._internal_fds += 1

    def _close_self_pipe(self) -> None:
        self._internal_fds -= 1
        if self._wake_reader is None or self._wake_writer is None:
            return
        self._remove_reader(self._wake_reader.fileno())
        self._wake_reader.close()
        self._wake_writer.close()
        self._wake_reader = self._wake_writer = None

    def _wake_pair(self) -> None:
        if self._wake_reader is None and not self.is_closed():
            self._wake_reader, self._wake_writer = socket.socketpair()
            self._wake_reader.setblocking(False)
            self._wake_writer.setblocking(False)
            self._add_own_reader(self._wake_reader.fileno(), self._read_from_self)

    @property
    def _ssock(self) -> socket.socket | None:
        self._wake_pair()
        return self._wake_reader

    @property
    def _csock(self) -> Any:
        self._wake_pair()
        return self._wake_writer

    def _signal_wakeup(self) -> Loan:
        if self._wakeup is None:
            self._wakeup = Loan()
        return self._wakeup

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[_Ts]], object], *args: Unpack[_Ts]) -> None:
        """Call the callback in the loop at each such signal; see asyncio.loop.add_signal_handler."""
        # asyncio does it too, and its error says what is wrong: no loop of the main thread, or a closed one.
        with contextlib.suppress(AttributeError, ValueError, OSError):
            self._signal_wakeup().begin(self._csock.fileno())
        try:
            super().add_signal_handler(sig, callback, *args)
        except BaseException:
            if not self._signal_handlers:
                with contextlib.suppress(ValueError), self._signal_wakeup().ending():
                    pass
            raise

    def remove_signal_handler(self, sig: int) -> bool:
        """Take the handler of a signal away; True if there was one."""
        if list(self._signal_handlers) != [sig]:
            return super().remove_signal_handler(sig)
        with self._signal_wakeup().ending():
            return super().remove_signal_handler(sig)

    # -- descriptors -----------------------------------------------------------------------------

    def _ensure_fd_no_transport(self, fd: Any) -> None:
        number = fd
        if not isinstance(number, int):
            try:
                number = int(number.fileno())
            except (AttributeError, TypeError, ValueError):
                raise ValueError(f"Invalid file object: {fd!r}") from None
        transport = self._source_of(number) if 0 <= number < 1 << 31 else None
        if transport is None:
            transport = self._transports.get(number)
        if isinstance(transport, asyncio.BaseTransport) and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {transport!r}")

    # -- transports ------------------------------------------------------------------------------

    def _make_socket_transport(
        self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None, **kwargs: Any
    ) -> Any:
        unpatched = SelectorEventLoop._make_socket_transport is asyncios._make_socket_transport
        if not (unpatched and _support.is_ordinary_socket(sock)):
            return super()._make_socket_transport(sock, protocol, waiter, extra=extra, server=server, **kwargs)
        self._ensure_fd_no_transport(sock)
        context = kwargs.get("context")
        if type(sock) is not _support.Socket:
            base_events._set_nodelay(sock)
        if context is not None:
            return context.run(_core.make_stream, self, sock, protocol, waiter, extra, server)
        return _core.make_stream(self, sock, protocol, waiter, extra, server)

    def _make_datagram_transport(
        self, sock: Any, protocol: Any, address: Any = None, waiter: Any = None, extra: Any = None, **kwargs: Any
    ) -> Any:
        unpatched = SelectorEventLoop._make_datagram_transport is asyncios._make_datagram_transport
        if not (unpatched and type(sock) is _support.Socket and sock.family in _support.DATAGRAM_FAMILIES):
            return super()._make_datagram_transport(sock, protocol, address, waiter, extra, **kwargs)
        self._ensure_fd_no_transport(sock)
        details, rules = _support.socket_details(sock, extra), _support.DATAGRAM_RULES
        context = kwargs.get("context")
        if context is not None:
            return context.run(_core.make_datagram, self, sock, protocol, address, waiter, details, rules)
        return _core.make_datagram(self, sock, protocol, address, waiter, details, rules)

    def _make_read_pipe_transport(self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None) -> Any:
        refusal = "Pipe transport is for pipes/sockets only."
        owner, details, _ = _support.pipe_details(self, pipe, extra, refusal)
        return _core.make_read_pipe(self, owner, protocol, waiter, details)

    def _make_write_pipe_transport(self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None) -> Any:
        refusal = "Pipe transport is only for pipes, sockets and character devices"
        owner, details, notices_close = _support.pipe_details(self, pipe, extra, refusal)
        return _core.make_write_pipe(self, owner, protocol, waiter, details, notices_close)

    async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any:
        if _children.are_ours(self):
            return await _children.spawn(self, *args, **kwargs)
        return await super()._make_subprocess_transport(*args, **kwargs)

    def _make_ssl_transport(
        self,
        rawsock: Any,
        protocol: Any,
        sslcontext: Any,
        waiter: Any = None,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        extra: Any = None,
        server: Any = None,
        ssl_handshake_timeout: float | None = constants.SSL_HANDSHAKE_TIMEOUT,
        ssl_shutdown_timeout: float | None = constants.SSL_SHUTDOWN_TIMEOUT,
        **kwargs: Any,
    ) -> Any:
        unpatched = SelectorEventLoop._make_ssl_transport is asyncios._make_ssl_transport
        if not (unpatched and _support.is_ordinary_socket(rawsock)):
            return super()._make_ssl_transport(
                rawsock,
                protocol,
                sslcontext,
                waiter,
                server_side=server_side,
                server_hostname=server_hostname,
                extra=extra,
                server=server,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
                **kwargs,
            )
        self._ensure_fd_no_transport(rawsock)
        ssl_protocol = _tls.make_protocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        self._make_socket_transport(rawsock, ssl_protocol, extra=extra, server=server, **kwargs)
        return ssl_protocol._app_transport

    @property
    def tls_engine(self) -> str:
        """Who encrypts the TLS connections of this process: "native", "sslobject" or "asyncio"."""
        return _tls.engine()

    async def start_tls(
        self,
        transport: Any,
        protocol: Any,
        sslcontext: Any,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> Any:
        """Upgrade a transport to TLS; see asyncio.loop.start_tls."""
        if type(transport) is not _core.StreamTransport or not _tls.is_context(sslcontext):
            # TLS inside TLS, and everything that is an error.
            return await super().start_tls(
                transport,
                protocol,
                sslcontext,
                server_side=server_side,
                server_hostname=server_hostname,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
            )
        return await _tls.upgrade(
            self,
            transport,
            protocol,
            sslcontext,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )

    def _start_serving(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: Any,
        sslcontext: Any = None,
        server: Any = None,
        backlog: int = 100,
        ssl_handshake_timeout: float | None = constants.SSL_HANDSHAKE_TIMEOUT,
        ssl_shutdown_timeout: float | None = constants.SSL_SHUTDOWN_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        _clients.count_clients(self, server)
        replaced = socket.socket is not _support.Socket
        if sslcontext is not None or replaced or not isinstance(sock, _support.Socket) or not self._accepts_itself():
            # Accepted and wrapped by asyncio's own code, on our transport.
            return super()._start_serving(
                protocol_factory,
                sock,
                sslcontext,
                server,
                backlog,
                ssl_handshake_timeout,
                ssl_shutdown_timeout,
                **kwargs,
            )
        # Linux and the BSDs hand TCP_NODELAY on to accepted sockets: one call here instead of one each.
        base_events._set_nodelay(sock)
        _core.start_listener(self, protocol_factory, sock, server, backlog, _connections.fixed_name(sock))

    def _accepts_itself(self) -> bool:
        """Is everything that asyncio would call for an accepted connection what we know?"""
        return _ACCEPT_HOOKS.are_untouched(self)

    async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: int | None) -> int:
        if type(transp) is not _core.StreamTransport:
            return await super()._sendfile_native(transp, file, offset, count)
        return await _sendfile.from_transport(self, transp, file, offset, count)

    async def _sock_sendfile_native(self, sock: Any, file: Any, offset: int, count: int | None) -> int:
        if not _sendfile.is_ours():
            return await super()._sock_sendfile_native(sock, file, offset, count)
        return await _sendfile.to_socket(self, sock, file, offset, count)

    # -- connections -----------------------------------------------------------------------------

    if not TYPE_CHECKING:
        # typeshed's overloads say more than one signature can.

        async def create_connection(
            self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
        ) -> tuple[Any, Any]:
            """Connect to a server; see asyncio.loop.create_connection."""
            connecting = None
            unpatched = SelectorEventLoop.create_connection is asyncios.create_connection
            plain = unpatched and not self._debug and _connections.is_plain(options)
            if plain and self._connects_itself():
                connecting = _core.connect(self, host, port, options.get("family", 0))
            if connecting is None:
                return await super().create_connection(protocol_factory, host, port, **options)
            try:
                if connecting.waiter is not None:
                    await connecting.waiter
                protocol = protocol_factory()
                waiter = self.create_future()
                transport = connecting.transport(protocol, waiter)
            except BaseException:
                connecting.close()
                raise
            try:
                await waiter
            except BaseException:
                transport.close()
                raise
            return transport, protocol

        create_connection.__signature__ = inspect.signature(asyncio.BaseEventLoop.create_connection)

    def _connects_itself(self) -> bool:
        """Is everything that asyncio would call on the way to a plain connection what we know?"""
        return base_events.socket.socket is _support.socket_class and _CONNECT_HOOKS.are_untouched(self)

    # -- executors -------------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: Unpack[_Ts]
    ) -> asyncio.Future[_T]:
        """Call func(*args) in an executor, None for the default one; see asyncio.loop.run_in_executor."""
        used = self._default_executor if executor is None else executor
        if (
            used is None
            or self._debug
            or self.is_closed()
            or (executor is None and self._executor_shutdown_called)
            or SelectorEventLoop.run_in_executor is not asyncios.run_in_executor
        ):
            # The first job, everything that is an error, and what somebody has put in the place of asyncio's.
            return super().run_in_executor(executor, func, *args)
        return self._chain(used.submit(func, *args))

    # -- name resolution -------------------------------------------------------------------------

    def set_default_executor(self, executor: Any) -> None:
        """Set what run_in_executor(None, ...) uses. Name resolution goes there too from now on, as in asyncio."""
        super().set_default_executor(executor)
        self._executor_is_users = True

    def _may_look_up(self) -> bool:
        """Is nobody waiting for asyncio to give lookups to the default executor?"""
        return not (
            self._executor_is_users
            or self._executor_shutdown_called
            or self.is_closed()
            or getattr(self.run_in_executor, "__func__", None) is not _run_in_executor
            or SelectorEventLoop.run_in_executor is not asyncios.run_in_executor
        )

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """As socket.getaddrinfo, without blocking the loop."""
        unpatched = SelectorEventLoop.getaddrinfo is asyncios.getaddrinfo
        if unpatched and base_events.socket.getaddrinfo is _support.getaddrinfo and not self._debug:
            found = self._look_up(host, port, family, type, proto, flags, self._may_look_up())
            if found is not None:
                return found if isinstance(found, list) else await found
        return await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """As socket.getnameinfo, without blocking the loop."""
        unpatched = SelectorEventLoop.getnameinfo is asyncios.getnameinfo
        if unpatched and base_events.socket.getnameinfo is _support.getnameinfo and self._may_look_up():
            found = self._look_up_name(sockaddr, flags)
            if found is not None:
                return await found
        return await super().getnameinfo(sockaddr, flags)

    # -- awaitable socket calls ------------------------------------------------------------------

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect a non-blocking socket; see asyncio.loop.sock_connect."""
        base_events._check_ssl_socket(sock)
        if self._debug and sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")
        if sock.family == socket.AF_INET or (base_events._HAS_IPv6 and sock.family == socket.AF_INET6):
            resolved = await self._ensure_resolved(
                address, family=sock.family, type=sock.type, proto=sock.proto, loop=self
            )
            _, _, _, _, address = resolved[0]
        try:
            sock.connect(address)
            return
        except (BlockingIOError, InterruptedError) as blocked:
            if sock.family == socket.AF_UNIX and blocked.errno == errno.EAGAIN:
                # The listener's queue is full, and nothing is under way. asyncio takes it for a connection.
                raise
            self._ensure_fd_no_transport(sock)
        failure = await self._sock_connected(sock)
        if failure != 0:
            raise OSError(failure, f"Connect call failed {address}")

    # -- stepping from Python --------------------------------------------------------------------

    def _run_once(self) -> None:
        """One iteration driven from Python, for tools that replace run_forever."""
        if _stepping.is_asyncios_turn_replaced():
            super()._run_once()
        else:
            _stepping.run_once(self)

    @property
    def _ready(self) -> _stepping.ReadyView:
        """The native queue, for those who look into asyncio's."""
        return _stepping.ReadyView(self)

    @_ready.setter
    def _ready(self, value: Any) -> None:
        # asyncio's constructor puts its deque here.
        pass

    @property
    def _scheduled(self) -> _stepping.ScheduledView:
        """The timers, for those who look into asyncio's list of them."""
        if self._timer_list is None:
            self._timer_list = _stepping.ScheduledView()
        self._timer_list.refresh(self)
        return self._timer_list

    @_scheduled.setter
    def _scheduled(self, value: Any) -> None:
        # asyncio's constructor puts its list here, and its turn one without those that were cancelled.
        self._timer_list = _stepping.ScheduledView(value) if value else None


# Once more on the class itself: CPython calls a method of the exact type without going through its vectorcall.
_core._add_methods(EventLoop)
_run_in_executor = EventLoop.run_in_executor

_CONNECT_HOOKS = _connections.Hooks(
    EventLoop,
    "_ensure_resolved",
    "_connect_sock",
    "sock_connect",
    "_create_connection_transport",
    "_make_socket_transport",
)
_ACCEPT_HOOKS = _connections.Hooks(EventLoop, "_accept_connection", "_accept_connection2", "_make_socket_transport")


def new_event_loop() -> EventLoop:
    """Make a new event loop; give this to ``asyncio.run(..., loop_factory=...)``."""
    return EventLoop()


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a coroutine on a new wakeloop loop, as asyncio.run does.

    Raises RuntimeError when called from a running loop. Cancels what is left, closes async generators and
    the default executor, and closes the loop.
    """
    if events._get_running_loop() is not None:
        raise RuntimeError("wakeloop.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)
