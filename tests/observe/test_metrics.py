"""loop.metrics(): counters of the loop, which grow with what it does."""

import ast
import asyncio
import bisect
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import inspect
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

import wakeloop
from tests.support.builds import needs_gil
from wakeloop import Histogram, _core

pytestmark = pytest.mark.native

#: How often to measure. What counts is the median.
ROUNDS = 11

#: Clients of an echo server, in a process of their own. Each sends 64 bytes and waits for them, for 0.3 s.
CLIENTS = """
import select, socket, sys, time

sockets = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
poll = select.poll()
by_fd = {each.fileno(): each for each in sockets}
for each in sockets:
    poll.register(each, select.POLLIN)
    each.sendall(bytes(64))
end = time.monotonic() + 0.3
while time.monotonic() < end:
    for fd, _ in poll.poll(1000):
        assert by_fd[fd].recv(64) == bytes(64)
        by_fd[fd].sendall(bytes(64))
"""


def numbers(metrics):
    """The counters and times of a snapshot, without those that may fall."""
    fields = [field for field in dataclasses.fields(metrics) if "gauge" not in field.metadata]
    values = {field.name: getattr(metrics, field.name) for field in fields}
    return {name: value.count if isinstance(value, Histogram) else value for name, value in values.items()}


def test_metrics_are_numbers_that_never_fall(run):
    async def main():
        loop = asyncio.get_running_loop()
        before = numbers(loop.metrics())
        assert before and all(isinstance(value, (int, float)) and value >= 0 for value in before.values()), before
        for _ in range(100):
            loop.call_soon(int)
            await asyncio.sleep(0.0002)
        after = numbers(loop.metrics())
        assert after.keys() == before.keys()
        assert all(after[name] >= before[name] for name in before)
        grown = {name for name in before if after[name] >= before[name] + 100}
        assert grown >= {"turns", "callbacks", "timers_fired", "delay", "turn_length"}, (before, after)

    run(main())


def class_source(kind):
    """The source of a class, which its public module does not have: `inspect.getsource` finds it since Python 3.13."""
    source = inspect.getsource(wakeloop.metrics)
    (node,) = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", None) == kind.__name__]
    return f"{ast.get_source_segment(source, node)}\n"


@pytest.mark.parametrize("kind", [wakeloop.LoopMetrics, wakeloop.RuntimeMetrics, wakeloop.WorkerMetrics])
def test_the_documentation_has_the_fields_of_the_native_table(kind):
    """The pages of the reference are made of the classes' comments."""
    table = {name: (sort, text) for name, sort, text in _core._metric_tables()[kind.__name__]}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    # The others are Python's, and no monitoring system gets them.
    assert set(fields) - set(table) <= {"closed", "last_slow_turns", "per_worker"}
    assert all(isinstance(getattr(kind, name), property) for name in set(table) - set(fields))
    groups = re.findall(r"((?:    #:.*\n)+)((?:    \w+: .*\n)+)", class_source(kind))
    documented = {
        name: "*Now*" in comment for comment, group in groups for name in re.findall(r"^    (\w+):", group, re.MULTILINE)
    }
    assert documented == {name: "gauge" in field.metadata for name, field in fields.items()}
    assert {sort for sort, _ in table.values()} <= {"counter", "gauge", "histogram"}
    assert all(re.fullmatch(r"[A-Z1].*[^.]", text) for _, text in table.values())


def test_metrics_can_be_read_before_after_and_beside_the_run(loop):
    assert not loop.metrics().running
    thread_saw = []

    def look():
        thread_saw.append(loop.metrics())
        loop.call_soon_threadsafe(loop.stop)

    thread = threading.Thread(target=look)
    loop.call_soon(thread.start)
    loop.run_forever()
    thread.join()
    assert thread_saw[0].running and not thread_saw[0].closed
    loop.close()
    closed = loop.metrics()
    assert closed.closed and not closed.running and closed.turns > 0


