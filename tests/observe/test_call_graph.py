"""Python 3.14's introspection: the call graph, and `python -m asyncio ps` and `pstree` on a running process."""

import asyncio
import contextlib
import ctypes
import os
import subprocess
import sys
import threading

import pytest

import wakeloop
from tests.support.sockets import listener as bound
from tests.support.sockets import socketpair

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="the call graph is new in 3.14")


async def leaf(event):
    await event.wait()


async def middle(event):
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(event), name="leaf one")
        group.create_task(leaf(event), name="leaf two")


def test_the_call_graph_of_a_task_names_what_it_awaits_and_who_awaits_it(run):
    async def main():
        event = asyncio.Event()
        task = asyncio.create_task(middle(event), name="the middle")
        await asyncio.sleep(0.001)
        graph = asyncio.capture_call_graph(task)
        names = [entry.frame.f_code.co_name for entry in graph.call_stack]
        assert names == ["_aexit", "__aexit__", "middle"]
        below = next(other for other in asyncio.all_tasks() if other.get_name() == "leaf one")
        (awaiter,) = asyncio.capture_call_graph(below).awaited_by
        assert awaiter.future is task
        assert "leaf one" in asyncio.format_call_graph(below) and "the middle" in asyncio.format_call_graph(below)
        event.set()
        await task

    run(main())


@pytest.mark.parametrize("command", ["ps", "pstree"])
def test_the_tasks_of_a_process_can_be_listed_from_another(run, command):
    async def main():
        event = asyncio.Event()
        task = asyncio.create_task(middle(event), name="the middle")
        await asyncio.sleep(0.001)
        line = [sys.executable, "-m", "asyncio", command, str(os.getpid())]
        done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20)
        event.set()
        await task
        return done

    shown = text(run(main()))
    for name in ("the middle", "leaf one", "leaf two"):
        assert name in shown, shown


def text(done):
    if "ermission" in done.stdout + done.stderr:
        pytest.skip("this system does not let one process read another's memory")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- native awaitables -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def native_waits():
    """Awaitables of every native class that all have to wait, by their names in the call graph."""
    loop, end = asyncio.get_running_loop(), threading.Event()
    with socketpair() as (first, second), socketpair() as (third, fourth), bound() as server:
        reader, writer = await wakeloop.open_connection(sock=second)
        full_reader, full_writer = await wakeloop.open_connection(sock=fourth)
        full_writer.write(bytes(20_000_000))
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        opening = asyncio.create_task(wakeloop.TcpStream.connect(listener.host, listener.port))
        served, stream = await listener.accept(), await opening
        try:
            yield {
                "EventLoop.sock_recv": loop.sock_recv(first, 1),
                "EventLoop.sock_sendall": loop.sock_sendall(third, bytes(20_000_000)),
                "EventLoop.sock_accept": loop.sock_accept(server),
                "StreamReader.readline": reader.readline(),
                "StreamWriter.drain": full_writer.drain(),
                "TcpStream.read": stream.read(1),
                "TcpStream.write_all": stream.write_all(bytes(50_000_000)),
                "TcpListener.accept": listener.accept(),
                "sleep": wakeloop.sleep(100),
                "spawn_blocking": wakeloop.spawn_blocking(end.wait),
            }
        finally:
            end.set()
            writer.close()
            full_writer.transport.abort()
            for each in (served, stream, listener):
                each.close()
            await asyncio.sleep(0.01)


async def awaits(awaitable):
    await awaitable


