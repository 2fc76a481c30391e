"""Snapshots of what a loop and the runtime have done: `loop.metrics()` and `wakeloop.runtime_metrics()`.

A snapshot does not change. The difference of two (`later - earlier`) is what happened between them.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from ._core import _histogram_bounds, _metric_tables, _runtime_metrics

__all__ = ("Histogram", "LoopMetrics", "RuntimeMetrics", "SlowCallback", "WorkerMetrics", "runtime_metrics")


@dataclasses.dataclass(frozen=True)
class Histogram:
    """How often durations of each length have occurred.

    The buckets are logarithmic: four for each doubling, from 131 µs to 69 s. All durations are in seconds.
    """

    #: The upper bounds of the buckets in seconds, each exclusive. The last one is infinite.
    bounds: ClassVar[tuple[float, ...]] = (*(bound / 1e9 for bound in _histogram_bounds()), float("inf"))

    #: How many durations fell into each bucket: as many numbers as `bounds` has.
    counts: tuple[int, ...] = (0,) * len(bounds)
    #: The sum of all durations, in seconds.
    sum: float = 0.0
    #: The longest duration, in seconds. In a difference of two snapshots it is at most the later snapshot's, and
    #: exact only if the earlier one has seen none that is as long.
    max: float = 0.0

    @property
    def count(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean duration in seconds; 0 if there is none."""
        return self.sum / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the duration in seconds that `percent` of all durations do not exceed.

        It is the upper bound of a bucket, or `max` if that is less; 0 if nothing was counted. Raises ValueError if
        `percent` is not between 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise ValueError("percent must be between 0 and 100")
        if not self.count:
            return 0.0
        upto = list(itertools.accumulate(self.counts))
        rank = max(1.0, percent / 100 * upto[-1])
        return min(self.bounds[bisect.bisect_left(upto, rank)], self.max)

    def __sub__(self, earlier: Histogram) -> Histogram:
        if not isinstance(earlier, Histogram):
            return NotImplemented
        # A histogram that was reset in between has smaller numbers than before.
        counts = tuple(max(0, now - before) for now, before in zip(self.counts, earlier.counts, strict=True))
        longest = self.max
        if longest <= earlier.max:
            # The longest of these durations is not known, but its bucket is.
            filled = [bound for bound, count in zip(self.bounds, counts, strict=True) if count > 0]
            longest = min(filled[-1], longest) if filled else 0.0
        return Histogram(counts, max(0.0, self.sum - earlier.sum), longest)

    @classmethod
    def _from_native(cls, counts: Sequence[int], nanos: int, longest: int) -> Self:
        return cls(tuple(counts), nanos / 1e9, longest / 1e9)


# Here, because dataclasses looks up ClassVar in the module of a class.
Histogram.__module__ = "wakeloop"


@dataclasses.dataclass(frozen=True)
class _Metric:
    """A line of native code's table of metrics."""

    #: `counter`, `gauge` or `histogram`.
    kind: str
    #: One line for monitoring systems.
    help: str


_TABLES = {name: {field: _Metric(*line) for field, *line in table} for name, table in _metric_tables().items()}
_S = TypeVar("_S", bound="Snapshot")


def _gauge() -> Any:
    """A field whose value belongs to the moment, so that a difference has the later one."""
    return dataclasses.field(metadata={"gauge": True})


def _with_table(kind: type[_S]) -> type[_S]:
    """Gives a class of snapshots the native table of its name. The gauges in it become those of the class."""
    table = _TABLES[kind.__name__]
    # In the order of the class, and then what is no field of it.
    kind._table = {name: table[name] for name in (*kind.__annotations__, *table) if name in table}
    for name, metric in table.items():
        if metric.kind == "gauge":
            setattr(kind, name, _gauge())
    return kind


def _difference(later: Any, earlier: Any) -> Any:
    if isinstance(later, tuple):
        return tuple(_difference(*pair) for pair in zip(later, earlier, strict=True))
    return later - earlier


