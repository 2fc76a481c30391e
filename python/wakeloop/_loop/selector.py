"""The selector of our loop, as inherited code and other programs see it.

Inherited code asks it which events a descriptor waits for, and tools that drive the loop themselves (nest_asyncio,
looptime) call ``select``. Where a program has patched `_add_reader` or its relatives, asyncio's versions register
descriptors here. There is no second poller behind it: it answers from the native core's own table, and changes that.
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Mapping
from typing import Any, Iterator

from .. import _core
from . import LoopState

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

#: An event that has been handled.
_DONE = (selectors.SelectorKey(-1, -1, 0, (None, None)), 0)


class SelectorFacade(selectors.BaseSelector):
    """A selector that shows the native table and polls through the native core."""

    _loop: LoopState | None
    #: A selector that the program has given to the loop. It is not used, and closed with the loop.
    _given: selectors.BaseSelector | None

    def __init__(self, loop: LoopState, given: selectors.BaseSelector | None = None) -> None:
        # Past __setattr__, which takes three thousand instructions.
        vars(self).update(_loop=loop, _given=given)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "select" and self._loop is not None:
            # The running loop calls it from the next iteration on. Virtual clocks are put on a loop that runs.
            self._loop._leave_native_run()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watches a descriptor. The data are what asyncio has there: a handle for each direction, or None."""
        if not isinstance(data, tuple) or len(data) != 2:
            raise NotImplementedError("use loop.add_reader() and loop.add_writer()")
        if not events or events & ~(_READ | _WRITE):
            raise ValueError(f"Invalid events: {events!r}")
        if fileobj in self.get_map():
            raise KeyError(f"{fileobj!r} (FD {_number(fileobj)}) is already registered")
        return self._watch(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self.get_key(fileobj)
        self._watch(fileobj, 0, (None, None))
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.get_key(fileobj)
        return self._watch(fileobj, events, data)

    def _watch(self, fileobj: Any, events: int, data: Any) -> selectors.SelectorKey:
        core, loop = _core.EventLoop, self._loop
        if loop is not None:
            fd = _number(fileobj)
            _, *before = loop._watch_of(fd)
            for direction, add, remove, old, new in zip(
                (_READ, _WRITE),
                (core._add_reader, core._add_writer),
                (core._remove_reader, core._remove_writer),
                map(_shown, before),
                data,
            ):
                if not events & direction or new is None:
                    remove(loop, fd)
                elif new is not old:
                    add(loop, fd, _run, new)
        return selectors.SelectorKey(fileobj, _number(fileobj), events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Polls once, and moves all that is due to the loop's own queue.

        The number of returned events says how much that was. The events themselves are handled already.
        """
        loop = self._loop
        if loop is None:
            return []
        if loop._selector is not self and loop._thread_id == threading.get_ident():
            # A selector of the program calls this one. The loop has parked to let that one sleep, and sleeps here.
            loop._unpark()
        return [_DONE] * loop._select(timeout)

    def fileno(self) -> int:
        """A descriptor that is readable when an iteration would find something, for a foreign main loop.

        asyncio's selector has this method if it uses epoll or kqueue.
        """
        descriptor = None if self._loop is None else self._loop._watched_fd()
        if descriptor is None:
            raise ValueError("I/O operation on closed epoll object")
        return descriptor

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _number(fileobj)
        events, *handles = self._loop._watch_of(fd) if self._loop is not None else (0, None, None)
        if not events:
            raise KeyError(f"{fileobj!r} is not registered")
        return selectors.SelectorKey(fileobj, fd, events, tuple(map(_shown, handles)))

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return _Registered(self)

    def close(self) -> None:
        vars(self)["_loop"] = None
        if self._given is not None:
            self._given.close()


def _number(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _run(handle: Any) -> None:
    """Runs a handle that was registered here: the callback of a native one."""
    if not handle._cancelled:
        handle._run()


def _shown(handle: Any) -> Any:
    """The handle that was registered, or the native one."""
    return handle._args[0] if handle is not None and handle._callback is _run else handle


class _Registered(Mapping[Any, selectors.SelectorKey]):
    """The registered descriptors, as ``BaseSelector.get_map`` shows them."""

    def __init__(self, selector: SelectorFacade) -> None:
        self._selector = selector

    def _fds(self) -> list[int]:
        loop = self._selector._loop
        return [] if loop is None else loop._watched()

    def __getitem__(self, fileobj: Any) -> selectors.SelectorKey:
        return self._selector.get_key(fileobj)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._fds())

    def __len__(self) -> int:
        return len(self._fds())