def start(waits, in_function):
    wrap = awaits if in_function else lambda awaitable: awaitable
    return [asyncio.create_task(wrap(awaitable), name=name) for name, awaitable in waits.items()]


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.native
@pytest.mark.parametrize("in_function", [True, False], ids=["in a coroutine", "alone"])
def test_native_awaitables_are_in_the_call_graph(run, runtime, in_function):
    async def main():
        async with native_waits() as waits:
            tasks = start(waits, in_function)
            await asyncio.sleep(0.01)
            for task in tasks:
                name = task.get_name()
                graph = asyncio.capture_call_graph(task)
                names = [entry.frame.f_code.co_qualname for entry in graph.call_stack]
                assert name in names and names[-1] == ("awaits" if in_function else name)
                shown = asyncio.format_call_graph(task)
                assert f"File '<wakeloop>', line 0, in {name}()" in shown and name in shown.splitlines()[0]
            await end(tasks)

    run(main())


@pytest.mark.native
def test_what_a_native_awaitable_waits_for_is_awaited_by_its_task(run, runtime):
    async def main():
        async with native_waits() as waits:
            tasks = [asyncio.create_task(awaits(each)) for each in waits.values()]
            await asyncio.sleep(0.01)
            futures = [task._fut_waiter for task in tasks]
            for task, future in zip(tasks, futures, strict=True):
                assert future._asyncio_awaited_by == {task}
                (awaiter,) = asyncio.capture_call_graph(future).awaited_by
                assert awaiter.future is task
            await end(tasks)
            assert [future._asyncio_awaited_by for future in futures] == [None] * len(futures)

    run(main())


@pytest.mark.native
def test_tasks_of_native_awaitables_are_awaited_by_what_gathers_them(run):
    async def main():
        async def gather():
            await asyncio.gather(wakeloop.sleep(100))

        async def wait():
            await asyncio.wait([asyncio.ensure_future(wakeloop.sleep(100))])

        async def shield():
            await asyncio.shield(wakeloop.sleep(100))

        async def group():
            async with asyncio.TaskGroup() as group:
                group.create_task(wakeloop.sleep(100))

        for function in (gather, wait, shield, group):
            task = asyncio.create_task(function())
            await asyncio.sleep(0.01)
            (inner,) = [each for each in asyncio.all_tasks() if type(each.get_coro()) is wakeloop.Operation]
            (awaiter,) = asyncio.capture_call_graph(inner).awaited_by
            assert awaiter.future is task
            inner.cancel()
            await end([task])

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("command", ["ps", "pstree"])
@pytest.mark.parametrize("in_function", [True, False], ids=["in a coroutine", "alone"])
def test_tasks_with_native_awaitables_can_be_listed_from_another_process(run, runtime, command, in_function):
    """Also one whose coroutine is native, which the other process takes for a generator object."""

    async def main():
        async with native_waits() as waits:
            tasks = start(waits, in_function)
            parent = asyncio.create_task(awaits(tasks[0]), name="the parent")
            await asyncio.sleep(0.01)
            fresh = [asyncio.create_task(wakeloop.sleep(100), name=f"fresh {number}") for number in range(20)]
            line = [sys.executable, "-m", "asyncio", command, str(os.getpid())]
            done = subprocess.run(line, capture_output=True, text=True, timeout=20)
            await asyncio.sleep(0.01)
            await end([parent, *tasks, *fresh])
            return done, [*waits, "the parent", *(task.get_name() for task in fresh)]

    done, names = run(main())
    shown = text(done)
    assert [name for name in names if name not in shown] == [], shown
    if command == "pstree" and in_function:
        assert shown.count("awaits") == len(names) - 20, shown


@pytest.mark.skipif(sys.maxsize < 1 << 32, reason="the place is that of a system with 64 bits")
def test_native_coroutines_look_finished_to_other_processes():
    """`gi_frame_state` of a generator object is FRAME_CLEARED, so that its frame is not read."""

    async def coroutine():
        pass

    finished = coroutine()
    finished.close()
    place = object.__basicsize__ + 51
    state = ctypes.c_int8.from_address(id(finished) + place).value
    sleep = wakeloop.sleep(1)
    assert ctypes.c_int8.from_address(id(sleep) + place).value == state == (5 if sys.version_info >= (3, 15) else 4)
    sleep.close()
