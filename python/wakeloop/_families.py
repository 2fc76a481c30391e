"""The metrics of this process for monitoring systems: those of its open loops, and of the Rust runtime."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from . import _registry
from .metrics import Histogram, runtime_metrics

#: What each field of `LoopMetrics` is, in one line.
LOOP_HELP = {
    "running": "1 while a thread is in run_forever",
    "running_seconds": "Time inside run_forever",
    "idle_seconds": "Time in which the loop waited for events, timers and other threads",
    "active_seconds": "Time inside run_forever in which the loop had work, waits for the GIL included",
    "turns": "Iterations of the loop",
    "slow_turns": "Turns that took longer than loop.slow_turn_duration",
    "polls": "System calls that ask for events",
    "blocking_polls": "Polls that released the GIL",
    "io_events": "Events of descriptors",
    "callbacks": "Callbacks that were run, task steps included",
    "timers_fired": "Timers that came due",
    "messages": "Messages of the Rust runtime to the loop",
    "connections_accepted": "Connections that listeners of the loop have accepted",
    "accept_errors": "Failed attempts to accept a connection",
    "spins": "Waits that began with a spin",
    "spin_hits": "Spins that found an event",
    "spin_lost_seconds": "Time in spins that found nothing",
    "delay": "How long the work of a turn had been ready when the loop came to it",
    "turn_length": "Lengths of the turns",
    "gil_wait": "Waits for the GIL after polls",
    "ready": "Callbacks that are ready to run",
    "timers": "Timers that wait",
    "transports": "Open transports and listeners",
    "write_buffer_bytes": "Bytes that transports have buffered",
    "paused_writers": "Transports whose protocol has been told to pause writing",
    "paused_readers": "Transports whose protocol has paused reading",
    "executor_jobs": "Jobs in executors that the loop awaits",
    "executor_queued": "Jobs of the default executor that have not begun to run",
    "lookups": "Name lookups that run or wait for a thread",
}
#: What each field of `RuntimeMetrics` and `WorkerMetrics` is.
RUNTIME_HELP = {
    "workers": "Worker threads, including those that were not needed so far",
    "uptime_seconds": "Time since the runtime started",
    "busy_seconds": "Time workers were awake, waits for the GIL included",
    "idle_seconds": "Time workers slept",
    "tasks_spawned": "Tasks that were spawned",
    "tasks_completed": "Tasks that have completed, panicked or were cancelled",
    "tasks_live": "Tasks that are alive",
    "polls": "Polls of tasks by workers",
    "lifo_hits": "Polls that took the task that the task before had woken last",
    "steals": "Batches of tasks that a worker took from another",
    "injected": "Tasks that other threads than workers have spawned or woken",
    "parks": "How often a worker went to sleep",
    "wakeups": "How often a worker woke up",
    "injector_depth": "Tasks from outside the workers that no worker has taken",
    "local_queue_depth": "Tasks in the workers' own queues",
    "queue_depth": "Tasks in the worker's own queue",
    "spins": "Waits of workers that began with a spin",
    "spin_hits": "Spins of workers that found something",
    "spin_lost_seconds": "Time in spins of workers that found nothing",
    "delay": "How long tasks had been ready when a worker polled them",
    "timers_fired": "Sleeps that came due",
    "timers_armed": "Sleeps that wait",
    "sockets": "Sockets of the runtime",
    "blocking_threads": "Threads of the pool for blocking jobs",
    "blocking_idle_threads": "Threads of the pool that wait for a job",
    "blocking_queue_depth": "Blocking jobs that wait for a thread",
    "blocking_jobs": "Blocking jobs that came to a thread",
    "blocking_wait": "How long blocking jobs had waited for a thread",
}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A number or histogram with its labels."""

    labels: Mapping[str, str]
    value: float | Histogram


@dataclasses.dataclass(frozen=True)
class Family:
    """All samples of one name. A counter's name is without `_total`."""

    name: str
    #: `counter`, `gauge` or `histogram`.
    kind: str
    help: str
    samples: list[Sample]


def families() -> list[Family]:
    """Return the metrics of all open loops of this process, and of the runtime if it has started."""
    found: dict[str, Family] = {}
    for name, loop in _registry.open_loops().items():
        metrics = loop.metrics()
        if not metrics.closed:
            values = {**_fields(metrics), "active_seconds": (metrics.active_seconds, False)}
            _add(found, "wakeloop_eventloop_", values, LOOP_HELP, {"loop": name})
    runtime = runtime_metrics()
    if runtime is not None:
        _add(found, "wakeloop_runtime_", _fields(runtime), RUNTIME_HELP, {})
        for index, worker in enumerate(runtime.per_worker):
            _add(found, "wakeloop_runtime_worker_", _fields(worker), RUNTIME_HELP, {"worker": str(index)})
    return list(found.values())


def _fields(metrics: Any) -> dict[str, tuple[Any, bool]]:
    """The values of a snapshot by name, and whether each is a gauge."""
    fields = dataclasses.fields(metrics)
    return {field.name: (getattr(metrics, field.name), "gauge" in field.metadata) for field in fields}


def _add(
    found: dict[str, Family],
    prefix: str,
    values: dict[str, tuple[Any, bool]],
    helps: Mapping[str, str],
    labels: dict[str, str],
) -> None:
    for field, (value, gauge) in values.items():
        if field in ("closed", "last_slow_turns", "per_worker"):
            continue
        name = prefix + field
        if isinstance(value, Histogram):
            kind, name = "histogram", f"{name}_seconds"
        else:
            kind = "gauge" if gauge else "counter"
        if isinstance(value, Mapping):
            samples = [Sample({**labels, "kind": key}, number) for key, number in value.items()]
        else:
            samples = [Sample(labels, value)]
        found.setdefault(name, Family(name, kind, helps[field], [])).samples.extend(samples)


def coarse(histogram: Histogram) -> Iterator[tuple[float, int]]:
    """Yield the buckets for Prometheus: an upper bound in seconds, and how many durations are below it.

    The bounds are each four times the one before, and the last is infinite.
    """
    upto = list(itertools.accumulate(histogram.counts))
    bound = histogram.bounds[0]
    while bound <= histogram.bounds[-2] * 1.000001:
        yield bound, upto[min(bisect.bisect_left(histogram.bounds, bound * 0.999999), len(upto) - 1)]
        bound *= 4
    yield float("inf"), upto[-1]
