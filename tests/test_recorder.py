"""wakeloop.record(): the flight recorder, and the traces that it writes."""

import asyncio
import collections
import contextlib
import functools
import gc
import itertools
import os
import signal
import sys
import threading
import time
import weakref

import pytest
import wakeloop
from wakeloop import _core

from tests.support.nesting import make_nestable, run_nested
from tests.support.script import run_script, start_script
from tests.support.sockets import socketpair
from tests.support.tls_pair import Echo, close, secure_pair
from tests.support.trace import Trace, ends

pytestmark = pytest.mark.native

#: The two clocks of a recording are compared to some microseconds; a busy machine may interrupt that.
TOLERANCE = 0.0005


@pytest.fixture(autouse=True)
def recorder_stops():
    yield
    if wakeloop.Recorder.running():
        wakeloop.Recorder.running().stop()
        pytest.fail("the test has left a recorder running")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


@contextlib.contextmanager
def recorded(path, **options):
    """Records a block; yields an empty list, which then has the trace."""
    found = []
    with wakeloop.record(path, **options):
        yield found
    found.append(Trace.read(path))


def record(path, run, coroutine, **options):
    """The trace of a coroutine."""
    with recorded(path, **options) as found:
        run(coroutine)
    return found[0]


def wait_for(condition):
    """Waits until a thread or another process has done something."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing has happened"
        time.sleep(0.005)


class Truth:
    """Callbacks and tasks that note when they really ran."""

    def __init__(self):
        self.ran = {}

    def callback(self, name, seconds=0.002):
        def run(*_):
            start = time.monotonic()
            time.sleep(seconds)
            self.ran[name] = (start, time.monotonic())

        run.__qualname__ = name
        return run

    def check(self, trace):
        """Each slice is from before its callback until after it, and does not reach into the next one."""
        order = sorted(self.ran, key=self.ran.get)
        before = 0.0
        for name, following in itertools.zip_longest(order, order[1:]):
            (event,) = trace.find(name)
            (start, end), (truly_start, truly_end) = ends(event), self.ran[name]
            assert before - TOLERANCE <= start <= truly_start + TOLERANCE, name
            assert end >= truly_end - TOLERANCE, name
            assert following is None or end <= self.ran[following][0] + TOLERANCE, name
            before = truly_end


# -- what is recorded --------------------------------------------------------------------------------------------------


def test_callbacks_timers_and_tasks_have_their_names_and_their_real_times(run, path):
    truth = Truth()

    async def task():
        truth.callback("Task-me: task")()

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_soon(truth.callback("soon"))
        loop.call_later(0.001, truth.callback("later"))
        loop.call_soon_threadsafe(truth.callback("threadsafe"))
        await loop.create_task(task(), name="Task-me")
        await asyncio.sleep(0.003)
        await loop.run_in_executor(None, truth.callback("job"))
        del truth.ran["job"]  # it ran in another thread

    task.__qualname__ = "task"
    trace = record(path, run, main())
    truth.check(trace)
    assert {event["cat"] for event in trace.find("soon")} == {"callback"}
    assert trace.find("soon")[0]["args"] == {"module": __name__}
    assert trace.find("Task-me: task")[0]["cat"] == "task"
    assert trace.find("Task-me: task")[0]["args"] == {"task": "Task-me", "coroutine": "task"}
    assert trace.names(category="turn") and trace.names(category="poll")
    assert len([event for event in trace.instants if event["name"] == "timer"]) >= 2
    assert all(event["args"]["late_us"] >= 0 for event in trace.instants if event["name"] == "timer")


def test_a_query_finds_the_slow_callback(run, path):
    class Service:
        def fast(self):
            pass

        def blocks(self):
            time.sleep(0.05)

    async def main():
        service, loop = Service(), asyncio.get_running_loop()
        for _ in range(50):
            loop.call_soon(service.fast)
            await asyncio.sleep(0)
        loop.call_soon(service.blocks)
        await asyncio.sleep(0.01)

    slowest = record(path, run, main()).slowest()
    assert slowest["name"].endswith("Service.blocks") and slowest["dur"] >= 50_000


def test_callbacks_are_inside_of_turns_and_polls_are_not(run, path):
    async def main():
        for _ in range(20):
            asyncio.get_running_loop().call_soon(int)
            await asyncio.sleep(0.0005)

    trace = record(path, run, main())
    turns = [ends(turn) for turn in trace.find(category="turn")]

    def in_a_turn(event):
        start, end = ends(event)
        return any(turn[0] - 2e-9 <= start and end <= turn[1] + 2e-9 for turn in turns)

    assert all(map(in_a_turn, trace.find(category="callback") + trace.find(category="task")))
    assert not any(map(in_a_turn, trace.find(category="poll")))


def test_reads_and_writes_of_a_protocol_have_descriptor_and_size(run, path):
    sizes = [1, 1000, 70_000]

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        fd = writer.get_extra_info("socket").fileno()
        for size in sizes:
            writer.write(bytes(size))
            await reader.readexactly(size)
        writer.close()
        await writer.wait_closed()
        server.close()
        return fd

    with recorded(path) as found:
        fd = run(main())
    sums = collections.Counter()
    for event in found[0].find(category="io"):
        if "bytes" in event.get("args", {}):
            sums[event["name"], event["args"]["fd"] == fd] += event["args"]["bytes"]
    # The data goes both ways, and each way is sent and received once.
    assert sums == {(name, near): sum(sizes) for name in ("send", "receive") for near in (True, False)}
    assert "Echo.data_received" in found[0].names(category="callback")


def test_reads_and_writes_of_datagrams_pipes_and_sockets_have_their_sizes(run, path):
    async def datagrams():
        class Receiver(asyncio.DatagramProtocol):
            def datagram_received(self, data, address):
                received.set_result(data)

        loop, received = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        far, _ = await loop.create_datagram_endpoint(Receiver, ("127.0.0.1", 0))
        near, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=far.get_extra_info("sockname")
        )
        near.sendto(bytes(101))
        await received
        near.close()
        far.close()

    async def pipes():
        loop, (read_end, write_end) = asyncio.get_running_loop(), os.pipe()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(read_end, "rb", 0))
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, open(write_end, "wb", 0))
        transport.write(bytes(202))
        transport.close()
        assert len(await reader.read()) == 202

    async def sockets():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            receiving = loop.create_task(loop.sock_recv(far, 1000))
            await asyncio.sleep(0.001)
            await loop.sock_sendall(near, bytes(303))
            assert len(await receiving) == 303
            await loop.sock_sendall(near, bytes(404))
            assert await loop.sock_recv_into(far, bytearray(1000)) == 404

    async def main():
        await datagrams()
        await pipes()
        await sockets()
        await asyncio.sleep(0)

    trace = record(path, run, main())
    events = trace.find(category="io") + [event for event in trace.instants if event["cat"] == "io"]
    seen = collections.Counter((event["name"], event["args"].get("bytes")) for event in events)
    for size in (101, 202, 303, 404):
        assert seen["send", size] == seen["receive", size] == 1, (size, seen)


def test_a_protocol_on_tls_is_named(run, path, tls, tls_engine):
    async def main():
        near, far = await secure_pair(tls, far=Echo)
        near.transport.write(b"hello")
        await near.received(5) if hasattr(near, "received") else await asyncio.sleep(0.05)
        await close(near, far)

    trace = record(path, run, main())
    assert "Echo.data_received" in trace.names(category="callback")


def test_the_runtime_has_a_track_for_each_worker(run, path, runtime):
    async def main():
        await asyncio.gather(*[wakeloop.sleep(0.003) for _ in range(20)])

    trace = record(path, run, main())
    polls = [event for event in trace.find(category="runtime", thread="runtime wakeloop") if event["name"] != "parked"]
    assert len(polls) >= 20 and all("::" in event["name"] for event in polls)
    assert trace.find("parked", thread="runtime wakeloop")


def test_two_loops_have_a_track_each_and_the_gil_has_one(path, loop_factory):
    truths = [Truth(), Truth()]
    barrier = threading.Barrier(2)

    def run(index):
        async def main():
            barrier.wait()
            for turn in range(5):
                asyncio.get_running_loop().call_soon(truths[index].callback(f"{index}-{turn}", 0.001))
                await asyncio.sleep(0.001)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    with recorded(path) as found:
        threads = [threading.Thread(target=run, args=(index,), name=f"loop {index} \"x\"") for index in (0, 1)]
        for thread in threads:
            thread.start()
        numbers = [thread.native_id for thread in threads]
        for thread in threads:
            thread.join()
    (trace,) = found
    for index, truth in enumerate(truths):
        truth.check(trace)
        assert {event["tid"] for name in truth.ran for event in trace.find(name)} == {numbers[index]}
    assert list(trace.threads.values()).count("GIL") == 1
    held = trace.find("event loop", thread="GIL")
    assert {event["args"]["thread"] for event in held} == set(numbers)
    # The checker has found that they do not overlap.
    assert all(first["ts"] + first["dur"] <= second["ts"] + 0.01 for first, second in itertools.pairwise(held))


def test_a_thread_that_keeps_the_gil_is_seen(run, path):
    """The loop wants the GIL, and a thread in one long C call has it."""
    times = []

    def keep():
        time.sleep(0.02)  # Until then the loop polls.
        start = time.monotonic()
        sum(range(4_000_000))
        times.append(time.monotonic() - start)

    async def main():
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(None, keep)
        while not job.done():
            await asyncio.sleep(0.001)

    for _ in range(10):
        times.clear()
        trace = record(path, run, main())
        (kept,) = times
        waits = [event["dur"] / 1e6 for event in trace.find("wait for the GIL")]
        others = [event["dur"] / 1e6 for event in trace.find("another thread", thread="GIL")]
        # The loop begins to wait when its sleep is over.
        if waits and kept / 2 <= max(waits) <= kept + TOLERANCE and max(others) == max(waits):
            return
    pytest.fail(f"kept for {kept}, waited {waits}")


def test_debug_mode_and_patches_are_recorded_too(loop, path, monkeypatch):
    original = asyncio.Handle._run
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(asyncio.Handle, "_run", lambda handle: original(handle))
        for debug in (False, True):
            loop.set_debug(debug)
            truth = Truth()
            with recorded(path) as found:
                loop.call_soon(truth.callback("seen"))
                loop.run_until_complete(asyncio.sleep(0))
            truth.check(found[0])


def test_a_loop_that_python_steps_records_its_polls_and_callbacks(loop, path):
    make_nestable(loop)
    truth = Truth()

    async def main():
        await asyncio.sleep(0.001)
        for name in ("first", "second"):
            loop.call_soon(truth.callback(name))
        run_nested(loop, asyncio.sleep(0.001))

    with recorded(path) as found:
        loop.run_until_complete(main())
    truth.check(found[0])
    assert len(found[0].find("poll")) >= 4


def test_cancelled_callbacks_are_not_recorded(run, path):
    async def main():
        loop = asyncio.get_running_loop()
        handle = loop.call_soon(Truth().callback("cancelled"))
        loop.call_soon(Truth().callback("not cancelled"))
        handle.cancel()
        await asyncio.sleep(0)

    names = record(path, run, main()).names(category="callback")
    assert "not cancelled" in names and "cancelled" not in names


# -- names -----------------------------------------------------------------------------------------------------------


HOSTILE = [
    'quote " backslash \\',
    "line\nfeed\ttab\0nul",
    "\x1b[31mred\x1b[0m\x07\x9b",
    "\udc80lone\ud800",
    "é ü 漢 \U0001f600",
    "</script>{}[],:",
    "\u2028\u2029\x85\x7f",
    " ",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_name_can_break_the_trace(run, path, name):
    def callback():
        pass

    async def coroutine():
        pass

    callback.__qualname__ = callback.__module__ = coroutine.__qualname__ = name

    async def main():
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.create_task(coroutine(), name=name)

    thread = threading.current_thread()
    before, thread.name = thread.name, name
    try:
        trace = record(path, run, main())
    finally:
        thread.name = before
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert trace.find(shown)[0]["args"] == {"module": shown}
    assert trace.find(f"{shown}: {shown}")[0]["args"] == {"task": shown, "coroutine": shown}
    assert f"event loop {shown}".rstrip() in trace.threads.values()


def test_an_empty_and_a_very_long_name_are_recorded(run, path):
    def callback():
        pass

    async def main():
        for name in ("", "x" * 100_000):
            callback.__qualname__ = name
            asyncio.get_running_loop().call_soon(callback)
            await asyncio.sleep(0)

    with wakeloop.record(path):
        run(main())
    text = path.read_text()
    assert '"name":""' in text and "x" * 200 + "…" in text and "x" * 201 not in text


def test_every_kind_of_callable_has_a_name_and_none_is_asked(run, path):
    """No attribute is looked up that the program could define."""

    class Callable:
        def __call__(self, *_):
            pass

        def __getattribute__(self, name):
            raise AssertionError(f"{name} was looked up")

        def method(self):
            pass

    class Text(str):
        def __hash__(self):
            raise AssertionError("it was hashed")

        __eq__ = __str__ = __repr__ = __len__ = __hash__

    class Task(asyncio.Task):
        def get_name(self):
            raise AssertionError("its name was asked for")

        get_coro = get_name

    async def coroutine():
        await asyncio.sleep(0)

    def function():
        pass

    function.__qualname__ = Text("Text.function")
    method = functools.partial(Callable.method, Callable())
    # More than are looked into.
    nested = functools.reduce(lambda inner, _: functools.partial(functools.partial(inner)), range(10), Callable())
    future = None

    async def main():
        nonlocal future
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        for callback in (Callable(), function, functools.partial(function), method, nested, collections.deque().clear):
            loop.call_soon(callback)
        loop.call_soon(future.set_result, None)
        await future
        await Task(coroutine(), loop=loop, name="its name")

    names = record(path, run, main()).names()
    prefix = f"{test_every_kind_of_callable_has_a_name_and_none_is_asked.__name__}.<locals>."
    assert f"<{Callable.__name__}>" in names and names.count("Text.function") == 2
    assert f"{prefix}Callable.method" in names
    assert "collections.deque.clear" in names and "_asyncio.Future.set_result" in names
    assert names.count(f"its name: {prefix}coroutine") >= 2


def test_tasks_that_reuse_an_address_have_their_own_names(run, path):
    async def one():
        await asyncio.sleep(0)

    async def other():
        await asyncio.sleep(0)

    one.__qualname__, other.__qualname__ = "one", "other"
    addresses, expected = [], []

    async def main():
        for index in range(300):
            # Default names, names of their own, and one name for all; with two coroutines in turn.
            coroutine = (one if index % 2 else other)()
            kind = coroutine.__qualname__
            name = [None, f"task {index}", "task"][index % 3]
            task = asyncio.create_task(coroutine, name=name)
            addresses.append(id(task))
            expected.append(f"{task.get_name()}: {kind}")
            await task
            del task, coroutine

    names = record(path, run, main()).names(category="task")
    assert len(set(addresses)) < len(addresses) / 2
    steps = [name for name, _ in itertools.groupby(name for name in names if name.endswith((": one", ": other")))]
    assert steps == expected


def test_a_task_that_is_renamed_has_its_new_name_from_then_on(run, path):
    async def main():
        task = asyncio.current_task()
        for name in ("first", "second"):
            task.set_name(name)
            await asyncio.sleep(0)

    main.__qualname__ = "main"
    names = record(path, run, main()).names(category="task")
    assert [name for name, _ in itertools.groupby(names) if name.endswith("main")][-2:] == ["first: main", "second: main"]


def test_functions_that_reuse_an_address_have_their_own_names(loop, path):
    expected = [f"function {index}" for index in range(100)]
    with recorded(path) as found:
        for name in expected:
            code = compile("def made(): pass", "<made>", "exec")
            namespace = {}
            exec(code, namespace)
            namespace["made"].__qualname__ = name
            loop.call_soon(namespace.pop("made"))
            loop.run_until_complete(asyncio.sleep(0))
    assert [name for name in found[0].names(category="callback") if name.startswith("function ")] == expected


def test_more_names_than_are_kept_do_not_grow_without_bound(loop, path):
    with recorded(path, size=1 << 14) as found:
        for index in range(20_000):
            loop.call_soon(Truth().callback(f"name {index}", 0))
            if index % 50 == 49:
                loop.run_until_complete(asyncio.sleep(0))
    names = [name for name in found[0].names(category="callback") if name.startswith("name ")]
    assert names and names == [f"name {index}" for index in range(20_000 - len(names), 20_000)]


# -- the ring ----------------------------------------------------------------------------------------------------------


def test_a_full_ring_keeps_the_last_events_and_counts_the_others(loop, path):
    ran = []
    with recorded(path, size=1024) as found:
        recorder = wakeloop.Recorder.running()
        assert (recorder.events, recorder.dropped) == (0, 0)
        for index in range(500):
            callback = Truth().callback(f"callback {index}", 0)
            loop.call_soon(callback)
            ran.append(f"callback {index}")
        loop.run_until_complete(asyncio.sleep(0))
        assert recorder.events > 500
        assert recorder.events - recorder.dropped == 63
    (trace,) = found
    names = [name for name in trace.names() if name.startswith("callback ")]
    assert 40 < len(names) <= 63 and names == ran[-len(names) :]
    assert trace.data["otherData"]["events_dropped"] == str(recorder.dropped)


def test_without_a_recorder_nothing_is_recorded(loop, path):
    with wakeloop.record(path) as recorder:
        loop.run_until_complete(asyncio.sleep(0))
    events = recorder.events
    assert events > 0
    loop.run_until_complete(asyncio.sleep(0.001))
    assert recorder.events == events and not recorder.active and wakeloop.Recorder.running() is None


def test_a_recorder_sees_a_loop_that_runs_already_and_stops_in_its_middle(run, path):
    truth = Truth()

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_soon(truth.callback("before"))
        await asyncio.sleep(0)
        with wakeloop.record(path):
            loop.call_soon(truth.callback("during"))
            await asyncio.sleep(0)
        loop.call_soon(truth.callback("after"))
        await asyncio.sleep(0)

    run(main())
    names = Trace.read(path).names()
    assert "during" in names and "before" not in names and "after" not in names


def test_a_trace_is_saved_from_another_thread_while_the_loop_is_busy(run, path):
    done = threading.Event()
    problems = []

    def save():
        try:
            wait_for(lambda: recorder.dropped)
            for _ in range(20):
                trace = Trace.read(recorder.save())
                assert trace.data["traceEvents"]
        except BaseException as error:
            problems.append(error)
        finally:
            done.set()

    async def main():
        loop = asyncio.get_running_loop()
        saving = threading.Thread(target=save)
        saving.start()
        while not done.is_set():
            loop.call_soon(int)
            await asyncio.sleep(0)
        saving.join()

    with wakeloop.record(path, size=1 << 16) as recorder:
        run(main())
    assert not problems
    assert recorder.dropped > 0


def test_a_trace_from_another_thread_shows_what_blocks_the_loop_now(run, path):
    blocking, saved = threading.Event(), threading.Event()

    def blocks():
        blocking.set()
        assert saved.wait(20)

    async def main():
        asyncio.get_running_loop().call_soon(blocks)
        await asyncio.sleep(0)

    blocks.__qualname__ = "blocks"
    with wakeloop.record() as recorder:
        thread = threading.Thread(target=run, args=(main(),))
        thread.start()
        assert blocking.wait(20)
        time.sleep(0.02)
        recorder.save(path)
        saved.set()
        thread.join()
    (event,) = Trace.read(path).find("blocks")
    assert event["args"]["unfinished"] is True and event["dur"] >= 20_000


# -- who could notice ----------------------------------------------------------------------------------------------------


def life_and_death(loop):
    """Runs callbacks and tasks; returns the order in which their objects died, and what weak references saw."""
    order = []

    class Thing:
        def __init__(self, name):
            self.name = name

        def __call__(self, *_):
            order.append(f"{self.name} runs")

        def __del__(self):
            order.append(f"{self.name} dies")

    async def work(thing):
        thing()
        await asyncio.sleep(0)
        thing()

    async def main():
        for index in range(20):
            loop.call_soon(Thing(f"callable {index}"), Thing(f"argument {index}"))
            loop.call_later(0, functools.partial(Thing(f"partial {index}")))
            thing = Thing(f"task {index}")
            task = loop.create_task(work(thing), name=f"name {index}")
            weakref.finalize(task, order.append, f"task object {index} dies").atexit = False
            order.append(f"{weakref.getweakrefcount(task)} weak references")
            task.add_done_callback(Thing(f"done callback {index}"))
            order.append(f"{sys.getrefcount(thing)} {sys.getrefcount(task)} references")
            del thing
            if index % 3 == 0:
                await task
            del task
            cycle = [Thing(f"cycle {index}")]
            cycle.append(cycle)
        await asyncio.sleep(0.001)

    gc.collect()
    gc.disable()
    try:
        loop.run_until_complete(main())
        gc.collect()
    finally:
        gc.enable()
    return order


def test_recording_changes_neither_lives_nor_deaths(loop_factory, path):
    orders = []
    for recording in (False, True):
        with contextlib.closing(loop_factory()) as loop:
            with wakeloop.record(path) if recording else contextlib.nullcontext():
                orders.append(life_and_death(loop))
    assert orders[0] == orders[1]
    assert len(orders[0]) > 200


def test_recording_leaves_the_objects_that_it_names_alone(loop, path):
    def callback():
        pass

    class Owner:
        def method(self):
            pass

    owner, name = Owner(), "non-ASCII é"
    callback.__qualname__ = name
    things = [callback, owner, name, Owner.method, callback.__module__]

    def state():
        return [(sys.getrefcount(thing), sys.getsizeof(thing)) for thing in things]

    before = state()
    with wakeloop.record(path):
        for _ in range(5):
            loop.call_soon(callback)
            loop.call_soon(owner.method)
            loop.run_until_complete(asyncio.sleep(0))
    assert state() == before and vars(owner) == {} and vars(callback) == {}


def test_the_first_task_after_a_start_has_the_same_name_as_without():
    body = """
        import sys, wakeloop
        if sys.argv[1:]: wakeloop.record()
        async def main():
            return asyncio.current_task().get_name(), len(asyncio.all_tasks())
        print(asyncio.Runner(loop_factory=new_loop).run(main()))
        """
    plain = run_script("wakeloop", body)
    recorded = run_script("wakeloop", body.replace("sys.argv[1:]", "True"))
    assert plain.code == recorded.code == 0, (plain, recorded)
    assert plain.out == recorded.out == "('Task-1', 1)\n" and recorded.err == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_error_that_leaves_the_loop_leaves_the_recorder_running(loop, path, error):
    def fails():
        raise error

    fails.__qualname__ = "fails"
    truth = Truth()
    with recorded(path) as found:
        loop.call_soon(fails)
        with pytest.raises(error):
            loop.run_forever()
        time.sleep(0.02)
        loop.call_soon(truth.callback("afterwards"))
        loop.run_until_complete(asyncio.sleep(0))
    truth.check(found[0])
    assert found[0].find("fails")[0]["dur"] < 20_000


def test_tracebacks_have_no_frame_of_the_recorder(loop, path):
    contexts = []
    loop.set_exception_handler(lambda _, context: contexts.append(context["exception"].__traceback__))

    def fails():
        raise ValueError

    for recording in (False, True):
        with wakeloop.record(path) if recording else contextlib.nullcontext():
            loop.call_soon(fails)
            loop.run_until_complete(asyncio.sleep(0))
    assert [traceback.tb_frame.f_code for traceback in contexts] == [fails.__code__] * 2
    assert all(traceback.tb_next is None for traceback in contexts)


# -- where it is written -------------------------------------------------------------------------------------------------


def test_a_second_recorder_is_refused_while_the_first_one_runs(path):
    with wakeloop.record(path) as first:
        with pytest.raises(RuntimeError, match="running already"):
            wakeloop.record()
        assert wakeloop.Recorder.running() is first and first.active
    with wakeloop.record() as second:
        assert wakeloop.Recorder.running() is second
        # The first one is over, and does not stop the second.
        first.stop()
        assert second.active


def test_wrong_arguments_are_refused_and_start_nothing(tmp_path):
    for options in ({"size": 1023}, {"size": -1}, {"signal": signal.SIGUSR2}, {"slow_turns": True}):
        with pytest.raises(ValueError):
            wakeloop.record(**options)
    with pytest.raises(ValueError):
        wakeloop.record(tmp_path / "trace.json", signal=10_000)
    with pytest.raises((MemoryError, OverflowError)):
        wakeloop.record(size=1 << 62)
    with pytest.raises(TypeError):
        wakeloop.record(17.5)
    with pytest.raises(TypeError):
        wakeloop.Recorder()
    assert wakeloop.Recorder.running() is None


def test_a_recorder_without_a_path_writes_only_where_it_is_told(path):
    recorder = wakeloop.record()
    assert recorder.path is None and "running" in repr(recorder)
    with pytest.raises(ValueError):
        recorder.save()
    assert recorder.save(path) == str(path)
    recorder.stop()
    recorder.stop()
    assert "stopped" in repr(recorder)
    os.unlink(path)
    # What was recorded stays.
    Trace.read(recorder.save(path))


def test_placeholders_are_the_process_and_the_number_of_the_trace(tmp_path):
    with wakeloop.record(tmp_path / "trace-%p-%n.json") as recorder:
        assert recorder.save() == str(tmp_path / f"trace-{os.getpid()}-1.json")
        assert recorder.save(tmp_path / "%n%n") == str(tmp_path / "22")
    assert (tmp_path / f"trace-{os.getpid()}-3.json").exists()


def test_the_path_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with wakeloop.record("trace.json"):
        monkeypatch.chdir("/")
    Trace.read(tmp_path / "trace.json")


def test_a_file_that_cannot_be_written_is_reported_and_nothing_else_is_lost(loop, tmp_path):
    good = tmp_path / "trace.json"
    with wakeloop.record(good) as recorder:
        loop.run_until_complete(asyncio.sleep(0))
        recorder.save()
        before = good.read_bytes()
        for bad, error in {
            tmp_path / "missing" / "trace.json": FileNotFoundError,
            tmp_path: OSError,
            "/dev/full": OSError,
            "/proc/trace.json": OSError,
            tmp_path / ("x" * 1000): OSError,
        }.items():
            with pytest.raises(error):
                recorder.save(bad)
        with pytest.raises(ValueError):
            recorder.save("nul\0")
        events = recorder.events
        loop.run_until_complete(asyncio.sleep(0))
        assert recorder.active and recorder.events > events
        assert good.read_bytes() == before
    assert os.listdir(tmp_path) == ["trace.json"]
    Trace.read(good)


def test_a_full_disk_leaves_the_old_trace_and_no_other_file(loop, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with wakeloop.record() as recorder:
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            recorder.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["trace.json"]


def test_stop_raises_if_the_trace_cannot_be_written_and_has_stopped(loop, tmp_path, path):
    recorder = wakeloop.record(tmp_path / "missing" / "trace.json")
    loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(FileNotFoundError):
        recorder.stop()
    assert not recorder.active and wakeloop.Recorder.running() is None
    assert Trace.read(recorder.save(path)).slices


def test_only_the_owner_may_read_a_trace_and_a_pipe_gets_one(tmp_path):
    with wakeloop.record() as recorder:
        path = recorder.save(tmp_path / "trace.json")
        assert os.stat(path).st_mode & 0o777 == 0o600
        link = tmp_path / "link"
        link.symlink_to(path)
        recorder.save(link)
        assert link.is_symlink()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        read = []
        thread = threading.Thread(target=lambda: read.append(pipe.read_text()))
        thread.start()
        recorder.save(pipe)
        thread.join()
    Trace(read[0])


def test_a_signal_writes_the_trace_and_the_handler_is_restored(run, path):
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:

        async def main():
            os.kill(os.getpid(), signal.SIGUSR2)
            while not path.exists():
                await asyncio.sleep(0.005)
            Trace.read(path)

        with wakeloop.record(path, signal=signal.SIGUSR2):
            run(main())
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
        wait_for(lambda: threading.active_count() == 1 or "recorder" not in str(threading.enumerate()))
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_outside_of_the_main_thread_is_refused(path):
    errors = []

    def start():
        try:
            wakeloop.record(path, signal=signal.SIGUSR2)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert errors and wakeloop.Recorder.running() is None


def test_a_trace_that_a_signal_cannot_write_is_logged(loop, tmp_path, asyncio_log):
    before = signal.getsignal(signal.SIGUSR2)
    recorder = wakeloop.record(tmp_path / "missing" / "trace.json", signal=signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGUSR2)
    wait_for(lambda: "cannot write its trace" in asyncio_log.text)
    assert recorder.active
    with pytest.raises(FileNotFoundError):
        recorder.stop()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_slow_turn_writes_the_trace_at_most_every_ten_seconds(loop, tmp_path, asyncio_log):
    loop.slow_turn_duration = 0.01
    with wakeloop.record(tmp_path / "trace-%n.json", slow_turns=True):
        first = tmp_path / "trace-1.json"
        for _ in range(3):
            loop.call_soon(time.sleep, 0.02)
            loop.run_until_complete(asyncio.sleep(0))
        wait_for(first.exists)
        (slow, *_) = [event for event in Trace.read(first).instants if event["name"] == "slow turn"]
        assert slow["args"]["took_us"] >= 20_000
        time.sleep(0.02)
        assert os.listdir(tmp_path) == ["trace-1.json"]
    wait_for(lambda: "recorder" not in str(threading.enumerate()))


def test_a_slow_turn_only_adds_an_event_if_no_trace_is_asked_for(loop, path, asyncio_log):
    loop.slow_turn_duration = 0.01
    with recorded(path) as found:
        loop.call_soon(time.sleep, 0.02)
        loop.run_until_complete(asyncio.sleep(0))
        assert not path.exists()
    assert [event["name"] for event in found[0].instants].count("slow turn") == 1


# -- processes -----------------------------------------------------------------------------------------------------------

#: Runs a loop, with a callback that has this name.
LOOP = """
    import os, signal, sys, threading, time, wakeloop

    def run(name):
        async def main():
            def callback(): pass
            callback.__qualname__ = name
            asyncio.get_running_loop().call_soon(callback)
            await asyncio.sleep(0)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
