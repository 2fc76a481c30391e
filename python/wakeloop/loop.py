"""The event loop: the native core in front, CPython's own selector loop behind it.

Code that runs per callback or per packet is native (``_core.EventLoop``, first in the method resolution order). Code
that runs once per connection, server or loop is inherited from the asyncio of this Python: argument checks, happy
eyeballs, subprocesses, signals and executors are CPython's own. The methods here decide, per call, which of the two
does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import selectors
import socket
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Self, TypeVar, TypeVarTuple, Unpack, cast

from . import _core, _lazy
from ._asyncio import BaseEventLoop, BaseTransport, base_events, compat, constants, events, selector_events
from ._loop import LoopState, children, inheritance, settings, stepping
from ._loop.executor import count_gauges, is_pythons
from ._loop.selector import SelectorFacade
from ._loop.wakeup import Loan
from ._net import connections, pipes, sendfile, sockets, tls
from ._observe import registry

if TYPE_CHECKING:
    from .metrics import LoopMetrics

__all__ = ("EventLoop", "new_event_loop", "run")

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# The attributes by which loop.start_tls() and loop.sendfile() know a transport that they support.
_core.StreamTransport._start_tls_compatible = True
_core.StreamTransport._sendfile_compatible = constants._SendfileMode.TRY_NATIVE

# The attributes that asyncio's own code sets on a loop. Because they are slots, no instance dict is made, and CPython
# finds ``loop.call_soon`` without a dict lookup (LOAD_ATTR_METHOD_LAZY_DICT): 230 instructions less per call. Any other
# attribute, such as one that the program sets, goes to the dict. They are slots of the class itself, not of LoopState,
# because every access to a slot of a base class searches the bases.
_NAMES = (
    "_asyncgens",
    "_asyncgens_shutdown_called",
    "_asyncios_transports",
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
    "_unix_server_sockets",
    "_wake_reader",
    "_wake_writer",
    "_wakeup",
    "_was_patched",
    "_watcher",
    "slow_callback_duration",
)


#: asyncio's code that pushes a timer to `_scheduled`, and does not look at the others.
_PUSHES = getattr(BaseEventLoop.call_at, "__code__", None)

_making_pair = threading.RLock()


class EventLoop(LoopState):
    """An asyncio event loop whose hot paths are native.

    Only ``call_soon_threadsafe`` may be called from other threads, as with every asyncio loop. The loop belongs to the
    process that made it: running it in a forked child raises a RuntimeError.
    """

    __module__ = "wakeloop"
    __slots__ = _NAMES

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # A wrong setting is an error here, before anything is made.
        if given := settings.read():
            tls.check_engine()
            if given["WAKELOOP_RECORD"] is not None:
                _lazy.load("_observe.record").start_if_asked()
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        """Makes a loop. It polls through the selector only if that one has a ``select`` of its own, as the selectors of
        gevent and eventlet have."""
        if selector is None:
            selector = stepping.patched_selector()
        self._inherits_patches()
        own = selector is None or stepping.is_plain(selector)
        super().__init__(SelectorFacade(self, selector) if own else selector)
        # asyncio's constructor has logged the class of the selector.
        base_events.logger.debug("Using event loop: wakeloop %s", _core.__version__)
        if not own and selector is not None:
            stepping.watch_core(self, selector)
        given = settings.given
        if given and (limit := given["WAKELOOP_SLOW_TURN"]) is not None:
            self.slow_turn_duration = limit
        registry.add(self)
        if settings.metrics_unloaded:
            settings.metrics_unloaded = False
            # They are asked for when descriptors run out. Then it is too late to open the file of a module.
            with contextlib.suppress(ImportError, OSError):
                _lazy.load("metrics")

    def __repr__(self) -> str:
        text = super().__repr__()
        return text.replace("<", "<wakeloop.", 1) if type(self) is EventLoop else text

    def __dir__(self) -> list[str]:
        # A slot that asyncio's code has not set is no attribute.
        return [name for name in super().__dir__() if name not in _NAMES or hasattr(self, name)]

    # -- what it has done ------------------------------------------------------------------------

    def metrics(self) -> LoopMetrics:
        """Return what the loop has done so far, and what it has to do now.

        It takes some microseconds, and some nanoseconds more per open transport. Any thread may call it, also after the
        loop was closed.
        """
        metrics = _lazy.load("metrics")
        count_gauges(self)
        slow = self._slow_turns()
        now = time.monotonic()
        added = {
            "closed": self.is_closed(),
            "running": self.is_running(),
            "last_slow_turns": tuple(metrics.SlowCallback(name, took, now - ended) for ended, took, name in slow),
        }
        result: LoopMetrics = metrics.LoopMetrics._from_native(self._metrics() | added)
        return result

    def reset_metrics(self) -> None:
        """Empty the histograms of `metrics()`, their maxima included. Counters and times go on.

        Only the loop's thread may call it, or another one while the loop does not run.
        """
        self._reset_histograms()

    # -- running ---------------------------------------------------------------------------------

    if hasattr(BaseEventLoop, "_run_forever_setup"):

        def run_forever(self) -> None:
            """Run until stop() is called."""
            if self._inherits_patches():
                EventLoop.run_forever(self)
                return
            self._run_forever_setup()
            try:
                self._run_turns()
            finally:
                self._run_forever_cleanup()

    else:

        def run_forever(self) -> None:
            """Run until stop() is called."""
            if self._inherits_patches():
                EventLoop.run_forever(self)
                return
            self._check_closed()
            self._check_running()
            self._set_coroutine_origin_tracking(self._debug)
            hooks = sys.get_asyncgen_hooks()
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

    def _inherits_patches(self) -> bool:
        """Looks for patches, unless there are and were none. Returns whether methods of the class are others now."""
        was_patched, self._was_patched = self._was_patched, type(self) is not EventLoop or not _is_plain()
        return (was_patched or self._was_patched) and self._look_for_patches()

    def _run_turns(self) -> None:
        if settings.watchdog_unasked:
            settings.watchdog_unasked = False
            if settings.setting("WAKELOOP_WATCHDOG") is not None:
                _lazy.load("_observe.watchdog").start_if_asked()
        if settings.admin_unasked:
            settings.admin_unasked = False
            if settings.setting("WAKELOOP_ADMIN"):
                _lazy.load("_observe.admin").open_if_asked()
        while True:
            if stepping.has_own_turn(self, _turns):
                self._run_once()
            else:
                self._run()
            if self._stopping:
                break

    def close(self) -> None:
        """Close the loop: nothing pending will run. Safe to call twice."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        try:
            children.forget(self)
            super().close()
        finally:
            self._close_native()
            _core._end_idle_threads()

    # -- waking up -------------------------------------------------------------------------------
    #
    # The core wakes itself through its own descriptor. asyncio's socket pair is needed only as the target of
    # signal.set_wakeup_fd(), so add_signal_handler makes it at its first call, unless the program can tell.

    def _make_self_pipe(self) -> None:
        # asyncio counts its socket pair here. Our loop counts the descriptor of the core.
        self._internal_fds += 1
        if _core.is_audited() or not compat.makes_pairs():
            # The program sees when the pair is made, and may refuse it.
            self._wake_pair()

    def _close_self_pipe(self) -> None:
        self._internal_fds -= 1
        if self._wake_reader is None or self._wake_writer is None:
            return
        self._remove_reader(self._wake_reader.fileno())
        self._wake_reader.close()
        self._wake_writer.close()
        self._wake_reader = self._wake_writer = None

    def _wake_pair(self) -> None:
        if self._wake_reader is not None or self._wake_writer is not None or self.is_closed():
            return
        # Other threads come here through a patched `_write_to_self`.
        with _making_pair:
            if self._wake_reader is None:
                reader, self._wake_writer = selector_events.socket.socketpair()
                reader.setblocking(False)
                self._wake_writer.setblocking(False)
                self._add_reader(reader.fileno(), self._read_from_self)
                self._watches_itself(reader.fileno())
                self._wake_reader = reader

    @property
    def _ssock(self) -> socket.socket | None:
        self._wake_pair()
        return self._wake_reader

    @_ssock.setter
    def _ssock(self, value: socket.socket | None) -> None:
        self._wake_reader = value

    @property
    def _csock(self) -> Any:
        self._wake_pair()
        return self._wake_writer

    @_csock.setter
    def _csock(self, value: Any) -> None:
        self._wake_writer = value

    def _signal_wakeup(self) -> Loan:
        if self._wakeup is None:
            self._wakeup = Loan()
        return self._wakeup

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[_Ts]], object], *args: Unpack[_Ts]) -> None:
        """Call the callback in the loop at each such signal; see asyncio.loop.add_signal_handler."""
        # asyncio raises the same errors below, with its own texts: not in the main thread, or the loop is closed.
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
        """Remove the handler of a signal; True if there was one."""
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
            transport = self._asyncios_transports.get(number)
        if isinstance(transport, BaseTransport) and not transport.is_closing():
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {transport!r}")

    def _ensure_new_transport(self, sock: Any) -> None:
        """Refuses a socket that has a transport, if asyncio does: until 3.12 the new one takes the other's place."""
        if compat.REFUSES_SECOND_TRANSPORT:
            self._ensure_fd_no_transport(sock)

    # -- transports ------------------------------------------------------------------------------

    @property
    def _transports(self) -> Any:
        """The open transports of sockets by their descriptors, as asyncio has them here. Tools look for them."""
        transports = self._asyncios_transports
        for source in self._sources() if transports != () else ():
            if isinstance(source, BaseTransport) and (fd := getattr(source, "_sock_fd", -1)) >= 0:
                transports[fd] = source
        return transports

    @_transports.setter
    def _transports(self, value: Any) -> None:
        # asyncio's constructor sets an empty dict, in which its own transports are.
        self._asyncios_transports = value

    def _make_socket_transport(
        self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None, **kwargs: Any
    ) -> Any:
        if not (compat.makes_streams() and sockets.is_ordinary_socket(sock)):
            return super()._make_socket_transport(sock, protocol, waiter, extra=extra, server=server, **kwargs)
        self._ensure_new_transport(sock)
        if type(sock) is not sockets.Socket:
            base_events._set_nodelay(sock)
        return _core.make_stream(self, sock, protocol, waiter, extra, server, kwargs.get("context"))

    def _make_datagram_transport(
        self, sock: Any, protocol: Any, address: Any = None, waiter: Any = None, extra: Any = None
    ) -> Any:
        ordinary = type(sock) is sockets.Socket and sock.family in sockets.DATAGRAM_FAMILIES
        if not (ordinary and compat.makes_datagrams()):
            return super()._make_datagram_transport(sock, protocol, address, waiter, extra)
        self._ensure_new_transport(sock)
        details, rules = sockets.socket_details(sock, extra), sockets.DATAGRAM_RULES
        return _core.make_datagram(self, sock, protocol, address, waiter, details, rules)

    def _make_read_pipe_transport(self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None) -> Any:
        if not compat.makes_read_pipes():
            return super()._make_read_pipe_transport(pipe, protocol, waiter, extra)
        refusal = "Pipe transport is for pipes/sockets only."
        owner, details, _ = pipes.pipe_details(self, pipe, extra, refusal)
        return _core.make_read_pipe(self, owner, protocol, waiter, details)

    def _make_write_pipe_transport(self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None) -> Any:
        if not compat.makes_write_pipes():
            return super()._make_write_pipe_transport(pipe, protocol, waiter, extra)
        refusal = "Pipe transport is only for pipes, sockets and character devices"
        owner, details, notices_close = pipes.pipe_details(self, pipe, extra, refusal)
        return _core.make_write_pipe(self, owner, protocol, waiter, details, notices_close)

    async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any:
        if children.are_ours(self):
            return await children.spawn(self, *args, **kwargs)
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
        if not (compat.makes_tls() and sockets.is_ordinary_socket(rawsock)):
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
        self._ensure_new_transport(rawsock)
        ssl_protocol = tls.make_protocol(
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
        """The engine of this process's TLS connections: "native", "sslobject" or "asyncio"."""
        return tls.engine()

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
        if type(transport) is not _core.StreamTransport or not tls.is_context(sslcontext):
            # This is TLS inside TLS, or an error that asyncio raises.
            return await super().start_tls(
                transport,
                protocol,
                sslcontext,
                server_side=server_side,
                server_hostname=server_hostname,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
            )
        return await tls.upgrade(
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
        connections.count_clients(self, server)
        listener = sockets.accepting_socket(sock)
        if sslcontext is not None or listener is None or not self._accepts_itself():
            # asyncio's own code accepts the connections and makes their transports.
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
        # On Linux and the BSDs accepted sockets inherit TCP_NODELAY: one call here instead of one per connection.
        base_events._set_nodelay(listener)
        name, unpatched = connections.fixed_name(listener), compat.makes_sockets
        _core.start_listener(
            self, protocol_factory, listener, server, backlog, name, unpatched, kwargs.get("context")
        )

    def _stop_serving(self, sock: Any) -> None:
        _core.accept_rest(self, sock.fileno())
        super()._stop_serving(sock)

    def _accepts_itself(self) -> bool:
        """Is everything unpatched that asyncio would call for an accepted connection?"""
        return _accepts(self) and compat.makes_streams() and compat.makes_sockets()

    async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: int | None) -> int:
        if type(transp) is not _core.StreamTransport:
            return await super()._sendfile_native(transp, file, offset, count)
        return await sendfile.from_transport(self, transp, file, offset, count)

    async def _sock_sendfile_native(self, sock: Any, file: Any, offset: int, count: int | None) -> int:
        if not sendfile.is_ours():
            return await super()._sock_sendfile_native(sock, file, offset, count)
        return await sendfile.to_socket(self, sock, file, offset, count)

    # -- connections -----------------------------------------------------------------------------

    if not TYPE_CHECKING:
        # For type checkers, typeshed's overloads are better than one signature.

        @connections.without_all_errors
        async def create_connection(
            self,
            protocol_factory: Callable[[], Any],
            host: Any = None,
            port: Any = None,
            *,
            ssl: Any = None,
            family: int = 0,
            proto: int = 0,
            flags: int = 0,
            sock: socket.socket | None = None,
            local_addr: tuple[str, int] | None = None,
            server_hostname: str | None = None,
            ssl_handshake_timeout: float | None = None,
            ssl_shutdown_timeout: float | None = None,
            happy_eyeballs_delay: float | None = None,
            interleave: int | None = None,
            all_errors: bool = False,
        ) -> tuple[Any, Any]:
            """Connect to a server; see asyncio.loop.create_connection."""
            connecting = None
            if (
                (ssl is None or ssl is False)
                and sock is None
                and local_addr is None
                and server_hostname is None
                and ssl_handshake_timeout is None
                and ssl_shutdown_timeout is None
                and happy_eyeballs_delay is None
                and interleave is None
                and not (connections.HAS_ALL_ERRORS and all_errors is not False)
                and not self._debug
                and proto in connections.PLAIN_PROTOCOLS
                and compat.creates_connections()
                and self._connects_itself()
            ):
                connecting = _core.connect(self, host, port, family)
            if connecting is None:
                return await super().create_connection(
                    protocol_factory,
                    host,
                    port,
                    ssl=ssl,
                    family=family,
                    proto=proto,
                    flags=flags,
                    sock=sock,
                    local_addr=local_addr,
                    server_hostname=server_hostname,
                    ssl_handshake_timeout=ssl_handshake_timeout,
                    ssl_shutdown_timeout=ssl_shutdown_timeout,
                    happy_eyeballs_delay=happy_eyeballs_delay,
                    interleave=interleave,
                    **({"all_errors": all_errors} if connections.HAS_ALL_ERRORS else {}),
                )
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

    def _connects_itself(self) -> bool:
        """Is everything unpatched that asyncio would call to make a plain connection?"""
        return (
            _connects(self) and compat.makes_streams() and compat.makes_sockets() and not _core.is_audited()
        )

    # -- executors -------------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: Unpack[_Ts]
    ) -> asyncio.Future[_T]:
        """Call func(*args) in an executor, None for the default one; see asyncio.loop.run_in_executor."""
        used = self._default_executor if executor is None else executor
        if _core._counts_labels() and not self._debug and is_pythons(used):
            func = cast(Any, functools.partial(_core._run_labelled, _core._label.get(None), func))
        if (
            used is None
            or self._debug
            or self.is_closed()
            or (executor is None and self._executor_shutdown_called)
            or not compat.runs_in_executor()
        ):
            # This is the first job, an error that asyncio raises, or a patched asyncio.
            return super().run_in_executor(executor, func, *args)
        return self._chain(used.submit(func, *args))

    # -- name resolution -------------------------------------------------------------------------

    def set_default_executor(self, executor: Any) -> None:
        """Set the executor of run_in_executor(None, ...). Name resolution also uses it from now on, as in asyncio."""
        super().set_default_executor(executor)
        self._executor_is_users = True

    def _may_look_up(self) -> bool:
        """May lookups run elsewhere than in the default executor? Only if the program cannot observe it."""
        return (
            not self._executor_is_users and bool(_runs_in_executor(self)) and is_pythons(self._default_executor)
        )

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        """As socket.getaddrinfo, without blocking the loop."""
        usable = not (self._debug or self._executor_shutdown_called or self.is_closed())
        if usable and compat.looks_up_names():
            found = self._look_up(host, port, family, type, proto, flags, self._may_look_up)
            if found is not None:
                return found if isinstance(found, list) else await found
        return await super().getaddrinfo(host, port, family=family, type=type, proto=proto, flags=flags)

    # -- awaitable socket calls ------------------------------------------------------------------

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect a non-blocking socket; see asyncio.loop.sock_connect."""
        if not (isinstance(sock, sockets.Socket) and compat.waits_for_connects(sock) and compat.connects_sockets()):
            return await super().sock_connect(sock, address)
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
                # The listener's queue is full, and no connection is being made. (asyncio treats this as a connection in
                # progress.)
                raise
            self._ensure_fd_no_transport(sock)
        failure = await self._sock_connected(sock)
        if failure != 0:
            raise OSError(failure, f"Connect call failed {address}")

    # -- stepping from Python --------------------------------------------------------------------

    def _run_once(self) -> None:
        """Runs one iteration from Python, for tools that replace run_forever."""
        stepping.run_once(self)

    @property
    def _ready(self) -> stepping.ReadyView:
        """A view of the native queue, as the deque that programs expect here."""
        return stepping.ReadyView(self)

    @_ready.setter
    def _ready(self, value: Any) -> None:
        """Ignores the value: asyncio's constructor sets a deque."""

    @property
    def _scheduled(self) -> stepping.ScheduledView:
        """A view of the timers, as the list that programs expect here. They may put timers there."""
        if self._timer_list is None:
            self._timer_list = stepping.ScheduledView()
        timers: stepping.ScheduledView = self._timer_list
        if sys._getframe(1).f_code is not _PUSHES:
            timers.refresh(self)
        if self._thread_id in (None, threading.get_ident()):
            self._adopt_timers_soon()
        return timers

    @_scheduled.setter
    def _scheduled(self, value: Any) -> None:
        # asyncio's constructor sets an empty list, and asyncio's _run_once sets a list without the cancelled timers.
        if value or self._timer_list is not None:
            self._scheduled[:] = value

    def _adopt_timers(self) -> None:
        """Called before the next poll, after somebody has asked for `_scheduled`."""
        if self._timer_list is not None:
            self._timer_list.adopt(self)

    def _timer_handle_cancelled(self, handle: Any) -> None:
        # Called by handles that are not native. A native one leaves the heap itself.
        if self._timer_list is not None:
            self._timer_list.forget(handle)


