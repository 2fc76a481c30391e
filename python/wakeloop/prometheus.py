"""A collector for prometheus_client, which has to be installed: `pip install wakeloop[prometheus]`.

    prometheus_client.REGISTRY.register(wakeloop.prometheus.Collector())

It has the metrics of `wakeloop.metrics_text()`, beside those that the program has of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from ._extras import needed

with needed(__name__, "prometheus-client", "wakeloop[prometheus]"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector as _Base

from ._observe.exposition import Family, coarse, families
from .metrics import Histogram

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
        return [_metric(family) for family in families()]


def _metric(family: Family) -> Metric:
    names = list(family.samples[0].labels)
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=names)
        for sample in family.samples:
            assert isinstance(sample.value, Histogram)
            buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in coarse(sample.value)]
            histogram.add_metric(list(sample.labels.values()), buckets, sample.value.sum)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric: CounterMetricFamily | GaugeMetricFamily = kind(family.name, family.help, labels=names)
    for sample in family.samples:
        assert not isinstance(sample.value, Histogram)
        metric.add_metric(list(sample.labels.values()), sample.value)
    return metric
