"""Private names of asyncio's loop and transports that programs in the wild read, set or patch.

Home Assistant reads `_scheduled`, SMTP libraries set `_protocol`, servers read `_conn_lost`, schedulers rearrange
`_ready`, and tools that look for slow callbacks patch `Handle._run`.
"""

import asyncio
import collections
import contextvars
import copy
import functools
import gc
import heapq
import socket
import sys
import time

import pytest

from tests.support.protocol import Recording, close, pair
from tests.support.sockets import socketpair

# -- the timers -----------------------------------------------------------------------------------------------


def test_the_timers_that_wait_can_be_looked_through_and_cancelled(loop):
    assert not loop._scheduled and len(loop._scheduled) == 0
    handles = [loop.call_later(delay, print, delay) for delay in (20, 10, 30)]
    assert sorted(loop._scheduled) == [handles[1], handles[0], handles[2]]
    assert loop._scheduled[0] is handles[1] and handles[2] in loop._scheduled and len(loop._scheduled) == 3
    assert all(isinstance(handle, asyncio.TimerHandle) and handle._scheduled for handle in loop._scheduled)
    for handle in list(loop._scheduled):
        if handle._args != (20,):
            handle.cancel()
    assert [handle._args for handle in loop._scheduled if not handle.cancelled()] == [(20,)]


def test_timers_with_equal_deadlines_are_shown_in_the_order_in_which_they_fire(loop):
    seen, when = [], loop.time() + 0.01
    for number in range(50):
        loop.call_at(when, seen.append, number)
    loop.call_at(when, loop.stop)
    shown = [handle._args for handle in sorted(loop._scheduled, key=lambda handle: handle.when())][:-1]
    loop.run_forever()
    assert sorted(seen) == list(range(50))
    if type(loop)._run_once is not asyncio.BaseEventLoop._run_once:
        assert shown == [(number,) for number in seen] and seen == sorted(seen)


def test_timers_that_are_cleared_never_fire(loop):
    seen = []
    handles = [loop.call_later(0, seen.append, "cleared") for _ in range(3)]
    loop._scheduled.clear()
    assert not loop._scheduled
    loop.call_later(0.005, loop.stop)
    loop.run_forever()
    assert seen == []
    for handle in handles:
        handle.cancel()


def test_a_timer_can_be_taken_out_of_scheduled_and_run_by_a_tool(loop):
    seen = []
    for delay in (3600, 7200):
        loop.call_later(delay, seen.append, delay)
    handle = heapq.heappop(loop._scheduled)
    handle._scheduled = False
    assert not handle._scheduled
    handle._run()
    assert seen == [3600]
    assert [handle._args for handle in loop._scheduled] == [(7200,)]


def test_a_loop_can_be_drained_one_iteration_at_a_time(loop):
    """Runs as long as anything is ready or scheduled. It ends when both are empty."""
    seen = []
    loop.call_later(0.01, lambda: loop.call_soon(seen.append, "after the timer"))
    loop.call_soon(seen.append, "at once")
    deadline = time.monotonic() + 20
    while (loop._ready or loop._scheduled) and time.monotonic() < deadline:
        loop._run_once()
    assert seen == ["at once", "after the timer"]


def test_a_tool_that_runs_iterations_can_push_its_own_timers(loop, monkeypatch):
    """Debuggers do this: they override `call_at`, and a `_run_once` that handles their own list."""
    seen = []

    def call_at(when, callback, *args, context=None):
        timer = asyncio.TimerHandle(when, callback, args, loop, context)
        heapq.heappush(loop._scheduled, timer)
        timer._scheduled = True
        return timer

    def run_once():
        ready, scheduled = loop._ready, loop._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        timeout = 0 if ready else max(scheduled[0]._when - loop.time(), 0)
        loop._process_events(loop._selector.select(timeout))
        while scheduled and scheduled[0]._when < loop.time() + loop._clock_resolution:
            ready.append(heapq.heappop(scheduled))
        for _ in range(len(ready)):
            if not (handle := ready.popleft())._cancelled:
                handle._run()

    loop.call_later(0.002, seen.append, "the loop's")
    start = loop.time()
    call_at(start + 0.001, seen.append, "theirs")
    call_at(start + 0.003, seen.append, "cancelled").cancel()
    call_at(start + 0.004, seen.append, "theirs again")
    deadline = time.monotonic() + 20
    while len(seen) < 3 and time.monotonic() < deadline:
        run_once()
    assert sorted(seen) == ["the loop's", "theirs", "theirs again"]
    assert not loop._scheduled


