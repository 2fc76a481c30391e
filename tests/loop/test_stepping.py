"""Loops that are stepped from Python, or driven by another clock: test clocks, patched selectors, nested runs."""

import asyncio
import contextvars
import functools
import selectors
import socket
import sys
import threading
import time
from collections import deque

import pytest

from tests.support.nesting import make_nestable, run_nested
from tests.support.protocol import Recording, close, pair
from tests.support.sockets import socketpair


@pytest.fixture
def kind(loop_factory):
    """The loop's class, for tests that subclass it."""
    (probe := loop_factory()).close()
    return type(probe)


# -- other clocks ---------------------------------------------------------------------------------------------


def test_a_clock_put_on_the_loop_counts_at_once(loop):
    """The clock is set on the instance, before any run. Timers are set and fired by it."""
    now, seen = 5.0, []
    loop.time = lambda: now
    assert loop.time() == 5.0 and loop.call_later(3, seen.append, "later").when() == 8.0
    now = 8.0
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == ["later"]
    del loop.time
    assert abs(loop.time() - time.monotonic()) < 60
    assert loop.call_later(3, seen.append, "never").when() > time.monotonic()


@pytest.mark.parametrize("place", ["subclass", "class later", "instance"])
def test_an_overridden_call_at_sees_timers_of_call_later(kind, place, monkeypatch):
    """asyncio's call_later calls call_at, so an override sees its timers."""
    seen = []

    class Sub(kind):
        pass

    def call_at(self, when, callback, *args, context=None):
        seen.append((when - self.time(), callback, args, context))
        return kind.call_at(self, when, callback, *args, context=context)

    loop = Sub()
    try:
        if place == "instance":
            loop.call_at = functools.partial(call_at, loop)
        else:
            monkeypatch.setattr(Sub, "call_at", call_at, raising=False)
        if place == "subclass":
            loop.close()
            loop = Sub()
        context = contextvars.copy_context()
        handle = loop.call_later(5, print, "later", context=context)
        assert isinstance(handle, asyncio.TimerHandle) and handle.when() == pytest.approx(loop.time() + 5, abs=1)
        assert seen == [(pytest.approx(5, abs=1), print, ("later",), context)]
        with pytest.raises(TypeError, match="delay must not be None"):
            loop.call_later(None, print, 1)
        seen.clear()
        assert loop.run_until_complete(asyncio.wait_for(asyncio.sleep(0.001, "x"), 1)) == "x"
        assert len(seen) == 2
        loop.set_debug(True)
        assert loop.call_later(5, print)._source_traceback[-1].name == "call_later"
        loop.set_debug(False)
        seen.clear()
        if place == "instance":
            del loop.call_at
        monkeypatch.undo()
        loop.call_later(5, print)
        assert seen == []
    finally:
        loop.close()


def test_a_clock_changed_while_the_loop_runs_counts_at_once(run):
    async def main():
        loop, seen = asyncio.get_running_loop(), []
        loop.call_later(1000, seen.append, "by the new clock")
        start = loop.time()
        loop.time = lambda: start + 2000
        for _ in range(5):
            await asyncio.sleep(0)
        del loop.time
        assert seen == ["by the new clock"]

    run(main())


def test_a_clock_put_on_the_class_counts_for_loops_that_exist(kind, monkeypatch):
    class Sub(kind):
        pass

    loop = Sub()
    try:
        monkeypatch.setattr(Sub, "time", lambda self: 7.0, raising=False)
        assert loop.time() == 7.0 and loop.call_later(1, print).when() == 8.0
        monkeypatch.undo()
        assert loop.call_later(1, print).when() > 8.0 or time.monotonic() < 7.0
    finally:
        loop.close()


def test_a_patched_monotonic_clock_is_the_loops_clock(loop, monkeypatch):
    """Tools that freeze time replace time.monotonic. asyncio's loop calls it, so timers follow."""
    now, seen = 1000.0, []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert loop.time() == 1000.0
    loop.call_later(3600, seen.append, "an hour later")
    now += 3601
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == ["an hour later"]
    monkeypatch.undo()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert loop.time() != now


