"""The metrics of this process for monitoring systems: those of its open loops, and of the Rust runtime.

`wakeloop.metrics_text()` writes them in Prometheus' text format.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from ..metrics import Histogram, Snapshot, runtime_metrics
from . import registry


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
    for name, loop in registry.open_loops().items():
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


def metrics_text() -> str:
    """Return the metrics of this process's loops and of the Rust runtime in Prometheus' text format, version 0.0.4.

    Serve it as `text/plain; version=0.0.4; charset=utf-8`. The loops are those that are open; the label `loop` is the
    name of the thread that made the loop, with a number if there are several. Names begin with `wakeloop_eventloop_`
    and `wakeloop_runtime_`. Times are in seconds. The histograms have fewer buckets than `loop.metrics()`: each bound
    is four times the one before, from 131 µs to 34 s.

    It takes some ten microseconds per loop, and some nanoseconds more per open transport. Any thread may call it.
    """
    return "".join(f"{line}\n" for family in families() for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    yield f"# HELP {name} {_escape(family.help)}"
    yield f"# TYPE {name} {family.kind}"
    for sample in family.samples:
        value, labels = sample.value, sample.labels
        if isinstance(value, Histogram):
            count = 0
            for bound, count in coarse(value):
                yield f"{name}_bucket{_labels({**labels, 'le': _number(bound)})} {count}"
            yield f"{name}_sum{_labels(labels)} {_number(value.sum)}"
            yield f"{name}_count{_labels(labels)} {count}"
        else:
            yield f"{name}{_labels(labels)} {_number(value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def _quoted(text: str) -> str:
    return _escape(text).replace('"', '\\"')


def _escape(text: str) -> str:
    """Escapes a text as the format says. Half surrogates, which UTF-8 does not have, are replaced."""
    text = text.encode(errors="replace").decode()
    # A reader that splits at other line breaks than \n must not be confused either.
    text = "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if isinstance(value, int) else repr(value)
