"""Turns that take longer than `loop.slow_turn_duration` are counted and kept, with the callback or task that took the
time, and logged where somebody has asked.
"""

import asyncio
import functools
import logging
import math
import os
import socket
import time
import types

import pytest

module = pytest.importorskip("wakeloop._observe.slow", reason="the control group has no report")

pytestmark = pytest.mark.native

LIMIT = 0.05


def block():
    time.sleep(2 * LIMIT)


class Slow(asyncio.Protocol):
    def __init__(self, done):
        self.done = done

    def data_received(self, data):
        block()
        self.done.set_result(None)

    def __repr__(self):
        return "<Slow protocol>"


@pytest.fixture
def slow_log(caplog):
    caplog.set_level(logging.WARNING, logger="wakeloop")
    return caplog


def reports(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "wakeloop"]


def run_until_idle(loop, seconds=0.01):
    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(asyncio.sleep(seconds))


@pytest.mark.parametrize("others", [0, 1, 5], ids=["alone", "with another", "in a small batch"])
def test_a_slow_callback_is_named(loop, slow_log, others):
    for _ in range(others):
        loop.call_soon(int)
    loop.call_soon(block)
    for _ in range(others):
        loop.call_soon(int)
    run_until_idle(loop)
    [report] = reports(slow_log)
    assert report.startswith("Slow turn: block() at ") and "test_slow_turns.py" in report
    assert " took 0." in report
    assert loop.metrics().slow_turns == 1


def test_a_slow_task_is_named_with_what_it_waits_for_now(loop, slow_log):
    async def inner():
        block()
        await asyncio.sleep(0.001)

    async def outer():
        await asyncio.sleep(0)
        await inner()

    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(loop.create_task(outer(), name="the slow one"))
    [report] = reports(slow_log)
    assert "the slow one" in report and "took 0." in report
    assert "inner" in report and "outer" in report


def test_a_task_that_ends_slowly_is_named(loop, slow_log):
    async def main():
        block()

    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(loop.create_task(main(), name="short life"))
    [report] = reports(slow_log)
    assert "short life" in report


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_slow_protocol_is_named(loop, slow_log, tls, secure):
    async def main():
        server = await loop.create_server(lambda: Slow(done), "127.0.0.1", 0, ssl=tls.server() if secure else None)
        options = {"ssl": tls.client(), "server_hostname": "localhost"} if secure else {}
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname(), **options)
        transport.write(b"x")
        await done
        transport.close()
        server.close()

    done = loop.create_future()
    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(main())
    # The connection ends.
    loop.run_until_complete(asyncio.sleep(0.01))
    [report] = reports(slow_log)
    assert report.startswith("Slow turn: <Slow protocol> of <")
    [kept] = loop.metrics().last_slow_turns
    assert kept.name.startswith("Slow of ")


@pytest.mark.parametrize("kind", ["stream", "datagram", "pipe"])
def test_a_slow_connection_lost_is_named(loop, slow_log, kind):
    class Ending(asyncio.Protocol):
        def connection_lost(self, exc):
            block()
            done.set_result(None)

    async def main():
        if kind == "stream":
            near, far = socket.socketpair()
            transport, _ = await loop.create_connection(Ending, sock=near)
            far.close()
        elif kind == "datagram":
            transport, _ = await loop.create_datagram_endpoint(Ending, ("127.0.0.1", 0))
        else:
            reader, writer = os.pipe()
            transport, _ = await loop.connect_read_pipe(Ending, os.fdopen(reader, "rb"))
            os.close(writer)
        transport.close()
        await done

    done = loop.create_future()
    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(main())
    [report] = reports(slow_log)
    assert report.startswith("Slow turn: connection_lost of <")
    assert loop.metrics().slow_turns == 1


def test_a_callback_behind_a_slow_event_is_not_slow_itself(loop, slow_log):
    async def main():
        near, far = socket.socketpair()
        with far:
            transport, _ = await loop.create_connection(lambda: Slow(done), sock=near)
            far.send(b"x")
            await done
            transport.close()
        await asyncio.sleep(1.1)
        loop.call_soon(block)
        await asyncio.sleep(0)

    done = loop.create_future()
    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(main())
    first, second = reports(slow_log)
    assert "<Slow protocol>" in first and "block()" in second
    assert "not logged" not in second and loop.metrics().slow_turns == 2