def test_a_monotonic_clock_patched_while_the_loop_runs_counts_at_once(run):
    """A `with freeze_time(...)` in a coroutine does this: timers set before and after follow the frozen clock."""

    async def main():
        loop, seen = asyncio.get_running_loop(), []
        now = loop.time()
        loop.call_later(1000, seen.append, "set before")
        real = time.monotonic
        time.monotonic = lambda: now
        try:
            assert loop.time() == now
            assert loop.call_later(2000, seen.append, "set when frozen").when() == now + 2000
            now += 1500
            for _ in range(5):
                await asyncio.sleep(0)
            assert seen == ["set before"]
            now += 1000
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert seen == ["set before", "set when frozen"]
            loop.call_later(3000, seen.append, "in an hour of the frozen clock")
        finally:
            time.monotonic = real
        assert abs(loop.time() - time.monotonic()) < 60
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(seen) == 2

    run(main())


def test_many_frozen_clocks_one_after_another_are_all_seen(run):
    """A test suite freezes time thousands of times."""

    async def main():
        loop, real = asyncio.get_running_loop(), time.monotonic
        for number in range(3000):
            time.monotonic = lambda: number
            try:
                assert loop.time() == number
            finally:
                time.monotonic = real
            assert loop.time() != number

    run(main())


def test_a_broken_clock_ends_the_run_with_its_error(loop):
    class Broken(Exception):
        pass

    def time():
        raise Broken

    loop.call_later(1000, print)
    loop.time = time
    with pytest.raises(Broken):
        loop.run_forever()
    del loop.time


# -- a patched selector ---------------------------------------------------------------------------------------


def virtual(kind):
    """Returns a loop whose time jumps instead of passing, made in the usual way: `time` and the selector's `select`
    are replaced.
    """

    class Virtual(kind):
        def __init__(self):
            self.now = 1000.0
            super().__init__()
            select = self._selector.select

            def jump(timeout=None):
                if timeout:
                    self.now += timeout
                return select(0)

            self._selector.select = jump

        def time(self):
            return self.now

    return Virtual


