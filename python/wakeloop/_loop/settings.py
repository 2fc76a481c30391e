"""The environment variables of wakeloop, as they were when a loop was last made.

`src/settings.rs` has the table of them, and reads them. An interpreter that ignores its environment (`-E`, `-I`) has
none.
"""

from __future__ import annotations

import math
import os
from typing import Any

from .. import _core

#: The values by the names of the variables. Empty if no variable is set.
given: dict[str, Any] = {}
_was_read = False
#: Has the environment still to be asked for a watchdog in this process, and for a window?
watchdog_unasked = admin_unasked = True
#: No loop has been made so far.
metrics_unloaded = True


def read() -> dict[str, Any]:
    """Read all variables; None for those that are not set. Raises ValueError for the first that means nothing."""
    global given, _was_read
    given, _was_read = _core._settings() if _core._may_have_settings() else {}, True
    return given


def setting(name: str) -> Any:
    """Return what a variable was set to when a loop was last made, or what it is set to now if none was."""
    return (given if _was_read else read()).get(name)


def asked_at_import(name: str) -> bool:
    """Read all variables, and return whether this one is set. What is wrong with one, the first loop raises."""
    try:
        return read().get(name) is not None
    except ValueError:
        return False


def seconds(name: str, value: float | str) -> float:
    """The seconds of an argument that is a positive number of them, or a time such as "100ms"."""
    form = name + " must be a {}number of seconds or a time such as '100ms', not {}"
    if isinstance(value, str):
        found = _core._seconds(value) or 0.0
    elif hasattr(type(value), "__float__"):
        found = value
    else:
        raise TypeError(form.format("", type(value).__name__))
    # A variable can also be "off".
    if not found > 0 or (found == math.inf and isinstance(value, str)):
        raise ValueError(form.format("positive ", repr(value)))
    return found


def _forked() -> None:
    global watchdog_unasked, admin_unasked
    watchdog_unasked = admin_unasked = True


os.register_at_fork(after_in_child=_forked)