def test_in_a_large_batch_the_slow_callback_is_named_from_the_second_time_on(loop, slow_log):
    for _ in range(2):
        for index in range(200):
            loop.call_soon(block if index == 100 else int)
        run_until_idle(loop)
        time.sleep(1)
    first, second = reports(slow_log)
    assert first.startswith("Slow turn: several callbacks took 0.")
    assert second.startswith("Slow turn: block() at ")


def test_many_callbacks_that_are_slow_together_are_logged(loop, slow_log):
    for _ in range(10):
        loop.call_soon(time.sleep, LIMIT / 5)
    run_until_idle(loop)
    [report] = reports(slow_log)
    assert report.startswith("Slow turn: several callbacks took 0.")


def test_slow_turns_are_logged_once_per_second_with_the_number_of_the_others(loop, slow_log):
    async def main():
        end = time.monotonic() + 1
        while time.monotonic() < end:
            block()
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        block()
        await asyncio.sleep(0)

    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(main())
    found = reports(slow_log)
    slow = loop.metrics().slow_turns
    assert 2 <= len(found) < slow
    assert f"{slow - len(found)} slow turns before it were not logged" in found[-1] or len(found) > 2


@pytest.mark.parametrize(
    "wrapped", [lambda function: function, lambda function: functools.partial(functools.partial(function))],
    ids=["function", "partial"],
)
def test_a_slow_turn_is_counted_and_kept_and_not_logged_unless_somebody_has_asked(loop, slow_log, wrapped):
    def slow():
        time.sleep(0.26)

    async def main():
        slow()

    loop.call_soon(wrapped(slow))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(loop.create_task(main(), name="a task"))
    for _ in range(300):
        loop.call_soon(time.sleep, 0.001)
    loop.run_until_complete(asyncio.sleep(0.01))
    metrics = loop.metrics()
    assert metrics.slow_turns == 3 and not reports(slow_log)
    names = [slow.name for slow in metrics.last_slow_turns]
    here = "test_a_slow_turn_is_counted_and_kept_and_not_logged_unless_somebody_has_asked.<locals>"
    assert names == ["several callbacks", f"a task {here}.main", f"{here}.slow"]
    assert all(0.25 <= slow.seconds < 20 for slow in metrics.last_slow_turns)
    agos = [slow.ago for slow in metrics.last_slow_turns]
    assert agos == sorted(agos) and agos[0] >= 0
    # A limit that is set is a question, also if it is the same one.
    loop.slow_turn_duration = loop.slow_turn_duration
    loop.call_soon(slow)
    loop.run_until_complete(asyncio.sleep(0.01))
    assert len(reports(slow_log)) == 1


def test_the_last_slow_turns_are_few_and_are_those_of_their_loop(loop, loop_factory, slow_log):
    loop.slow_turn_duration = 1e-6
    for _ in range(40):
        loop.call_soon(time.sleep, 0.0001)
        loop.run_until_complete(asyncio.sleep(0))
    other = loop_factory()
    try:
        assert len(loop.metrics().last_slow_turns) == 16 and other.metrics().last_slow_turns == ()
    finally:
        other.close()
    assert len(loop.metrics().last_slow_turns) == 16


def test_in_debug_mode_the_log_is_asyncios_and_the_slow_turn_is_kept(loop, slow_log, asyncio_log):
    async def main():
        time.sleep(0.26)

    loop.set_debug(True)
    loop.run_until_complete(loop.create_task(main(), name="a task"))
    [slow] = loop.metrics().last_slow_turns
    assert slow.name.startswith("a task ") and not reports(slow_log)
    assert "Executing <Task finished name='a task'" in asyncio_log.text


