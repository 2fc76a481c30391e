"""`patch_time`: the clocks of the code under test follow a testing loop's clock.

The C functions of `time` and `datetime` are redirected while a loop runs. So names that were imported early, default
arguments and `datetime.datetime.now` follow too, and no class or module changes. Each call is answered for its caller:
asyncio, threading, pytest and the like go on with real time, and so do threads that were there before.

A tool that replaces these functions while the loop runs, as freezegun and time-machine do, counts until it ends. A tool
that has replaced them before would see some of the calls, and this module the others: so that is an error.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from ._escapes import note_sleep
from ._state import TestingLoop

#: The time of `time.time()` when a loop's clock starts: the first second of 2026 in UTC. It is fixed, so that a run can
#: be repeated.
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc).timestamp()

#: Packages whose code always sees real time: they measure how long something takes, or wait for other threads.
_UNTOUCHED = frozenset(
    "asyncio concurrent faulthandler importlib multiprocessing queue sched selectors signal socket socketserver "
    "ssl subprocess threading time unittest wakeloop "
    "_pytest pluggy pytest pytest_asyncio pytest_timeout xdist execnet coverage hypothesis "
    "_pydevd_bundle pydevd debugpy cProfile profile trace tracemalloc".split()
)

#: They call the functions of executors' jobs, which may be one of those here.
_JOBS = ("wakeloop.testing._inline", "concurrent.futures.thread")

#: The loops whose clocks are patched in, the innermost run last, each with its epoch.
_loops: list[tuple[TestingLoop, float]] = []
#: Restores the functions.
_undo = contextlib.ExitStack()


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
def patched(loop: TestingLoop) -> Iterator[None]:
    """Redirect the functions for the block, if the loop is to patch time.

    RuntimeError if a tool has replaced one of them before the loop runs for the first time. A tool that has begun in an
    earlier run of the loop goes on to count.
    """
    if loop._epoch is None:
        yield
        return
    try:
        if not _loops:
            _redirect_all()
    except RuntimeError:
        if not loop.steps.total:
            # What ends the program runs without.
            loop._epoch = None
            raise
        yield
        return
    entry = (loop, loop._epoch)
    _loops.append(entry)
    try:
        yield
    finally:
        _loops.remove(entry)
        if not _loops:
            _undo.close()


def check_unpatched() -> None:
    """RuntimeError if a tool has replaced one of the functions."""
    if not _loops:
        _redirect_all()
        _undo.close()


def _redirect_all() -> None:
    with contextlib.ExitStack() as undo:
        for owner, stand_ins in ((time, _OF_TIME), (datetime.datetime, _OF_DATETIME), (datetime.date, _OF_DATE)):
            for name, stand_in in stand_ins.items():
                function: Any = getattr(owner, name)
                try:
                    earlier = _core._redirect(function, stand_in)
                except (RuntimeError, ValueError):
                    raise RuntimeError(_refusal(owner, name, function)) from None
                undo.callback(_core._redirect, function, earlier)
        _leave_libuuid(undo)
        _undo.push(undo.pop_all())


def _refusal(owner: Any, name: str, function: Any) -> str:
    by = getattr(function, "__module__", None)
    what = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
    if isinstance(owner, type) and owner.__module__ != "datetime":
        what, by = "datetime.datetime", owner.__module__
    elif isinstance(function, types.BuiltinFunctionType):
        by = "time_machine" if "time_machine" in sys.modules else "an extension module"
    return (
        f"patch_time: {what}.{name} was replaced by {by} before the loop runs, so the clocks would not agree; "
        "replace it while the loop runs, or do without patch_time"
    )


def _leave_libuuid(undo: contextlib.ExitStack) -> None:
    """Let uuid1() ask `time.time_ns`, as it does where no C library makes UUIDs, and forget the last times of its kind."""
    import uuid

    for name, value in list(vars(uuid).items()):
        if name in ("_generate_time_safe", "_UuidCreate") or name.startswith("_last_timestamp"):
            undo.callback(setattr, uuid, name, value)
            setattr(uuid, name, None)


def _entry() -> tuple[TestingLoop, float] | None:
    """The loop whose clock the caller of a stand-in sees, and its epoch; None for real time."""
    # A thread of the runtime calls a job's function without any frame.
    frame = sys._getframe(1).f_back
    module = "" if frame is None else frame.f_globals.get("__name__")
    if isinstance(module, str) and module.partition(".")[0] in _UNTOUCHED and module not in _JOBS:
        return None
    own = threading.get_ident()
    for entry in reversed(_loops):
        if entry[0]._thread_id == own:
            return entry
    # In an executor's job no loop runs, but one of these waits for it. threading.current_thread() would make an object
    # for a thread of the runtime.
    current = threading._active.get(own)  # type: ignore[attr-defined]
    return next((entry for entry in reversed(_loops) if entry[0]._started_thread(current)), None)


def _monotonic(entry: tuple[TestingLoop, float]) -> float:
    return entry[0].clock.time()


def _wall(entry: tuple[TestingLoop, float]) -> float:
    return entry[1] + entry[0].clock.time()


def _nanos(seconds: float) -> int:
    return round(seconds * 1e9)


# -- the stand-ins ---------------------------------------------------------------------------------------------------
# The first argument is the module or the class. NotImplemented stands for what the function itself does.


def _reading(read: Callable[[Any], float], convert: Callable[[float], Any] = float) -> Callable[..., Any]:
    """A stand-in for a function without arguments that reads a clock."""

    def stand_in(_: Any) -> Any:
        entry = _entry()
        return NotImplemented if entry is None else convert(read(entry))

    return stand_in


def _converting(convert: Callable[[float], Any]) -> Callable[..., Any]:
    """A stand-in for a function that converts the present time if it is given none."""

    def stand_in(_: Any, seconds: Any = None, *more: Any) -> Any:
        if more or seconds is not None or (entry := _entry()) is None:
            return NotImplemented
        return convert(_wall(entry))

    return stand_in


_CLOCKS: dict[int, Callable[[Any], float]] = {}
for _name in ("CLOCK_REALTIME", "CLOCK_TAI"):
    _CLOCKS[getattr(time, _name, -1)] = _wall
for _name in ("MONOTONIC", "MONOTONIC_RAW", "BOOTTIME", "UPTIME", "UPTIME_RAW", "HIGHRES"):
    _CLOCKS[getattr(time, f"CLOCK_{_name}", -1)] = _monotonic
if sys.platform == "linux":
    # CLOCK_REALTIME_COARSE and CLOCK_MONOTONIC_COARSE, for which Python has no names.
    _CLOCKS |= {5: _wall, 6: _monotonic}
_CLOCKS.pop(-1, None)


def _clock_reading(convert: Callable[[float], Any] = float) -> Callable[..., Any]:
    """A stand-in for clock_gettime(). The clocks of processor time stay real."""

    def stand_in(_: Any, clock: Any = None, *more: Any) -> Any:
        read = _CLOCKS.get(clock) if isinstance(clock, int) and not more else None
        if read is None or (entry := _entry()) is None:
            return NotImplemented
        return convert(read(entry))

    return stand_in


def _strftime(_: Any, *arguments: Any) -> Any:
    if len(arguments) != 1 or (entry := _entry()) is None:
        return NotImplemented
    return time.strftime(arguments[0], time.localtime(_wall(entry)))


def _asctime(_: Any, *arguments: Any) -> Any:
    if arguments or (entry := _entry()) is None:
        return NotImplemented
    return time.ctime(_wall(entry))


def _sleep(_: Any, seconds: Any) -> Any:
    """In a job that runs on the loop's thread, the job takes longer by so many seconds of the loop's clock."""
    entry = _entry()
    job = entry[0].jobs.running if entry is not None and entry[0].jobs is not None else None
    if job is None or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        return note_sleep(_, seconds)
    job.slept += seconds
    return None


#: Found before a tool replaces it. Unlike the class's attribute, it makes an instance of any subclass.
_from_timestamp: Any = vars(datetime.datetime)["fromtimestamp"]


def _now(cls: Any, *arguments: Any, **keywords: Any) -> Any:
    if len(arguments) + len(keywords) > 1 or keywords.keys() - {"tz"} or (entry := _entry()) is None:
        return NotImplemented
    return _from_timestamp.__get__(None, cls)(_wall(entry), *arguments, **keywords)


def _utcnow(cls: Any) -> Any:
    if (entry := _entry()) is None:
        return NotImplemented
    if sys.version_info >= (3, 12):
        text = (
            "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. Use timezone-aware "
            "objects to represent datetimes in UTC: datetime.datetime.now(datetime.UTC)."
        )
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    return _from_timestamp.__get__(None, cls)(_wall(entry), datetime.timezone.utc).replace(tzinfo=None)


def _today(cls: Any) -> Any:
    # Until Python 3.14 the function calls time.time itself.
    return NotImplemented if (entry := _entry()) is None else cls.fromtimestamp(_wall(entry))


_OF_TIME: dict[str, Callable[..., Any]] = {
    "time": _reading(_wall),
    "time_ns": _reading(_wall, _nanos),
    "monotonic": _reading(_monotonic),
    "monotonic_ns": _reading(_monotonic, _nanos),
    "perf_counter": _reading(_monotonic),
    "perf_counter_ns": _reading(_monotonic, _nanos),
    "clock_gettime": _clock_reading(),
    "clock_gettime_ns": _clock_reading(_nanos),
    "localtime": _converting(time.localtime),
    "gmtime": _converting(time.gmtime),
    "ctime": _converting(time.ctime),
    "asctime": _asctime,
    "strftime": _strftime,
    "sleep": _sleep,
}
_OF_DATETIME: dict[str, Callable[..., Any]] = {"now": _now, "utcnow": _utcnow}
_OF_DATE: dict[str, Callable[..., Any]] = {"today": _today}
