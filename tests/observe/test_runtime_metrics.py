"""wakeloop.runtime_metrics(): what the Rust runtime does. tests/rust/metrics.rs has the tests of each number."""

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
import time

import pytest

import wakeloop
from wakeloop import Histogram, RuntimeMetrics, WorkerMetrics

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("runtime")]


def numbers(metrics):
    """What must never fall in a snapshot, by name."""
    found = {}
    for field in dataclasses.fields(metrics):
        value = getattr(metrics, field.name)
        if "gauge" in field.metadata:
            continue
        if isinstance(value, tuple):
            for index, worker in enumerate(value):
                found |= {f"{index}: {name}": number for name, number in numbers(worker).items()}
        else:
            found[field.name] = value.count if isinstance(value, Histogram) else value
    return found


async def started():
    await wakeloop.spawn_blocking(int)
    return wakeloop.runtime_metrics()


def script(text):
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)


def test_there_are_no_metrics_before_the_runtime_starts():
    done = script(
        "import asyncio, wakeloop\n"
        "print(wakeloop.runtime_metrics())\n"
        "wakeloop.run(asyncio.sleep(0.001))\n"
        "print(wakeloop.runtime_metrics())\n"
        "wakeloop.configure(workers=3)\n"
        "async def main(): await wakeloop.sleep(0.001)\n"
        "wakeloop.run(main())\n"
        "print(wakeloop.runtime_metrics().workers, len(wakeloop.runtime_metrics().per_worker))\n"
    )
    assert (done.stdout.splitlines(), done.stderr) == (["None", "None", "3 3"], "")


def test_the_totals_are_the_sums_of_the_workers(run):
    async def main():
        await asyncio.gather(*(wakeloop.sleep(0.001) for _ in range(50)))
        return wakeloop.runtime_metrics()

    metrics = run(main())
    assert isinstance(metrics, RuntimeMetrics) and len(metrics.per_worker) == metrics.workers >= 1
    assert all(isinstance(worker, WorkerMetrics) for worker in metrics.per_worker)
    for name in ("polls", "lifo_hits", "steals", "parks", "wakeups"):
        assert getattr(metrics, name) == sum(getattr(worker, name) for worker in metrics.per_worker)
    for name in ("busy_seconds", "idle_seconds"):
        total = sum(getattr(worker, name) for worker in metrics.per_worker)
        assert getattr(metrics, name) == pytest.approx(total, abs=1e-6)
    delay = metrics.delay
    assert delay.counts == tuple(map(sum, zip(*(worker.delay.counts for worker in metrics.per_worker), strict=True)))
    assert delay.max == max(worker.delay.max for worker in metrics.per_worker)
    assert delay.count > 0 and len(delay.counts) == len(Histogram.bounds)
    assert metrics.timers_fired >= 50 and metrics.tasks_spawned >= 50
    assert 0 <= metrics.utilization <= 1 and 0 <= metrics.per_worker[0].utilization <= 1


def test_two_snapshots_subtract(run):
    async def main():
        earlier, start = await started(), time.monotonic()
        await asyncio.gather(*(wakeloop.sleep(0.02) for _ in range(30)))
        await asyncio.gather(*(wakeloop.spawn_blocking(int) for _ in range(5)))
        later, elapsed = wakeloop.runtime_metrics(), time.monotonic() - start
        return earlier, later, elapsed

    earlier, later, elapsed = run(main())
    between = later - earlier
    assert (between.timers_fired, between.tasks_spawned, between.blocking_jobs) == (30, 30, 5)
    assert between.blocking_wait.count == 5
    assert 0.02 <= between.uptime_seconds <= elapsed + 0.001
    assert between.workers == later.workers and between.blocking_threads == later.blocking_threads
    for worker, before, after in zip(between.per_worker, earlier.per_worker, later.per_worker, strict=True):
        assert worker.polls == after.polls - before.polls and worker.queue_depth == after.queue_depth
        assert worker.delay.count == after.delay.count - before.delay.count
    nothing = later - later
    assert set(numbers(nothing).values()) == {0} and nothing.utilization == 0


def test_snapshots_of_runtimes_with_different_workers_do_not_subtract(run):
    metrics = run(started())
    other = dataclasses.replace(metrics, per_worker=())
    with pytest.raises(ValueError, match="zip"):
        metrics - other


