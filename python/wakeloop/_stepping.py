"""The loop turned from Python, for whoever stands where the native turn cannot see him.

The native core runs whole turns by itself. It gives way to this module when a tool has put something of its own
between the turns: a selector with another ``select`` (virtual clocks, input hooks of terminals), or another
``_run_once``. Everything native stays as it is, the queue, the timers, the transports; only the turn is Python's.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import selectors
from collections import deque
from collections.abc import Iterator, MutableSequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from ._inherited import asyncios, base_events
from ._selector import SelectorFacade

if TYPE_CHECKING:
    from .loop import EventLoop


_TIMER: Any = asyncio.TimerHandle


class ReadyView(MutableSequence[Any]):
    """``loop._ready``: the native queue, with the face of the deque that asyncio has there.

    What changes its middle takes everything out and puts it back: no more than as many handles as are ready.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return self._loop._ready_count()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loop._ready_handles())

    def __getitem__(self, index: Any) -> Any:
        return self._loop._ready_handles()[index]

    def __setitem__(self, index: Any, handle: Any) -> None:
        with self._taken() as handles:
            handles[index] = handle

    def __delitem__(self, index: Any) -> None:
        with self._taken() as handles:
            del handles[index]

    def insert(self, index: int, handle: Any) -> None:
        with self._taken() as handles:
            handles.insert(index, handle)

    def append(self, handle: Any) -> None:
        if isinstance(handle, _TIMER):
            # Who turns the loop himself moves the timers that are due, which the native poll has moved already.
            if not handle._scheduled and any(other is handle for other in self):
                return
            handle._scheduled = False
        self._loop._ready_push(handle)

    def appendleft(self, handle: Any) -> None:
        self.insert(0, handle)

    def popleft(self) -> Any:
        handle = self._loop._ready_next()
        if handle is None:
            raise IndexError("pop from an empty deque")
        return handle

    def rotate(self, n: int = 1) -> None:
        with self._taken() as handles:
            handles.rotate(n)

    def copy(self) -> deque[Any]:
        return deque(self)

    def clear(self) -> None:
        while self._loop._ready_next() is not None:
            pass

    def __repr__(self) -> str:
        return repr(self.copy())

    @contextlib.contextmanager
    def _taken(self) -> Iterator[deque[Any]]:
        """All the handles, out of the queue until the block is left."""
        handles = self.copy()
        self.clear()
        try:
            yield handles
        finally:
            for handle in handles:
                self._loop._ready_push(handle)


class ScheduledView(list[Any]):
    """``loop._scheduled``: the timers of the native heap when it was last asked for, and what others have put there.

    A list, since ``heapq`` takes nothing else. Who puts timers of his own there takes them out himself: the native
    turn knows nothing of them.
    """

    def refresh(self, loop: EventLoop) -> None:
        """As it is now."""
        native = loop._timer_handles()
        # A handle of ours is one of asyncio's by its word alone.
        foreign = [handle for handle in self if issubclass(type(handle), asyncio.Handle)]
        self[:] = native + foreign
        if foreign:
            heapq.heapify(self)

    def remove(self, handle: Any) -> None:
        super().remove(handle)
        handle._scheduled = False

    def pop(self, index: SupportsIndex = -1) -> Any:
        handle = super().pop(index)
        handle._scheduled = False
        return handle

    def clear(self) -> None:
        for handle in self:
            handle._scheduled = False
        super().clear()


#: A selector of one of these types does nothing that the native poll does not do.
_PLAIN_SELECTORS = tuple(
    getattr(selectors, name)
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector")
    if hasattr(selectors, name)
)


def is_plain(selector: object) -> bool:
    """Whether a selector given to the loop's constructor can be left unasked."""
    return type(selector) in _PLAIN_SELECTORS and "select" not in vars(selector)


def has_own_turn(loop: EventLoop, own_run_once: object) -> bool:
    """Whether somebody wants to be asked in every turn."""
    selector = loop._selector
    return (
        type(selector) is not SelectorFacade
        or "select" in vars(selector)
        # Bound, so that one on the class and one on the instance are both seen.
        or getattr(loop._run_once, "__func__", None) is not own_run_once
        or is_asyncios_turn_replaced()
    )


def is_asyncios_turn_replaced() -> bool:
    """Whether ``BaseEventLoop._run_once`` is somebody else's, a profiler's for example."""
    return base_events.BaseEventLoop._run_once is not asyncios._run_once


def watch_core(loop: EventLoop, selector: selectors.BaseSelector) -> None:
    """Wake a selector that is not ours when the native core has something to do."""
    descriptor = loop._poller_fd()
    if descriptor is not None:
        selector.register(descriptor, selectors.EVENT_READ, (None, None))


def run_once(loop: EventLoop) -> None:
    """One turn, as asyncio's own _run_once does it."""
    selector, timeout = loop._selector, loop._wait()
    if isinstance(selector, SelectorFacade):
        loop._process_events(selector.select(timeout))
        loop._wake_timers()
    else:
        try:
            # In the block: an exception of a signal handler may come as soon as the loop is parked.
            events = selector.select(timeout if loop._park() else 0)
        finally:
            loop._unpark()
        loop._process_events(events)
        loop._select(0)
    for _ in range(loop._ready_count()):
        handle = loop._ready_next()
        if handle is None:
            break
        if handle._cancelled:
            continue
        if loop._debug:
            _run_watched(loop, handle)
        else:
            handle._run()
    handle = None  # Breaks a cycle when an exception flies out of the next turn.


def _run_watched(loop: EventLoop, handle: Any) -> None:
    shown = base_events._format_handle(handle)
    try:
        loop._current_handle = handle
        before = loop.time()
        handle._run()
        took = loop.time() - before
        if took >= loop.slow_callback_duration:
            base_events.logger.warning("Executing %s took %.3f seconds", shown, took)
    finally:
        loop._current_handle = None
