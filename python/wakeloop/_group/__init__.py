"""Several event loops in one process: one in the calling thread, and one in each of some more threads.

`EventLoopGroup` is to `asyncio.Runner` what many loops are to one. Its servers are in `servers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import Context
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from .._asyncio import base_events
from .._net.streams import StreamReader, StreamReaderProtocol, StreamWriter
from ..loop import EventLoop, new_event_loop
from ..metrics import LoopMetrics
from .servers import Changes, Factory, GroupServer, OneEach, OneForAll

__all__ = ("EventLoopGroup",)

_T = TypeVar("_T")
#: How long the end of connections is waited for when the group ends, and they were aborted, in seconds.
_ABORTED = 1.0


def _processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: The groups that are not closed, for the end of the interpreter.
_open: weakref.WeakSet[EventLoopGroup] = weakref.WeakSet()


def _interpreter_exits() -> None:
    """Ends the groups that the program has not closed. Otherwise the interpreter would wait for their threads forever."""
    for group in list(_open):
        try:
            group._end_at_exit()
        except Exception:
            base_events.logger.exception("EventLoopGroup could not be closed at exit")


@functools.cache
def _notices_exit() -> bool:
    """Registers `_interpreter_exits`, as concurrent.futures does: it is called before the interpreter joins threads.

    False if the interpreter exits already, and waits for the thread that calls this.
    """
    register: Callable[[Callable[[], None]], None] = getattr(threading, "_register_atexit")  # noqa: B009
    try:
        # The executors' function is registered before ours and called after it: tasks that end may use an executor.
        import concurrent.futures.thread  # noqa: F401

        register(_interpreter_exits)
    except RuntimeError:
        return False
    return True


def _raise(error: BaseException) -> NoReturn:
    raise error


def _mark_as_seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class _Member:
    """A loop of the group that runs in a thread of its own."""

    def __init__(self, name: str, debug: bool | None, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.failure: BaseException | None = None
        self._on_failure: Callable[[], Callable[[], None] | None] | None = None
        self._runner = functools.partial(asyncio.Runner, debug=debug, loop_factory=factory)
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._stopping = self._ended = False
        self._changes = Changes()
        #: Called when the loop is closed, from whatever thread that is.
        self.ends: set[Callable[[], None]] = set()
        self.thread = threading.Thread(target=self._run, name=name)

    def start(self, on_failure: Callable[[], None]) -> None:
        """Raises what the loop's factory raises. The running loop does not keep `on_failure`'s object alive."""
        self._on_failure = weakref.WeakMethod(on_failure)
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
            if self.loop is not None and self._on_failure is not None and (report := self._on_failure()):
                report()
        finally:
            self._started.set()
            self._ended = True
            for end in tuple(self.ends):
                end()
            self._changes.notify()

    async def joined(self) -> None:
        """Waits for the end of the thread, if it has begun."""
        if self.thread.is_alive():
            await self._changes.wait_for(lambda: self._ended)
            self.thread.join()

    async def _until_stopped(self) -> None:
        self._stop = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._started.set()
        # It may have been stopped before it had a loop.
        if not self._stopping:
            await self._stop.wait()

    def stop(self) -> None:
        """Ends the loop as asyncio.run does: remaining tasks are cancelled, and waited for."""
        self._stopping = True
        if self.loop is not None and self._stop is not None:
            # The loop may have ended by itself.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._stop.set)


class EventLoopGroup:
    """Runs several event loops in one process, each in a thread of its own.

    It is used as asyncio.Runner is, and `run` does what that of a Runner does. The coroutine runs on the first loop, in
    the calling thread, where signal handlers run as well. The other loops run in threads, from the first use of the
    group to its end. At the end all tasks of all loops are cancelled and waited for, and the loops are closed. A group
    that is not closed ends so with the interpreter, and with a ResourceWarning.

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
        #: Held while the group begins to run or to close. A signal handler may close it.
        self._changing = threading.RLock()
        #: The process that has started the group.
        self._process = 0
        #: The thread in run().
        self._runs_in: threading.Thread | None = None
        self._interpreter_exits = not _notices_exit()
        _open.add(self)
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
            self._process = os.getpid()
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
        of a running loop, and while the first loop runs in another thread; then the group goes on.
        """
        if self._closed:
            return
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("EventLoopGroup.close() cannot be called from a running event loop")
        with self._changing:
            if self._closed:
                return
            if self._first_runs():
                raise RuntimeError("EventLoopGroup.close() cannot be called while its first event loop is running")
            self._closed = True
        _open.discard(self)
        try:
            if self._loops is not None and self._servers:
                self._run_to_end(self._end_servers)
            self._stop_members()
            # What ends on the other loops may wait for the first one.
            if any(member.thread.is_alive() for member in self._members):
                self._run_to_end(self._joined)
        finally:
            # Ctrl-C may have ended the wait.
            self._stop_members()
            self._runner.close()

    def _run_to_end(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a coroutine function on the first loop, to its end or to Ctrl-C.

        A task that ends with a SystemExit or KeyboardInterrupt stops the loop meanwhile. One that awaits the task which
        has ended the program does that. It is raised afterwards.
        """
        stopped: BaseException | None = None
        ended = False

        async def run() -> None:
            nonlocal ended
            try:
                await function()
            finally:
                ended = True

        while not ended:
            try:
                self._runner.run(run())
            except (SystemExit, KeyboardInterrupt) as error:
                stopped = error
        if stopped is not None:
            raise stopped

    def _end_at_exit(self) -> None:
        """Closes the group as the interpreter exits. A run() that goes on in another thread closes it at its end."""
        self._interpreter_exits = True
        runs_in = self._runs_in
        if self._loops is None or self._process != os.getpid():
            # It has not begun, or this is a forked child, which has a copy of the group without its threads.
            return
        if not self._first_runs():
            self._close_unclosed()
        elif runs_in is None or runs_in.daemon:
            # Nobody closes the group at the end of this run. The interpreter must not wait for the other loops.
            self._stop_members()

    def _first_runs(self) -> bool:
        """Whether the first loop runs, in run() or by itself."""
        return self._runs_in is not None or (self._loops is not None and self._loops[0].is_running())

    def _close_unclosed(self) -> None:
        if not self._closed:
            self.close()
            warnings.warn(f"unclosed event loop group {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __del__(self) -> None:
        # As an unclosed loop of asyncio's: the group's loops end, without being waited for. `_closed` may be missing if
        # __init__ has raised.
        if not getattr(self, "_closed", True) and self._process == os.getpid():
            self._stop_members()
            warnings.warn(f"unclosed event loop group {self!r}", ResourceWarning, source=self)

    def _stop_members(self) -> None:
        for member in self._members:
            member.stop()

    async def _end_servers(self) -> None:
        """Closes what the program has not closed, and ends the connections that are left."""
        servers, here = list(self._servers), asyncio.get_running_loop()
        for server in servers:
            for end in (server.close, server._abort):
                # They are for the loop that has made the server, which may be blocked.
                if server._home is here:
                    end()
                else:
                    server._post(server._home, end)
        # The transports report their end in the next turns of their loops. A loop may be blocked.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABORTED):
                for server in servers:
                    await server._emptied()

    async def _joined(self) -> None:
        """Waits for the loops in threads to end. Meanwhile this loop runs."""
        for member in self._members:
            await member.joined()

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
        if not asyncio.iscoroutine(coro):
            # The runner's error.
            return self._runner.run(coro)
        try:
            loops = self._start()
            self._begin_run()
        except BaseException:
            coro.close()
            raise
        with self._being_run(), self._handling_sigterm(loops[0]):
            try:
                result = self._runner.run(self._as_main(coro), context=context)
            except asyncio.CancelledError:
                self._raise_failure()
                if self._terminated:
                    raise SystemExit(128 + signal.SIGTERM) from None
                raise
        self._raise_failure()
        return result

    def _begin_run(self) -> None:
        with self._changing:
            if self._closed:
                raise RuntimeError("EventLoopGroup is closed")
            if self._first_runs():
                raise RuntimeError("EventLoopGroup.run() cannot be called while its first event loop is running")
            self._runs_in = threading.current_thread()
            self._terminated = False

    @contextlib.contextmanager
    def _being_run(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._runs_in = None
            if self._interpreter_exits:
                self._close_unclosed()

    def _raise_failure(self) -> None:
        """Raises what has stopped another loop."""
        for member in self._members:
            if member.failure is not None:
                raise member.failure from None

    async def _as_main(self, coro: Coroutine[Any, Any, _T]) -> _T:
        self._main = asyncio.current_task()
        assert self._main is not None
        # What run() or close() raises is not lost.
        self._main.add_done_callback(_mark_as_seen)
        # What ends the run may have come before this, its first step.
        if self._terminated or any(member.failure is not None for member in self._members):
            self._main.cancel()
        try:
            return await coro
        finally:
            self._main = None

    @contextlib.contextmanager
    def _handling_sigterm(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Handles SIGTERM as asyncio.Runner does SIGINT: a handler that the program sets meanwhile takes its place."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if not on_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            yield
            return

        def terminate(_signal: int, _frame: FrameType | None) -> None:
            self._terminated = True
            if self._main is not None:
                self._main.cancel()
                # Wakes the loop.
                loop.call_soon_threadsafe(lambda: None)

        signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) is terminate:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _member_failed(self) -> None:
        def cancel() -> None:
            if self._main is not None and not self._main.cancelling():
                self._main.cancel()

        # The first loop may be closed.
        with contextlib.suppress(RuntimeError):
            self._runner.get_loop().call_soon_threadsafe(cancel)

    async def run_on(
        self, loop: asyncio.AbstractEventLoop, function: Callable[..., Awaitable[_T]], *args: Any
    ) -> _T:
        """Await `function(*args)` in a task of another loop of the group, from any of its loops.

        Cancelling this cancels that task, and waits for its end. Raises RuntimeError if the loop is closed, or ends
        before the task does, and ValueError for a loop that is not the group's.
        """
        # While the group is closed, its loops may still use each other.
        if loop not in (self._loops or self._start()):
            raise ValueError(f"{loop!r} is not a loop of this group")
        here = asyncio.get_running_loop()
        if loop is here:
            return await function(*args)
        # What returns the result, or raises the error.
        outcome: asyncio.Future[Callable[[], _T]] = here.create_future()
        tasks: list[asyncio.Task[_T]] = []

        async def call() -> _T:
            return await function(*args)

        def settle(result: Callable[[], _T]) -> None:
            def deliver() -> None:
                if not outcome.done():
                    outcome.set_result(result)

            with contextlib.suppress(RuntimeError):  # this loop may be closed
                here.call_soon_threadsafe(deliver)

        def start() -> None:
            coroutine = call()
            try:
                task = loop.create_task(coroutine)
            except Exception as error:
                # The loop has a task factory that raises.
                coroutine.close()
                settle(functools.partial(_raise, error))
                return
            tasks.append(task)
            task.add_done_callback(lambda task: settle(task.result))

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()

        def end() -> None:
            settle(functools.partial(_raise, RuntimeError("Event loop is closed")))

        with self._end_of(loop, end):
            loop.call_soon_threadsafe(start)
            try:
                await asyncio.wait([outcome])
            except asyncio.CancelledError:
                while not outcome.done():
                    with contextlib.suppress(RuntimeError):  # that loop may be closed
                        loop.call_soon_threadsafe(cancel)
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([outcome])
                raise
        return outcome.result()()

    @contextlib.contextmanager
    def _end_of(self, loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
        """Calls `end` if the loop ends within the block, in whatever thread that is."""
        ends = next((member.ends for member in self._members if member.loop is loop), set())
        ends.add(end)
        try:
            yield
        finally:
            ends.discard(end)

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
        protocol_factory: Factory,
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

        def make(loop: asyncio.AbstractEventLoop) -> Factory:
            def factory() -> asyncio.BaseProtocol:
                reader = StreamReader(limit=limit, loop=loop)
                connected: Any = client_connected_cb
                return StreamReaderProtocol(reader, connected, loop=loop)

            return factory

        return await self._serve(make, host, port, reuse_port, graceful_timeout, options)

    async def _serve(
        self,
        make: Callable[[asyncio.AbstractEventLoop], Factory],
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
        try:
            server: GroupServer = (OneEach if reuse_port else OneForAll)(self.run_on, loops, make, first, options)
        except BaseException:
            first.close()
            raise
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
