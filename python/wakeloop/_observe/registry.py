"""The loops of this process, for tools that show them all."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from typing import Any

_loops: dict[int, tuple[weakref.ref[Any], str]] = {}
_numbers = itertools.count()
#: Loops are published as soon as they are made, because the program has called `publish()`.
publishes_new = False


def add(loop: Any) -> None:
    """Remember a new loop, with the name of the thread that makes it. The loop is not kept alive."""
    number = next(_numbers)
    # Single operations on a dict: another thread may make a loop at the same time.
    _loops[number] = weakref.ref(loop, lambda _: _loops.pop(number, None)), _thread_name()


def _thread_name() -> str:
    # current_thread() would add an object for a thread that Python has not started. (Before 3.13, it does not say so.)
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return "thread" if thread is None else thread.name


def open_loops() -> dict[str, Any]:
    """Return the loops that are not closed, in the order in which they were made, by unique names.

    A parent's loops, of which a forked child has copies, are left out until the child runs them. A loop has the name
    of the thread that made it. If there are several, the others have a number behind it.
    """
    seen: Counter[str] = Counter()
    found: dict[str, Any] = {}
    for reference, thread in list(_loops.values()):
        loop = reference()
        if loop is None or loop.is_closed() or loop._is_parents():
            continue
        name = thread
        while name in found:
            seen[thread] += 1
            name = f"{thread}-{seen[thread] + 1}"
        found[name] = loop
    return found
