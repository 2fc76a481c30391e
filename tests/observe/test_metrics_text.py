"""wakeloop.metrics_text() and what stands beside it: prometheus_client's collector, OpenTelemetry's instruments."""

import _thread
import asyncio
import concurrent.futures
import dataclasses
import gc
import importlib
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import weakref

import pytest

import wakeloop
from tests.support.script import run_script
from wakeloop import LoopMetrics
from wakeloop._observe.registry import _loops, open_loops

pytestmark = pytest.mark.native

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
HISTOGRAMS = {"delay", "turn_length", "gil_wait"}


def parse(text):
    """Parses the text by prometheus_client, and returns its families by name."""
    parser = pytest.importorskip("prometheus_client.parser")
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def value(families, name, **labels):
    """The value of a sample."""
    [found] = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return found


def test_the_text_has_every_field_of_a_snapshot(run):
    async def main():
        await asyncio.sleep(0.001)
        return wakeloop.metrics_text()

    text = run(main())
    families = parse(text)
    names = {name.removeprefix("wakeloop_eventloop_").removesuffix("_seconds") for name in families}
    fields = {field.name.removesuffix("_seconds") for field in dataclasses.fields(LoopMetrics)}
    assert fields - names == {"closed", "last_slow_turns"}
    loop = {"loop": "MainThread"}
    assert value(families, "wakeloop_eventloop_running", **loop) == 1
    assert value(families, "wakeloop_eventloop_turns_total", **loop) >= 1
    assert value(families, "wakeloop_eventloop_transports", kind="tcp", **loop) == 0
    assert families["wakeloop_eventloop_delay_seconds"].type == "histogram"


def test_closed_loops_are_left_out():
    asyncio.new_event_loop().close()
    assert open_loops() == {}
    assert "wakeloop_eventloop_" not in wakeloop.metrics_text()


def test_loops_of_all_threads_have_a_name_each():
    loops = [wakeloop.new_event_loop() for _ in range(2)]
    thread = threading.Thread(target=lambda: loops.append(wakeloop.new_event_loop()), name="other")
    thread.start()
    thread.join()
    try:
        assert list(open_loops()) == ["MainThread", "MainThread-2", "other"]
        found = re.findall(r'^wakeloop_eventloop_turns_total{loop="(.*)"} 0$', wakeloop.metrics_text(), re.MULTILINE)
        assert found == ["MainThread", "MainThread-2", "other"]
    finally:
        for loop in loops:
            loop.close()


def test_a_loop_of_a_thread_that_python_has_not_started_adds_no_thread_object():
    loops, threads = [], threading.enumerate()
    _thread.start_new_thread(lambda: loops.append((wakeloop.new_event_loop(), threading.enumerate())), ())
    while not loops:
        time.sleep(0.001)
    [(loop, seen)] = loops
    try:
        assert seen == threads and list(open_loops()) == ["thread"]
    finally:
        loop.close()


def test_a_forked_child_leaves_out_its_parents_loop_until_it_runs_it():
    script = """
        import os, wakeloop
        loop = new_loop()
        if (child := os.fork()) == 0:
            code = 1
            try:
                assert wakeloop.metrics_text() == ""
                loop.run_until_complete(asyncio.sleep(0))
                assert 'loop="MainThread"' in wakeloop.metrics_text()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        loop.close()
    """
    outcome = run_script("wakeloop", script)
    assert outcome.code == 0, outcome


def test_the_list_of_loops_keeps_none_alive():
    loop = wakeloop.new_event_loop()
    reference, before = weakref.ref(loop), len(_loops)
    loop.close()
    del loop
    gc.collect()
    assert reference() is None and len(_loops) == before - 1


@pytest.mark.parametrize(
    "name",
    [
        *('quo"te', "back\\slash", "line\nbreak", "carriage\rreturn", "\x1b[31mred", "half \udc80", "ünï✓"),
        *("\u2028", "a,b}", "\0nul", ""),
    ],
)
def test_no_name_of_a_thread_can_break_the_text(name):
    loops = []
    thread = threading.Thread(target=lambda: loops.append(wakeloop.new_event_loop()), name=name or " ")
    thread.start()
    thread.join()
    try:
        text = wakeloop.metrics_text()
        text.encode()
        for line in text.splitlines():
            assert re.fullmatch(r'# (HELP|TYPE) \w+ .*|\w+(\{(\w+="([^"\\]|\\.)*",?)*\})? [-+.\w]+', line), line
        [label] = {sample.labels["loop"] for sample in parse(text)["wakeloop_eventloop_turns"].samples}
        if name.isprintable() and name or name == "line\nbreak":
            assert label == name
    finally:
        loops[0].close()


def test_threads_whose_names_differ_in_what_cannot_be_printed_have_a_series_each():
    loops = []
    for name in ("a\x01", "a\x02", "a\u200b", "\0", "\0"):
        thread = threading.Thread(target=lambda: loops.append(wakeloop.new_event_loop()), name=name)
        thread.start()
        thread.join()
    try:
        samples = parse(wakeloop.metrics_text())["wakeloop_eventloop_turns"].samples
        labels = [sample.labels["loop"] for sample in samples]
        assert len(set(labels)) == len(labels) == 5
    finally:
        for loop in loops:
            loop.close()


def test_the_runtime_is_in_the_text_when_it_has_started(run, runtime):
    async def main():
        await wakeloop.spawn_blocking(int)
        return wakeloop.metrics_text()

    families = parse(run(main()))
    runtime = {name: family for name, family in families.items() if name.startswith("wakeloop_runtime_")}
    assert runtime["wakeloop_runtime_workers"].type == "gauge"
    assert runtime["wakeloop_runtime_polls"].type == "counter"
    assert runtime["wakeloop_runtime_blocking_wait_seconds"].type == "histogram"
    assert value(families, "wakeloop_runtime_blocking_wait_seconds_count") >= 1
    workers = range(int(value(families, "wakeloop_runtime_workers")))
    parks = [value(families, "wakeloop_runtime_worker_parks_total", worker=str(index)) for index in workers]
    assert sum(parks) == value(families, "wakeloop_runtime_parks_total")


