"""wakeloop.tasks(): what each task waits for."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

import wakeloop
from tests.support.waits import info_of, waiting


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


async def native_event():
    event = wakeloop.Event()
    return event.wait, event, "event", "wait of Event at "


async def native_get():
    queue = wakeloop.Queue()
    return queue.get, queue, "queue", "get of Queue at "


async def native_put():
    queue = wakeloop.Queue(1)
    await queue.put(1)
    return lambda: queue.put(2), queue, "queue", "put of Queue at "


async def native_join():
    queue = wakeloop.Queue()
    await queue.put(1)
    return queue.join, queue, "queue", "join of Queue at "


@pytest.mark.native
@pytest.mark.parametrize("make", [native_event, native_get, native_put, native_join])
def test_a_wait_for_a_queue_or_an_event_is_named_with_its_duration(run, make):
    async def main():
        wait, target, kind, text = await make()

        async def nested():
            return await wait()

        for wrap in (wait, nested, lambda: asyncio.wait_for(wait(), 100), lambda: anext(iterated())):

            async def iterated():
                yield await wait()

            async with waiting(wrap()) as task:
                inner = next((it for it in wakeloop.tasks() if it.target is target), None)
                assert (inner.state, inner.kind) == ("waiting", kind) and text in inner.waits_for
                assert inner.exact and 0 <= inner.seconds < 100
                assert task in (it.task for it in wakeloop.tasks())

    run(main())


@pytest.mark.native
def test_a_wait_for_a_file_is_named_with_its_duration(run, runtime, tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)

    async def main():
        writer = os.open(path, os.O_RDWR)
        try:
            async with wakeloop.open(path, "rb") as file:
                for read in (lambda: file.read(10), file.readline, lambda: anext(file)):
                    async with waiting(read()) as task:
                        info = info_of(task)
                        assert (info.state, info.kind, info.target) == ("waiting", "file", file)
                        assert info.waits_for.startswith("File.") and info.waits_for.endswith(f" on {str(path)!r}")
                        assert info.exact and 0 <= info.seconds < 100
        finally:
            os.close(writer)

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


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [
        (lambda future, _: future, "future"),
        (lambda future, _: asyncio.shield(future), "future"),
        (lambda future, _: asyncio.wait_for(future, 1000), "future"),
        (lambda _, gathered: gathered, "gather"),
        (lambda _, gathered: asyncio.shield(gathered), "gather"),
    ],
    ids=["future", "shield", "wait_for", "gather", "shield of gather"],
)
def test_a_future_for_which_many_tasks_wait_is_asked_once(run, wrap, kind):
    """Reading the callbacks of a future copies them, and asking a gather() asks all its futures."""
    reads = []

    class Counted(asyncio.Future):
        @property
        def _callbacks(self):
            reads.append(self)
            return super()._callbacks

        def done(self):
            reads.append(self)
            return super().done()

    async def main():
        async def waits(awaitable):
            await awaitable

        future, child = Counted(), Counted()
        gathered = asyncio.gather(child)
        tasks = [asyncio.create_task(waits(wrap(future, gathered))) for _ in range(50)]
        await asyncio.sleep(0)
        reads.clear()
        found = [info for info in wakeloop.tasks() if info.task in tasks]
        assert {info.kind for info in found} == {kind} and len(found) == 50
        # For each task, the future that it waits for is asked whether it is done.
        assert len(reads) <= (51 if tasks[0]._fut_waiter is future else 1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not child.done():
            child.set_result(None)
        await asyncio.wait([gathered])
        # So that nobody logs an exception that was not looked at.
        assert gathered.cancelled() or gathered.exception() or gathered.result() == [None]

    run(main())
