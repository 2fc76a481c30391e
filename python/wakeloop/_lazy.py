"""Loads the modules of the package that a program may never need: `load("metrics")`.

- A module is loaded once in a process, also if the package is imported a second time (`_first_import`).
- Any thread may load a module. A fork waits until none is being loaded: in the child, its lock would stay locked.
- A module that is loaded late must behave as if it had been loaded with the package. So it reads nothing of the program
  when it is loaded. What looks at asyncio's classes is in modules that the package imports itself.
"""

from __future__ import annotations

import _thread
import importlib
import os
import sys
import time
from typing import Any

from . import _first_import

_PACKAGE = __name__.rpartition(".")[0]
#: A module that takes longer than this is left behind by a fork.
_LONGEST_WAIT = 1.0

#: The threads that load a module, each as often as it does, and the lock of this list. A fork holds the lock.
_loading: list[int] = []
_lock = _thread.allocate_lock()


def load(name: str) -> Any:
    """The module of this package with that name, which is loaded if nobody has needed it so far."""
    path = f"{_PACKAGE}.{name}"
    module = sys.modules.get(path)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return module
    thread = _thread.get_ident()
    with _lock:
        _loading.append(thread)
    try:
        # Another copy of the package may have loaded it.
        _first_import.restore()
        return importlib.import_module(path)
    finally:
        with _lock:
            _loading.remove(thread)


def _before_fork() -> None:
    end, own = time.monotonic() + _LONGEST_WAIT, _thread.get_ident()
    _lock.acquire()
    while any(thread != own for thread in _loading) and time.monotonic() < end:
        _lock.release()
        time.sleep(0.001)
        _lock.acquire()


def _after_in_child() -> None:
    own = _thread.get_ident()
    _loading[:] = [thread for thread in _loading if thread == own]
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_lock.release, after_in_child=_after_in_child)