class Snapshot:
    """The base class of the snapshots: dataclasses of numbers and histograms."""

    #: The metrics that monitoring systems get, by the names of the attributes.
    _table: ClassVar[dict[str, _Metric]]

    @classmethod
    def _from_native(cls, values: dict[str, Any]) -> Self:
        for name, metric in cls._table.items():
            if metric.kind == "histogram":
                values[name] = Histogram._from_native(*values[name])
        return cls(**values)

    def __sub__(self, earlier: Self) -> Self:
        """What happened between two snapshots: counters and histograms are subtracted, gauges are the later ones."""
        if type(earlier) is not type(self):
            return NotImplemented
        changes = {
            field.name: _difference(getattr(self, field.name), getattr(earlier, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if "gauge" not in field.metadata
        }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True)
class SlowCallback:
    """A task or callback that took long: an item of `LoopMetrics.last_slow_turns`. Times are in seconds."""

    __module__ = "wakeloop"

    #: The names of the task and of its coroutine, of the callback's function, or of the protocol and its transport.
    name: str
    #: How long it took, and how long ago it ended.
    seconds: float
    ago: float


@dataclasses.dataclass(frozen=True, kw_only=True)
@_with_table
class LoopMetrics(Snapshot):
    """What an event loop has done, and what it has to do: the result of `loop.metrics()`.

    Counters begin at zero when the loop is created; `later - earlier` gives those of the time between two snapshots.
    Fields marked as *now* are values of the moment, and stay as they are in a difference. Times are in seconds.
    """

    __module__ = "wakeloop"

    #: *Now*: the loop is closed.
    closed: bool = _gauge()
    #: *Now*: a thread is in `run_forever`.
    running: bool

    #: Time inside `run_forever`.
    running_seconds: float
    #: Of this, the time in which the loop waited for events, timers and other threads.
    idle_seconds: float
    #: Turns: iterations of the loop.
    turns: int
    #: Turns that took longer than `loop.slow_turn_duration`.
    slow_turns: int
    #: *Now*: the last of these, the latest first; at most 16.
    last_slow_turns: tuple[SlowCallback, ...] = dataclasses.field(default=(), metadata={"gauge": True})
    #: System calls that ask for events; `blocking_polls` of them released the GIL.
    polls: int
    blocking_polls: int
    #: Events of descriptors.
    io_events: int
    #: Callbacks, task steps included.
    callbacks: int
    #: Timers that came due.
    timers_fired: int
    #: Messages of the Rust runtime to the loop.
    messages: int
    #: Connections that listeners of the loop have accepted.
    connections_accepted: int
    #: Failed attempts to accept a connection, for example because the process has no descriptors left (EMFILE).
    accept_errors: int
    #: Waits that began with a spin: polls in close succession before the loop goes to sleep. `spin_hits` of them found
    #: an event.
    spins: int
    spin_hits: int
    #: The time of the others, as part of `idle_seconds`.
    spin_lost_seconds: float
    #: Times that a task or callback ran again and again while the loop waited for nothing else, for a second or more.
    #: `/slow` of the window names the last one.
    busy_waits: int

    #: How long the work of a turn had been ready when the loop came to it. There is one duration for each turn, that of
    #: its oldest work, and another one for its last callback or event, if that has waited longer.
    delay: Histogram
    #: The lengths of the turns, from the end of the poll to the next poll.
    turn_length: Histogram
    #: How long the loop waited for the GIL after polls that released it.
    gil_wait: Histogram

    #: *Now*: callbacks that are ready to run.
    ready: int
    #: *Now*: timers that wait.
    timers: int
    #: *Now*: open transports and listeners of the loop, by kind: `tcp`, `unix`, `tls`, `datagram`, `read_pipe`,
    #: `write_pipe` and `listener`.
    transports: Mapping[str, int]
    #: *Now*: bytes that transports have buffered because their sockets do not take them yet.
    write_buffer_bytes: int
    #: *Now*: transports whose protocol has been told to pause writing.
    paused_writers: int
    #: *Now*: transports that do not read, because their protocol has paused them.
    paused_readers: int
    #: *Now*: jobs of `run_in_executor` and `spawn_blocking` that the loop awaits; `executor_queued` of them have not begun
    #: to run on the default executor.
    executor_jobs: int
    executor_queued: int
    #: *Now*: name lookups that run or wait for a thread.
    lookups: int

    @property
    def active_seconds(self) -> float:
        """Time inside `run_forever` in which the loop had work, waits for the GIL included."""
        return max(0.0, self.running_seconds - self.idle_seconds)

    @property
    def utilization(self) -> float:
        """The share of the running time in which the loop had work: 0 to 1."""
        return self.active_seconds / self.running_seconds if self.running_seconds else 0.0


class _Times(Snapshot):
    busy_seconds: float
    idle_seconds: float

    @property
    def utilization(self) -> float:
        """The share of the time in which the workers were awake: 0 to 1."""
        total = self.busy_seconds + self.idle_seconds
        return self.busy_seconds / total if total else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
@_with_table
class WorkerMetrics(_Times):
    """What one worker of the Rust runtime has done: an item of `RuntimeMetrics.per_worker`.

    All is zero for a worker that was not needed so far. Times are in seconds. Fields marked as *now* are values of the
    moment, and stay as they are in a difference.
    """

    __module__ = "wakeloop"

    #: Time the worker was awake, waits for the GIL included.
    busy_seconds: float
    #: Time the worker slept.
    idle_seconds: float
    #: How often the worker polled a task.
    polls: int
    #: Of these, how many took the task that the task before had woken last, without a queue.
    lifo_hits: int
    #: Batches of tasks that the worker took from another worker's queue.
    steals: int
    #: How often the worker went to sleep, and how often it woke up.
    parks: int
    wakeups: int
    #: How long tasks that the worker polled had been ready. See `RuntimeMetrics.delay`.
    delay: Histogram

    #: *Now*: tasks in the worker's own queue.
    queue_depth: int


@dataclasses.dataclass(frozen=True, kw_only=True)
@_with_table
class RuntimeMetrics(_Times):
    """What the Rust runtime has done, and what it has to do: the result of `wakeloop.runtime_metrics()`.

    Counters begin at zero when the runtime starts; `later - earlier` gives those of the time between two snapshots.
    Fields marked as *now* are values of the moment, and stay as they are in a difference. Times are in seconds.
    """

    __module__ = "wakeloop"

    #: *Now*: worker threads, including those that were not needed so far.
    workers: int
    #: Each worker's part.
    per_worker: tuple[WorkerMetrics, ...]

    #: Time since the runtime started.
    uptime_seconds: float
    #: Time the workers were awake, added up, waits for the GIL included.
    busy_seconds: float
    #: Time the workers slept, added up.
    idle_seconds: float

    #: Tasks of the runtime. Each operation that is not done at once is a task; jobs of `spawn_blocking` are none.
    tasks_spawned: int
    #: Of these, how many have completed, panicked or were cancelled.
    tasks_completed: int
    #: *Now*: tasks that are alive.
    tasks_live: int
    #: How often a task was polled by a worker.
    polls: int
    #: Of these, how many took the task that the task before had woken last, without a queue.
    lifo_hits: int
    #: Batches of tasks that one worker took from another's queue.
    steals: int
    #: Tasks that came from outside the workers: spawned or woken by other threads.
    injected: int
    #: How often a worker went to sleep, and how often one woke up.
    parks: int
    wakeups: int
    #: *Now*: tasks from outside the workers that no worker has taken.
    injector_depth: int
    #: *Now*: tasks in the workers' own queues.
    local_queue_depth: int

    #: How long tasks had been ready when a worker polled them: the time from the wake, or from the spawn, to the poll.
    #: It is measured for a sample of the wakes: for each, if a thread wakes rarely, and for one in 240 on average, if
    #: it wakes often. A sample counts as often as there are wakes for which it stands, so `delay.count` approaches the
    #: number of all wakes. A socket or a timer wakes its task when a worker looks for events. The time before that is
    #: not included.
    delay: Histogram

    #: Waits for sockets and sleeps that began with a spin: polls in close succession before the worker went to sleep.
    #: `spin_hits` of them found something.
    spins: int
    spin_hits: int
    #: The time of the others, as part of `idle_seconds`.
    spin_lost_seconds: float

    #: Sleeps that came due.
    timers_fired: int
    #: *Now*: sleeps that wait.
    timers_armed: int
    #: *Now*: sockets of the runtime.
    sockets: int

    #: *Now*: threads of the pool for `spawn_blocking`; `blocking_idle_threads` of them wait for a job.
    blocking_threads: int
    blocking_idle_threads: int
    #: *Now*: jobs that wait for a thread.
    blocking_queue_depth: int
    #: Jobs that came to a thread, those included that were cancelled while they waited.
    blocking_jobs: int
    #: How long they had waited for it. Every job is counted.
    blocking_wait: Histogram

    @classmethod
    def _from_native(cls, values: dict[str, Any]) -> Self:
        values["per_worker"] = tuple(map(WorkerMetrics._from_native, values["per_worker"]))
        return super()._from_native(values)


def runtime_metrics() -> RuntimeMetrics | None:
    """Return what the Rust runtime has done so far, and what it has to do now. None if it has not started yet.

    The runtime starts with its first use, and again in a forked child. Any thread may call this. It takes some ten
    microseconds per worker. Two snapshots subtract, if they are of runtimes with as many workers; else ValueError is
    raised.
    """
    values = _runtime_metrics()
    return RuntimeMetrics._from_native(values) if values is not None else None
