"""`wakeloop.metrics_text()`: Prometheus' text format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ._families import Family, coarse, families
from .metrics import Histogram


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
