"""wakeloop.tasks(): what each task of a loop waits for, and for how long."""

import asyncio
import contextlib
import gc
import inspect
import io
import re
import socket
import subprocess
import sys
import threading
import time
import types
import weakref

import pytest

import wakeloop
from tests.support.sockets import socketpair


def info_of(task, loop=None):
    (found,) = [info for info in wakeloop.tasks(loop) if info.task is task]
    return found


@contextlib.asynccontextmanager
async def waiting(awaitable, name="the task"):
    """A task that awaits this in a function, from the time when it waits."""

    async def wait():
        return await awaitable

    task = asyncio.create_task(wait(), name=name)
    for _ in range(200):
        await asyncio.sleep(0.001)
        if info_of(task).state == "waiting":
            break
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


# -- what they wait for ------------------------------------------------------------------------------------------


async def lock():
    lock = asyncio.Lock()
    await lock.acquire()
    return lock.acquire(), lock


async def event():
    event = asyncio.Event()
    return event.wait(), event


async def condition():
    condition = asyncio.Condition()
    await condition.acquire()
    return condition.wait(), condition


async def semaphore():
    semaphore = asyncio.BoundedSemaphore(1)
    await semaphore.acquire()
    return semaphore.acquire(), semaphore


async def barrier():
    barrier = asyncio.Barrier(2)
    return barrier.wait(), barrier


async def empty_queue():
    queue = asyncio.PriorityQueue()
    return queue.get(), queue


async def full_queue():
    queue = asyncio.Queue(1)
    queue.put_nowait(1)
    return queue.put(2), queue


async def unfinished_queue():
    queue = asyncio.Queue()
    queue.put_nowait(1)
    return queue.join(), queue


async def plain_future():
    future = asyncio.get_running_loop().create_future()
    return future, future


async def group():
    async def run():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(100))

    return run(), None


async def gathered():
    return asyncio.gather(asyncio.sleep(0), asyncio.sleep(100)), None


async def waited():
    loop = asyncio.get_running_loop()
    return asyncio.wait([loop.create_future(), loop.create_future()], timeout=100), None


async def completed():
    async def run():
        for future in asyncio.as_completed([asyncio.get_running_loop().create_future()]):
            await future

    return run(), None