# Adds the methods again, to this class itself: CPython's specialised CALL calls the C function of a method directly if
# the receiver's type is exactly the type that defines the method.
_core._add_methods(EventLoop)

# Questions about one loop, whose class or instance may override these methods. They also cover the methods of asyncio's
# classes that these override.
_connects = _core.unpatched((
    (
        EventLoop,
        "_ensure_resolved",
        "_connect_sock",
        "sock_connect",
        "_create_connection_transport",
        "_make_socket_transport",
    ),
))
_accepts = _core.unpatched(((EventLoop, "_accept_connection", "_accept_connection2", "_make_socket_transport"),))
_runs_in_executor = _core.unpatched(((EventLoop, "run_in_executor"),))
_turns = _core.unpatched(((EventLoop, "_run_once", "_process_events"),))

_is_plain = inheritance.cover(EventLoop)


def new_event_loop() -> EventLoop:
    """Make a new event loop; give this to ``asyncio.run(..., loop_factory=...)``."""
    return EventLoop()


def run(
    main: Coroutine[Any, Any, _T],
    *,
    debug: bool | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> _T:
    """Run a coroutine on a new wakeloop loop, or on the loop that loop_factory makes, as asyncio.run does.

    Raises RuntimeError when called from a running loop. Cancels the remaining tasks, closes async generators and the
    default executor, and closes the loop.
    """
    if events._get_running_loop() is not None:
        raise RuntimeError("wakeloop.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=loop_factory or new_event_loop) as runner:
        return runner.run(main)
