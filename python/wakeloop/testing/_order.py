"""The order of ready callbacks under a schedule.

asyncio runs callbacks in the order in which they became ready. A schedule may run any of them next that do not depend
on each other. These keep their order:

- The steps of one task.
- The callbacks of one object whose class is an actor: `is_actor = True`.
- The done callbacks of one future.
- All other callbacks, such as functions that were passed to call_soon, and what protocols and transports are told:
  asyncio's own transports rely on that.
- One of these other callbacks, and a step of a task that the same step made ready after it. asyncio relies on that
  too: it passes connection_made to call_soon, and then wakes the task that waits for the connection.

Timers that are due at the same time are independent of each other, unless they belong to one of the above.
"""

from __future__ import annotations

import asyncio
import bisect
import operator
from collections import deque
from collections.abc import Iterable
from typing import Any

from ._schedule import Schedule

#: A choice has at most so many possibilities.
WINDOW = 64

_COMMON = object()


class _Entry:
    """A handle that is ready, and those that have to wait for it."""

    __slots__ = ("followers", "handle", "keys", "number", "waits")

    def __init__(self, number: int, handle: Any, keys: tuple[int, ...]) -> None:
        #: Its place in asyncio's order.
        self.number = number
        self.handle = handle
        #: The ids of the objects whose callbacks keep their order.
        self.keys = keys
        #: For how many others it waits.
        self.waits = 0
        #: The steps of tasks that wait for it.
        self.followers: list[_Entry] = []


_number = operator.attrgetter("number")


class ReadyCallbacks:
    """The callbacks that are ready on a loop with a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        #: Those that wait for no other one, in asyncio's order. The first of all is always among them.
        self._possible: list[_Entry] = []
        #: By the id of an object, those of its callbacks that are ready.
        self._chains: dict[int, deque[_Entry]] = {}
        self._added = self._taken = 0

    def __len__(self) -> int:
        return self._added - self._taken

    def clear(self) -> None:
        """Drop all callbacks."""
        self._possible.clear()
        self._chains.clear()
        self._taken = self._added

    def first(self) -> Any:
        """Return the handle that asyncio would run next. There is one."""
        return self._possible[0].handle

    def add(self, handles: Iterable[Any]) -> None:
        """Add the handles that one step has made ready, in asyncio's order."""
        told: _Entry | None = None
        for handle in handles:
            if handle._cancelled:
                continue
            actor = _actor_of(handle)
            arguments = handle._args
            future = arguments[0] if arguments and isinstance(arguments[0], asyncio.Future) else None
            keys = (id(actor),) if future is None or future is actor else (id(actor), id(future))
            self._added += 1
            entry = _Entry(self._added, handle, keys)
            for key in keys:
                if (chain := self._chains.get(key)) is None:
                    self._chains[key] = deque([entry])
                else:
                    chain.append(entry)
                    entry.waits += 1
            if actor is _COMMON:
                told = entry
            elif told is not None and isinstance(actor, asyncio.Task):
                told.followers.append(entry)
                entry.waits += 1
            if not entry.waits:
                self._possible.append(entry)

    def take(self) -> Any:
        """Remove the handle that runs next, and return it. There is one."""
        possible = self._possible
        count = min(len(possible), WINDOW)
        chosen = 0
        if count > 1:
            is_timer = all(isinstance(possible[place].handle, asyncio.TimerHandle) for place in range(count))
            chosen = self._schedule.choose("timer" if is_timer else "ready", count)
        entry = possible.pop(chosen)
        self._taken += 1
        for key in entry.keys:
            chain = self._chains[key]
            chain.popleft()
            if chain:
                self._release(chain[0])
            else:
                del self._chains[key]
        for follower in entry.followers:
            self._release(follower)
        return entry.handle

    def _release(self, entry: _Entry) -> None:
        """Count one for which an entry has waited."""
        entry.waits -= 1
        if not entry.waits:
            bisect.insort(self._possible, entry, key=_number)


def _actor_of(handle: Any) -> Any:
    """Return the object whose callbacks keep their order, of which the handle's is one."""
    owner = owner_of(handle)
    if isinstance(owner, asyncio.Task) or getattr(type(owner), "is_actor", False):
        return owner
    if isinstance(handle, asyncio.TimerHandle):
        return handle if owner is None else owner
    return _COMMON


def owner_of(handle: Any) -> Any:
    """Return the object whose step the handle runs: that of which its callback is a method, or None."""
    owner = getattr(handle._callback, "__self__", None)
    # A native callback of a transport stands in a handle only here.
    return getattr(owner, "subject", None) or owner if type(owner).__name__ == "Step" else owner
