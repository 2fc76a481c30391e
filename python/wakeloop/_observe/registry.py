"""The loops of this process, for tools that show them all.

Native code has the list of them too, for threads without the GIL (`src/kernel/core/probe/registry.rs`), with the
names. Here are the objects.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

_loops: dict[int, weakref.ref[Any]] = {}
_numbers = itertools.count()


def add(loop: Any) -> None:
    """Remember a new loop, by the name of the thread that makes it. The loop is not kept alive."""
    number = next(_numbers)
    loop._register(_thread_name().encode(errors="replace"))
    # Single operations on a dict: another thread may make a loop at the same time.
    _loops[number] = weakref.ref(loop, lambda _: _loops.pop(number, None))


def _thread_name() -> str:
    # current_thread() would add an object for a thread that Python has not started. (Before 3.13, it does not say so.)
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return thread.name if thread is not None and thread.name else "thread"


def open_loops() -> dict[str, Any]:
    """Return the loops that are not closed, in the order in which they were made, by unique names.

    A parent's loops, of which a forked child has copies, are left out until the child runs them. A loop has the name
    of the thread that made it. If there are several, the others have a number behind it.
    """
    found: dict[str, Any] = {}
    for reference in list(_loops.values()):
        loop = reference()
        if loop is not None and (name := loop._registered_name()) is not None:
            found[name] = loop
    return found
