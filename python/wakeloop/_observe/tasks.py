"""Asking a loop about its tasks. `waits` does the work, and is imported when somebody asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .. import _core
from .._asyncio import AbstractEventLoop

if TYPE_CHECKING:
    from ..waits import TaskInfo


def tasks(loop: asyncio.AbstractEventLoop | None = None) -> list[TaskInfo]:
    """What every task of a loop waits for, and for how long: a `TaskInfo` for each task that is not done.

    Without a loop it is that of the running one; RuntimeError if there is none. The tasks that have waited longest come
    first, then those for which that is not known, then those that do not wait. A closed loop has no tasks. It may be a
    loop of any class.

    May be called from any thread. A task that existed before the call and is not done after it is in the list. In
    another thread than the loop's, the loop runs on meanwhile: each TaskInfo is what its task did at some time during
    the call, and a task may be shown as done.
    """
    from .. import waits

    return waits.infos(_given(loop))


def track_waits(on: bool = True, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Record when each task makes a step, so that `tasks()` knows how long each has waited. False ends that.

    Without a loop it is the running one; RuntimeError if there is none, TypeError if the loop is not wakeloop's. It
    costs a fraction of a microsecond for each step of a task. May be called from any thread.
    """
    loop = _given(loop)
    if not isinstance(loop, _core.EventLoop):
        raise TypeError(f"only wakeloop's loops record steps, not {type(loop).__qualname__}")
    loop._time_steps(on)


def _given(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    if loop is None:
        return asyncio.get_running_loop()
    if not isinstance(loop, AbstractEventLoop):
        raise TypeError(f"an event loop was expected, not {type(loop).__qualname__}")
    return loop
