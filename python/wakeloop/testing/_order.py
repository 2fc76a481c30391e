"""The order of ready callbacks under a schedule.

asyncio runs callbacks in the order in which they became ready. A schedule may run any of them next that do not depend
on each other. These keep their order:

- The steps of one task.
- The callbacks of one object whose class is an actor: `is_actor = True`.
- The done callbacks of one future.
- All other callbacks, such as functions that were passed to call_soon, and what protocols and transports are told:
  asyncio's own transports rely on that.

Timers that are due at the same time are independent of each other, unless they belong to one of the above.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from ._schedule import Schedule

#: A choice has at most so many possibilities, among at most so many callbacks. It bounds the cost of a step where
#: thousands are ready.
WINDOW, LOOKED_AT = 64, 128

_COMMON = object()


class ReadyCallbacks:
    """The callbacks that are ready on a loop with a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        #: Handles, each with its actor, and the future of which it is a done callback.
        self._entries: list[tuple[Any, Any, Any]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Drop all callbacks."""
        self._entries.clear()

    def first(self) -> Any:
        """Return the handle that asyncio would run next. There is one."""
        return self._entries[0][0]

    def add(self, handle: Any) -> None:
        """Add a handle that has become ready."""
        if handle._cancelled:
            return
        owner = owner_of(handle)
        arguments = handle._args
        future = arguments[0] if arguments and isinstance(arguments[0], asyncio.Future) else None
        if isinstance(owner, asyncio.Task) or getattr(type(owner), "is_actor", False):
            actor = owner
        elif isinstance(handle, asyncio.TimerHandle):
            actor = handle if owner is None else owner
        else:
            actor = _COMMON
        self._entries.append((handle, actor, future))

    def take(self) -> Any:
        """Remove the handle that runs next, and return it. There is one."""
        entries = self._entries
        if len(entries) == 1:
            return entries.pop()[0]
        seen: set[int] = set()
        possible = []
        for index, (_, actor, future) in enumerate(itertools.islice(entries, LOOKED_AT)):
            keys = {id(actor)} if future is None else {id(actor), id(future)}
            if seen.isdisjoint(keys):
                possible.append(index)
                if len(possible) == WINDOW:
                    break
            # One that has to wait makes those wait that come after it.
            seen |= keys
        kind = "ready"
        if all(isinstance(entries[index][0], asyncio.TimerHandle) for index in possible):
            kind = "timer"
        return entries.pop(possible[self._schedule.choose(kind, len(possible))])[0]


def owner_of(handle: Any) -> Any:
    """Return the object whose step the handle runs: that of which its callback is a method, or None."""
    owner = getattr(handle._callback, "__self__", None)
    # A native callback of a transport stands in a handle only here.
    return getattr(owner, "subject", None) or owner if type(owner).__name__ == "Step" else owner