def test_the_resolution_of_a_custom_clock_can_be_set(loop, monkeypatch):
    """A clock in whole seconds, for example, fires what is due within one."""
    seen = []
    monkeypatch.setattr(loop, "time", lambda: 100.0)
    loop._clock_resolution = 1.0
    for deadline in (100.5, 102.0):
        loop.call_at(deadline, seen.append, deadline)
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert seen == [100.5]
    monkeypatch.undo()
    loop._clock_resolution = 1e-9


# -- a handle -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["call_soon", "call_soon_threadsafe", "call_later"])
def schedule(request, loop):
    """Returns the method with which to schedule a callback."""
    method = getattr(loop, request.param)
    return functools.partial(method, 0) if request.param == "call_later" else method


def run_ready(loop):
    loop.call_later(0.001, loop.stop)
    loop.run_forever()


def test_a_handle_whose_cancelled_flag_is_set_does_not_run(loop, schedule):
    seen = []
    handle = schedule(seen.append, "cancelled")
    handle._cancelled = True
    assert handle.cancelled() and handle._cancelled
    schedule(seen.append, "run")._cancelled = False
    run_ready(loop)
    assert seen == ["run"]


def test_the_context_of_a_handle_can_be_replaced(loop, schedule):
    variable, seen = contextvars.ContextVar("variable", default="outer"), []
    context = contextvars.copy_context()
    context.run(variable.set, "inner")
    handle = schedule(lambda: seen.append(variable.get()))
    handle._context = context
    assert handle._context is context
    run_ready(loop)
    assert seen == ["inner"]


def test_the_repr_of_a_handle_can_be_replaced(loop, schedule):
    handle = schedule(print)
    handle._repr = "<a name>"
    assert repr(handle) == "<a name>"
    handle._repr = None
    assert repr(handle) != "<a name>"
    handle.cancel()


# -- the queue ------------------------------------------------------------------------------------------------


def test_the_queue_of_ready_callbacks_can_be_rearranged(loop):
    seen = []
    first, second, third = (loop.call_soon(seen.append, number) for number in range(3))
    ready = loop._ready
    assert ready[0] is first and ready[-1] is third and ready.index(second) == 1
    assert isinstance(ready.copy(), collections.deque) and list(ready.copy()) == [first, second, third]
    ready.rotate(1)
    assert list(ready) == [third, first, second]
    assert ready.pop() is second and len(ready) == 2
    ready.appendleft(second)
    assert list(ready) == [second, third, first]
    ready.remove(third)
    ready.insert(1, third)
    ready.extend([ready.popleft()])
    del ready[0]
    assert list(ready) == [first, second]
    ready[0], ready[1] = second, first
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == [1, 0]
    with pytest.raises(IndexError):
        loop._ready.pop()


