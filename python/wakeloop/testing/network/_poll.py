"""The poll of simulated descriptors: which callbacks wait for them, and which of them are ready, as epoll says it.

Level-triggered: a descriptor is reported in each turn until it is no longer ready. The order is epoll's: a descriptor
that becomes ready goes to the end of the list, and so does one that has been reported.

A program that leaves a ready descriptor alone keeps a real loop busy, and meanwhile time passes. On a clock that jumps
none would. So a descriptor that has been reported often without effect is not reported again at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


#: A descriptor with which nothing happens is reported so often before the clock may jump.
PATIENCE = 100


class Pollable(Protocol):
    """What has a simulated descriptor."""

    def ready(self) -> tuple[bool, bool]:
        """Whether a poll reports it as readable, and as writable."""


class Watch:
    """The callbacks that wait for one descriptor."""

    __slots__ = ("reader", "source", "writer")

    def __init__(self, source: Pollable) -> None:
        self.source = source
        self.reader: asyncio.Handle | None = None
        self.writer: asyncio.Handle | None = None


class Poll:
    """The watched descriptors of one loop."""

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}
        #: The descriptors that may be ready, in epoll's order; the values mean nothing.
        self._candidates: dict[int, None] = {}
        #: When a descriptor was reported last, and how often since the clock has moved or something has happened with it.
        self._reports: dict[int, tuple[float, int]] = {}

    def watch(self, fd: int, source: Pollable, kind: str, handle: asyncio.Handle) -> None:
        """Let a handle wait; `kind` is "reader" or "writer". It replaces, and cancels, the one that waits so far."""
        watch = self._watches.get(fd)
        if watch is None:
            watch = self._watches[fd] = Watch(source)
        earlier: asyncio.Handle | None = getattr(watch, kind)
        setattr(watch, kind, handle)
        if earlier is not None:
            earlier.cancel()
        self._candidates.setdefault(fd)

    def unwatch(self, fd: int, kind: str) -> bool:
        """Cancel the handle that waits. Returns whether there was one."""
        watch = self._watches.get(fd)
        earlier: asyncio.Handle | None = None if watch is None else getattr(watch, kind)
        if watch is None or earlier is None:
            return False
        setattr(watch, kind, None)
        if watch.reader is watch.writer is None:
            del self._watches[fd]
            self._candidates.pop(fd, None)
        earlier.cancel()
        return True

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer, because it was closed."""
        self._watches.pop(fd, None)
        self._candidates.pop(fd, None)
        self._reports.pop(fd, None)

    def _is_left_alone(self, fd: int, now: float) -> bool:
        """Count a report of a descriptor. Returns whether there were too many without effect."""
        when, count = self._reports.get(fd, (now, 0))
        count = count + 1 if when == now else 1
        self._reports[fd] = now, count
        return count > PATIENCE

    def notify(self, fd: int) -> None:
        """Look at a descriptor in the next poll, because something has happened with it."""
        if fd in self._watches:
            self._reports.pop(fd, None)
            self._candidates.setdefault(fd)

    def collect(self, now: float, choose: Callable[[str, int], int] | None) -> list[asyncio.Handle]:
        """Return the handles whose descriptors are ready, the reader of a descriptor before its writer.

        With `choose`, the order of the descriptors is chosen by it.
        """
        if not self._candidates:
            return []
        found: list[list[asyncio.Handle]] = []
        for fd in list(self._candidates):
            watch = self._watches[fd]
            readable, writable = watch.source.ready()
            waiting = (watch.reader if readable else None, watch.writer if writable else None)
            handles = [handle for handle in waiting if handle is not None]
            del self._candidates[fd]
            if handles:
                self._candidates[fd] = None
                if not self._is_left_alone(fd, now):
                    found.append(handles)
        if choose is not None:
            found = [found.pop(choose("event", len(found))) for _ in range(len(found))]
        return [handle for handles in found for handle in handles]

    def handles(self, fd: int) -> tuple[asyncio.Handle | None, asyncio.Handle | None]:
        """The reader and the writer that wait for a descriptor."""
        watch = self._watches.get(fd)
        return (None, None) if watch is None else (watch.reader, watch.writer)

    def watched(self) -> list[int]:
        """The descriptors that something waits for."""
        return list(self._watches)

    def clear(self) -> None:
        """Forget all descriptors."""
        self._watches.clear()
        self._candidates.clear()
        self._reports.clear()
