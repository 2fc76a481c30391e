"""Names the places where a program leaves the simulation.

`time.sleep`, a blocking socket or a thread that sleeps take real time, which no virtual clock can skip. CPython reports
such calls to audit hooks before they block. The hook is installed when the first testing loop runs. It cannot be
removed, and does nothing while none runs. Until Python 3.12 `time.sleep` is not reported; there the function is
redirected while a testing loop runs. Calls that nobody reports show by the time that a step takes.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from ._state import TestingLoop


class SimulationWarning(RuntimeWarning):
    """The program leaves the simulation: it does something that takes real time, of which the loop's clock knows nothing."""

    __module__ = "wakeloop.testing"


#: The loops that run, by their threads.
_loops: dict[int, list[TestingLoop]] = {}
_installed = False
_SLEEP_IS_AUDITED = sys.version_info >= (3, 13)
_real_sleep = time.sleep
_thread_time = time.thread_time

#: A step that blocks its thread for more than so many real seconds is reported.
BLOCKED = 1.0
#: The thread's processor time is read before a step, unless that was done less than so many seconds ago.
_FRESH = 0.25

_LIBRARY = os.path.dirname(threading.__file__) + os.sep
#: Their functions stand in for time.sleep.
_STAND_INS = (__name__, f"{__package__}._patched_time")
#: asyncio and wakeloop: what they do themselves is no escape of the program.
_OWN = (_LIBRARY + "asyncio" + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


@contextlib.contextmanager
def watching(loop: TestingLoop) -> Iterator[None]:
    """Watch a loop that runs in this thread for the block."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_audit)
    own = threading.get_ident()
    _loops.setdefault(own, []).append(loop)
    if not _SLEEP_IS_AUDITED and len(_loops) == len(_loops[own]) == 1:
        with contextlib.suppress(RuntimeError, ValueError):  # Another tool has replaced it.
            _core._redirect(_real_sleep, note_sleep)
    try:
        yield
    finally:
        _loops[own].remove(loop)
        if not _loops[own]:
            del _loops[own]
        if not _loops and not _SLEEP_IS_AUDITED:
            with contextlib.suppress(RuntimeError, ValueError):
                _core._redirect(_real_sleep, None)


def note_sleep(_: object, seconds: float) -> Any:
    """Stands in for time.sleep, and reports the call where CPython does not."""
    if not _SLEEP_IS_AUDITED:
        _audit("time.sleep", (seconds,))
    return NotImplemented


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _loops:
        return
    describe = _EVENTS.get(event)
    if describe is None:
        return
    what = describe(*arguments)
    if not what:
        return
    own = threading.get_ident()
    loops = _loops.get(own)
    if loops is not None:
        _report(loops[-1], what, "blocks the thread of the loop, and takes real time")
    elif event == "time.sleep":
        current = threading.current_thread()
        for waiting in list(_loops.values()):
            if waiting[-1]._started_thread(current):
                _report(waiting[-1], what, f"in the thread {current.name!r} takes real time, for which the clock waits")
                return


def _report(loop: TestingLoop, what: str, how: str) -> None:
    if loop.clock.mode == "real":
        return
    text = f"{what} {how}"
    registry: Any = {}
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _STAND_INS:
        frame = frame.f_back
    frame = _call_site(frame)
    if frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        registry = frame.f_globals.setdefault("__warningregistry__", registry)
    elif loop.jobs is not None and loop.jobs.running is not None and what.startswith("time.sleep"):
        # The function of the job is time.sleep itself.
        file, line = loop.jobs.running.place
    else:
        return
    loop._escapes += 1
    warnings.warn_explicit(text, SimulationWarning, file, line, registry=registry)


class Stopwatch:
    """Tells a step that has blocked its thread from one that has computed for as long.

    Many calls that block are not reported to audit hooks: `recv` of a blocking socket, or `acquire` of a lock.
    """

    def __init__(self) -> None:
        self._begun = 0.0
        self._processor_time, self._read_at = 0.0, -math.inf

    def begin(self) -> None:
        """A step begins."""
        self._begun = now = _core._monotonic()
        if now - self._read_at > _FRESH:
            self._processor_time, self._read_at = _thread_time(), now

    def blocked(self) -> float:
        """The step has ended: return for how many seconds it has taken, if it blocked for most of them, or 0."""
        took = _core._monotonic() - self._begun
        if took <= BLOCKED:
            return 0.0
        return took if _thread_time() - self._processor_time < took / 2 else 0.0


def report_blocked(loop: TestingLoop, seconds: float) -> None:
    """Say that the last step has blocked the thread for so many real seconds."""
    loop._escapes += 1
    step = loop.steps[-1]
    text = f"{step.who}: {step.what} has blocked the thread of the loop for {seconds:.1f} s of real time"
    warnings.warn(text, SimulationWarning, stacklevel=3)


def _call_site(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame of the program. None if asyncio or a testing loop makes the call for itself."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            return None
        if not file.startswith(_LIBRARY) or "site-packages" in file:
            return frame
        frame = frame.f_back
    return None


def _sleep(seconds: float) -> str:
    return f"time.sleep({seconds:g})" if isinstance(seconds, (int, float)) and seconds > 0 else ""


def _connect(sock: Any, address: Any) -> str:
    try:
        blocking = sock.gettimeout() != 0
    except Exception:
        return ""
    return f"connect() of a blocking socket to {address!r}" if blocking else ""


def _lookup(host: Any, *_: Any) -> str:
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if not isinstance(host, str) or not host:
        return ""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return f"a lookup of the name {host!r}"
    return ""


_EVENTS: dict[str, Callable[..., str]] = {
    "time.sleep": _sleep,
    "socket.connect": _connect,
    "socket.getaddrinfo": _lookup,
    "socket.gethostbyname": _lookup,
    "os.system": lambda command: f"os.system({command!r})",
    "builtins.input": lambda *_: "input()",
}