def test_the_log_goes_on_through_generators_to_where_the_task_now_waits(loop, slow_log):
    async def deep():
        block()
        await asyncio.sleep(0.001)

    async def numbers():
        await deep()
        yield 1

    async def consumer():
        async for _ in numbers():
            pass

    @types.coroutine
    def generator():
        return (yield from deep())

    async def over_a_generator():
        await generator()

    chains = {consumer: ["consumer", "numbers", "deep"], over_a_generator: ["over_a_generator", "generator", "deep"]}
    for function, chain in chains.items():
        loop.slow_turn_duration = LIMIT
        loop.run_until_complete(loop.create_task(function()))
        _, _, found = reports(slow_log)[-1].partition("; it now waits in\n")
        assert [line.rpartition(".")[2].rpartition(" in ")[2] for line in found.splitlines()] == [*chain, "sleep"]
        loop.run_until_complete(asyncio.sleep(1.01))


def test_an_infinite_limit_switches_the_log_off(loop, slow_log):
    loop.slow_turn_duration = math.inf
    loop.call_soon(block)
    loop.run_until_complete(asyncio.sleep(0.01))
    assert loop.slow_turn_duration == math.inf and not reports(slow_log)
    assert loop.metrics().slow_turns == 0 and loop.metrics().last_slow_turns == ()


def test_the_limit_is_a_quarter_of_a_second_by_default_and_must_be_positive(loop):
    assert loop.slow_turn_duration == 0.25
    for wrong in (0, -1, math.nan):
        with pytest.raises(ValueError, match="slow_turn_duration must be a positive number of seconds"):
            loop.slow_turn_duration = wrong
    for wrong in (None, "1"):
        with pytest.raises(TypeError):
            loop.slow_turn_duration = wrong
    assert loop.slow_turn_duration == 0.25


@pytest.mark.parametrize(
    ("value", "limit", "logged"),
    [("100ms", 0.1, 1), ("0.15", 0.15, 1), ("2s", 2.0, 0), ("off", math.inf, 0), ("", 0.25, 0)],
)
def test_the_environment_sets_the_limit_and_asks_for_the_log(loop_factory, monkeypatch, slow_log, value, limit, logged):
    monkeypatch.setenv("WAKELOOP_SLOW_TURN", value)
    loop = loop_factory()
    try:
        assert loop.slow_turn_duration == limit
        loop.call_soon(time.sleep, 0.26)
        loop.run_until_complete(asyncio.sleep(0.01))
    finally:
        loop.close()
    assert len(reports(slow_log)) == logged


def test_a_report_that_raises_keyboard_interrupt_ends_the_run(loop):
    class Interrupting(logging.Handler):
        def emit(self, record):
            raise KeyboardInterrupt

    handler = Interrupting()
    logging.getLogger("wakeloop").addHandler(handler)
    try:
        loop.call_soon(block)
        with pytest.raises(KeyboardInterrupt):
            run_until_idle(loop)
    finally:
        logging.getLogger("wakeloop").removeHandler(handler)
    run_until_idle(loop)


def test_a_task_whose_repr_has_control_characters_does_not_reach_the_log_as_it_is(loop, slow_log):
    async def main():
        block()

    loop.slow_turn_duration = LIMIT
    loop.run_until_complete(loop.create_task(main(), name="\x1b[31mred\nline"))
    [report] = reports(slow_log)
    assert "\x1b" not in report and "\n" not in report


def test_a_report_is_one_line_without_control_characters(loop, slow_log):
    class Raw:
        def __repr__(self):
            return "<\x1b[31mred\nüé'>"

    # Native code calls this.
    module.slow_turn(loop, 1.25, Raw(), 0)
    assert reports(slow_log) == [r"Slow turn: <\x1b[31mred\nüé'> took 1.250 seconds"]


def test_a_slow_callback_is_dropped_when_it_returns_and_not_later(loop, slow_log):
    """The report holds no reference beyond the callback's own end."""
    events = []

    class Callback:
        def __call__(self):
            block()
            events.append("ran")

        def __del__(self):
            events.append("dropped")

    loop.call_soon(Callback())
    loop.call_soon(events.append, "next")
    run_until_idle(loop)
    assert events == ["ran", "dropped", "next"]
    assert len(reports(slow_log)) == 1
