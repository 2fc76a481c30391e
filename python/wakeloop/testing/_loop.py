"""The testing loop: asyncio's loop under a test's clock and schedule.

It is wakeloop's loop, with turns that run in Python. The queue, the timers, the handles and the real transports stay
native.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Coroutine, Literal, TypeVar

from ..loop import EventLoop as _EventLoop
from ._clock import Clock, Mode
from ._schedule import Schedule, schedule_of
from ._steps import StepLog
from ._tasks import Future, Task

_T = TypeVar("_T")


class EventLoop(_EventLoop):
    """An event loop whose time, order and helpers a test controls."""

    def __init__(
        self,
        *,
        clock: Mode = "auto",
        seed: int | None = None,
        schedule: Schedule | None = None,
        network: Any = None,
    ) -> None:
        self.schedule = schedule_of(seed, schedule)
        self.clock = Clock(clock)
        self.steps = StepLog()
        self.network = network
        self._made = 0
        super().__init__()
        self.clock._is_running = self.is_running
        self.clock._wake = self._write_to_self

    def time(self) -> float:
        """Return the time of the loop's clock in seconds."""
        return self.clock.time()

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future of this loop."""
        return Future(loop=self)

    def _number_of_next(self) -> int:
        self._made += 1
        return self._made

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **options: Any) -> Any:
        """Run a coroutine as a task of this loop."""
        if self._task_factory is not None:
            return super().create_task(coro, name=name, context=context, **options)
        self._check_closed()
        task = Task(coro, loop=self, name=name, context=context, **options)
        return task

    def _run_once(self) -> None:
        if self._wait() == 0:
            self._select(0)
        else:
            self._idle()
        for _ in range(self._ready_count()):
            handle = self._ready_next()
            if handle is None:
                break
            if not handle._cancelled:
                self._run_handle(handle)
        handle = None

    def _idle(self) -> None:
        self._select(0)
        if self._ready_count():
            return
        timers = self._timer_handles()
        if timers and self.clock.mode == "auto":
            self.clock._jump(timers[0].when())
            self._wake_timers()
        else:
            self._select(None)

    def _run_handle(self, handle: Any) -> None:
        owner = getattr(handle._callback, "__self__", None)
        self.steps.add(self.clock.time(), handle, owner, isinstance(handle, asyncio.TimerHandle))
        handle._run()