def test_another_thread_reads_the_text_while_the_loop_is_blocked(run):
    texts = []

    async def main():
        thread = threading.Thread(target=lambda: texts.append(wakeloop.metrics_text()))
        thread.start()
        while not texts:
            time.sleep(0.001)
        thread.join()

    run(main())
    assert value(parse(texts[0]), "wakeloop_eventloop_running", loop="MainThread") == 1


def test_the_collector_gives_prometheus_client_the_same_metrics(run):
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    registry.register(importlib.import_module("wakeloop.prometheus").Collector())

    async def main():
        await asyncio.sleep(0.001)
        return wakeloop.metrics_text(), client.generate_latest(registry).decode()

    ours, theirs = map(parse, run(main()))
    assert {name: family.type for name, family in ours.items()} == {name: family.type for name, family in theirs.items()}
    for name, family in ours.items():
        labels, others = (
            sorted((sample.name, sorted(sample.labels.items())) for sample in each.samples)
            for each in (family, theirs[name])
        )
        assert labels == others, name


def test_the_collector_counts_the_gauges_of_the_moment(run):
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    registry.register(importlib.import_module("wakeloop.prometheus").Collector())

    async def main():
        loop, release = asyncio.get_running_loop(), threading.Event()

        def gauges():
            names = ("timers", "executor_queued")
            return [registry.get_sample_value(f"wakeloop_eventloop_{name}", {"loop": "MainThread"}) for name in names]

        before = gauges()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        timers = [loop.call_later(1000, print) for _ in range(3)]
        jobs = [loop.run_in_executor(None, release.wait) for _ in range(3)]
        try:
            # The thread of the executor has taken one of them, or has not begun.
            timers_now, jobs_now = gauges()
            assert (timers_now, jobs_now in (2, 3)) == (before[0] + 3, True)
        finally:
            release.set()
        await asyncio.gather(*jobs)
        for timer in timers:
            timer.cancel()
        assert gauges() == before

    run(main())


def test_opentelemetry_instruments_have_the_names_of_the_conventions(run):
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    importlib.import_module("wakeloop.opentelemetry").instrument(provider)

    def collect():
        [resource] = reader.get_metrics_data().resource_metrics
        return {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}

    def number(metric, **attributes):
        wanted = {f"asyncio.eventloop.{name}": text for name, text in attributes.items()}
        [point] = [point for point in metric.data.data_points if point.attributes == wanted]
        return point.value

    async def main():
        collect()
        time.sleep(0.2)
        await asyncio.sleep(0)
        return collect(), asyncio.get_running_loop().metrics()

    metrics, snapshot = run(main())
    provider.shutdown()
    for name in ("max", "mean", "p50", "p90", "p99"):
        metric = metrics[f"asyncio.eventloop.delay.{name}"]
        assert (metric.unit, len(metric.data.data_points)) == ("s", 1)
    name = "MainThread"
    # Nothing but the blocking call has happened since the last collection.
    assert 0.9 < number(metrics["asyncio.eventloop.utilization"], name=name) <= 1
    times = metrics["asyncio.eventloop.time"]
    assert (times.unit, times.data.is_monotonic) == ("s", True)
    assert 0.2 <= number(times, name=name, state="active") <= snapshot.active_seconds
    assert number(metrics["asyncio.eventloop.transports"], name=name, kind="tcp") == 0


def test_opentelemetry_begins_anew_with_another_loop_of_the_same_name():
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    importlib.import_module("wakeloop.opentelemetry").instrument(provider)

    def collect():
        [resource] = reader.get_metrics_data().resource_metrics
        metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        [delay] = metrics["asyncio.eventloop.delay.mean"].data.data_points
        return delay.value

    async def main(turns, blocked):
        for _ in range(turns):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(lambda: None)
        time.sleep(blocked)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return collect()

    wakeloop.run(main(turns=1000, blocked=0.2))
    # One callback of a few has waited so long. The time of the earlier loop is not taken off.
    assert wakeloop.run(main(turns=1, blocked=0.05)) > 0
    provider.shutdown()


def test_the_package_imports_none_of_the_optional_packages():
    code = "import sys, wakeloop, wakeloop.__main__; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not {b"rich", b"prometheus_client", b"opentelemetry"} & set(re.findall(rb"\w+", done.stdout))


def test_the_example_serves_the_metrics():
    sys.path.insert(0, str(EXAMPLES))
    try:
        module = importlib.import_module("metrics")
    finally:
        sys.path.remove(str(EXAMPLES))
    sent = []

    async def send(message):
        sent.append(message)

    async def main():
        await module.app({"type": "http", "path": "/metrics"}, None, send)

    wakeloop.run(main())
    assert sent[0]["status"] == 200 and (b"content-type", module.CONTENT_TYPE) in sent[0]["headers"]
    assert "wakeloop_eventloop_turns" in parse(sent[1]["body"].decode())


def test_the_dashboard_shows_metrics_that_exist():
    dashboard = json.loads((EXAMPLES / "metrics-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    named = {name for query in queries for name in re.findall(r"wakeloop_\w+", query)}
    loop = wakeloop.new_event_loop()
    try:
        text = wakeloop.metrics_text()
    finally:
        loop.close()
    assert len(queries) > 8
    assert [name for name in named if not re.search(rf"^{name}\b", text, re.MULTILINE)] == []