def test_a_virtual_clock_jumps_from_deadline_to_deadline(kind):
    async def main():
        seen = []

        async def sleep(delay):
            await asyncio.sleep(delay)
            seen.append((delay, asyncio.get_running_loop().time()))

        await asyncio.gather(*map(sleep, (3600, 0.5, 30 * 86400, 7)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86400):
                await asyncio.Event().wait()
        return seen

    loop, started = virtual(kind)(), time.monotonic()
    try:
        assert loop.run_until_complete(main()) == [
            (0.5, 1000.5), (7, 1007.0), (3600, 4600.0), (30 * 86400, 1000.0 + 30 * 86400),
        ]  # fmt: skip
        assert loop.time() == 1000.0 + 31 * 86400
    finally:
        loop.close()
    assert time.monotonic() - started < 20


def jumping(loop, monkeypatch):
    """Puts a virtual clock on a loop that runs, as the test tools do that wrap a part of a test."""
    now, select = loop.time(), loop._selector.select

    def jump(timeout=None):
        nonlocal now
        now += timeout or 0
        return select(0)

    monkeypatch.setattr(loop._selector, "select", jump)
    monkeypatch.setattr(loop, "time", lambda: now)


@pytest.mark.parametrize("in_debug_mode", [False, True])
def test_a_virtual_clock_can_be_put_on_a_running_loop_and_taken_away(run, in_debug_mode):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_debug(in_debug_mode)
        started = time.monotonic()
        for _ in range(2):
            with pytest.MonkeyPatch.context() as patch:
                jumping(loop, patch)
                before = loop.time()
                async with asyncio.timeout(7200):
                    await asyncio.gather(*map(asyncio.sleep, (3600, 60, 0.5)))
                assert 3599 < loop.time() - before < 3601
            await asyncio.sleep(0.001)
            assert await asyncio.to_thread(lambda: "from a thread") == "from a thread"
        assert time.monotonic() - started < 20

    run(main())


def iterate(loop, times):
    """Stops the loop after so many iterations."""
    loop.call_soon(iterate, loop, times - 1) if times else loop.stop()


@pytest.mark.parametrize("name", ["_run_once", "_process_events", "_selector", "select"])
@pytest.mark.parametrize("by", ["a callback", "an event", "the program before the run"])
def test_what_an_iteration_calls_can_be_replaced_at_any_time(loop, name, by):
    calls = 0

    def replace():
        owner = loop._selector if name == "select" else loop
        original = getattr(owner, name)

        class Selector:
            def select(self, timeout=None):
                counted()
                return original.select(timeout)

            def __getattr__(self, attribute):
                return getattr(original, attribute)

        def counted(*args):
            nonlocal calls
            calls += 1
            return original(*args) if callable(original) else None

        setattr(owner, name, Selector() if name == "_selector" else counted)
        iterate(loop, 10)
        return lambda: setattr(loop, name, original) if name == "_selector" else delattr(owner, name)

    undo = []
    with socketpair() as (near, far):
        if by == "an event":
            far.send(b"news")
            loop.add_reader(near, lambda: (near.recv(10), undo.append(replace())))
        elif by == "a callback":
            loop.call_soon(lambda: undo.append(replace()))
        else:
            undo.append(replace())
        loop.run_forever()
        loop.remove_reader(near)
    assert calls > 5
    undo[0]()
    calls = 0
    loop.call_later(0.001, loop.stop)
    loop.run_forever()
    assert calls == 0


@pytest.mark.parametrize("name", ["_run_once", "_process_events"])
@pytest.mark.parametrize("place", ["asyncio's class", "the loop's class"])
def test_what_an_iteration_calls_can_be_replaced_on_a_class_from_inside_of_one(loop, monkeypatch, name, place):
    """nest_asyncio does that when it is applied in a coroutine."""
    owner = type(loop)
    if place == "asyncio's class":
        owner = next(kind for kind in asyncio.SelectorEventLoop.__mro__ if name in vars(kind))
    original, calls = getattr(type(loop), name), 0

    def counted(self, *args):
        nonlocal calls
        calls += 1
        return original(self, *args)

    def replace():
        monkeypatch.setattr(owner, name, counted)
        iterate(loop, 10)

    loop.call_soon(replace)
    loop.run_forever()
    assert calls > 5


def test_a_replacement_that_is_gone_after_one_iteration_is_called_no_more(loop):
    """A stop in the iteration of the replacement counts, and so does one long after."""
    for delay in (0, 0.01):
        calls = []
        original = loop._run_once

        def once():
            calls.append(1)
            del loop._run_once
            original()

        def replace():
            loop._run_once = once
            loop.call_later(delay, loop.stop) if delay else loop.stop()

        loop.call_soon(replace)
        loop.run_forever()
        assert calls == ([1] if delay else [])
        vars(loop).pop("_run_once", None)


def test_the_selectors_select_waits_for_its_timeout_and_returns_whether_anything_happened(loop):
    """Virtual clocks count how long they have slept, and stop when there is something to do."""
    for timeout in (0.0005, 0.02, 0.033):
        before = time.monotonic()
        assert loop._selector.select(timeout) == []
        # epoll may count from a slightly earlier moment.
        assert time.monotonic() - before >= timeout - 1e-4
    with socketpair() as (near, far):
        loop.add_reader(near, near.recv, 10)
        far.send(b"news")
        assert len(loop._selector.select(10)) == 1
        loop.remove_reader(near)
        loop._ready.clear()
    before = time.monotonic()
    thread = threading.Timer(0.01, loop.call_soon_threadsafe, [print])
    thread.start()
    assert loop._selector.select(20) and time.monotonic() - before < 10
    thread.join()


def test_sockets_and_threads_work_under_a_virtual_clock(kind):
    async def main():
        near, far = await pair()
        near.transport.write(b"over the wire")
        assert await far.received(13) == b"over the wire"
        await close(near, far)

    loop = virtual(kind)()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


class Hooked(selectors.BaseSelector):
    """Like a selector that runs a program's input hook inside `select`."""

    def __init__(self):
        self._inner, self.calls, self.timeouts = selectors.DefaultSelector(), 0, []

    def register(self, *args):
        return self._inner.register(*args)

    def unregister(self, *args):
        return self._inner.unregister(*args)

    def modify(self, *args):
        return self._inner.modify(*args)

    def get_map(self):
        return self._inner.get_map()

    def select(self, timeout=None):
        self.calls += 1
        self.timeouts.append(timeout)
        return self._inner.select(timeout)

    def close(self):
        self._inner.close()


def test_a_selector_set_by_the_user_is_called_in_every_iteration(kind):
    async def main():
        near, far = await pair()
        near.transport.write(b"over the wire")
        assert await far.received(13) == b"over the wire"
        await close(near, far)
        assert await asyncio.to_thread(lambda: time.sleep(0.02) or "from a thread") == "from a thread"
        await asyncio.sleep(0.01)

    selector = Hooked()
    loop = kind(selector)
    try:
        assert loop._selector is selector
        loop.run_until_complete(main())
        assert selector.calls > 5 and 0 in selector.timeouts
        assert any(timeout is None or timeout > 0 for timeout in selector.timeouts)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def test_call_soon_threadsafe_wakes_a_loop_that_waits_in_the_users_selector(kind):
    loop = kind(Hooked())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for _ in range(20):
            woken = threading.Event()
            time.sleep(0.002)
            loop.call_soon_threadsafe(woken.set)
            assert woken.wait(5)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("selector", ["DefaultSelector", "SelectSelector", "PollSelector"])
def test_an_ordinary_selector_is_accepted_and_closed_with_the_loop(kind, selector):
    selector = getattr(selectors, selector)()
    loop = kind(selector)
    assert loop.run_until_complete(asyncio.sleep(0.001, "slept")) == "slept"
    loop.close()
    assert selector.get_map() is None


def test_an_overridden_run_once_is_called(kind):
    class Counting(kind):
        turns = 0

        def _run_once(self):
            self.turns += 1
            super()._run_once()

    loop = Counting()
    try:
        assert loop.run_until_complete(asyncio.sleep(0.001, "slept")) == "slept" and loop.turns >= 3
    finally:
        loop.close()


def test_the_queue_of_ready_callbacks_can_be_looked_into(loop):
    """prompt_toolkit and others read `_ready`: it has what call_soon scheduled, in order."""
    assert len(loop._ready) == 0 and not loop._ready
    handles = [loop.call_soon(print, number) for number in range(3)]
    assert loop._ready and list(loop._ready) == handles and handles[1] in loop._ready
    assert loop._ready.popleft() is handles[0]
    loop._ready.append(handles[0])
    assert list(loop._ready) == [handles[1], handles[2], handles[0]]
    assert repr(loop._ready) == repr(deque([handles[1], handles[2], handles[0]]))
    loop._ready.clear()
    assert len(loop._ready) == 0
    with pytest.raises(IndexError):
        loop._ready.popleft()


def test_run_once_called_from_python_logs_slow_callbacks_in_debug_mode(kind, asyncio_log):
    loop = kind(Hooked())
    loop.set_debug(True)
    loop.slow_callback_duration = 0.001
    loop.call_soon(time.sleep, 0.005)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert "Executing <Handle" in asyncio_log.text and "seconds" in asyncio_log.text


# -- a run inside of a callback -------------------------------------------------------------------------------


@pytest.fixture
def nestable(loop):
    make_nestable(loop)
    return loop


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_a_loop_can_be_run_inside_of_a_callback(nestable, schedule):
    seen = []

    async def inner():
        await asyncio.sleep(0.001)
        return "inner"

    def callback():
        seen.append(run_nested(nestable, inner()))
        nestable.stop()

    getattr(nestable, schedule)(*((0.001,) if schedule == "call_later" else ()), callback)
    nestable.run_forever()
    assert seen == ["inner"]


def test_a_loop_can_be_run_inside_of_a_task_several_levels_deep(nestable):
    async def main():
        loop = asyncio.get_running_loop()

        async def inner(depth):
            await asyncio.sleep(0.001)
            return depth if depth == 4 else run_nested(loop, inner(depth + 1))

        assert run_nested(loop, inner(1)) == 4
        assert await asyncio.gather(inner(3), inner(3)) == [4, 4]

    nestable.run_until_complete(main())


def test_a_loop_can_be_run_inside_of_every_call_to_a_protocol(nestable, loop_name, asyncio_log):
    if loop_name == "asyncio" and sys.version_info >= (3, 15):
        pytest.skip("since 3.15 a connection is accepted in the context of its callbacks, which is entered already")

    class Nesting(Recording):
        def __getattribute__(self, name):
            value = super().__getattribute__(name)
            if name not in ("connection_made", "data_received", "eof_received", "connection_lost"):
                return value

            def call(*args):
                run_nested(asyncio.get_running_loop(), asyncio.sleep(0.001))
                return value(*args)

            return call

    async def main():
        near, far = await pair(Nesting, Nesting)
        near.transport.write(b"there")
        assert await far.received(5) == b"there"
        far.transport.write(b"and back")
        assert await near.received(8) == b"and back"
        near.transport.close()
        await near.lost
        await far.lost
        assert near.calls == ["connection_made", "data_received", "connection_lost"]
        assert far.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]

    nestable.run_until_complete(main())


