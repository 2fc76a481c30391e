"""The watchdog: a native thread that reports a turn of a loop that does not end, while it happens.

Here are its arguments and its environment variable; the rest is native.
"""

from __future__ import annotations

import atexit
import math
import warnings
from typing import TYPE_CHECKING

from .. import _core
from .._loop import settings

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ("Watchdog", "watchdog")

Watchdog = _core.Watchdog

_VARIABLE = "WAKELOOP_WATCHDOG"


def watchdog(limit: float | str = 0.1, *, file: FileDescriptorLike | None = None) -> Watchdog:
    """Start this process's watchdog: it reports every turn of a wakeloop loop that lasts longer than ``limit``, which
    is a number of seconds or a time such as ``"100ms"``.

    A native thread writes the report while the turn lasts: how long it has lasted, the task, the Python stack of the
    loop's thread, and who holds the GIL if nothing moves. It reports the turn again at two, four, eight times the
    limit, and writes a line when it has ended.

    ``file`` is a file with a ``fileno()``, or a descriptor, of which a duplicate is used; standard error by default.
    There is one watchdog in a process, for all its loops: a new one takes the place of the earlier one. It runs until
    :meth:`Watchdog.stop`, until the end of the ``with`` block that it was given to, or until the interpreter exits. A
    forked child has none. May be called from any thread.

    Raises TypeError or ValueError if ``limit`` is no positive time, OSError if ``file`` is not open, and RuntimeError if
    the system has no thread left.
    """
    fd = file if file is None or isinstance(file, int) else file.fileno()
    started = _core.start_watchdog(settings.seconds("limit", limit), fd)
    settings.watchdog_unasked = False
    # Once, however often a watchdog is started.
    atexit.unregister(_core.stop_watchdog)
    atexit.register(_core.stop_watchdog)
    return started


def start_if_asked() -> None:
    """Start a watchdog if the environment asks for it. A loop calls this when it first runs in a process."""
    limit = settings.setting(_VARIABLE)
    if limit is None or limit == math.inf:
        return
    try:
        watchdog(limit)
    except RuntimeError as error:
        warnings.warn(f"{_VARIABLE}: {error}", RuntimeWarning, stacklevel=2)