def test_the_queue_of_ready_callbacks_has_what_a_deque_has(loop):
    """nest_asyncio2 puts the handles back that a nested run could not run, with `extendleft`."""
    seen = []
    handles = [loop.call_soon(seen.append, number) for number in range(4)]
    ready = loop._ready
    assert [name for name in dir(collections.deque) if name[0] != "_" and not hasattr(ready, name)] == []
    assert ready == collections.deque(handles) and ready != collections.deque() and ready.maxlen is None
    assert ready + ready == collections.deque(handles * 2)
    assert copy.copy(ready) == collections.deque(handles)
    with pytest.raises(TypeError):
        hash(ready)
    last, _ = ready.pop(), ready.reverse()
    ready.extendleft([ready.pop(), last])
    assert list(ready) == [handles[3], handles[0], handles[2], handles[1]]
    ready.extendleft(reversed([]))
    with pytest.raises(TypeError):
        ready.extendleft(None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == [3, 0, 2, 1]


def test_a_cancelled_handle_counts_while_it_is_in_the_queue_and_does_not_run(loop):
    """Schedulers fill the queue with cancelled handles to move its ends."""
    seen = []
    filler = asyncio.Handle(seen.append, ("filler",), loop)
    filler.cancel()
    own = loop.call_soon(seen.append, "cancelled")
    own.cancel()
    before = len(loop._ready)
    loop._ready.append(filler)
    loop._ready.append(own)
    assert len(loop._ready) == before + 2
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == []


# -- patches of an iteration of the loop ----------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch):
    """Returns the callbacks that asyncio.Handle._run was called for, as a tool would list them."""
    seen = []
    original = asyncio.Handle._run

    @functools.wraps(original)
    def run(self):
        seen.append(self._callback)
        return original(self)

    monkeypatch.setattr(asyncio.Handle, "_run", run)
    return seen


def test_a_patched_handle_run_sees_every_callback(loop, ran):
    def soon():
        pass

    def later(*args):
        loop.stop()

    loop.call_soon(soon)
    loop.call_soon_threadsafe(soon)
    loop.call_later(0.001, later, 1, 2, 3, 4)
    loop.run_forever()
    assert ran.count(soon) == 2 and ran.count(later) == 1


def test_a_tool_can_wrap_the_callback_of_a_handle_while_it_runs(loop, monkeypatch):
    """Tracers do this to run inside the callback's context."""
    original, seen = asyncio.Handle._run, []

    def run(self):
        callback, args = self._callback, self._args

        def wrapped(*args):
            seen.append("before")
            return callback(*args)

        self._callback, self._args = wrapped, (*args[:-1], "other") if args else ()
        try:
            return original(self)
        finally:
            assert self._callback is None or self._callback is wrapped
            if self._callback is wrapped:
                self._callback, self._args = callback, args

    def cancelling(*args):
        seen.append(args)
        handles[1].cancel()

    monkeypatch.setattr(asyncio.Handle, "_run", run)
    handles = [
        loop.call_soon(lambda *args: seen.append(args), 1, 2),
        loop.call_soon(cancelling, 1, 2, 3, 4, 5),
        loop.call_soon(lambda: seen.append("no arguments")),
        loop.call_later(0, loop.stop),
    ]
    loop.run_forever()
    assert seen == [
        "before", (1, "other"), "before", (1, 2, 3, 4, "other"), "before", "no arguments", "before"
    ]  # fmt: skip


def test_the_callback_of_a_handle_can_be_changed_before_it_runs(loop):
    seen = []
    handles = [loop.call_soon(print), loop.call_soon(print, 1, 2), loop.call_soon(print, 1, 2, 3, 4)]
    for handle in handles:
        handle._callback, handle._args = seen.append, (f"instead of {handle._args}",)
    handles[0]._args = None
    handles[0]._callback = None
    handles[0].cancel()
    assert handles[1]._args == ("instead of (1, 2)",)
    handles[1]._args = ("instead",)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == ["instead", "instead of (1, 2, 3, 4)"]


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_a_callback_that_changes_its_own_handle_and_fails_is_reported(loop, count):
    reported = []
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def change_and_fail(*args):
        handle._callback = print
        handle._args = None
        handle._args = ("other",) * 5
        raise ValueError(args)

    def clear_and_fail(*args):
        handle._callback = handle._args = None
        raise ValueError(args)

    for function in (change_and_fail, clear_and_fail):
        handle = loop.call_soon(function, *range(count))
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert "Handle" in repr(handle)
    assert [error.args for error in reported] == [(tuple(range(count)),)] * 2


def test_tasks_and_connections_work_with_a_patched_handle_run(run, ran):
    async def main():
        near, far = await pair()
        near.transport.write(b"over the wire")
        assert await far.received(13) == b"over the wire"
        await close(near, far)
        assert await asyncio.to_thread(lambda: "from a thread") == "from a thread"

    run(main())
    assert len(ran) > 10


def test_an_exception_in_a_callback_is_reported_with_a_patched_handle_run(loop, ran):
    reported = []
    loop.set_exception_handler(lambda loop, context: reported.append(context))
    loop.call_soon(int, "no number")
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert len(reported) == 1 and isinstance(reported[0]["exception"], ValueError)
    assert reported[0]["message"].startswith("Exception in callback int(")


def test_a_restored_handle_run_is_used_again(loop, ran, monkeypatch):
    loop.call_soon(loop.stop)
    loop.run_forever()
    count = len(ran)
    assert count > 0
    monkeypatch.undo()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert len(ran) == count


def test_a_run_once_patched_on_base_event_loop_runs_the_loop(run, monkeypatch):
    original, turns = asyncio.BaseEventLoop._run_once, []

    def run_once(self):
        turns.append(len(self._ready))
        original(self)

    async def main():
        near, far = await pair()
        near.transport.write(b"over the wire")
        assert await far.received(13) == b"over the wire"
        await close(near, far)
        order = []
        loop = asyncio.get_running_loop()
        now = loop.time()
        for delay in (0.003, 0.001, 0.002):
            loop.call_at(now + delay, order.append, delay)
        await asyncio.sleep(0.02)
        assert order == [0.001, 0.002, 0.003]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", run_once)
    run(main())
    assert len(turns) > 5


def test_a_create_task_patched_on_base_event_loop_sees_every_task(run, monkeypatch):
    original, seen = asyncio.BaseEventLoop.create_task, []

    def create_task(self, coro, **options):
        seen.append(coro.__name__)
        return original(self, coro, **options)

    async def child():
        return "done"

    async def main():
        assert await asyncio.create_task(child()) == "done"
        assert await asyncio.get_running_loop().create_task(child(), name="by name") == "done"
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_task", create_task)
    run(main())
    assert seen.count("child") == 3
    monkeypatch.undo()
    run(main())
    assert seen.count("child") == 3


def test_a_create_task_with_replaced_code_sees_every_task(run):
    """Tracers that wrap bytecode do this: the function on the class stays the same object."""
    function = asyncio.BaseEventLoop.create_task

    def rewritten(self, coro, **options):
        import asyncio

        return asyncio.Task(coro, loop=self, name="traced")

    async def main():
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        return task.get_name()

    code, defaults = function.__code__, function.__kwdefaults__
    function.__code__, function.__kwdefaults__ = rewritten.__code__, None
    try:
        assert run(main()) == "traced"
    finally:
        function.__code__, function.__kwdefaults__ = code, defaults
    assert run(main()).startswith("Task-")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("create_connection", lambda loop: loop.create_connection(Recording, "127.0.0.1", 1)),
        ("getaddrinfo", lambda loop: loop.create_connection(Recording, "localhost", 1)),
        ("getaddrinfo", lambda loop: loop.getaddrinfo("127.0.0.1", 1)),
        ("getnameinfo", lambda loop: loop.getnameinfo(("127.0.0.1", 1))),
    ],
)
def test_a_method_patched_on_base_event_loop_is_called(run, monkeypatch, name, call):
    """Used by guards against network traffic in tests, and by programs with their own name resolution."""

    class Called(Exception):
        pass

    async def replacement(self, *args, **options):
        raise Called

    async def main():
        with pytest.raises(Called):
            await call(asyncio.get_running_loop())

    monkeypatch.setattr(asyncio.BaseEventLoop, name, replacement)
    run(main())


