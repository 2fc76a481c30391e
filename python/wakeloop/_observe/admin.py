"""The window: a native thread that answers questions about this process over HTTP, also while Python cannot.

Here are its arguments and its environment variables; the rest is native.
"""

from __future__ import annotations

import _thread
import atexit
import json
import math
import os
import time
import warnings

from .. import _core, _lazy
from .._loop import settings
from . import registry

__all__ = ("Admin", "admin", "set_ready")

Admin = _core.Admin

#: One thread opens a window at a time. A fork waits for it, so that a child has no socket of a half-open window. A
#: signal handler of the same thread may open one too.
_opening = _thread.RLock()
atexit.register(_core.finish_questions)
os.register_at_fork(before=_opening.acquire, after_in_child=_opening.release, after_in_parent=_opening.release)

#: How long a turn may last in seconds, unless the program or the environment says something else.
LIMIT = 10.0
#: The size of the ring of a trace, in bytes.
_TRACE_SIZE = 8 << 20


def admin(address: str | None = None, *, limit: float | str | None = None) -> Admin:
    """Open this process's window: a native thread that answers questions about the process over HTTP, also while a
    callback blocks the event loop, and while native code keeps the GIL.

    ``address`` is ``"1"`` for a Unix socket that tools find by the number of the process, ``"unix:PATH"`` or
    ``"HOST:PORT"``; a path counts from the current directory. By default it is what `WAKELOOP_ADMIN` says, or ``"1"``.
    With a path or a host, the window has the other socket too. A host that is not loopback gets ``/livez``, ``/readyz``
    and ``/metrics`` alone.

    ``limit`` is how long a turn may last until ``/livez`` says that the process is not alive: a number of seconds or a
    time such as ``"10s"``. By default it is what `WAKELOOP_ADMIN_LIMIT` says, or ten seconds.

    There is one window in a process: a new one takes the place of the earlier one, also at the same address, once it is
    open. If it cannot be opened, the earlier one stays as it is. It is open until :meth:`Admin.close`, until the end of
    the ``with`` block that it was given to, or until the process ends. A forked child has none. May be called from any
    thread, and from several at once: then the last one stays.

    Raises TypeError or ValueError if an argument means nothing. Raises OSError with the file's name if a socket cannot
    be opened, and PermissionError if the folder of the sockets is not the user's alone. Raises socket.gaierror for a
    host that is not known, and RuntimeError if the system has no thread left.
    """
    if address is None:
        given = settings.setting("WAKELOOP_ADMIN")
        address = os.fsdecode(given) if isinstance(given, bytes) else "1"
    if limit is None:
        limit = settings.setting("WAKELOOP_ADMIN_LIMIT") or LIMIT
    seconds = settings.seconds("limit", limit)
    where = _core.AdminAddress(os.fsencode(address))
    with _opening:
        window = _core.open_admin(where, seconds)
    settings.admin_unasked = False
    return window


def set_ready(ready: bool = True, *, limit: float | str | None = None) -> None:
    """Set what ``/readyz`` of the window says: whether this process wants requests.

    With a ``limit``, it also says that the process is not ready while an event loop is late: while its current turn, or
    what was ready in the last second or since the last question, has waited longer. The limit is a number of seconds or
    a time such as ``"500ms"``. A process is ready until it says something else. May be called from any thread, and
    without a window.
    """
    _core.set_readiness(bool(ready), math.inf if limit is None else settings.seconds("limit", limit))


# -- what native code calls, in a thread that has waited for the GIL -----------------------------------------------------


def tasks_json() -> str:
    """The answer of `/tasks`: what every task of every open loop waits for."""
    # It is loaded when somebody asks.
    waits = _lazy.load("waits")
    loops = []
    for name, loop in registry.open_loops().items():
        tasks = [
            {
                "name": info.name,
                "coroutine": info.coroutine,
                "state": info.state,
                "waits_for": info.waits_for,
                "seconds": info.seconds,
                "exact": info.exact,
                "stack": [str(frame) for frame in info.stack],
            }
            for info in waits.infos(loop)
        ]
        loops.append({"name": name, "tasks": tasks})
    found = {"pid": os.getpid(), "version": _core.__version__, "time": time.monotonic(), "loops": loops}
    # Escapes whatever is not ASCII, half surrogates too.
    return json.dumps(found) + "\n"


def start_trace() -> _core.Recording:
    """Start a recording for `/trace`, whose place one of the program may take. Raises RuntimeError if there is one."""
    # It is loaded when somebody asks.
    _lazy.load("_observe.record")._learn_task_fields()
    return _core.Recording(_TRACE_SIZE, True)


def open_if_asked() -> None:
    """Open a window if the environment asks for it. A loop calls this when it first runs in a process."""
    if settings.setting("WAKELOOP_ADMIN"):
        try:
            admin()
        except (OSError, RuntimeError, ValueError) as error:
            warnings.warn(f"WAKELOOP_ADMIN: {error}", RuntimeWarning, stacklevel=2)