@contextlib.contextmanager
def in_a_thread(loop):
    """Runs the loop in a thread, until the block ends."""
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_it_waits(loop):
    """Lets the loop run a callback, and waits until it polls again."""
    polls = []
    loop.call_soon_threadsafe(lambda: polls.append(loop.metrics().polls))
    until(lambda: polls and loop.metrics().polls > polls[0])


def assert_no_bucket_falls(before, after):
    for name in ("delay", "turn_length", "gil_wait"):
        pairs = zip(getattr(before, name).counts, getattr(after, name).counts, strict=True)
        assert all(one <= other for one, other in pairs), name


def test_a_loop_that_waits_is_idle_for_another_thread_too(loop):
    with in_a_thread(loop):
        until_it_waits(loop)
        before = loop.metrics()
        until(lambda: loop.metrics().running_seconds > before.running_seconds + 0.1)
        between = loop.metrics() - before
    assert between.idle_seconds > between.running_seconds / 2


def test_no_bucket_falls_when_a_loop_runs_again_and_waits(loop):
    loop.run_until_complete(asyncio.sleep(0.001))
    before = loop.metrics()
    with in_a_thread(loop):
        until(lambda: loop.metrics().polls > before.polls)
        assert_no_bucket_falls(before, loop.metrics())


def test_no_bucket_falls_after_a_long_turn(loop):
    blocked, goes_on = threading.Event(), threading.Event()
    with in_a_thread(loop):
        until_it_waits(loop)
        loop.call_soon_threadsafe(lambda: (blocked.set(), goes_on.wait(20)))
        assert blocked.wait(20)
        time.sleep(0.01)
        before = loop.metrics()
        goes_on.set()
        until(lambda: loop.metrics().turn_length.max >= 0.01)
        assert_no_bucket_falls(before, loop.metrics())


def test_no_bucket_falls_in_turns_whose_last_callback_waits_longer_than_the_first(run):
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(100):
            await asyncio.sleep(0)
        before = loop.metrics().delay
        for _ in range(20):
            time.sleep(0.0005)
            for _ in range(10):
                loop.call_soon(time.sleep, 0.0005)
            await asyncio.sleep(0)
        after = loop.metrics().delay
        assert after.counts[0] >= before.counts[0] and after.count >= before.count + 20

    run(main())


def test_two_snapshots_subtract(run):
    async def main():
        loop = asyncio.get_running_loop()
        earlier = loop.metrics()
        await asyncio.sleep(0.02)
        later = loop.metrics()
        between = later - earlier
        assert between.turns == later.turns - earlier.turns > 0
        assert between.delay.count == later.delay.count - earlier.delay.count
        assert between.timers == later.timers and between.transports == later.transports
        assert 0 < between.idle_seconds <= between.running_seconds
        assert 0 <= between.utilization <= 1

    run(main())


def test_utilization_is_the_share_of_time_with_work(run):
    async def main():
        loop = asyncio.get_running_loop()
        earlier, start = loop.metrics(), time.monotonic()
        busy = 0.0
        for _ in range(5):
            began = time.monotonic()
            time.sleep(0.03)
            busy += time.monotonic() - began
            await asyncio.sleep(0.03)
        between, elapsed = loop.metrics() - earlier, time.monotonic() - start
        assert busy <= between.active_seconds <= elapsed
        # The loop was woken late at most by what the truth includes as well.
        assert between.idle_seconds >= 5 * 0.029

    run(main())


def bucket(seconds):
    return bisect.bisect_right(Histogram.bounds, seconds)


def longest_bucket(histogram):
    return max(index for index, count in enumerate(histogram.counts) if count)


