"""Runs one loop iteration from Python, for tools that replace `_run_once` or the selector.

The native core runs whole iterations by itself. This module runs them instead if a tool has to run in each iteration: a
selector with another ``select`` (virtual clocks, input hooks of terminals), or another ``_run_once``. A tool may come
or go while the loop runs: it counts from the next iteration on, as in asyncio. The queue, the timers and the transports
stay native. Only the iteration runs in Python.
"""

from __future__ import annotations

import contextlib
import heapq
import selectors
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, SupportsIndex

from .. import _core
from .._asyncio import Handle, TimerHandle, base_events, selector_events
from . import LoopState
from .selector import SelectorFacade


class ReadyView(MutableSequence[Any]):
    """``loop._ready``: the native queue, with the methods of the deque that asyncio has there.

    A change in the middle takes all handles out and puts them back.
    """

    def __init__(self, loop: LoopState) -> None:
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
        if isinstance(handle, TimerHandle):
            # A tool that runs the iteration moves the due timers to the queue, but the native poll has already done so.
            if not handle._scheduled and any(other is handle for other in self):
                return
            handle._scheduled = False
        self._loop._ready_push(handle)

    def appendleft(self, handle: Any) -> None:
        self.insert(0, handle)

    def extendleft(self, handles: Iterable[Any]) -> None:
        added = list(handles)
        with self._taken() as taken:
            taken.extendleft(added)

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
        if self._loop.is_closed():
            # This is asyncio's close(). The handles lose their callbacks, so that no cycle through one is left.
            self._loop._clear_ready()
            return
        while self._loop._ready_next() is not None:
            pass

    #: A deque without a limit has None there.
    maxlen = None

    __copy__ = copy

    def __eq__(self, other: object) -> bool:
        return self.copy() == (other.copy() if isinstance(other, ReadyView) else other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> deque[Any]:
        return self.copy() + (other.copy() if isinstance(other, ReadyView) else other)

    def __repr__(self) -> str:
        return repr(self.copy())

    @contextlib.contextmanager
    def _taken(self) -> Iterator[deque[Any]]:
        """Takes all handles out of the queue for the block, and puts them back at its end."""
        handles = self.copy()
        self.clear()
        try:
            yield handles
        finally:
            for handle in handles:
                self._loop._ready_push(handle)


class ScheduledView(list[Any]):
    """``loop._scheduled``: the timers of the native heap at the last access, and those that Python code has put there.

    It is a list, because ``heapq`` accepts nothing else. The handles of asyncio that are pushed here get a native timer
    each, which runs them (`adopt`), unless somebody takes them out first.
    """

    def __init__(self) -> None:
        super().__init__()
        #: The native timer of each handle that has one, by the handle's id.
        self._adopted: dict[int, Any] = {}

    def refresh(self, loop: LoopState) -> None:
        """Updates the list to the current timers."""
        timers = [self._shown(handle) for handle in loop._timer_handles()]
        pushed = [handle for handle in self if _is_foreign(handle) and id(handle) not in self._adopted]
        self[:] = timers + pushed
        if pushed:
            heapq.heapify(self)

    def _shown(self, timer: Any) -> Any:
        """The handle that a native timer runs, or the timer itself."""
        return timer._args[0] if timer._callback == self._fire else timer

    def adopt(self, loop: LoopState) -> None:
        """Makes native timers for the handles that have been pushed, and drops those of most that were cancelled."""
        pushed = [handle for handle in self if _is_foreign(handle) and id(handle) not in self._adopted]
        self[:] = [handle for handle in self if not _is_foreign(handle)]
        for handle in pushed:
            if not handle._cancelled:
                handle._scheduled = True
                self._adopted[id(handle)] = _core.EventLoop.call_at(loop, handle._when, self._fire, handle)
        if loop._timer_cancelled_count > max(_MOST_CANCELLED, len(self._adopted) / 2):
            loop._timer_cancelled_count = 0
            for timer in list(self._adopted.values()):
                if timer._args[0]._cancelled:
                    self.forget(timer._args[0])

    def _fire(self, handle: Any) -> None:
        self._adopted.pop(id(handle), None)
        # Whoever takes a handle out of the list, sets this to False.
        if handle._scheduled and not handle._cancelled:
            handle._scheduled = False
            handle._run()

    def forget(self, handle: Any) -> None:
        """Drops the native timer of a handle."""
        timer = self._adopted.pop(id(handle), None)
        if timer is not None:
            timer.cancel()

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


#: asyncio looks for cancelled timers only if there are more of them than this.
_MOST_CANCELLED: int = base_events._MIN_SCHEDULED_TIMER_HANDLES


def _is_foreign(handle: object) -> bool:
    # A native handle passes isinstance() as an asyncio.Handle, but its type is another.
    return issubclass(type(handle), Handle)


#: The classes of the selectors module, each with a check whether its methods are unpatched.
_SELECTORS = {
    kind: _core.unpatched(((kind, "select", "register", "unregister", "modify", "close"),))
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector", "KqueueSelector")
    if (kind := getattr(selectors, name, None)) is not None
}


def _is_plain_class(kind: Any) -> bool:
    """Whether the native poll can replace the selectors of a class: not if gevent or eventlet has put its own `select`,
    `poll` or `epoll` there, which runs other greenlets meanwhile."""
    if kind not in _SELECTORS or not _SELECTORS[kind]():
        return False
    poll = vars(kind).get("_select") or vars(kind).get("_selector_cls")
    is_systems = isinstance(poll, (types.BuiltinFunctionType, type)) and poll.__module__ == "select"
    return poll is None or is_systems


def is_plain(selector: object) -> bool:
    """Whether the native poll can replace a selector that was given to the loop's constructor."""
    return _is_plain_class(type(selector)) and "select" not in vars(selector)


def patched_selector() -> selectors.BaseSelector | None:
    """The selector that asyncio makes for a new loop; None if the native poll can replace it."""
    kind = selector_events.selectors.DefaultSelector
    return None if _is_plain_class(kind) else kind()


def has_own_turn(loop: LoopState, is_native: Callable[[object], bool]) -> bool:
    """Whether a tool has to run in every iteration. `is_native` says whether `_run_once` is the loop's own."""
    selector = loop._selector
    return (
        type(selector) is not SelectorFacade
        or "select" in vars(selector)
        or not is_native(loop)
    )


def watch_core(loop: LoopState, selector: selectors.BaseSelector) -> None:
    """Makes a selector of the program return when the native core has something to do."""
    descriptor = loop._poller_fd()
    if descriptor is not None:
        selector.register(descriptor, selectors.EVENT_READ, (None, None))


def run_once(loop: LoopState) -> None:
    """Runs one iteration, as asyncio's own _run_once does."""
    selector, timeout = loop._selector, loop._wait()
    if isinstance(selector, SelectorFacade):
        loop._process_events(selector.select(timeout))
        loop._wake_timers()
    else:
        try:
            # _park() is inside the try block, because a signal handler may raise as soon as the loop is parked.
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
    handle = None  # Breaks a cycle if the next iteration raises.


def _run_watched(loop: LoopState, handle: Any) -> None:
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