WAITS = {
    "lock": (lock, "lock", "acquire of Lock at "),
    "event": (event, "event", "wait of Event at "),
    "condition": (condition, "condition", "wait of Condition at "),
    "semaphore": (semaphore, "semaphore", "acquire of BoundedSemaphore at "),
    "barrier": (barrier, "barrier", "(1 of 2 there)"),
    "queue.get": (empty_queue, "queue", "get of PriorityQueue at "),
    "queue.put": (full_queue, "queue", "put of Queue at "),
    "queue.join": (unfinished_queue, "queue", "(1 unfinished)"),
    "future": (plain_future, "future", "Future at 0x"),
    "task group": (group, "task group", "(1 left)"),
    "gather": (gathered, "gather", "gather() of 2 futures, 1 of them done"),
    "wait": (waited, "wait", "wait() for 2 futures, 0 of them done"),
    "as_completed": (completed, "wait", "as_completed()"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_for_a_primitive_of_asyncio_is_named(run, name):
    make, kind, text = WAITS[name]

    async def main():
        awaitable, target = await make()
        async with waiting(awaitable) as task:
            info = info_of(task)
            assert (info.state, info.kind, info.name) == ("waiting", kind, "the task")
            assert text in info.waits_for and info.coroutine.endswith("wait")
            assert target is None or info.target is target

    run(main())


def test_a_wait_for_a_task_names_it_also_through_shield_and_wait_for(run):
    async def main():
        for wrap in (lambda it: it, asyncio.shield, lambda it: asyncio.wait_for(asyncio.shield(it), 100)):
            inner = asyncio.create_task(asyncio.Event().wait(), name="the inner one")
            async with waiting(wrap(inner)) as task:
                info = info_of(task)
                assert (info.kind, info.target) == ("task", inner) and "task 'the inner one'" in info.waits_for
            inner.cancel()

    run(main())


def test_a_sleep_says_when_it_is_due(run):
    async def main():
        async with waiting(asyncio.sleep(1000)) as task:
            info = info_of(task)
            assert info.kind == "timer" and re.fullmatch(r"sleep of 1000 s, due in (9\d\d|1000)\.\d s", info.waits_for)
            assert info.exact and 0 <= info.seconds < 100

    run(main())


def test_a_job_of_an_executor_is_named(run):
    async def main():
        end = threading.Event()
        loop = asyncio.get_running_loop()
        for awaitable, text in (
            (asyncio.to_thread(end.wait), "to_thread(Event.wait)"),
            (loop.run_in_executor(None, end.wait), "job of an executor"),
        ):
            async with waiting(awaitable) as task:
                info = info_of(task)
                assert (info.kind, info.waits_for) == ("executor job", text)
        end.set()

    run(main())


def test_socket_calls_name_the_socket_and_its_addresses(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            host, port = listener.getsockname()
            async with waiting(loop.sock_accept(listener)) as task:
                info = info_of(task)
                assert (info.kind, info.target) == ("accept", listener)
                assert info.waits_for == f"sock_accept on descriptor {listener.fileno()} ({host}:{port})"
            with socket.create_connection((host, port)) as client, listener.accept()[0]:
                client.setblocking(False)
                ends = f"descriptor {client.fileno()} (127.0.0.1:{client.getsockname()[1]} -> {host}:{port})"
                async with waiting(loop.sock_recv(client, 1)) as task:
                    info = info_of(task)
                    assert (info.kind, info.target) == ("socket read", client)
                    assert info.waits_for == f"sock_recv on {ends}"
                async with waiting(loop.sock_sendall(client, bytes(20_000_000))) as task:
                    assert info_of(task).kind == "socket write"
                    assert info_of(task).waits_for == f"sock_sendall on {ends}"

    run(main())


@pytest.mark.parametrize("module", [asyncio, wakeloop])
def test_streams_name_the_connection(run, module):
    async def main():
        served = asyncio.Queue()
        server = await asyncio.start_server(lambda *pair: served.put_nowait(pair), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        reader, writer = await module.open_connection(host, port)
        _, other = await served.get()
        fd, own = writer.get_extra_info("socket").fileno(), writer.get_extra_info("sockname")[1]
        ends = f"descriptor {fd} (127.0.0.1:{own} -> {host}:{port})"
        async with waiting(reader.readline()) as task:
            info = info_of(task)
            assert (info.kind, info.target) == ("socket read", writer.transport)
            assert info.waits_for.endswith(f" on {ends}")
        writer.write(bytes(20_000_000))
        async with waiting(writer.drain()) as task:
            info = info_of(task)
            assert (info.kind, info.target) == ("socket write", writer.transport)
            assert info.waits_for.endswith(f"drain on {ends}")
        writer.transport.abort()
        other.transport.abort()
        server.close()
        await server.wait_closed()

    run(main())


def test_a_child_process_and_its_output_are_named(run):
    async def main():
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        async with waiting(child.wait()) as task:
            assert (info_of(task).kind, info_of(task).waits_for) == ("process", f"end of process {child.pid}")
        async with waiting(child.stdout.read()) as task:
            info = info_of(task)
            assert info.kind == "pipe read" and "read on descriptor " in info.waits_for
        child.stdin.close()
        await child.wait()

    run(main())


@pytest.mark.native
def test_primitives_of_the_runtime_are_named(run, runtime):
    async def main():
        end = threading.Event()
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        udp = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        opening = asyncio.create_task(wakeloop.TcpStream.connect(listener.host, listener.port))
        async with await listener.accept() as served, await opening as stream:
            own = stream.get_extra_info("sockname")[1]
            ends = f"on descriptor {stream.fileno()} (127.0.0.1:{own} -> 127.0.0.1:{listener.port})"
            for awaitable, kind, text, target in (
                (wakeloop.spawn_blocking(end.wait), "executor job", "spawn_blocking", None),
                (listener.accept(), "accept", "TcpListener.accept", None),
                (udp.recv(), "socket read", "UdpSocket.recv", None),
                (stream.readexactly(7), "socket read", f"TcpStream.readexactly {ends}", stream),
                (stream.write_all(bytes(50_000_000)), "socket write", f"TcpStream.write_all {ends}", stream),
            ):
                async with waiting(awaitable) as task:
                    info = info_of(task)
                    assert (info.kind, info.waits_for, info.target) == (kind, text, target)
                    assert info.exact and 0 <= info.seconds < 100
            async with waiting(wakeloop.sleep(1000)) as task:
                info = info_of(task)
                assert info.kind == "timer" and info.exact and 0 <= info.seconds < 100
                assert re.fullmatch(r"sleep of 1000 s, due in (9\d\d|1000)\.\d s", info.waits_for)
            end.set()
            served.close()
        for each in (listener, udp):
            each.close()
            await each.wait_closed()

    run(main())


# -- for how long ------------------------------------------------------------------------------------------------


@pytest.mark.native
def test_native_waits_know_when_they_began(run):
    async def main():
        with socketpair() as (ours, theirs):
            began = time.monotonic()
            reader, writer = await wakeloop.open_connection(sock=theirs)
            loop = asyncio.get_running_loop()
            async with waiting(loop.sock_recv(ours, 1)) as first, waiting(reader.read(1)) as second:
                waits = time.monotonic()
                await asyncio.sleep(0.1)
                least = time.monotonic() - waits
                for task in (first, second):
                    info = info_of(task)
                    # The time is that of a turn, in units of 4.2 ms.
                    assert info.exact and least - 0.005 <= info.seconds <= time.monotonic() - began + 0.005
            writer.close()

    run(main())


def test_a_wait_of_which_nothing_is_recorded_has_waited_at_least_since_it_was_seen(run):
    async def main():
        async with waiting(asyncio.Event().wait()) as task:
            # `waiting` has looked already.
            seen = info_of(task).seconds
            assert seen is not None and not info_of(task).exact
            await asyncio.sleep(0.05)
            again = info_of(task)
            assert seen + 0.05 <= again.seconds < 100 and not again.exact
            assert "waiting for at least " in str(again)

    run(main())


def test_the_first_look_at_a_wait_does_not_know_for_how_long(run):
    async def main():
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0.001)
        first = info_of(task)
        assert (first.state, first.seconds, first.exact) == ("waiting", None, False)
        task.cancel()

    run(main())


def test_another_wait_for_another_future_begins_again(run):
    async def main():
        queue = asyncio.Queue()

        async def consume():
            while True:
                await queue.get()

        async with waiting(consume()) as task:
            await asyncio.sleep(0.05)
            assert info_of(task).seconds >= 0.05
            since = time.monotonic()
            queue.put_nowait(1)
            await asyncio.sleep(0.01)
            info_of(task)
            info = info_of(task)
            assert info.state == "waiting" and info.seconds <= time.monotonic() - since

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("debug", [False, True])
def test_a_loop_that_tracks_waits_knows_how_long_each_has_waited(run, debug):
    async def main():
        wakeloop.track_waits()
        event = asyncio.Event()
        task = asyncio.create_task(event.wait())
        began = time.monotonic()
        while info_of(task).state != "waiting":
            await asyncio.sleep(0)
        waits = time.monotonic()
        await asyncio.sleep(0.05)
        least = time.monotonic() - waits
        info = info_of(task)
        assert info.exact and least <= info.seconds <= time.monotonic() - began
        event.set()
        await task
        assert asyncio.get_running_loop()._last_step(task) is None
        wakeloop.track_waits(False)
        other = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0.001)
        assert info_of(other).seconds is None
        other.cancel()

    run(main(), debug=debug)


@pytest.mark.native
def test_a_loop_that_tracks_waits_runs_callbacks_and_reports_errors_as_before(loop, asyncio_log):
    class Callback:
        seen = []

        def __getattr__(self, name):
            self.seen.append(name)
            raise AttributeError(name)

        def __call__(self):
            self.seen.append("called")

    async def fails():
        await asyncio.sleep(0)
        raise ValueError("as before")

    async def interrupts():
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    wakeloop.track_waits(loop=loop)
    loop.call_soon(Callback())
    loop.call_later(0.001, Callback())
    loop.call_soon(int, "not a number")
    with pytest.raises(ValueError, match="as before"):
        loop.run_until_complete(fails())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert Callback.seen == ["called", "called"]
    assert ["int" in record.getMessage() for record in asyncio_log.records if record.levelname == "ERROR"] == [True]
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(interrupts())


@pytest.mark.native
def test_only_wakeloops_loops_track_waits():
    other = asyncio.SelectorEventLoop()
    with pytest.raises(TypeError, match="only wakeloop's loops"):
        wakeloop.track_waits(loop=other)
    other.close()
    with pytest.raises(RuntimeError, match="no running event loop"):
        wakeloop.track_waits()
    closed = wakeloop.new_event_loop()
    closed.close()
    wakeloop.track_waits(loop=closed)
    wakeloop.track_waits(False, loop=closed)


# -- the state and the chain of awaits ---------------------------------------------------------------------------


def test_a_task_is_running_ready_or_waiting(run):
    async def main():
        me = asyncio.current_task()
        ready = asyncio.create_task(asyncio.sleep(0))
        woken = asyncio.create_task(asyncio.sleep(0.001), name="woken")
        assert info_of(me).state == "running" and info_of(me).kind is None and info_of(me).waits_for == ""
        assert info_of(ready).state == "ready"
        future = asyncio.get_running_loop().create_future()
        async with waiting(future) as task:
            assert info_of(task).state == "waiting"
            future.set_result(None)
            assert info_of(task).state == "ready"
        await woken
        assert [info.task for info in wakeloop.tasks()] == [me]

    run(main())


def called():
    return info_of(asyncio.current_task())


def test_a_running_task_shows_the_functions_that_it_has_called(run):
    async def inner():
        return called()

    async def main():
        info = await inner()
        # It ends where the list was asked for.
        functions = [frame.function.rpartition(".")[2] for frame in info.stack]
        assert functions == ["main", "inner", "called", "info_of"]
        assert all(frame.file == __file__ and frame.line > 0 for frame in info.stack)

    run(main())


def test_a_task_that_blocks_its_loop_is_seen_from_another_thread(run):
    async def main():
        def look():
            time.sleep(0.05)
            seen.append(info_of(task, loop))

        seen, loop, task = [], asyncio.get_running_loop(), asyncio.current_task()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()  # It blocks.
        (info,) = seen
        assert info.state == "running" and info.stack[0].function.endswith("main")
        assert "join" in info.stack[-1].function or info.stack[-1].file.endswith("threading.py")

    run(main())


class Awaitable:
    """Its `__await__` returns what stands for a coroutine in C."""

    def __init__(self, event):
        self.event = event

    async def run(self):
        await self.event.wait()

    def __await__(self):
        return self.run().__await__()


@types.coroutine
def by_generator(awaitable):
    yield from awaitable.__await__()


async def generated(awaitable):
    yield await by_generator(awaitable)


async def outermost(event):
    async for _ in generated(Awaitable(event)):
        pass


async def by_anext(event):
    await anext(generated(event.wait()), None)


async def thrown_into(event):
    async def catches():
        try:
            yield 1
        except ValueError:
            await event.wait()

    generator = catches()
    await anext(generator)
    with contextlib.suppress(StopAsyncIteration):
        await generator.athrow(ValueError)


@pytest.mark.parametrize(
    ("function", "chain"),
    [
        (outermost, ["outermost", "generated", "by_generator", "run", "wait"]),
        (by_anext, ["by_anext", "generated", "by_generator", "wait"]),
        (thrown_into, ["thrown_into", "catches", "wait"]),
    ],
)
def test_the_chain_of_awaits_leads_through_generators_and_awaitable_objects(run, function, chain):
    async def main():
        task = asyncio.create_task(function(asyncio.Event()))
        await asyncio.sleep(0.01)
        info = info_of(task)
        assert [frame.function.rpartition(".")[2] for frame in info.stack] == chain
        assert info.kind == "event"
        task.cancel()
        await asyncio.wait([task])

    run(main())


@pytest.mark.native
def test_the_chain_of_awaits_ends_with_the_native_function(run):
    async def main():
        async with waiting(wakeloop.sleep(100)) as task:
            *_, last = info_of(task).stack
            assert (last.file, last.line, last.function) == ("<wakeloop>", 0, "sleep")
        alone = asyncio.create_task(wakeloop.sleep(100))
        await asyncio.sleep(0.01)
        info = info_of(alone)
        assert (info.coroutine, len(info.stack), info.kind) == ("sleep", 1, "timer")
        alone.cancel()

    run(main())


@pytest.mark.native
def test_the_state_of_a_native_coroutine_can_be_asked_for(run, runtime):
    async def main():
        with socketpair() as (ours, theirs):
            reader, writer = await wakeloop.open_connection(sock=theirs)
            listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
            opening = asyncio.create_task(wakeloop.TcpStream.connect(listener.host, listener.port))
            served, stream = await listener.accept(), await opening
            calls = (
                asyncio.get_running_loop().sock_recv(ours, 1),
                *(reader.read(1), stream.read(1), stream.write_all(bytes(50_000_000)), wakeloop.sleep(100)),
            )
            for coroutine in calls:
                assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED and coroutine.cr_await is None
                task = asyncio.create_task(coroutine)
                await asyncio.sleep(0.01)
                assert inspect.getcoroutinestate(coroutine) == inspect.CORO_SUSPENDED
                assert coroutine.cr_frame.f_code.co_name == coroutine.__qualname__ and coroutine.cr_frame.f_lineno == 0
                assert coroutine.__qualname__ in repr(task) and task.get_stack()[0].f_code is not None
                task.print_stack(file=io.StringIO())
                awaited = coroutine.cr_await
                assert task._fut_waiter in (awaited, getattr(awaited, "cr_await", None))
                task.cancel()
                await asyncio.wait([task])
                assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED and coroutine.cr_await is None
            for each in (served, stream, listener, writer):
                each.close()
            await asyncio.sleep(0.01)

    run(main())


# -- which tasks -------------------------------------------------------------------------------------------------


def test_every_task_of_the_loop_is_listed_and_none_of_another_loop(run, loop_factory):
    async def main():
        tasks = {asyncio.create_task(asyncio.sleep(100)) for _ in range(20)} | {asyncio.current_task()}
        other = loop_factory()
        elsewhere = other.create_task(asyncio.sleep(100))
        await asyncio.sleep(0.001)
        assert {info.task for info in wakeloop.tasks()} == tasks
        assert [(info.task, info.state) for info in wakeloop.tasks(other)] == [(elsewhere, "ready")]
        elsewhere.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.to_thread(other.run_until_complete, elsewhere)
        other.close()

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
def test_tasks_that_were_started_eagerly_are_listed(run):
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        me, states = asyncio.current_task(), []

        async def eager():
            states.append({info.task: info.state for info in wakeloop.tasks()})
            await asyncio.sleep(100)

        task = asyncio.create_task(eager())
        assert states[0][me] == "running" and list(states[0].values()).count("running") == 2
        assert (info_of(task).state, info_of(task).kind) == ("waiting", "timer")
        task.cancel()

    run(main())


def test_the_longest_waits_come_first_and_tasks_that_do_not_wait_last(run):
    async def main():
        first = asyncio.create_task(asyncio.sleep(100), name="first")
        await asyncio.sleep(0.05)
        second = asyncio.create_task(asyncio.sleep(100), name="second")
        await asyncio.sleep(0.01)
        ready = asyncio.create_task(asyncio.sleep(0), name="ready")
        assert [info.name for info in wakeloop.tasks()][:2] == ["first", "second"]
        assert [info.state for info in wakeloop.tasks()][:2] == ["waiting"] * 2
        await ready
        for task in (first, second):
            task.cancel()

    run(main())


def test_a_closed_loop_has_no_tasks(loop):
    async def waits():
        await asyncio.sleep(100)

    coroutine = waits()
    task = loop.create_task(coroutine)
    assert [info.task for info in wakeloop.tasks(loop)] == [task]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert wakeloop.tasks(loop) == []


def test_without_a_loop_there_must_be_a_running_one():
    with pytest.raises(RuntimeError, match="no running event loop"):
        wakeloop.tasks()
    with pytest.raises(TypeError, match="an event loop was expected, not str"):
        wakeloop.tasks("loop")


NAMES = ["\x1b[31mred\x07", "two\nlines", "\ud800", "‮", "", "x" * 10_000, "{}%s\0"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_may_hold_anything_and_cannot_break_the_text(run, name):
    async def main():
        async def named(task=None):
            await (task or asyncio.Event().wait())

        named.__qualname__ = name
        task = asyncio.create_task(named(), name=name)
        other = asyncio.create_task(named(task), name="other")
        await asyncio.sleep(0.01)
        info = info_of(task)
        assert (info.name, info.coroutine) == (name, name)
        for text in (str(info), info_of(other).waits_for, str(info_of(other))):
            assert all(line.isprintable() for line in text.split("\n"))
        assert len(str(info).split("\n")) == 1 + len(info.stack)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other

    run(main())


# -- other threads -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_other_threads_can_look_while_tasks_come_and_go(run):
    """No call fails, and none misses a task that is there all the time."""

    async def main(ours, theirs):
        loop, stop = asyncio.get_running_loop(), threading.Event()
        reader, writer = await wakeloop.open_connection(sock=theirs)
        lock, queue = asyncio.Lock(), asyncio.Queue(1)
        held = await wakeloop.start_echo_server("127.0.0.1", 0)
        stream = await wakeloop.TcpStream.connect(held.host, held.port)

        async def busy():
            while not stop.is_set():
                async with lock:
                    await queue.put(None)
                    await asyncio.sleep(0)
                    queue.get_nowait()

        async def echo():
            while not stop.is_set():
                await stream.write_all(b"ping\n")
                await stream.readline()

        async def chat():
            while not stop.is_set():
                await loop.sock_sendall(ours, b"hello\n")
                await reader.readline()

        async def short():
            await asyncio.sleep(0)

        async def spawn():
            while not stop.is_set():
                async with asyncio.TaskGroup() as group:
                    for _ in range(20):
                        group.create_task(short())

        always = [asyncio.create_task(each()) for each in (busy, busy, echo, chat, spawn)]
        failures, looks = [], 0

        def look():
            nonlocal looks
            try:
                while not stop.is_set():
                    listed = {info.task for info in wakeloop.tasks(loop)}
                    assert [task for task in always if task not in listed and not task.done()] == []
                    looks += 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for thread in threads:
                thread.start()
            await asyncio.sleep(1.5)
        finally:
            stop.set()
            sys.setswitchinterval(interval)
            await asyncio.gather(*always)
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        assert not failures and looks > 2
        writer.close()
        stream.close()
        held.close()
        await held.wait_closed()

    with socketpair() as pair:
        run(main(*pair))


# -- nobody notices ----------------------------------------------------------------------------------------------


def test_looking_keeps_no_object_of_the_program_alive(run):
    class Local:
        pass

    async def main():
        refs, events = [], [asyncio.Event(), asyncio.Event()]

        async def holds():
            local = Local()
            refs.append(weakref.ref(local))
            await events[0].wait()
            del local
            await events[1].wait()

        task = asyncio.create_task(holds())
        await asyncio.sleep(0.001)
        wakeloop.tasks()
        assert refs[0]() is not None
        events[0].set()
        await asyncio.sleep(0.001)
        assert refs[0]() is None
        wakeloop.tasks()
        events[1].set()
        await task
        gone = weakref.ref(task)
        del task
        await asyncio.sleep(0.001)  # The callback that has woken this task ends.
        assert gone() is None

    gc.collect()
    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


def test_looking_calls_no_code_of_the_program(run):
    calls = []

    class Awkward(asyncio.Queue):
        def __getattr__(self, name):
            calls.append(name)
            raise AttributeError(name)

        def __repr__(self):
            calls.append("repr")
            raise ValueError

        __eq__ = __hash__ = qsize = __len__ = __repr__

    class Iterator:
        def __init__(self, future):
            self.inner = future.__await__()

        def __await__(self):
            return self

        def __getattr__(self, name):
            calls.append(name)
            raise AttributeError(name)

        def __next__(self):
            return next(self.inner)

    async def main():
        async with waiting(Awkward().get()) as first:
            calls.clear()
            assert info_of(first).kind == "queue" and "Awkward at " in info_of(first).waits_for
            assert calls == []
        async with waiting(Iterator(asyncio.get_running_loop().create_future())) as second:
            calls.clear()
            assert info_of(second).kind == "future"
            assert [name for name in calls if name != "throw"] == []

    run(main())


def test_futures_of_the_programs_own_class_are_described_as_far_as_possible(run):
    class Strange(asyncio.Future):
        _children = [None]

        @property
        def _callbacks(self):
            raise ValueError

    async def main():
        async with waiting(Strange()) as task:
            info = info_of(task)
            assert (info.state, info.kind) == ("waiting", "future") and "Strange at 0x" in info.waits_for

    run(main())


@pytest.mark.native
def test_the_module_is_imported_by_the_first_look_only():
    code = (
        "import sys, wakeloop\n"
        "assert 'wakeloop.waits' not in sys.modules\n"
        "async def main(): return [info.state for info in wakeloop.tasks()]\n"
        "print(wakeloop.run(main()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("['running']\n", "")