def test_a_snapshot_is_subtracted_from_its_like_alone(run):
    async def main():
        metrics = await started()
        loop = wakeloop.new_event_loop()
        loop.close()
        of_loop = loop.metrics()
        for later, earlier in (
            (metrics, 5),
            (metrics, of_loop),
            (of_loop, metrics),
            (metrics, metrics.per_worker[0]),
            (metrics.delay, 5),
            (metrics.delay, metrics),
        ):
            with pytest.raises(TypeError, match="unsupported operand type"):
                later - earlier

    run(main())


def test_a_snapshot_cannot_be_changed(run):
    metrics = run(started())
    with pytest.raises(dataclasses.FrozenInstanceError):
        metrics.polls = 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        metrics.per_worker[0].polls = 5


def test_counters_never_fall_as_other_threads_see_them(run):
    stop, seen, falls = threading.Event(), [], []

    def watch():
        last = numbers(wakeloop.runtime_metrics())
        while not stop.is_set():
            now = numbers(wakeloop.runtime_metrics())
            falls.extend((name, last[name], now[name]) for name in last if now[name] < last[name])
            last = now
            seen.append(now)

    async def main():
        await started()
        threads = [threading.Thread(target=watch) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(50):
                await asyncio.gather(*(wakeloop.sleep(0.0005) for _ in range(10)), wakeloop.spawn_blocking(int))
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    run(main())
    assert seen and falls == []


#: Fills the pool, and lets 88 jobs wait for 0.2 s at least.
MORE_JOBS_THAN_THREADS = """
import asyncio, bisect, threading, time
import wakeloop

THREADS = 512
waits, released = [], threading.Event()

def job(submitted):
    waits.append(time.monotonic() - submitted)
    released.wait()

async def main():
    jobs = [asyncio.ensure_future(wakeloop.spawn_blocking(job, time.monotonic())) for _ in range(THREADS + 88)]
    await asyncio.sleep(0)
    while (during := wakeloop.runtime_metrics()).blocking_jobs < THREADS:
        await asyncio.sleep(0.01)
    assert (during.blocking_threads, during.blocking_idle_threads) == (THREADS, 0), during
    assert during.blocking_queue_depth == 88, during
    await asyncio.sleep(0.2)
    released.set()
    await asyncio.gather(*jobs)
    after = wakeloop.runtime_metrics()
    assert after.blocking_jobs == after.blocking_wait.count == THREADS + 88, after
    assert after.blocking_queue_depth == 0 and after.blocking_idle_threads > 0, after
    # The job itself sees a longer wait than its thread, which has yet to take the GIL.
    bounds = wakeloop.Histogram.bounds
    index = bisect.bisect_left(bounds, 0.15)
    waited = sum(after.blocking_wait.counts[index + 1 :])
    assert 88 <= waited <= sum(wait >= bounds[index] for wait in waits), (waited, sorted(waits))
    assert 88 * 0.2 <= after.blocking_wait.sum <= sum(waits)

wakeloop.run(main())
"""


def test_the_waits_of_blocking_jobs_are_measured():
    done = script(MORE_JOBS_THAN_THREADS)
    assert (done.returncode, done.stderr) == (0, "")


def test_delays_are_within_the_time_between_two_snapshots(run):
    async def main():
        before, start = await started(), time.monotonic()
        for _ in range(30):
            await asyncio.gather(*(wakeloop.sleep(0.001) for _ in range(10)))
        between, elapsed = wakeloop.runtime_metrics() - before, time.monotonic() - start
        assert 0 < between.delay.count and between.delay.percentile(50) <= between.delay.max
        assert between.delay.percentile(100) <= max(elapsed, before.delay.max)
        assert between.busy_seconds <= elapsed * between.workers + 0.001

    run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_the_metrics_of_its_own_runtime():
    done = script(
        "import os, sys, wakeloop\n"
        "async def main(): await wakeloop.sleep(0.001)\n"
        "wakeloop.run(main())\n"
        "assert wakeloop.runtime_metrics().tasks_spawned == 1\n"
        "if child := os.fork():\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(wakeloop.runtime_metrics())\n"
        "wakeloop.run(main())\n"
        "print(wakeloop.runtime_metrics().tasks_spawned)\n"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["None", "1"])


def test_an_idle_runtime_is_idle(run):
    async def main():
        await started()

        async def observed():
            before = wakeloop.runtime_metrics()
            await asyncio.sleep(0.05)
            return wakeloop.runtime_metrics() - before

        # The workers may still be on their way to sleep.
        while (between := await observed()).wakeups:
            pass
        running = [worker for worker in between.per_worker if worker.busy_seconds + worker.idle_seconds > 0]
        assert between.busy_seconds == pytest.approx(0, abs=1e-6)
        assert all(worker.idle_seconds >= 0.049 for worker in running) and running

    run(main())
