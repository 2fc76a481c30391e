"""The metrics of this process for monitoring systems: those of its open loops, and of the Rust runtime."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from . import _core, _registry
from .metrics import Histogram

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
#: Figures of the runtime that may fall, where it gives them as a dict.
RUNTIME_GAUGES = {"workers", "blocking_threads", "tasks_live", "timers_armed", "sockets"}


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
    runtime = _core.runtime_metrics()
    if runtime is not None:
        _add(found, "wakeloop_runtime_", _fields(runtime), {}, {})
    return list(found.values())


def _fields(metrics: Any) -> dict[str, tuple[Any, bool]]:
    """The values of a snapshot by name, and whether each is a gauge."""
    if isinstance(metrics, dict):
        return {name: (value, name in RUNTIME_GAUGES) for name, value in metrics.items()}
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
        if field == "closed":
            continue
        name = prefix + field
        if isinstance(value, Histogram):
            kind, name = "histogram", f"{name}_seconds"
        else:
            kind = "gauge" if gauge else "counter"
        if isinstance(value, Mapping):
            samples = [Sample({**labels, "kind": key}, number) for key, number in value.items()]
        elif isinstance(value, Histogram | int | float):
            samples = [Sample(labels, value)]
        else:
            samples = [Sample({**labels, "worker": str(index)}, number) for index, number in enumerate(value)]
        text = helps.get(field, field.replace("_", " ").capitalize())
        found.setdefault(name, Family(name, kind, text, [])).samples.extend(samples)


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
