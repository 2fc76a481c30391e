"""What a testing loop finds wrong with a program: it waits for nothing, or it leaves something behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any

from .. import waits
from ..metrics import runtime_metrics
from ._multiprocessing import kept_descriptors
from ._outside import is_programs
from ._state import TestingLoop
from ._steps import function_name


class Deadlock(RuntimeError):
    """Nothing can happen any more: every task waits, no timer is set, and nothing real is awaited.

    The message has what each task waits for, and its chain of awaits.
    """

    __module__ = "wakeloop.testing"

    def __init__(self, message: str, tasks: Iterable[waits.TaskInfo] = ()) -> None:
        super().__init__(message)
        #: What each task waits for; see `wakeloop.tasks`.
        self.tasks = list(tasks)


class StepLimit(RuntimeError):
    """The program has run more steps than `max_steps` allows: it may never end.

    The message has the last steps.
    """

    __module__ = "wakeloop.testing"


class LeftBehind(AssertionError):
    """A program has ended, and has left something behind."""

    __module__ = "wakeloop.testing"

    def __init__(self, found: list[str]) -> None:
        super().__init__("the program leaves behind:" + "".join(f"\n- {indented(text)}" for text in found))
        #: What was found, a text each.
        self.found = found


def deadlock(loop: TestingLoop) -> Deadlock:
    """Return the verdict on a loop on which nothing can happen."""
    tasks = _in_order(waits.infos(loop))
    why = "every task waits, no timer is set, and nothing real is awaited"
    if loop.clock.mode == "frozen" and loop._next_deadline() is not None:
        why = "the clock is frozen, every task waits, and nothing real is awaited"
    notes = []
    if loop._signal_handlers:
        notes.append("a signal with a handler would wake the loop")
    if loop.clock.mode == "frozen":
        notes.append("only clock.advance() or clock.resume() would make a timer due")
    message = f"deadlock at {loop.time():g} s: {why}"
    message += "".join(f"\n({note})" for note in notes)
    message += "".join(f"\n- {indented(str(info))}" for info in tasks)
    return Deadlock(message, tasks)


#: So many steps are shown of a program that goes on and on.
_LAST_STEPS = 10


def too_many_steps(loop: TestingLoop) -> StepLimit:
    """Return the verdict on a loop that has run as many steps as it may."""
    last = [str(loop.steps[place]) for place in range(-min(_LAST_STEPS, len(loop.steps)), 0)]
    message = f"the program still runs after {loop.steps.total:,} steps, at {loop.time():g} s; the last ones:"
    return StepLimit("\n".join([message, *last]))


def indented(text: str) -> str:
    """Return a text of several lines as an item of a list."""
    return text.replace("\n", "\n  ")


class Reports:
    """What a loop has reported to its exception handler: exceptions that nobody has seen, tasks that were lost."""

    def __init__(self) -> None:
        #: The reports, as texts.
        self.seen: list[str] = []

    def note(self, context: dict[str, Any]) -> None:
        """Keep a report."""
        text = str(context.get("message") or "Unhandled exception in event loop")
        task, error = context.get("task") or context.get("future"), context.get("exception")
        if isinstance(task, asyncio.Task):
            text += f" ({task.get_name()!r})"
        if isinstance(error, BaseException):
            text += f": {type(error).__qualname__}: {error}"
            frames = traceback.extract_tb(error.__traceback__)
            if frames:
                text += f"\n{frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}"
        self.seen.append(text)


class Before:
    """The descriptors and threads of the process before a run."""

    def __init__(self) -> None:
        self._descriptors = _descriptors()
        self._threads = set(threading.enumerate())

    def left(self) -> list[str]:
        """Say which are new and still there, when the blocking pool has ended what it does: it may close a file."""
        end = time.monotonic() + _PATIENCE
        while True:
            # Asked first: what it ends meanwhile may be among what is found.
            is_busy = _pool_is_busy()
            found = self._new()
            if not found or not is_busy or time.monotonic() >= end:
                return found
            time.sleep(0.001)

    def _new(self) -> list[str]:
        now = _descriptors()
        found = [f"descriptor {fd}: {now[fd]}" for fd in sorted(now) if self._descriptors.get(fd) != now[fd]]
        threads = sorted(set(threading.enumerate()) - self._threads, key=lambda thread: thread.name)
        return found + [f"thread {thread.name!r}" for thread in threads if thread.is_alive() and is_programs(thread)]


#: So many seconds a job of the pool may take, which would end soon: it may also wait for a FIFO for ever.
_PATIENCE = 1.0


def _pool_is_busy() -> bool:
    metrics = runtime_metrics()
    if metrics is None:
        return False
    return metrics.blocking_queue_depth > 0 or metrics.blocking_idle_threads < metrics.blocking_threads


_RUNTIMES = tuple(f"anon_inode:[{kind}" for kind in ("eventpoll", "eventfd", "timerfd", "io_uring"))


def _descriptors() -> dict[int, str]:
    found = {}
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            try:
                found[int(name)] = os.readlink(f"{directory}/{name}")
            except (OSError, ValueError):
                pass  # The descriptor of this listing.
        break
    # The runtime opens its pollers and timers at its first use, and keeps them. A mapped file has two descriptors.
    kept = {found.get(fd) for fd in kept_descriptors()}
    return {fd: target for fd, target in found.items() if target not in kept and not target.startswith(_RUNTIMES)}


def pending_tasks(loop: TestingLoop) -> list[str]:
    """Say which tasks are not done, and what they wait for."""
    return [f"task {info}" for info in _in_order(waits.infos(loop))]


def _in_order(tasks: list[waits.TaskInfo]) -> list[waits.TaskInfo]:
    """The tasks in the order in which they were made, as far as that is known."""
    return sorted(tasks, key=lambda info: getattr(info.task, "_number", 0))


def open_transports(loop: TestingLoop) -> list[str]:
    """Say which transports and listeners are open, and which descriptors have a reader or a writer."""
    found = {id(each): each for each in loop._sources() if not _is_closing(each)}
    for each in list(dict(loop._asyncios_transports or {}).values()):
        if not _is_closing(each):
            found[id(each)] = each
    return sorted(f"transport {_described(each)}" for each in found.values()) + _watched(loop)


def _watched(loop: TestingLoop) -> list[str]:
    own = {*(loop._asyncios_transports or ()), *loop._pidfds}
    if loop._wake_reader is not None:
        own.add(loop._wake_reader.fileno())
    found = []
    for fd in sorted(set(loop._watched()) - own):
        _, *handles = loop._watch_of(fd)
        names = [function_name(handle._callback) for handle in handles if handle is not None]
        found.append(f"descriptor {fd} is watched: {', '.join(names) or 'a socket call'}")
    return found


def open_sockets(loop: TestingLoop) -> list[str]:
    """Say which sockets of a network in memory are open. `Before` knows those of the system."""
    found = {} if loop.network is None else loop.network.open_descriptors()
    return [f"descriptor {fd}: {endpoint!r}" for fd, endpoint in sorted(found.items())]


def _is_closing(transport: Any) -> bool:
    is_closing = getattr(transport, "is_closing", None)
    return bool(is_closing()) if callable(is_closing) else False


def _described(transport: Any) -> str:
    text = type(transport).__qualname__
    get = getattr(transport, "get_extra_info", None)
    if get is None:
        return text
    own, peer = get("sockname"), get("peername")
    return f"{text} {' -> '.join(str(end) for end in (own, peer) if end)}".rstrip()
