"""Keeps the last slow turns of a loop, with what is known about the cause, and logs them where somebody has asked.

Native code calls `keep_slow` and `slow_turn` through `_support`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import types
from typing import Any

from .._asyncio import BaseTransport, Handle, base_events, format_helpers, is_task
from .._loop import LoopState

logger = logging.getLogger("wakeloop")

#: The name of a slow turn in which no single callback was slow, or was looked at.
SEVERAL = "several callbacks"


def slow_turn(loop: LoopState, seconds: float, work: Any, unreported: int) -> None:
    """Logs a slow turn.

    `work` is what took so long: a callback, a handle, a transport or a listener. If it is None, several callbacks have
    taken the time together. `unreported` slow turns before this one were not logged, because the last report was too
    recent.
    """
    task = getattr(work, "__self__", None)
    chain = ""
    if work is None:
        what = SEVERAL
    elif is_task(task):
        what, chain = _plain(task), _await_chain(task)
    elif isinstance(work, BaseTransport) and hasattr(work, "get_protocol"):
        protocol = work.get_protocol()
        # Over TLS, the protocol of the transport wraps that of the program.
        what = f"{_plain(getattr(protocol, '_app_protocol', protocol))} of {_plain(work)}"
    elif isinstance(work, Handle):
        what = base_events._format_handle(work)
    elif callable(work):
        what = format_helpers._format_callback_source(work, ())
    else:
        what = _plain(work)
    before = f"; {unreported} slow turns before it were not logged" if unreported else ""
    logger.warning("Slow turn: %s took %.3f seconds%s%s", what, seconds, before, chain)


def keep_slow(loop: LoopState, nanos: int, work: Any, slow: bool) -> None:
    """Keeps what took long, by a name for which no code of the program runs: on the shared page, and for `metrics()`.

    `work` is as for `slow_turn`. If `slow` is false, it is long enough for the shared page alone.
    """
    if isinstance(work, Handle):
        work = getattr(work, "_callback", work)
    task = getattr(work, "__self__", None)
    if work is None:
        name = SEVERAL
    elif is_task(task):
        name = f"{task.get_name()} {_qualified(task.get_coro())}"
    elif isinstance(work, BaseTransport) and hasattr(work, "get_protocol"):
        protocol = work.get_protocol()
        name = f"{_qualified(getattr(protocol, '_app_protocol', protocol))} of {_qualified(work)}"
    else:
        name = _qualified(work)
    loop._publish_slow(nanos, name.encode(errors="replace"))
    if slow:
        loop._slow_turns.append((time.monotonic(), nanos / 1e9, name))


def _qualified(work: Any) -> str:
    while isinstance(work, functools.partial):
        work = work.func
    name = getattr(work, "__qualname__", None) if isinstance(work, _NAMED) else None
    return name if isinstance(name, str) else type(work).__qualname__


#: Types whose names are known to the interpreter.
_NAMED = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.CoroutineType,
    types.GeneratorType,
    types.AsyncGeneratorType,
)


def _plain(work: object) -> str:
    """Returns the repr, in one line and without control characters."""
    try:
        text = repr(work)
    except Exception:
        text = object.__repr__(work)
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _await_chain(task: asyncio.Task[Any]) -> str:
    """Returns where a task waits now, after its slow step; empty if it is done."""
    if task.done():
        return ""
    # It is imported when somebody asks.
    from .. import waits

    frames = waits.stack(task.get_coro())
    return "; it now waits in" + "".join(f"\n  {frame}" for frame in frames) if frames else ""
