"""The testing loop: asyncio's loop under a test's clock and schedule.

It is wakeloop's loop with turns that run in Python. The queue, the timers, the handles and the real transports stay
native.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import gc
import math
import threading
import warnings
from collections.abc import Callable, Generator
from typing import Any, Literal, TypeVar, TypeVarTuple, Unpack

from .. import _core
from .._asyncio import base_events
from .._loop.selector import SelectorFacade
from ._as_completed import ordered
from ._clock import Clock, Mode
from ._escapes import SimulationWarning, Stopwatch, report_blocked, watching
from ._inline import Delay, Executor, Fault, Jobs
from ._order import ReadyCallbacks, owner_of
from ._outside import Outside
from ._patched_time import check_unpatched, epoch_of, patched
from ._schedule import Schedule, schedule_of
from ._state import TestingLoop
from ._steps import StepLog, function_name
from ._tasks import Future, Task
from ._verdicts import Reports, deadlock, too_many_steps
from .network._io import SimulatedIO
from .network._listeners import joining

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: Does the clock wait in real time for real things, or does it jump all the same?
WhileWaiting = Literal["wait", "jump"]

#: Under a schedule, the garbage collector runs after each so many steps. What it finds may run code of the program, so
#: that has to happen at the same steps in each run.
COLLECT_EVERY = 10_000

_monotonic = _core._monotonic

#: After so many real seconds of waiting for something real, a clock says so once.
PATIENCE = 5.0

#: How long a wait for a thread is at most, in real seconds. A thread that ends tells nobody, so the loop has to look.
GLANCE = 0.01
#: As long as this where the thread can only be one that the program has not started.
LONGEST_GLANCE = 0.1

#: After so many turns in a row that had something ready, a clock that jumps goes on with each further one. A program that
#: asks again and again whether it is late enough gets to its end, as it does in real time.
BUSY_TURNS = 10_000
#: By how many seconds the clock then goes on: about what a turn takes on asyncio's loop.
BUSY_TURN = 1e-5

#: The testing loops that run in this process.
_running = 0


class EventLoop(SimulatedIO, TestingLoop):
    """An event loop whose time, order and helpers a test controls.

    - clock: "auto" jumps to the next deadline when nothing is ready and nothing real is awaited, "frozen" stands until
      `loop.clock.advance` is called, "real" is real time.
    - network: a simulated network, on which connections, servers, datagrams and names then are.
    - seed, schedule: what decides the order of ready callbacks. Without them it is asyncio's.
    - patch_time: while the loop runs, the clocks of `time` and `datetime` follow its clock in the code under test. A
      datetime, or seconds since 1970, say when the clock starts; True means the beginning of 2026. RuntimeError if
      another tool has replaced them.
    - while_waiting: "wait" lets the clock flow in real time while something real is awaited (a descriptor, a process,
      a job of a thread); "jump" lets it jump all the same.
    - executor: whether the jobs of run_in_executor run "inline", on the loop's thread, or in "threads". "auto" means
      inline with a seed or schedule, and threads without.
    - executor_delay: after how many seconds of the clock an inline job runs; two bounds let the schedule draw it.
    - executor_fault: is called with each inline job's function, and may return an exception with which the job fails.
    - slow_callback: the limit, in real seconds, above which a callback is noted in `slow_callbacks`.
    - max_steps: a program that runs more steps than that ends with `StepLimit`.
    """

    __module__ = "wakeloop.testing"

    # close() must work even if the arguments were refused.
    _ordered: ReadyCallbacks | None = None
    jobs: Jobs | None = None

    def __init__(
        self,
        *,
        clock: Mode = "auto",
        seed: int | None = None,
        schedule: Schedule | None = None,
        network: Any = None,
        patch_time: bool | float | datetime.datetime = False,
        while_waiting: WhileWaiting = "wait",
        executor: Executor = "auto",
        executor_delay: Delay = 0.0,
        executor_fault: Fault | None = None,
        slow_callback: float | None = None,
        max_steps: int | None = None,
    ) -> None:
        try:
            self._check(while_waiting, executor, slow_callback, max_steps)
            self.schedule = schedule_of(seed, schedule)
            self.clock = Clock(clock)
            if executor == "inline" or (executor == "auto" and not self.schedule.is_fifo):
                self.jobs = Jobs(self, executor_delay, executor_fault)
            elif executor_delay or executor_fault:
                raise ValueError("executor_delay and executor_fault are for inline jobs: give executor='inline'")
            self._epoch = epoch_of(patch_time)
            if self._epoch is not None:
                check_unpatched()
        except BaseException:
            self.close()
            raise
        self.steps = StepLog()
        self.slow_callback = slow_callback
        #: The callbacks that took longer than `slow_callback`, with their real seconds.
        self.slow_callbacks: list[tuple[str, float]] = []
        #: How many steps a program may have, and those that it may have had by now.
        self._max_steps = self._steps_allowed = math.inf if max_steps is None else max_steps
        #: How many turns in a row had something ready.
        self._busy_turns = 0
        self._stopwatch = Stopwatch()
        self._thread, self._escapes = None, 0
        self._tasks_made = self._futures_made = 0
        self._jumps_always = while_waiting == "jump"
        self._ordered = None if self.schedule.is_fifo else ReadyCallbacks(self.schedule)
        self._outside = Outside(self)
        self._reports = Reports()
        self._after_suspend: list[Callable[[asyncio.Task[Any]], object]] = []
        #: After so many steps the garbage collector runs, if `run` has disabled it.
        self._next_collection = math.inf
        #: It was said that the clock waits in real time.
        self._has_complained = False
        #: How many calls of run_until_complete are active.
        self._goals = 0
        self.network = None
        super().__init__()
        try:
            self._attach_network(network)
        except BaseException:
            self.close()
            raise
        self.clock._is_running = self.is_running
        self.clock._wake = self._clock_moved

    @staticmethod
    def _check(while_waiting: str, executor: str, slow_callback: float | None, max_steps: int | None) -> None:
        if while_waiting not in ("wait", "jump"):
            raise ValueError(f"while_waiting is 'wait' or 'jump', not {while_waiting!r}")
        if executor not in ("auto", "inline", "threads"):
            raise ValueError(f"an executor is 'auto', 'inline' or 'threads', not {executor!r}")
        if slow_callback is not None and not slow_callback > 0:
            raise ValueError(f"slow_callback is a positive number of seconds, not {slow_callback!r}")
        if max_steps is not None and not max_steps > 0:
            raise ValueError(f"max_steps is a positive number, not {max_steps!r}")

    # -- time ------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the time of the loop's clock in seconds."""
        return self.clock.time()

    # -- futures and tasks -----------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future of this loop."""
        return Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> Any:
        """Run a coroutine as a task of this loop; see asyncio.loop.create_task."""
        factory = self._task_factory
        if factory is not None:
            if factory is not getattr(asyncio, "eager_task_factory", None):
                return super().create_task(coro, **options)
            options.setdefault("eager_start", True)
        self._check_closed()
        task: Any = Task(coro, loop=self, **options)
        if task._source_traceback:
            del task._source_traceback[-2:]
        try:
            return task
        finally:
            # A cycle with the traceback of an exception would keep the task.
            del task

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """As asyncio's. The task that closes the generator is not the program's."""
        self._asyncgens.discard(agen)
        if not self.is_closed():
            self.call_soon_threadsafe(self._close_generator, agen.aclose())

    def _close_generator(self, closing: Any) -> None:
        task = self.create_task(closing)
        if isinstance(task, Task):
            task._is_asyncios = True

    def on_suspend(self, callback: Callable[[asyncio.Task[Any]], object]) -> None:
        """Call a function after each step of a task that leaves the task suspended, with the task."""
        self._after_suspend.append(callback)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Call the exception handler, and keep reports of what the program has lost."""
        if self.get_exception_handler() is None or context.get("exception") is None:
            # What the program's own handler gets to see is not unseen.
            self._reports.note(context)
        super().call_exception_handler(context)

    # -- helpers ---------------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: Unpack[_Ts]
    ) -> asyncio.Future[_T]:
        """Call func(*args) in an executor, or inline; see asyncio.loop.run_in_executor."""
        if self.jobs is not None and self._replaces(executor):
            self._check_closed()
            if self._debug:
                self._check_callback(func, "run_in_executor")
            future: asyncio.Future[_T] = self.jobs.submit(func, args)
            return future
        future = super().run_in_executor(executor, func, *args)
        self._outside.add_job(future)
        return future

    def _replaces(self, executor: Any) -> bool:
        """Whether inline jobs stand in for those of the executor. The errors are those of the real one."""
        if executor is None:
            return not self._executor_shutdown_called and not self._executor_is_users
        return type(executor) is concurrent.futures.ThreadPoolExecutor and not executor._shutdown

    # -- running ---------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until stop() is called."""
        self._thread = threading.current_thread()
        with watching(self), patched(self), joining(self), ordered(), _simulating() as number:
            self._outside.begin_run(number)
            self._earlier_sockets.forget()
            super().run_forever()

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future is done, and return its result. Raises `Deadlock` as soon as it can never be done."""
        self._goals += 1
        try:
            return super().run_until_complete(future)
        finally:
            self._goals -= 1

    def close(self) -> None:
        """Close the loop: nothing pending will run. Safe to call twice."""
        # Later another loop may have the network. A loop that could not be made has none.
        network = None if self.is_closed() else getattr(self, "network", None)
        super().close()
        if network is not None:
            network.poll.clear()
        if self._ordered is not None:
            self._ordered.clear()

    def _started_thread(self, thread: threading.Thread | None) -> bool:
        return thread is not self._thread and thread not in self._outside._earlier

    def _clock_moved(self) -> None:
        """The clock was advanced, or moves again: the timers that are due come before what is scheduled from now on."""
        self._wake_timers()
        self._write_to_self()

    # -- turns -----------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run one iteration."""
        selector = self._selector
        if type(selector) is not SelectorFacade or "select" in vars(selector):
            self._run_with_tool(selector)
            return
        for handle in self._simulated_events():
            self._ready_push(handle)
        if self._wait() == 0 or self._ordered:
            found = self._poll(0)
            self._busy_turns += 1
            if self._busy_turns > BUSY_TURNS and self.clock.mode == "auto":
                self.clock._pass(BUSY_TURN, self._deadline())
        else:
            self._busy_turns = 0
            found = self._rest()
        if self._ordered is not None:
            if found:
                self._handle_events(found)
            self._wake_timers()
            self._run_ordered(self._ordered)
            return
        # The order of a native turn: what was ready before the poll, events, timers.
        earlier = self._ready_count()
        self._wake_timers()
        due = self._ready_count() - earlier
        self._run_ready(earlier)
        if found:
            self._handle_events(found)
        self._run_ready(due)

    def _run_with_tool(self, selector: Any) -> None:
        """Run an iteration in which a tool polls, with a selector or a `select` of its own."""
        if type(selector) is not SelectorFacade or not self._is_timed_by_clock():
            super()._run_once()
            return
        # It ends in `_select`.
        selector.select(0.0 if self._ordered else self._wait())
        if self._ordered is not None:
            self._run_ordered(self._ordered)
        else:
            self._run_ready(self._ready_count())

    def _select(self, timeout: float | None) -> int:
        """Poll, and queue all that is due: what the selector's `select` does, which tools replace and call."""
        if not self._is_timed_by_clock():
            return super()._select(timeout)
        for handle in self._simulated_events():
            self._ready_push(handle)
        waits = (timeout is None or timeout > 0) and not self._has_ready()
        found = self._rest(timeout) if waits else 0
        return found + super()._select(0.0)

    def _is_timed_by_clock(self) -> bool:
        """Whether `time` is the clock's. Tools replace it on the loop or on its class, and may do so for a while."""
        before = self.clock.time()
        return before <= self.time() <= self.clock.time()

    def _handle_events(self, count: int) -> None:
        """Call the real transports and readers whose descriptors are ready."""
        self.steps.note(self.clock.time(), "events", f"{count} found by a poll")
        self._dispatch()

    def _run_ready(self, count: int) -> None:
        for _ in range(count):
            handle = self._ready_next()
            if handle is None:
                break
            if not handle._cancelled:
                self._step(handle)
        handle = None  # Breaks a cycle if the next iteration raises.

    def _run_ordered(self, ordered: ReadyCallbacks) -> None:
        """Run as many callbacks as were ready, in the order that the schedule chooses."""
        self._move_ready(ordered)
        for _ in range(len(ordered)):
            if not len(ordered):
                break
            handle = ordered.take()
            if not handle._cancelled:
                self._step(handle)
            self._move_ready(ordered)
        handle = None
        if self.steps.total >= self._next_collection:
            self._next_collection += COLLECT_EVERY
            gc.collect(1)

    def _has_ready(self) -> bool:
        """Whether a callback is ready to run."""
        return bool(self._ready_count() or self._ordered)

    def _move_ready(self, ordered: ReadyCallbacks) -> None:
        ordered.add(iter(self._ready_next, None))

    def _rest(self, limit: float | None = None) -> int:
        """Nothing is ready: wait for something real, or let the clock jump. Returns the number of events.

        At most `limit` seconds of the clock pass.
        """
        clock = self.clock
        end = math.inf if limit is None else clock.time() + limit
        if clock.mode == "real":
            return self._wait_really(end=end)
        awaited = "" if self._jumps_always and clock.mode == "auto" else self._outside.awaited()
        if awaited:
            return self._wait_really(awaited, end)
        # What other threads have sent, and with while_waiting="jump" what is ready by now.
        found = self._poll(0)
        if found or self._ready_count():
            return found
        deadline = self._deadline(end)
        if deadline is not None and clock.mode == "auto":
            clock._jump(deadline)
            return 0
        if self._jumps_always and (awaited := self._outside.awaited()):
            return self._wait_really(awaited, end)
        if self._goals and self._thread is threading.main_thread():
            if threading.active_count() > 1:
                # Another thread may be about to send something, or to take up a job.
                found = self._poll(GLANCE)
                if found or self._ready_count() or self._outside.awaited():
                    return found
            raise deadlock(self)
        # run_forever, or other threads may have something to say. The clock stands still meanwhile.
        return self._wait_for_threads() if self._goals else self._poll(None)

    def _wait_for_threads(self) -> int:
        """Wait until another thread calls the loop. `Deadlock` if none can, because each waits for this one to end."""
        begun = _monotonic()
        pause = GLANCE
        while not self._outside.all_await_this_thread():
            asked = _monotonic()
            found = self._poll(pause)
            now = _monotonic()
            # A poll that was ended early may have been woken for the clock.
            if found or self._ready_count() or now - asked < pause:
                return found
            if now - begun >= PATIENCE and not self._has_complained:
                self._has_complained = True
                text = f"only another thread could make the loop go on; without one it is a {deadlock(self)}"
                warnings.warn(text, SimulationWarning, stacklevel=2)
            pause = min(2 * pause, LONGEST_GLANCE)
        raise deadlock(self)

    def _deadline(self, end: float = math.inf) -> float | None:
        """When the next timer is due, or an earlier end. None if there is neither."""
        deadline = self._next_deadline()
        deadline = end if deadline is None else min(deadline, end)
        return None if math.isinf(deadline) else deadline

    def _wait_really(self, awaited: str = "", end: float = math.inf) -> int:
        """Wait for events in real time, and return their number. The clock flows meanwhile, unless it is frozen."""
        clock, deadline = self.clock, self._deadline(end)
        timeout = None
        if clock.mode != "frozen" and deadline is not None:
            timeout = max(0.0, deadline - clock.time()) / clock.rate
        if clock.mode != "auto":
            return self._poll_outside(timeout)
        is_long = not self._has_complained and (timeout is None or timeout > PATIENCE)
        begun = _monotonic()
        clock._flow()
        try:
            found = self._poll_outside(PATIENCE if is_long else timeout)
        finally:
            clock._stand(deadline)
        if is_long and not found and not self._ready_count() and _monotonic() - begun >= PATIENCE:
            self._complain(awaited, deadline)
        return found

    def _poll_outside(self, timeout: float | None) -> int:
        """As `_poll`, and return when the threads have ended that were waited for."""
        if self.clock.mode == "real" or not self._outside.is_silent():
            return self._poll(timeout)
        end = math.inf if timeout is None else _monotonic() + timeout
        pause = GLANCE / 100
        while True:
            left = max(0.0, end - _monotonic())
            found = self._poll(min(pause, left))
            if found or left <= pause or self._ready_count() or not self._outside.is_silent():
                return found
            pause = min(2 * pause, GLANCE)

    def _complain(self, awaited: str, deadline: float | None) -> None:
        """Say that the clock has waited for something real, and for what."""
        self._has_complained = True
        text = f"the clock of the loop waits in real time for {awaited}"
        if deadline is not None:
            text += f"; the next timer is due in {deadline - self.clock.time():.1f} s, and while_waiting='jump' would jump to it"
        warnings.warn(text, SimulationWarning, stacklevel=2)

    def _step(self, handle: Any) -> None:
        owner = owner_of(handle)
        if self.steps.total >= self._steps_allowed:
            # What ends the program, such as its finally blocks, gets as many steps again.
            self._ready_push(handle)
            self._steps_allowed += self._max_steps
            raise too_many_steps(self)
        self.steps.add(self.clock.time(), handle, owner, isinstance(handle, asyncio.TimerHandle))
        limit = self.slow_callback
        escapes = self._escapes
        self._stopwatch.begin()
        if self._debug or limit is not None:
            self._step_watched(handle, limit)
        else:
            handle._run()
        if (blocked := self._stopwatch.blocked()) and self.clock.mode != "real" and self._escapes == escapes:
            report_blocked(self, blocked)
        if self._after_suspend and isinstance(owner, asyncio.Task) and not owner.done():
            for callback in self._after_suspend:
                callback(owner)

    def _step_watched(self, handle: Any, limit: float | None) -> None:
        """Run a callback, and measure it in real time."""
        shown = base_events._format_handle(handle) if self._debug else ""
        name = function_name(handle._callback)
        self._current_handle = handle
        before = _monotonic()
        try:
            handle._run()
        finally:
            self._current_handle = None
            took = _monotonic() - before
            if limit is not None and took > limit:
                last = self.steps[-1]
                self.slow_callbacks.append((f"{last.who}: {last.what}" if self.steps else name, took))
        if self._debug and took >= self.slow_callback_duration:
            base_events.logger.warning("Executing %s took %.3f seconds", shown, took)


@contextlib.contextmanager
def _simulating() -> Generator[int, None, None]:
    """While a testing loop runs, wakeloop.sleep and wakeloop.spawn_blocking ask `_inline`. Gives the run's number."""
    global _running
    _running += 1
    try:
        yield _core._simulate(True)
    finally:
        _running -= 1
        if not _running:
            _core._simulate(False)