"""


def test_the_environment_variable_records_from_the_first_loop_on_and_writes_at_exit(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "trace-%p.json"))
    outcome = run_script("wakeloop", LOOP + "    print(os.getpid(), wakeloop.Recorder.running().path); run('seen')")
    assert (outcome.code, outcome.err) == (0, ""), outcome
    pid, path = outcome.out.split()
    assert path.endswith("trace-%p.json") and os.listdir(tmp_path) == [f"trace-{pid}.json"]
    trace = Trace.read(tmp_path / f"trace-{pid}.json")
    assert "seen" in trace.names() and trace.pid == int(pid)


def test_the_environment_variable_writes_nothing_if_no_loop_has_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "trace.json"))
    outcome = run_script("wakeloop", LOOP)
    assert (outcome.code, outcome.err) == (0, "") and os.listdir(tmp_path) == []


def test_a_trace_that_cannot_be_written_at_exit_is_logged(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "missing" / "trace.json"))
    outcome = run_script("wakeloop", LOOP + "    run('seen'); print('done')")
    assert (outcome.code, outcome.out) == (0, "done\n")
    assert "cannot write its trace" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize("name", ["USR2", "SIGUSR2", "sigusr2", str(int(signal.SIGUSR2))])
def test_the_signal_of_the_environment_writes_the_trace_while_the_loop_runs(tmp_path, monkeypatch, name):
    path = tmp_path / "trace.json"
    monkeypatch.setenv("WAKELOOP_RECORD", str(path))
    monkeypatch.setenv("WAKELOOP_RECORD_SIGNAL", name)
    process = start_script("wakeloop", LOOP + "    run('seen'); print('ready'); new_loop().run_forever()")
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR2)
        wait_for(path.exists)
        assert "seen" in Trace.read(path).names()
    finally:
        process.kill()
        process.communicate()


def test_a_wrong_signal_in_the_environment_is_logged_and_the_rest_works(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "trace.json"))
    for wrong in ("NOSUCH", "KILL", "9999"):
        monkeypatch.setenv("WAKELOOP_RECORD_SIGNAL", wrong)
        outcome = run_script("wakeloop", LOOP + "    run('seen')")
        assert outcome.code == 0 and f"WAKELOOP_RECORD_SIGNAL={wrong}" in outcome.err, outcome
        assert "seen" in Trace.read(tmp_path / "trace.json").names()
        os.unlink(tmp_path / "trace.json")


def test_a_forked_child_has_an_empty_recorder_and_its_own_file(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    async def use_runtime():
        await wakeloop.sleep(0.002)
    recorder = wakeloop.record({str(tmp_path / "trace-%p.json")!r})
    run("parent")
    asyncio.Runner(loop_factory=new_loop).run(use_runtime())
    pid = os.fork()
    if pid == 0:
        assert recorder.active and recorder.events == 0 and recorder is wakeloop.Recorder.running()
        run("child")
        asyncio.Runner(loop_factory=new_loop).run(use_runtime())
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    run("parent again")
    print(os.getpid(), pid)
    """,
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert (outcome.code, outcome.err) == (0, ""), outcome
    parent, child = [Trace.read(tmp_path / f"trace-{pid}.json") for pid in outcome.out.split()]
    assert {"parent", "parent again"} <= set(parent.names()) and "child" not in parent.names()
    assert "child" in child.names() and "parent" not in child.names()
    assert child.find(thread="runtime") and parent.find(thread="runtime")


