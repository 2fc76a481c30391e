"""The loop turned from Python, for whoever stands where the native turn cannot see him.

The native core runs whole turns by itself. It gives way to this module when a tool has put something of its own
between the turns: a selector with another ``select`` (virtual clocks, input hooks of terminals), or another
``_run_once``. Everything native stays as it is, the queue, the timers, the transports; only the turn is Python's.
"""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ._inherited import base_events
from ._selector import SelectorFacade

if TYPE_CHECKING:
    from .loop import EventLoop


class ReadyView:
    """``loop._ready``: the native queue, with as much of a deque's face as other people's code touches."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return self._loop._ready_count()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loop._ready_handles())

    def append(self, handle: Any) -> None:
        self._loop._add_callback(handle)

    def extend(self, handles: Iterable[Any]) -> None:
        for handle in handles:
            self._loop._add_callback(handle)

    def popleft(self) -> Any:
        handle = self._loop._ready_next()
        if handle is None:
            raise IndexError("pop from an empty deque")
        return handle

    def clear(self) -> None:
        while self._loop._ready_next() is not None:
            pass

    def __repr__(self) -> str:
        return repr(list(self))


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
    )


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
