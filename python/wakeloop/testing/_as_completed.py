"""`asyncio.as_completed` in the order of its argument, while a testing loop runs.

asyncio puts what it is given into a set. Coroutines lie there by their addresses, so their tasks would start in another
order in each process. Tasks of a testing loop lie there by their numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

from .._asyncio import events
from ._state import TestingLoop

_original: Any = asyncio.as_completed
#: The testing loops that run in this process.
_running = 0


def _as_tasks(awaitables: Any) -> Any:
    """Returns a list of tasks, if asyncio would accept the argument on a testing loop."""
    is_one = asyncio.isfuture(awaitables) or asyncio.iscoroutine(awaitables)
    if is_one or not isinstance(events._get_running_loop(), TestingLoop):
        return awaitables
    # One that is given twice becomes one task.
    return [asyncio.ensure_future(each) for each in dict.fromkeys(awaitables)]


if sys.version_info >= (3, 13):

    @functools.wraps(_original)
    def as_completed(fs: Any, *, timeout: Any = None) -> Any:
        return _original(_as_tasks(fs), timeout=timeout)

else:

    @functools.wraps(_original)
    def as_completed(fs: Any, *, timeout: Any = None) -> Any:
        # A generator, which makes the tasks when it is first asked for one.
        yield from _original(_as_tasks(fs), timeout=timeout)


@contextlib.contextmanager
def ordered() -> Iterator[None]:
    """Replace the function of asyncio while a testing loop runs, unless somebody else has replaced it."""
    global _running
    if asyncio.as_completed is _original and asyncio.tasks.as_completed is _original:
        asyncio.as_completed = asyncio.tasks.as_completed = as_completed
    _running += 1
    try:
        yield
    finally:
        _running -= 1
        if not _running and asyncio.as_completed is as_completed:
            asyncio.as_completed = asyncio.tasks.as_completed = _original