def test_a_forked_child_does_not_write_to_its_parents_file(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    recorder = wakeloop.record({str(tmp_path / "trace.json")!r}, signal=signal.SIGUSR2)
    run("parent")
    pid = os.fork()
    if pid == 0:
        run("child")
        os.kill(os.getpid(), signal.SIGUSR2)
        assert recorder.path is None and recorder.active
        recorder.save({str(tmp_path / "child.json")!r})
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    assert not os.path.exists(recorder.path)
    """,
    )
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert "parent" in Trace.read(tmp_path / "trace.json").names()
    assert "child" in Trace.read(tmp_path / "child.json").names()


def test_a_fork_inside_of_a_callback_is_survived_by_both_recorders(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    recorder = wakeloop.record({str(tmp_path / "trace-%p.json")!r})
    other = threading.Thread(target=lambda: [run("other") for _ in range(20)])
    async def main():
        other.start()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if recorder.events == 0 and recorder.save() else 1)
        other.join()
        return os.waitpid(pid, 0)[1]
    with asyncio.Runner(loop_factory=new_loop) as runner:
        print(runner.run(main()))
    """,
    )
    assert (outcome.code, outcome.out) == (0, "0\n"), outcome
    assert len(os.listdir(tmp_path)) == 2


def test_a_daemon_thread_with_a_loop_may_record_until_the_process_ends(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    recorder = wakeloop.record({str(tmp_path / "trace.json")!r})
    def forever():
        loop = new_loop()
        def again(): loop.call_soon(again)
        again()
        loop.run_forever()
    threading.Thread(target=forever, daemon=True).start()
    while recorder.events < 1000: time.sleep(0.001)
    """,
    )
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert Trace.read(tmp_path / "trace.json").slices


def test_the_native_half_refuses_a_second_recording_too():
    first = _core.Recording(1024, False)
    with pytest.raises(RuntimeError):
        _core.Recording(1024, False)
    first.stop()
    assert not first.active and first.counts() == (0, 0)