def test_data_that_comes_during_a_nested_run_waits_for_the_callback_to_end(nestable, asyncio_log):
    """asyncio reports each attempt to enter the callback's context a second time, and delivers the data afterwards."""
    deliveries = []

    class Slow(asyncio.Protocol):
        depth = 0

        def data_received(self, data):
            self.depth += 1
            deliveries.append((data, self.depth))
            if data.startswith(b"1"):
                run_nested(asyncio.get_running_loop(), asyncio.sleep(0.05))
            self.depth -= 1

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            transport, _ = await loop.create_connection(Slow, sock=near)
            far.send(b"1")
            loop.call_later(0.01, far.send, b"2")
            await asyncio.sleep(0.1)
            assert deliveries == [(b"1", 1), (b"2", 1)]
            transport.close()
            await asyncio.sleep(0)

    nestable.run_until_complete(main())


def test_data_written_before_a_nested_run_is_sent_in_it(nestable):
    """A protocol asks its peer and waits for the answer inside data_received."""

    class Asking(asyncio.Protocol):
        def __init__(self):
            self.answers = asyncio.Queue()
            self.done = asyncio.get_running_loop().create_future()

        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            loop = asyncio.get_running_loop()
            self.transport.write(b"question")
            answer = run_nested(loop, asyncio.wait_for(loop.sock_recv(peer, 100), 5))
            self.done.set_result(answer)

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            nonlocal peer
            peer = far
            transport, protocol = await loop.create_connection(Asking, sock=near)
            far.send(b"go")
            assert await asyncio.wait_for(protocol.done, 5) == b"question"
            transport.close()
            await asyncio.sleep(0)

    peer = None
    nestable.run_until_complete(main())


# On asyncio the second datagram finds its context entered, which is logged as often as the nested run polls.
@pytest.mark.native
def test_datagrams_that_come_during_a_nested_run_keep_their_order(nestable, asyncio_log):
    seen = []

    class Slow(asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            seen.append(data)
            if data == b"0":
                run_nested(asyncio.get_running_loop(), asyncio.sleep(0.02))

    async def main():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(Slow, local_addr=("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(5):
                sender.sendto(str(number).encode(), transport.get_extra_info("sockname"))
            await asyncio.sleep(0.1)
        transport.close()
        await asyncio.sleep(0)

    nestable.run_until_complete(main())
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
