"""Keeps the last slow turns of a loop, with what is known about the cause, and logs them where somebody has asked.

Native code calls `keep_slow` and `slow_turn` through `_support`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import types
from typing import Any

from .._asyncio import BaseTransport, Handle, base_events, format_helpers, is_task
from .._loop import LoopState

logger = logging.getLogger("wakeloop")

#: The name of a slow turn in which no single callback was slow, or was looked at.
SEVERAL = "several callbacks"
#: The name of the protocol of a transport that has ended, and has forgotten it.
ENDED = "connection_lost"


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
        protocol = _protocol_of(work)
        what = f"{ENDED if protocol is None else _plain(protocol)} of {_plain(work)}"
    elif isinstance(work, Handle):
        what = base_events._format_handle(work)
    elif callable(work):
        what = format_helpers._format_callback_source(work, ())
    else:
        what = _plain(work)
    before = f"; {unreported} slow turns before it were not logged" if unreported else ""
    logger.warning("Slow turn: %s took %.3f seconds%s%s", what, seconds, before, chain)


def keep_slow(loop: LoopState, nanos: int, work: Any, slow: bool) -> None:
    """Keeps what took long, by a name for which no code of the program runs.

    `work` is as for `slow_turn`. If `slow` is false, it is only long enough for those who look at the loop now.
    """
    if isinstance(work, Handle):
        work = getattr(work, "_callback", work)
    name = SEVERAL if work is None else _name(work)
    loop._keep_slow(nanos, name.encode(errors="replace"), slow)


def keep_busy_wait(loop: LoopState, nanos: int, callback: Any) -> None:
    """Keeps a task or callback that runs again and again, by its name and what the task has called so far."""
    task = getattr(callback, "__self__", None)
    lines = [_name(callback).replace("\n", "\\n")]
    if is_task(task) and not task.done():
        # It is imported when it is needed.
        from .. import waits

        lines += map(str, waits.stack(task.get_coro()))
    loop._keep_busy_wait(nanos, "\n".join(lines).encode(errors="replace"))


def _name(work: Any) -> str:
    task = getattr(work, "__self__", None)
    if is_task(task):
        return f"{task.get_name()} {_qualified(task.get_coro())}"
    if isinstance(work, BaseTransport) and hasattr(work, "get_protocol"):
        protocol = _protocol_of(work)
        return f"{ENDED if protocol is None else _qualified(protocol)} of {_qualified(work)}"
    return _qualified(work)


def _protocol_of(transport: Any) -> Any:
    """The protocol of the program: over TLS, that of the transport wraps it."""
    protocol = transport.get_protocol()
    return getattr(protocol, "_app_protocol", protocol)


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
