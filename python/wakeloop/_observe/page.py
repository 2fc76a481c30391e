"""The shared page of `wakeloop.publish()`: its header, and how another process reads it.

Behind the header is a slot for each loop, which native code writes and reads (`src/event_loop/core/probe/page.rs`). The
header says what is where in a slot. A reader refuses a page that says something else than its own native code. It trusts
nothing else on the page: it takes numbers and short texts from it, and no sizes or positions.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import struct
import time
from typing import Any

from .. import _core
from ..metrics import LoopMetrics, SlowCallback

#: The name of the file, as `/proc/PID/fd` shows it.
FILE = "wakeloop-figures"
_MAGIC = b"WAKELOOP"
_VERSION = 2
#: Magic, version of the header, process, the version of the package, and what is where in a slot.
_HEADER = struct.Struct("=8s2Q32s4040s")
#: The sizes of the page, and of the slot of a loop.
SIZE, SLOT, _cells = _core._page_layout()
_LAYOUT = f"{SIZE} {SLOT} {' '.join(f'{name}:{at}:{kind}' for name, at, kind in _cells)}".encode()


class PageError(Exception):
    """There is no page to read, or it is not one of this version."""


@dataclasses.dataclass(frozen=True)
class PublishedLoop:
    """What the page has of a loop."""

    name: str
    #: It changes when another loop takes the place of this one.
    generation: int
    metrics: LoopMetrics
    #: For how many seconds the loop has not been back at the poll; 0 if it waits there.
    busy_seconds: float
    #: The latest first.
    slow: tuple[SlowCallback, ...]


@dataclasses.dataclass(frozen=True)
class Page:
    """The figures of a process at one moment."""

    #: When it was read: `time.monotonic()`.
    time: float
    #: The version of the target's wakeloop.
    version: str
    loops: tuple[PublishedLoop, ...]


def header(pid: int, version: str) -> bytes:
    """Return the header of a page of this process."""
    return _HEADER.pack(_MAGIC, _VERSION, pid, version.encode(), _LAYOUT)


def find(pid: int) -> int:
    """Open the page of a process, and return the descriptor. Raises PageError if it has none that we may read."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        raise PageError(f"there is no process {pid}, or this system has no /proc") from None
    except OSError as error:
        raise PageError(f"cannot look into process {pid}: {error.strerror}") from None
    own_pids = _pids(pid)
    for name in sorted(names, key=lambda name: (len(name), name)):
        path = f"{folder}/{name}"
        try:
            if not os.readlink(path).startswith(f"/memfd:{FILE}"):
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            # Closed in the meantime, or not for us.
            continue
        head = os.pread(fd, _HEADER.size, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        # A forked child has its parent's descriptor, too.
        if len(head) == _HEADER.size and _HEADER.unpack(head)[2] in own_pids:
            return fd
        os.close(fd)
    raise PageError(f"process {pid} publishes nothing: start it with WAKELOOP_PUBLISH=1, or call wakeloop.publish()")


def _pids(pid: int) -> set[int]:
    """The process's numbers, those in its own namespaces included."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            found = re.search(r"^NSpid:([\s\d]+)$", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return {pid, *(map(int, found[1].split()) if found else ())}


def read(fd: int) -> Page:
    """Read the page. Raises PageError if it is not one of this layout."""
    try:
        data = os.pread(fd, SIZE + 1, 0)
    except OSError as error:
        raise PageError(f"cannot read the page: {error.strerror}") from None
    now = time.monotonic_ns()
    if len(data) != SIZE:
        raise PageError("the page has a wrong size: the process has another version of wakeloop")
    magic, number, _, version, layout = _HEADER.unpack_from(data)
    if (magic, number, layout.rstrip(b"\0")) != (_MAGIC, _VERSION, _LAYOUT):
        raise PageError("the page has another layout: the process has another version of wakeloop")
    slots = _core._read_slots(data[_HEADER.size :], now)
    return Page(now / 1e9, _text(version), tuple(_loop(now, *slot) for slot in slots))


def _loop(
    now: int,
    name: bytes,
    generation: int,
    running: bool,
    busy: int,
    figures: dict[str, Any],
    slow: list[tuple[int, int, bytes]],
) -> PublishedLoop:
    added = {"closed": False, "running": running, "executor_queued": 0}
    callbacks = [SlowCallback(_text(name), took / 1e9, max(0, now - ended) / 1e9) for ended, took, name in slow]
    return PublishedLoop(
        _text(name),
        generation,
        LoopMetrics._from_native(figures | added),
        busy / 1e9,
        tuple(sorted(callbacks, key=lambda each: each.ago)),
    )


def _text(data: bytes) -> str:
    """A text from the page, without control characters: it may go to a terminal."""
    text = data.partition(b"\0")[0].decode(errors="ignore")
    return "".join(char if char.isprintable() else "?" for char in text)