def test_a_patched_make_socket_transport_is_called_at_both_ends(run, monkeypatch):
    kind = asyncio.selector_events.BaseSelectorEventLoop
    original, made = kind._make_socket_transport, []

    def make(self, sock, *args, **options):
        made.append(sock.getsockname())
        return original(self, sock, *args, **options)

    async def main():
        near, far = await pair()
        assert sorted(made) == sorted(end.transport.get_extra_info("sockname") for end in (near, far))
        await close(near, far)

    monkeypatch.setattr(kind, "_make_socket_transport", make)
    run(main())


@pytest.mark.parametrize("kind", ["socket", "datagram"])
def test_a_peer_name_that_the_maker_of_a_transport_gives_is_kept(run, kind):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair(type=socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)
        near.setblocking(False)
        with far:
            make = getattr(loop, f"_make_{kind}_transport")
            protocol = asyncio.DatagramProtocol() if kind == "datagram" else asyncio.Protocol()
            transport = make(near, protocol, extra={"peername": "of accept()"})
            assert transport.get_extra_info("peername") == "of accept()"
            assert transport.get_extra_info("sockname") == near.getsockname()
            await asyncio.sleep(0)
            transport.abort()
            await asyncio.sleep(0)

    run(main())


@pytest.mark.parametrize("name", ["_make_socket_transport", "_make_datagram_transport"])
def test_a_patched_make_socket_transport_creates_the_transports(run, monkeypatch, name):
    """CoAP libraries receive datagrams with their own transports."""
    kind = asyncio.selector_events.BaseSelectorEventLoop
    original, made = getattr(kind, name), []

    def make(self, sock, protocol, *args, **options):
        made.append(protocol)
        return original(self, sock, protocol, *args, **options)

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            far.send(b"in")
            transport, protocol = await loop.create_connection(Recording, sock=near)
            assert await protocol.received(2) == b"in"
            transport.write(b"out")
            assert await loop.sock_recv(far, 3) == b"out"
            transport.close()
            await protocol.lost
        transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
        transport.close()
        await asyncio.sleep(0)

    monkeypatch.setattr(kind, name, make)
    run(main())
    assert len(made) == 1


