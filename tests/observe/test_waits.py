"""wakeloop.tasks(): which tasks it lists, in which state and order, and from which thread."""

import asyncio
import contextlib
import functools
import sys
import threading
import time

import pytest

import wakeloop
from tests.support.sockets import socketpair
from tests.support.waits import info_of, waiting
from wakeloop import waits


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


def test_control_characters_are_shown_as_escapes(run):
    async def main():
        async def named():
            await asyncio.Event().wait()

        named.__qualname__ = "two\nlines"
        task = asyncio.create_task(named())
        await asyncio.sleep(0)
        assert " (two\\nlines) waiting: " in str(info_of(task)).partition("\n")[0]
        task.cancel()

    run(main())


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


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
def test_a_function_that_looks_at_what_it_runs_in_does_not_see_it_await(run, kind):
    """Until CPython 3.13, what such an object awaits is guessed from the code unit after its last one. After a call that
    is not specialised that is a counter of calls, and each of its values comes by."""

    def look(_):
        assert len(waits.stack(suspended)) == 1

    async def coroutine(looks):
        for look in looks:
            look(0)

    def generator(looks):
        for look in looks:
            look(0)
        yield

    async def async_generator(looks):
        for look in looks:
            look(0)
        yield

    looks = [functools.partial(look)] * 40_000  # CPython does not specialise calls of such objects.
    if kind == "coroutine":
        suspended = coroutine(looks)
        run(suspended)
    elif kind == "generator":
        suspended = generator(looks)
        next(suspended)
    else:
        suspended = async_generator(looks)
        run(anext(suspended))


@pytest.mark.timeout(120)
def test_other_threads_can_look_while_tasks_come_and_go(run, runtime):
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
