"""Tasks and futures whose hash does not depend on their address.

asyncio iterates over sets of them: in `wait`, in task groups, when a runner cancels what is left. The order of such a
set is part of what a seed has to repeat.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from ._state import TestingLoop

if TYPE_CHECKING:
    _Future = asyncio.Future[Any]
    _Task = asyncio.Task[Any]
else:
    _Future = asyncio.Future
    _Task = asyncio.Task


class Future(_Future):
    """A future of a testing loop. Its hash is its number among the loop's."""

    __slots__ = ("_number",)

    def __init__(self, *, loop: TestingLoop) -> None:
        self._number = loop._futures_made = loop._futures_made + 1
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class Task(_Task):
    """A task of a testing loop. Its hash is its number among the loop's, and so is its name if it is given none."""

    __slots__ = ("_is_asyncios", "_number")

    def __init__(self, coro: Any, *, loop: TestingLoop, name: Any = None, **options: Any) -> None:
        # Before the base class registers the task in a set.
        self._number = loop._tasks_made = loop._tasks_made + 1
        #: asyncio made it, of a coroutine that the program may have too.
        self._is_asyncios = False
        super().__init__(coro, loop=loop, name=f"Task-{self._number}" if name is None else name, **options)

    def __hash__(self) -> int:
        return self._number


#: The coroutine functions of asyncio of which it makes tasks itself. A program has no names for them.
ASYNCIOS = frozenset(
    {
        "_accept_connection2",
        "_connect_pipes",
        "_create_server_getaddrinfo",
        "_feed_stdin",
        "_noop",
        "_read_stream",
        "run_one_coro",
    }
)

_ASYNCIO = os.path.dirname(asyncio.__file__) + os.sep


def is_asyncios(task: asyncio.Task[Any]) -> bool:
    """Whether asyncio has made a task for itself, which the program does not know and cannot cancel."""
    if isinstance(task, Task) and task._is_asyncios:
        return True
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_name in ASYNCIOS and code.co_filename.startswith(_ASYNCIO)
