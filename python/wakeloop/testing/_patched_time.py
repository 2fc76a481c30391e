"""`patch_time`: the functions of the module `time` follow a testing loop's clock, for the code under test only.

The functions are replaced while a loop runs, and restored when it no longer does. Each looks at its caller: the loop,
asyncio, logging, threading, pytest and the like go on with real time, and so do threads that were there before.
Modules that have imported one of the functions by name get the replacement too.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from ._escapes import sleep
from ._state import TestingLoop

#: The time of `time.time()` when a loop's clock starts: the first second of 2026 in UTC. It is fixed, so that a run can
#: be repeated.
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc).timestamp()

#: Packages whose code always sees real time: they measure how long something takes, or wait for other threads.
_UNTOUCHED = frozenset(
    "asyncio concurrent faulthandler importlib logging multiprocessing queue sched selectors signal socket socketserver "
    "ssl subprocess threading time unittest wakeloop "
    "_pytest pluggy pytest pytest_asyncio pytest_timeout xdist execnet coverage hypothesis "
    "_pydevd_bundle pydevd debugpy cProfile profile trace tracemalloc".split()
)

#: Calls the function of an executor's job, which may be one of those here.
_JOBS = "wakeloop.testing._inline"

_REAL: dict[str, Callable[..., Any]] = {
    name: getattr(time, name)
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
}

#: The loops whose clocks are patched in, the innermost run last, each with its epoch.
_loops: list[tuple[TestingLoop, float]] = []


def epoch_of(patch_time: bool | float | datetime.datetime) -> float | None:
    """Return the wall clock's time at the start of a loop; None if time is not patched."""
    if isinstance(patch_time, bool):
        return EPOCH if patch_time else None
    if isinstance(patch_time, datetime.datetime):
        return patch_time.timestamp()
    if not isinstance(patch_time, (int, float)) or not math.isfinite(patch_time):
        raise TypeError(f"patch_time is a bool, a datetime or seconds since 1970, not {patch_time!r}")
    return float(patch_time)


@contextlib.contextmanager
def patched(loop: TestingLoop, epoch: float | None) -> Iterator[None]:
    """Replace the functions for the block. Does nothing without an epoch."""
    if epoch is None:
        yield
        return
    entry = (loop, epoch)
    _loops.append(entry)
    try:
        if len(_loops) == 1:
            _replace()
        yield
    finally:
        _loops.remove(entry)
        if not _loops:
            _restore()


def _replace() -> None:
    known = {id(real): name for name, real in _REAL.items()}
    for module in list(sys.modules.values()):
        if not isinstance(module, types.ModuleType) or (_root(module.__name__) in _UNTOUCHED and module is not time):
            continue
        for attribute, value in list(vars(module).items()):
            name = known.get(id(value))
            if name is not None:
                setattr(module, attribute, _REPLACEMENTS[name])


def _restore() -> None:
    originals = {id(replacement): _REAL[name] for name, replacement in _REPLACEMENTS.items()}
    # All modules: one that was imported meanwhile may have the replacements too.
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            for attribute, value in list(vars(module).items()):
                if id(value) in originals:
                    setattr(module, attribute, originals[id(value)])


def _root(name: object) -> str:
    return name.partition(".")[0] if isinstance(name, str) else ""


def _entry() -> tuple[TestingLoop, float] | None:
    """The loop whose clock the caller of a replacement sees, and its epoch; None for real time."""
    caller = sys._getframe(2).f_globals.get("__name__")
    if _root(caller) in _UNTOUCHED and caller != _JOBS:
        return None
    own = threading.get_ident()
    for entry in reversed(_loops):
        if entry[0]._thread_id == own:
            return entry
    # In an executor's job no loop runs, but one of these waits for it.
    current = threading.current_thread()
    return next((entry for entry in reversed(_loops) if entry[0]._started_thread(current)), None)


def _time() -> float:
    entry = _entry()
    return entry[1] + entry[0].clock.time() if entry is not None else _REAL["time"]()


def _time_ns() -> int:
    entry = _entry()
    return int((entry[1] + entry[0].clock.time()) * 1e9) if entry is not None else _REAL["time_ns"]()


def _monotonic() -> float:
    entry = _entry()
    return entry[0].clock.time() if entry is not None else _REAL["monotonic"]()


def _monotonic_ns() -> int:
    entry = _entry()
    return int(entry[0].clock.time() * 1e9) if entry is not None else _REAL["monotonic_ns"]()


def _perf_counter() -> float:
    entry = _entry()
    return entry[0].clock.time() if entry is not None else _REAL["perf_counter"]()


def _perf_counter_ns() -> int:
    entry = _entry()
    return int(entry[0].clock.time() * 1e9) if entry is not None else _REAL["perf_counter_ns"]()


def _sleep(seconds: float) -> None:
    """In a job that runs on the loop's thread, the job takes longer by so many seconds of the loop's clock."""
    entry = _entry()
    job = entry[0].jobs.running if entry is not None and entry[0].jobs is not None else None
    if job is None or not 0 <= seconds < math.inf:
        sleep(seconds)
    else:
        job.slept += seconds


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "time": _time,
    "time_ns": _time_ns,
    "monotonic": _monotonic,
    "monotonic_ns": _monotonic_ns,
    "perf_counter": _perf_counter,
    "perf_counter_ns": _perf_counter_ns,
    "sleep": _sleep,
}
