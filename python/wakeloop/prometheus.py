"""A collector for prometheus_client, which has to be installed: `pip install wakeloop[prometheus]`.

    prometheus_client.REGISTRY.register(wakeloop.prometheus.Collector())

It has the metrics of `wakeloop.metrics_text()`, beside those that the program has of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._extras import needed

with needed(__name__, "prometheus-client", "wakeloop[prometheus]"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector as _Base

from . import _core
from ._observe.exposition import count_all

__all__ = ("Collector",)


class Collector(_Base):
    """Gives the metrics of this process's loops and of the Rust runtime to a registry of prometheus_client.

    Any thread may collect.
    """

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment, as families of prometheus_client."""
        count_all()
        return [_metric(*family) for family in _core._metric_families()]


def _metric(name: str, kind: str, text: str, samples: list[tuple[dict[str, str], Any]]) -> Metric:
    names = list(samples[0][0])
    if kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=names)
        for labels, (buckets, total) in samples:
            bounds = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in buckets]
            histogram.add_metric(list(labels.values()), bounds, total)
        return histogram
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = family(name, text, labels=names)
    for labels, value in samples:
        metric.add_metric(list(labels.values()), value)
    return metric
