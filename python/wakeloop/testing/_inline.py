"""Executor jobs that run on the loop's thread, and wakeloop's own awaitables on a testing loop.

A job runs in a turn of the loop, at once or after a delay of the loop's clock. So its place among the other steps is
the schedule's, and repeats with the seed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import math
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from .._asyncio import events
from ._schedule import Schedule
from ._state import TestingLoop
from ._steps import program_place

#: Where the jobs of executors run. "auto" means "inline" on a loop with a schedule, and else "threads".
Executor = Literal["auto", "inline", "threads"]

#: A delay in seconds, or the two bounds between which the schedule draws it.
Delay = float | tuple[float, float]

#: Is called with the function of each job. It may return an exception, with which the job then fails instead of running.
Fault = Callable[[Callable[..., Any]], BaseException | None]


class Jobs:
    """How a loop runs the jobs of its executors on its own thread."""

    def __init__(self, loop: TestingLoop, delay: Delay, fault: Fault | None) -> None:
        self._loop = loop
        self.delay = checked_delay(delay)
        self.fault = fault
        #: The job that runs now.
        self.running: _Job | None = None

    def submit(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Run a function in a later turn. Returns the future of its result."""
        job = _Job(self, function, arguments)
        delay = drawn(self._loop.schedule, "completion", self.delay)
        context = contextvars.Context()
        if delay > 0:
            self._loop.call_later(delay, job.run, context=context)
        else:
            self._loop.call_soon(job.run, context=context)
        return asyncio.wrap_future(job.result, loop=self._loop)


class _Job:
    """One job. Its result travels as that of a thread does."""

    is_actor = True
    actor_name = "executor"

    def __init__(self, jobs: Jobs, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._jobs = jobs
        self._function = function
        self._arguments = arguments
        #: File and line of the program where the job was submitted.
        self.place = program_place()
        self.result: concurrent.futures.Future[Any] = concurrent.futures.Future()
        #: For how many seconds of the loop's time it has slept.
        self.slept = 0.0

    @property
    def step_name(self) -> str:
        """What the log of steps calls it."""
        return _name(self._function)

    def run(self) -> None:
        """Make the call, as a thread of an executor does: no loop runs for it."""
        if not self.result.set_running_or_notify_cancel():
            return
        jobs, loop = self._jobs, self._jobs._loop
        try:
            fault = None if jobs.fault is None else jobs.fault(self._function)
            if fault is not None:
                raise fault
            earlier, jobs.running = jobs.running, self
            events._set_running_loop(None)
            try:
                outcome = functools.partial(self.result.set_result, self._function(*self._arguments))
            finally:
                jobs.running = earlier
                events._set_running_loop(loop)
        except BaseException as error:
            # A cycle with the traceback would keep the frame.
            outcome = functools.partial(self.result.set_exception, error)
        if self.slept:
            loop.call_later(self.slept, outcome)
        else:
            outcome()


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        # asyncio.to_thread() passes the function as an argument of Context.run.
        function = function.args[0] if function.args and callable(function.args[0]) else function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def checked_delay(delay: Delay) -> Delay:
    """Check a delay of a script. ValueError if it is negative or not finite."""
    bounds = delay if isinstance(delay, tuple) else (delay,)
    if isinstance(delay, tuple) and len(delay) != 2 or not all(isinstance(bound, (int, float)) for bound in bounds):
        raise TypeError(f"a delay is a number of seconds or two bounds, not {delay!r}")
    if not all(math.isfinite(bound) and bound >= 0 for bound in bounds) or list(bounds) != sorted(bounds):
        raise ValueError(f"a delay is finite and not negative, its lower bound first: {delay!r}")
    return delay


def drawn(schedule: Schedule, kind: str, delay: Delay) -> float:
    """Return a delay in seconds, drawn from the schedule if it has two bounds."""
    return schedule.uniform(kind, *delay) if isinstance(delay, tuple) else delay


def _testing_loop() -> TestingLoop | None:
    loop = events._get_running_loop()
    return loop if isinstance(loop, TestingLoop) else None


# The functions that native code calls for those of the same name in the package, while a testing loop runs. None means
# that the native one does the work.


def sleep(delay: float, result: Any) -> Coroutine[Any, Any, Any] | None:
    """As wakeloop.sleep, on the clock of the testing loop that runs."""
    return None if _testing_loop() is None else asyncio.sleep(delay, result)


def spawn_blocking(
    function: Callable[..., Any], arguments: tuple[Any, ...], /, **keywords: Any
) -> Coroutine[Any, Any, Any] | None:
    """As wakeloop.spawn_blocking, if the testing loop that runs has its jobs inline."""
    loop = _testing_loop()
    if loop is None or loop.jobs is None:
        return None
    return _spawned(loop.jobs, function, arguments, keywords)


def runs_inline() -> bool | None:
    """Whether jobs on files run on the thread of the loop, as those of executors do."""
    loop = _testing_loop()
    return True if loop is not None and loop.jobs is not None else None


async def _spawned(jobs: Jobs, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Any) -> Any:
    context = contextvars.copy_context()
    return await jobs.submit(functools.partial(context.run, function, *arguments, **keywords), ())