# -- transports -----------------------------------------------------------------------------------------------


def test_the_state_of_a_connection_can_be_read_off_its_transport(run):
    async def main():
        near, far = await pair()
        transport = near.transport
        assert transport._protocol is near and transport._conn_lost == 0
        assert not (transport._closing or transport._paused or transport._eof)
        transport.pause_reading()
        assert transport._paused
        transport.resume_reading()
        assert not transport._paused
        transport.write_eof()
        assert transport._eof
        await far.ended
        transport.close()
        assert transport._closing
        await near.lost
        assert transport._protocol is None
        await close(near, far)

    run(main())


def test_a_write_to_a_closed_connection_counts(run):
    async def main():
        near, far = await pair()
        await close(near, far)
        before = near.transport._conn_lost
        near.transport.write(b"lost")
        assert near.transport._conn_lost == before + 1

    run(main())


def test_an_accepted_connection_names_its_server_until_it_is_lost(run):
    async def main():
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()

        def accept():
            accepted.set_result(Recording())
            return accepted.result()

        server = await loop.create_server(accept, "127.0.0.1", 0)
        client, near = await loop.create_connection(Recording, *server.sockets[0].getsockname())
        far = await accepted
        await far.connected
        assert far.transport._server is server and client._server is None
        await close(near, far)
        assert far.transport._server is None
        server.close()
        await server.wait_closed()

    run(main())


def test_a_protocol_assigned_to_the_private_attribute_gets_later_data(run):
    """STARTTLS was done like this before loop.start_tls()."""

    async def main():
        near, far = await pair()
        replacement = Recording()
        near.transport._protocol = replacement
        assert near.transport.get_protocol() is replacement
        far.transport.write(b"for the new one")
        assert await replacement.received(15) == b"for the new one"
        assert not near.data
        near.transport.close()
        await replacement.lost
        await far.lost

    run(main())


def test_the_open_transports_of_a_loop_can_be_listed(run):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        with socketpair() as (sock, _):
            reader, _ = await loop.connect_read_pipe(asyncio.Protocol, sock.dup())
            datagram, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
            open_now = [near.transport, far.transport, datagram]
            assert {*loop._transports.values()} == {*open_now}
            assert all(loop._transports[transport._sock_fd] is transport for transport in open_now)
            reader.close()
            datagram.close()
            await close(near, far)
        near.transport = far.transport = None
        del near, far, reader, datagram, open_now
        await asyncio.sleep(0.01)
        gc.collect()
        assert not loop._transports

    run(main())


def test_the_state_of_datagram_and_pipe_transports_can_be_read_as_well(run):
    async def main():
        loop = asyncio.get_running_loop()
        datagrams, protocol = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
        )
        assert datagrams._protocol is protocol and datagrams._conn_lost == 0 and not datagrams._closing
        with socketpair() as (one, other):
            read, reading = await loop.connect_read_pipe(Recording, one)
            write, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, other)
            assert read._protocol is reading and not read._closing and not read._paused
            assert not write._closing and write._conn_lost == 0
            replacement = Recording()
            read._protocol = replacement
            write.write(b"through the pipe")
            assert await replacement.received(16) == b"through the pipe"
            for transport in (datagrams, read, write):
                transport.close()
                assert transport._closing
            await replacement.lost
        await asyncio.sleep(0)

    run(main())


# -- the attributes of transports -----------------------------------------------------------------------------