def test_the_delay_of_a_callback_behind_a_blocking_one_is_reported(run):
    """In one batch, in the next turn, for a timer and for a message of another thread; against the test's own clock."""

    async def main():
        loop = asyncio.get_running_loop()
        for how in ("batch", "turn", "timer", "socket"):
            for blocked in (0.02, 0.1):
                loop.reset_metrics()
                ran = loop.create_future()
                if how == "batch":
                    loop.call_soon(time.sleep, blocked)
                    ready = time.monotonic()
                    loop.call_soon(lambda: ran.set_result(time.monotonic()))
                elif how == "turn":
                    await asyncio.sleep(0)
                    ready = time.monotonic()
                    loop.call_soon(lambda: ran.set_result(time.monotonic()))
                    time.sleep(blocked)
                elif how == "timer":
                    ready = loop.time() + 0.001
                    loop.call_at(ready, lambda: ran.set_result(time.monotonic()))
                    time.sleep(blocked)
                else:
                    one, other = socket.socketpair()
                    loop.add_reader(one, lambda: ran.done() or ran.set_result(time.monotonic()))
                    await asyncio.sleep(0.001)
                    ready = time.monotonic()
                    other.send(b"x")
                    time.sleep(blocked)
                truth = await ran - ready
                if how == "socket":
                    loop.remove_reader(one)
                    one.close()
                    other.close()
                await asyncio.sleep(0)
                delay = loop.metrics().delay
                assert abs(longest_bucket(delay) - bucket(truth)) <= 1, (how, truth, delay.max)
                assert delay.percentile(100) == pytest.approx(delay.max)

    run(main())


def test_the_length_of_a_turn_is_reported(run):
    async def main():
        loop = asyncio.get_running_loop()
        for seconds in (0.003, 0.02, 0.15):
            await asyncio.sleep(0.001)
            loop.reset_metrics()
            start = time.monotonic()
            time.sleep(seconds)
            truth = time.monotonic() - start
            await asyncio.sleep(0.001)
            assert abs(longest_bucket(loop.metrics().turn_length) - bucket(truth)) <= 1

    run(main())


@needs_gil
@pytest.mark.measured
def test_the_wait_for_the_gil_is_reported(run):
    """A thread that holds the GIL for a known time, in C code that does not release it."""
    hold = ctypes.PyDLL(None).usleep

    async def main():
        loop = asyncio.get_running_loop()
        for seconds in (0.02, 0.1):
            errors = []
            for _ in range(ROUNDS):
                loop.reset_metrics()
                begun = []

                def block():
                    begun.append(time.monotonic())
                    hold(int(seconds * 1e6))
                    begun.append(time.monotonic())

                thread = threading.Thread(target=block)
                thread.start()
                # The timer is due while the thread holds the GIL.
                deadline = time.monotonic() + 0.001
                await asyncio.sleep(0.001)
                thread.join()
                truth = begun[1] - max(begun[0], deadline)
                errors.append(longest_bucket(loop.metrics().gil_wait) - bucket(truth))
            assert abs(statistics.median(errors)) <= 1, errors

    run(main())


@pytest.mark.measured
def test_an_idle_loop_reports_no_delay(run):
    async def main():
        loop = asyncio.get_running_loop()
        delays = []
        for _ in range(ROUNDS):
            loop.reset_metrics()
            await asyncio.sleep(0.01)
            delays.append(loop.metrics().delay.max)
        assert statistics.median(delays) < 0.005, delays

    run(main())


def test_a_reset_empties_the_histograms_and_nothing_else(run):
    async def main():
        loop = asyncio.get_running_loop()
        time.sleep(0.02)
        await asyncio.sleep(0)
        before = loop.metrics()
        assert before.turn_length.max >= 0.02
        loop.reset_metrics()
        after = loop.metrics()
        assert after.turn_length.count == 0 and after.turn_length.max == 0 and after.delay.count == 0
        assert after.turns == before.turns and after.running_seconds >= before.running_seconds
        # A difference over a reset has no negative numbers.
        assert min((after - before).turn_length.counts) == 0

    run(main())


def test_percentiles_are_bounds_of_buckets():
    counts = [0] * len(Histogram.bounds)
    assert Histogram().percentile(99) == 0 and Histogram().mean == 0
    counts[0], counts[10], counts[20] = 98, 1, 1
    histogram = Histogram(tuple(counts), 1.0, Histogram.bounds[20] * 0.99)
    assert histogram.count == 100 and histogram.mean == 0.01
    assert histogram.percentile(50) == Histogram.bounds[0]
    assert histogram.percentile(99) == Histogram.bounds[10]
    assert histogram.percentile(100) == histogram.max
    for wrong in (-1, 101):
        with pytest.raises(ValueError, match="percent must be between 0 and 100"):
            histogram.percentile(wrong)


