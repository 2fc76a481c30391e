"""The environment variables of wakeloop, as they were when a loop was last made.

`src/settings.rs` has the table of them, and reads them. An interpreter that ignores its environment (`-E`, `-I`) has
none.
"""

from __future__ import annotations

from typing import Any

from . import _core

_last: dict[str, Any] | None = None


def read() -> dict[str, Any]:
    """Read all variables; None for those that are not set. Raises ValueError for the first that means nothing."""
    global _last
    _last = _core._settings()
    return _last


def setting(name: str) -> Any:
    """Return what a variable was set to when a loop was last made, or what it is set to now if none was."""
    return (read() if _last is None else _last)[name]
