"""The shared page of `wakeloop.publish()`: its layout, and how another process reads it.

The layout is that of `src/event_loop/core/page.rs`: a header, and a slot for each loop, in 64-bit words of the machine's
byte order. A reader trusts nothing on the page. It takes numbers and short texts from it, and no sizes or positions.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import struct
import time
from typing import Any

from .metrics import Histogram, LoopMetrics, SlowCallback

#: The name of the file, as `/proc/PID/fd` shows it.
FILE = "wakeloop-figures"
_MAGIC = b"WAKELOOP"
_VERSION = 1
#: Magic, version of the layout, process, the three sizes, and the version of the package.
_HEADER = struct.Struct("=8s5Q32s")
_HEADER_SIZE = 4096

_WORD = struct.Struct("=Q").size
_RECORDS, _RECORD_WORDS, _RECORDS_AT, _COUNTERS_AT = 32, 16, 512, 4608
_GAUGES = ("ready", "timers", "write_buffer_bytes", "paused_writers", "paused_readers", "executor_jobs", "lookups")
_TRANSPORTS = ("tcp", "unix", "tls", "datagram", "read_pipe", "write_pipe", "listener")
#: The words of a slot before the records, up to the name.
_FRONT = ("generation", "polling_since", "busy_since", "counted_at", "counting", *_GAUGES, *_TRANSPORTS, "recorded")
_NAME_WORDS, _RECORD_NAME_WORDS = 8, 13
#: The words of `Counters` in `src/event_loop/core/metrics.rs`, up to the histograms.
_COUNTERS = (
    "turns",
    "stepped_turns",
    "slow_turns",
    "polls",
    "blocking_polls",
    "io_events",
    "callbacks",
    "timers_fired",
    "messages",
    "connections_accepted",
    "accept_errors",
    "spins",
    "spin_hits",
    "spin_lost",
    "idle",
    "running",
    "started",
)
_HISTOGRAMS = ("delay", "turn_length", "gil_wait")
_BUCKETS = len(Histogram.bounds)
#: Of a histogram: the sum, what a reset has forgotten, and the buckets with a maximum.
_HISTOGRAM_WORDS = 3 + _BUCKETS + 1
#: From 131 µs on: what is shorter is not counted.
_LOWEST = int(Histogram.bounds[0] * 1e9)


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


def header(pid: int, sizes: tuple[int, int, int], version: str) -> bytes:
    """Return the header of a page of this process."""
    return _HEADER.pack(_MAGIC, _VERSION, pid, *sizes, version.encode())


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


def read(fd: int, sizes: tuple[int, int, int]) -> Page:
    """Read the page. Raises PageError if it is not one of this layout.

    `sizes` are those of `_core._page_sizes()`.
    """
    size, slot_size, _ = sizes
    try:
        data = os.pread(fd, size + 1, 0)
    except OSError as error:
        raise PageError(f"cannot read the page: {error.strerror}") from None
    now = time.monotonic_ns()
    if len(data) != size:
        raise PageError("the page has a wrong size: the process has another version of wakeloop")
    magic, layout, _, *found, version = _HEADER.unpack_from(data)
    if (magic, layout, tuple(found)) != (_MAGIC, _VERSION, sizes):
        raise PageError("the page has another layout: the process has another version of wakeloop")
    slots = (data[start : start + slot_size] for start in range(_HEADER_SIZE, size, slot_size))
    loops = tuple(loop for slot in slots if (loop := _loop(slot, now)) is not None)
    return Page(now / 1e9, _text(version), loops)


def _loop(slot: bytes, now: int) -> PublishedLoop | None:
    front = dict(zip(_FRONT, struct.unpack_from(f"={len(_FRONT)}Q", slot), strict=True))
    if front["generation"] % 2 == 0:
        return None
    waiting = max(0, now - front["polling_since"]) if front["polling_since"] else 0
    metrics, started = _metrics(slot, front, now, waiting)
    busy = now - max(front["busy_since"], started) if started and not front["polling_since"] else 0
    name_at = len(_FRONT) * _WORD
    return PublishedLoop(
        _text(slot[name_at : name_at + _NAME_WORDS * _WORD]),
        front["generation"],
        metrics,
        max(0, busy) / 1e9,
        _slow(slot, now),
    )


def _metrics(slot: bytes, front: dict[str, int], now: int, waiting: int) -> tuple[LoopMetrics, int]:
    """The counters as a snapshot, and when the loop began to run. The calculation is that of `metrics.rs`."""
    numbers = struct.unpack_from(f"={len(_COUNTERS) + len(_HISTOGRAMS) * _HISTOGRAM_WORDS}Q", slot, _COUNTERS_AT)
    counters = dict(zip(_COUNTERS, numbers, strict=False))
    started, stepped = counters.pop("started"), counters.pop("stepped_turns")
    lost = counters.pop("spin_lost")
    running = counters.pop("running") + (max(0, now - started) if started else 0)
    idle = min(counters.pop("idle") + waiting, running)
    ended = max(0, counters["turns"] - stepped - (1 if started else 0))
    values: dict[str, Any] = {name: front[name] for name in _GAUGES} | counters
    for index, name in enumerate(_HISTOGRAMS):
        at = len(_COUNTERS) + index * _HISTOGRAM_WORDS
        total, forgotten, forgotten_sum, *counts = numbers[at : at + _HISTOGRAM_WORDS - 1]
        longest = numbers[at + _HISTOGRAM_WORDS - 1]
        count = counters["blocking_polls"] if name == "gil_wait" else ended
        nanos = running - idle if name == "turn_length" else total
        counts[0] += max(0, count - forgotten - sum(counts))
        if counts[0] and not longest:
            longest = _LOWEST
        values[name] = Histogram(tuple(counts), max(0, nanos - forgotten_sum) / 1e9, longest / 1e9)
    metrics = LoopMetrics(
        closed=False,
        running=bool(started),
        running_seconds=running / 1e9,
        idle_seconds=idle / 1e9,
        spin_lost_seconds=lost / 1e9,
        transports={kind: front[kind] for kind in _TRANSPORTS},
        executor_queued=0,
        **values,
    )
    return metrics, started


def _slow(slot: bytes, now: int) -> tuple[SlowCallback, ...]:
    found = []
    for index in range(_RECORDS):
        start = _RECORDS_AT + index * _RECORD_WORDS * _WORD
        version, at, nanos = struct.unpack_from("=3Q", slot, start)
        # An odd version is one that was being written.
        if version and version % 2 == 0:
            name_at = start + 3 * _WORD
            name = _text(slot[name_at : name_at + _RECORD_NAME_WORDS * _WORD])
            found.append(SlowCallback(name, nanos / 1e9, max(0, now - at) / 1e9))
    return tuple(sorted(found, key=lambda each: each.ago))


def _text(data: bytes) -> str:
    """A text from the page, without control characters: it may go to a terminal."""
    text = data.partition(b"\0")[0].decode(errors="ignore")
    return "".join(char if char.isprintable() else "?" for char in text)