def test_the_maximum_of_a_difference_is_that_of_the_time_between():
    """If the longest duration came before, the bound of the longest one's bucket takes its place."""
    counts = [0] * len(Histogram.bounds)
    counts[30] = 1
    earlier = Histogram(tuple(counts), 1.0, Histogram.bounds[30] * 0.99)
    assert (earlier - earlier).max == 0
    counts[5] = 2
    later = Histogram(tuple(counts), 1.1, earlier.max)
    assert (later - earlier).max == Histogram.bounds[5]


def test_transports_are_counted_by_kind_with_what_they_have_to_send(run):
    async def main():
        loop = asyncio.get_running_loop()
        made = loop.create_future()

        class Server(asyncio.Protocol):
            def connection_made(self, transport):
                made.set_result(transport)

        server = await loop.create_server(Server, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        accepted = await made
        datagram, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
        receive, send = os.pipe()
        reading, _ = await loop.connect_read_pipe(asyncio.Protocol, os.fdopen(receive, "rb"))
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(send, "wb"))
        ours, theirs = socket.socketpair()
        local, _ = await loop.create_unix_connection(asyncio.Protocol, sock=ours)
        accepted.pause_reading()
        client.write(bytes(8 << 20))
        await asyncio.sleep(0.01)
        seen = loop.metrics()
        assert seen.transports == {
            "tcp": 2, "unix": 1, "tls": 0, "datagram": 1, "read_pipe": 1, "write_pipe": 1, "listener": 1,
        }  # fmt: skip
        assert seen.write_buffer_bytes == client.get_write_buffer_size() > 0
        assert (seen.paused_writers, seen.paused_readers) == (1, 1)
        assert seen.connections_accepted == 1
        for transport in (client, accepted, datagram, reading, writing, local):
            transport.abort() if hasattr(transport, "abort") else transport.close()
        theirs.close()
        server.close()
        await asyncio.sleep(0.01)
        assert sum(loop.metrics().transports.values()) == 0 and loop.metrics().write_buffer_bytes == 0

    run(main())


def test_jobs_of_the_executor_are_counted_while_they_wait_and_run(run):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        await loop.run_in_executor(None, int)
        go, begun = threading.Event(), threading.Event()
        jobs = [loop.run_in_executor(None, lambda: (begun.set(), go.wait(20))) for _ in range(3)]
        while not begun.is_set():
            await asyncio.sleep(0.001)
        seen = loop.metrics()
        assert (seen.executor_jobs, seen.executor_queued) == (3, 2)
        go.set()
        await asyncio.gather(*jobs)
        assert (loop.metrics().executor_jobs, loop.metrics().executor_queued) == (0, 0)

    run(main())


def test_two_loops_have_separate_metrics(loop, loop_factory):
    other = loop_factory()
    before = other.metrics()
    loop.run_until_complete(asyncio.sleep(0.01))
    assert other.metrics() == before
    other.close()


@needs_gil
@pytest.mark.measured
def test_a_thread_that_computes_does_not_get_the_gil_after_every_batch_of_events(loop_factory):
    """The loop waits briefly for clients that answer at once, before it releases the GIL for a whole switch interval.

    Each poll reports at most one event per connection. So if all polls released the GIL, there would be no more
    events than that for each of them.
    """
    connections, done = 10, threading.Event()

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    def burn():
        while not done.is_set():
            pass

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        burning = threading.Thread(target=burn)
        burning.start()
        try:
            ratios = []
            for _ in range(ROUNDS):
                before = loop.metrics()
                command = [sys.executable, "-c", CLIENTS, str(port), str(connections)]
                await loop.run_in_executor(None, partial(subprocess.run, command, check=True, timeout=30))
                between = loop.metrics() - before
                ratios.append(between.io_events / max(1, between.blocking_polls))
            assert statistics.median(ratios) > 3 * connections, ratios
        finally:
            done.set()
            burning.join()
            server.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
