"""The base class of the event loop: the native core, asyncio's loop behind it, and the attributes of both.

`wakeloop.EventLoop` is its only subclass here. Modules that work on a loop import this class, so that none imports
`loop`.
"""

from __future__ import annotations

import socket
from typing import Any, Self

from .. import _core
from .._asyncio import SelectorEventLoop
from .wakeup import Loan


class LoopState(_core.EventLoop, SelectorEventLoop):
    """The native loop in front of asyncio's."""

    __slots__ = ()

    _selector: Any
    _wake_reader: socket.socket | None
    _wake_writer: socket.socket | None
    #: The transports that asyncio's code has made, by their descriptors.
    _asyncios_transports: Any
    _internal_fds: int
    _signal_handlers: dict[int, Any]
    _default_executor: Any
    #: The program has set the default executor.
    _executor_is_users: bool
    _executor_shutdown_called: Any
    #: The transports of the children that run and have a pidfd, by that.
    _pidfds: dict[int, Any]
    _wakeup: Loan | None
    #: Something was patched when the loop looked for that last.
    _was_patched: bool
    _timer_cancelled_count: int
    #: The list that `_scheduled` returns.
    _timer_list: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # close() must work even if the __init__ of a subclass does not call ours.
        self = super().__new__(cls, *args, **kwargs)
        self._selector = self._wake_reader = self._wake_writer = None
        self._default_executor = self._executor_shutdown_called = None
        self._asyncios_transports, self._signal_handlers, self._internal_fds = (), {}, 0
        self._pidfds, self._wakeup = {}, None
        self._executor_is_users, self._timer_list, self._was_patched = False, None, False
        return self