@pytest.mark.parametrize("connected", [True, False])
def test_a_datagram_transport_shows_its_address_and_the_datagrams_that_wait(run, tmp_path, connected):
    async def main():
        loop, path = asyncio.get_running_loop(), str(tmp_path / "far")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as far:
            far.bind(path)
            address = {"remote_addr": path} if connected else {"local_addr": str(tmp_path / "near")}
            endpoint = loop.create_datagram_endpoint(asyncio.DatagramProtocol, family=socket.AF_UNIX, **address)
            transport, _ = await endpoint
            assert transport._address == (path if connected else None)
            assert transport._buffer_size == 0
            assert not transport._buffer and type(transport._buffer) is collections.deque
            transport.set_write_buffer_limits(high=1_000_000, low=5)
            assert (transport._high_water, transport._low_water) == (1_000_000, 5)
            count = 0
            while not transport._buffer and count < 100_000:
                transport.sendto(b"%d" % count, path)
                count += 1
            transport.sendto(b"last", path)
            assert list(transport._buffer) == [(b"%d" % (count - 1), path), (b"last", path)]
            assert transport._buffer_size == transport.get_write_buffer_size() > 0
            assert transport._conn_lost == 0 and transport._protocol_connected
            transport.abort()
            assert transport._conn_lost == 1 and not transport._buffer

    run(main())


@pytest.mark.parametrize("kind", ["stream", "pipe"])
def test_a_transport_shows_the_data_that_waits_for_room(run, kind):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (sock, peer):
            connect = loop.connect_write_pipe if kind == "pipe" else loop.create_connection
            options = (asyncio.BaseProtocol, sock) if kind == "pipe" else (asyncio.Protocol,)
            transport, _ = await connect(*options, **({} if kind == "pipe" else {"sock": sock}))
            pieces = kind == "stream" and sys.version_info >= (3, 12)
            assert not transport._buffer and type(transport._buffer) is (collections.deque if pieces else bytearray)
            sent = b"".join(b"%07d " % number for number in range(200_000))
            transport.write(sent)
            transport.write(b"the last")
            waiting = b"".join(transport._buffer) if pieces else bytes(transport._buffer)
            assert 0 < len(waiting) == transport.get_write_buffer_size() < len(sent)
            assert (sent + b"the last").endswith(waiting)
            transport.abort()
            assert not transport._buffer
            await asyncio.sleep(0.01)

    run(main())


@pytest.mark.parametrize("kind", ["stream", "datagram"])
def test_what_a_transport_says_about_itself_can_be_replaced(run, kind):
    """Servers behind a proxy put the address of the client there."""

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair(socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM) as (sock, _):
            connect = loop.create_datagram_endpoint if kind == "datagram" else loop.create_connection
            factory = asyncio.DatagramProtocol if kind == "datagram" else asyncio.Protocol
            transport, _ = await connect(factory, sock=sock)
            transport._extra = {**transport._extra, "peername": "the client", "added": 1}
            assert transport.get_extra_info("peername") == "the client" and transport.get_extra_info("added") == 1
            assert transport.get_extra_info("socket").fileno() == sock.fileno()
            transport._extra["added"] = 2
            assert transport.get_extra_info("added") == 2
            transport.close()
            await asyncio.sleep(0.01)

    run(main())


def test_a_stream_transport_shows_its_water_marks(run):
    async def main():
        near, far = await pair()
        transport = near.transport
        transport.set_write_buffer_limits(high=100)
        assert (transport._high_water, transport._low_water) == (100, 25)
        transport._high_water, transport._low_water = 50, 10
        assert transport.get_write_buffer_limits() == (10, 50)
        assert transport._protocol_connected and transport._eof is False and transport._server is None
        await close(near, far)
        assert transport._conn_lost >= 0 and transport._protocol_connected

    run(main())


# -- dir() ------------------------------------------------------------------------------------------------------


def test_every_name_that_dir_lists_is_an_attribute(run):
    """Debuggers and tools that print objects read them all."""

    async def main():
        loop = asyncio.get_running_loop()
        near, far = await pair()
        handles = [loop.call_soon(int), loop.call_later(0, int), loop.call_soon_threadsafe(int)]
        endpoint, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
        objects = [loop, *handles, near.transport, near.transport.get_extra_info("socket"), endpoint]
        missing = [(type(it), name) for it in objects for name in dir(it) if not hasattr(it, name)]
        assert missing == []
        loop.attribute_of_the_program = 1
        assert {"call_soon", "attribute_of_the_program", "_selector"} <= set(dir(loop))
        assert {"cancel", "when", "_callback", "__repr__"} <= set(dir(handles[1]))
        del loop.attribute_of_the_program
        endpoint.close()
        await close(near, far)

    run(main())
