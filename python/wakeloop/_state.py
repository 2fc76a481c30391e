"""What an event loop keeps: the native core, asyncio's loop behind it, and the attributes of both.

`wakeloop.EventLoop` is the one class made of this. The modules that work on a loop know this class and not that one.
"""

from __future__ import annotations

import socket
from typing import Any, Self

from . import _core
from ._inherited import SelectorEventLoop
from ._wakeup import Loan

# What asyncio's own code keeps on a loop. As slots they leave the instance dict unmade, and CPython finds
# ``loop.call_soon`` without a dict lookup (LOAD_ATTR_METHOD_LAZY_DICT): 230 instructions less per call. A name that this
# tuple lacks, such as one of the program's own, goes to the dict.
_NAMES = (
    "_asyncgens",
    "_asyncgens_shutdown_called",
    "_child_threads",
    "_clock_resolution",
    "_coroutine_origin_tracking_enabled",
    "_coroutine_origin_tracking_saved_depth",
    "_current_handle",
    "_default_executor",
    "_exception_handler",
    "_executor_is_users",
    "_executor_shutdown_called",
    "_internal_fds",
    "_old_agen_hooks",
    "_pidfds",
    "_selector",
    "_signal_handlers",
    "_timer_cancelled_count",
    "_timer_list",
    "_transports",
    "_unix_server_sockets",
    "_wake_reader",
    "_wake_writer",
    "_wakeup",
    "_watcher",
    "slow_callback_duration",
)


class LoopState(_core.EventLoop, SelectorEventLoop):
    """The native loop in front of asyncio's."""

    __slots__ = _NAMES

    _selector: Any
    _wake_reader: socket.socket | None
    _wake_writer: socket.socket | None
    _transports: Any
    _internal_fds: int
    _signal_handlers: dict[int, Any]
    _default_executor: Any
    #: The program has set the default executor.
    _executor_is_users: bool
    _executor_shutdown_called: Any
    #: The pidfds of the children that run, and asyncio's thread per child where there are no pidfds.
    _pidfds: set[int]
    _child_threads: Any
    _wakeup: Loan | None
    #: What `_scheduled` shows.
    _timer_list: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # A subclass whose __init__ does not call ours still has to be closable.
        self = super().__new__(cls, *args, **kwargs)
        self._selector = self._wake_reader = self._wake_writer = None
        self._default_executor = self._executor_shutdown_called = None
        self._transports, self._signal_handlers, self._internal_fds = (), {}, 0
        self._pidfds, self._child_threads, self._wakeup = set(), None, None
        self._executor_is_users, self._timer_list = False, None
        return self
