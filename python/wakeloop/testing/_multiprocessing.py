"""The descriptors and the thread that multiprocessing opens at its first use, and keeps for the life of the process.

It is asked only what it has loaded: nothing is imported here.
"""

from __future__ import annotations

import sys
import threading
from typing import Any


def kept_descriptors() -> list[int]:
    """Return those of its resource tracker, its fork server, its shared memory and its sharer of resources."""
    found = [
        _kept("resource_tracker", "_resource_tracker", "_fd"),
        _kept("forkserver", "_forkserver", "_forkserver_alive_fd"),
        *(arena.fd for arena in _kept("heap", "BufferWrapper", "_heap", "_arenas") or ()),
    ]
    if (sharer := _kept("resource_sharer", "_resource_sharer", "_listener", "_listener", "_socket")) is not None:
        found.append(sharer.fileno())
    return [fd for fd in found if fd is not None]


def kept_thread() -> threading.Thread | None:
    """Return the thread that passes descriptors to other processes, if it runs."""
    thread: threading.Thread | None = _kept("resource_sharer", "_resource_sharer", "_thread")
    return thread


def _kept(module: str, *names: str) -> Any:
    """An attribute of an attribute of a module of multiprocessing. None if there is none."""
    found = sys.modules.get(f"multiprocessing.{module}")
    for name in names:
        found = getattr(found, name, None)
    return found
