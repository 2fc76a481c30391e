"""The log of a testing loop: every step that ran, in order.

A step is one callback: one step of a task, one timer, one call of a transport. Its text names no address and no number
of this process, so two runs are the same if their logs are equal.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

#: A log keeps this many steps, the last ones.
LIMIT = 100_000

#: Default names of tasks that asyncio has numbered, for all loops of the process together.
_NUMBERED = re.compile(r"Task-\d+\Z")
_OUTSIDE_PROGRAM = tuple(os.path.dirname(it) + os.sep for it in (asyncio.__file__, os.path.dirname(__file__)))


class Step(NamedTuple):
    """A callback that a testing loop has run."""

    #: Counts the loop's steps from 1.
    number: int
    #: The loop's time in seconds.
    time: float
    #: The name of a task, or what else ran: "callback", "timer", or the class of an object with a number.
    who: str
    #: The function, and for a task the line at which it continued.
    what: str

    def __str__(self) -> str:
        return f"{self.number:>6} {self.time:>12.6f}  {self.who}: {self.what}"


# A named tuple has no other names.
Step.__module__ = "wakeloop.testing"


#: A step before its text is made: number, time, who, and the name of a function or a code object with a line.
_Raw = tuple[int, float, str, Any, int]


class StepLog:
    """The steps of a loop: an iterable of `Step`. It keeps the last 100,000 of them."""

    __module__ = "wakeloop.testing"

    def __init__(self, limit: int = LIMIT) -> None:
        self._steps: deque[_Raw] = deque(maxlen=limit)
        #: How many steps have run, of which some may not be kept.
        self.total = 0
        self._names: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._numbers: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, time: float, handle: Any, owner: Any, is_timer: bool) -> None:
        """Note that a handle is about to run. `owner` is the object of which its callback is a method, or None."""
        self.total += 1
        what: Any = None
        line = 0
        if isinstance(owner, asyncio.Task):
            who = self._task_name(owner)
            what, line = _place(owner)
        elif (name := getattr(owner, "step_name", None)) is not None and getattr(type(owner), "is_actor", False):
            who, what = getattr(owner, "actor_name", "actor"), name
        elif is_timer:
            who = "timer"
        elif owner is not None and not isinstance(owner, (types.ModuleType, type)):
            who = self._number(owner, type(owner).__qualname__)
        else:
            who = "callback"
        if what is None:
            # The callback itself is not kept: that would keep the program's objects alive.
            what = function_name(handle._callback)
        self._steps.append((self.total, time, who, what, line))

    def note(self, time: float, who: str, what: str) -> None:
        """Add a step that is no callback, such as an event of a simulated network."""
        self.total += 1
        self._steps.append((self.total, time, who, what, 0))

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return (_finish(raw) for raw in self._steps)

    def __getitem__(self, index: int) -> Step:
        return _finish(self._steps[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepLog):
            return NotImplemented
        return self.total == other.total and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.total} steps>"

    def _task_name(self, task: asyncio.Task[Any]) -> str:
        name = task.get_name()
        # The tasks of our own class are numbered by loop.
        if _NUMBERED.match(name) and not hasattr(task, "_number"):
            return self._number(task, "Task")
        return name

    def _number(self, it: Any, kind: str) -> str:
        # The object is not kept alive, so another one may get its id later.
        if self._names.get(id(it)) is it:
            return self._numbers[id(it)]
        try:
            self._names[id(it)] = it
        except TypeError:
            return kind
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = self._numbers[id(it)] = f"{kind} #{count}"
        return name


def _finish(raw: _Raw) -> Step:
    number, time, who, what, line = raw
    if isinstance(what, types.CodeType):
        text = f"{what.co_qualname} at {os.path.basename(what.co_filename)}:{line}"
    else:
        text = what
    return Step(number, time, who, text)


def _place(task: asyncio.Task[Any]) -> tuple[Any, int]:
    """The innermost function of the program in which a task continues, and its line."""
    coroutine: Any = task.get_coro()
    found: tuple[Any, int] | None = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        code = frame.f_code
        if found is None or not code.co_filename.startswith(_OUTSIDE_PROGRAM):
            found = (code, frame.f_lineno or code.co_firstlineno)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    if found is None:
        return getattr(task.get_coro(), "__qualname__", "task"), 0
    return found


def program_place() -> tuple[str, int]:
    """Return the file and the line of the program from which this is called, through asyncio and this package."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OUTSIDE_PROGRAM):
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def function_name(function: Any) -> str:
    """The qualified name of a callable, without an address."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)
