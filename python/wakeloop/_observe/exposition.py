"""The metrics of this process for monitoring systems: those of its open loops, and of the Rust runtime.

Native code writes them (`src/window/exposition.rs`). Here the gauges are counted first, which needs the loops.
"""

from __future__ import annotations

from .. import _core
from .._loop.executor import count_gauges
from . import registry


def count_all() -> None:
    """Bring the gauges of all open loops up to date."""
    for loop in registry.open_loops().values():
        count_gauges(loop)


def metrics_text() -> str:
    """Return the metrics of this process's loops and of the Rust runtime in Prometheus' text format, version 0.0.4.

    Serve it as `text/plain; version=0.0.4; charset=utf-8`. The loops are those that are open; the label `loop` is the
    name of the thread that made the loop, with a number if there are several. Names begin with `wakeloop_eventloop_`
    and `wakeloop_runtime_`. Times are in seconds. The histograms have fewer buckets than `loop.metrics()`: each bound
    is four times the one before, from 131 µs to 34 s. `/metrics` of the window (`wakeloop.admin`) has the same text.

    It takes some ten microseconds per loop, and some nanoseconds more per open transport. Any thread may call it.
    """
    count_all()
    return _core._metrics_text()
