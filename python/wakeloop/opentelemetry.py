"""OpenTelemetry instruments, for which its API has to be installed: `pip install wakeloop[opentelemetry]`.

    wakeloop.opentelemetry.instrument()

The names follow the semantic conventions for Node.js, the only ones that exist for event loops, with `asyncio` in the
place of `nodejs`: OpenTelemetry's instrumentation of asyncio has that prefix already, and the figures are those of
asyncio's event loop, not of the interpreter (`cpython`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ._extras import needed

with needed(__name__, "opentelemetry-api", "wakeloop[opentelemetry]"):
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from . import _core
from ._observe import registry
from .metrics import LoopMetrics

__all__ = ("instrument",)

#: Name, unit, description, and the figure of what happened since the last collection.
_WINDOWED: list[tuple[str, str, str, Callable[[LoopMetrics], float]]] = [
    ("utilization", "1", "Share of the time in which the event loop had work.", lambda m: m.utilization),
    ("delay.max", "s", "Event loop maximum delay.", lambda m: m.delay.max),
    ("delay.mean", "s", "Event loop mean delay.", lambda m: m.delay.mean),
    ("delay.p50", "s", "Event loop 50 percentile delay.", lambda m: m.delay.percentile(50)),
    ("delay.p90", "s", "Event loop 90 percentile delay.", lambda m: m.delay.percentile(90)),
    ("delay.p99", "s", "Event loop 99 percentile delay.", lambda m: m.delay.percentile(99)),
    ("gil_wait.max", "s", "Maximum wait for the GIL after a poll.", lambda m: m.gil_wait.max),
    ("gil_wait.p99", "s", "99 percentile of the waits for the GIL after a poll.", lambda m: m.gil_wait.percentile(99)),
]


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Make instruments of all loops of this process, those made later included: `asyncio.eventloop.*`.

    Without a provider, the global one is used. The attribute `asyncio.eventloop.name` tells the loops apart. Delays,
    waits and the utilisation are those since the last collection. Call it once for each provider; any thread may
    collect.
    """
    meter = get_meter("wakeloop", _core.__version__, meter_provider)
    for name, unit, description, figure in _WINDOWED:
        observe = _Window(figure)
        meter.create_observable_gauge(f"asyncio.eventloop.{name}", [observe], unit, description)
    meter.create_observable_counter(
        "asyncio.eventloop.time", [_time], "s", "Cumulative duration of time the event loop has been in each state."
    )
    for name, unit, description, field in (
        ("ready", "{callback}", "Callbacks that are ready to run.", "ready"),
        ("timers", "{timer}", "Timers that wait.", "timers"),
    ):
        meter.create_observable_up_down_counter(f"asyncio.eventloop.{name}", [_field(field)], unit, description)
    meter.create_observable_up_down_counter(
        "asyncio.eventloop.transports", [_transports], "{transport}", "Open transports and listeners."
    )


def _snapshots() -> dict[str, LoopMetrics]:
    return {name: loop.metrics() for name, loop in registry.open_loops().items()}


def _attributes(name: str, **others: str) -> dict[str, str]:
    # An exporter cannot encode half surrogates.
    attributes = {"name": name.encode(errors="replace").decode(), **others}
    return {f"asyncio.eventloop.{key}": value for key, value in attributes.items()}


class _Window:
    """Observes what happened since the last observation."""

    def __init__(self, figure: Callable[[LoopMetrics], float]) -> None:
        self._figure = figure
        self._before: dict[str, LoopMetrics] = {}

    def __call__(self, _options: CallbackOptions) -> Iterable[Observation]:
        before, self._before = self._before, _snapshots()
        observations = []
        for name, now in self._before.items():
            earlier = before.get(name)
            # Another loop of the same name has begun at zero.
            same = earlier is not None and earlier.turns <= now.turns
            window = now - earlier if same and earlier is not None else now
            observations.append(Observation(self._figure(window), _attributes(name)))
        return observations


def _time(_options: CallbackOptions) -> Iterable[Observation]:
    for name, metrics in _snapshots().items():
        yield Observation(metrics.active_seconds, _attributes(name, state="active"))
        yield Observation(metrics.idle_seconds, _attributes(name, state="idle"))


def _field(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(getattr(metrics, field), _attributes(name)) for name, metrics in _snapshots().items()]

    return observe


def _transports(_options: CallbackOptions) -> Iterable[Observation]:
    for name, metrics in _snapshots().items():
        for kind, count in metrics.transports.items():
            yield Observation(count, _attributes(name, kind=kind))
