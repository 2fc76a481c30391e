"""The metrics of this process for monitoring systems: those of its open loops, and of the Rust runtime."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from . import _registry
from .metrics import Histogram, Snapshot, runtime_metrics


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
            _add(found, "wakeloop_eventloop_", metrics, {"loop": name})
    runtime = runtime_metrics()
    if runtime is not None:
        _add(found, "wakeloop_runtime_", runtime, {})
        for index, worker in enumerate(runtime.per_worker):
            _add(found, "wakeloop_runtime_worker_", worker, {"worker": str(index)})
    return list(found.values())


def _add(found: dict[str, Family], prefix: str, snapshot: Snapshot, labels: dict[str, str]) -> None:
    for field, metric in snapshot._table.items():
        value = getattr(snapshot, field)
        name = f"{prefix}{field}_seconds" if metric.kind == "histogram" else prefix + field
        if isinstance(value, Mapping):
            samples = [Sample({**labels, "kind": key}, number) for key, number in value.items()]
        else:
            samples = [Sample(labels, value)]
        found.setdefault(name, Family(name, metric.kind, metric.help, [])).samples.extend(samples)


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
