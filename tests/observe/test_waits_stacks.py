"""wakeloop.tasks(): the functions that a task has called, and its chain of awaits down to native coroutines."""

import asyncio
import contextlib
import inspect
import io
import types

import pytest

import wakeloop
from tests.support.sockets import socketpair
from tests.support.waits import info_of, waiting


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
        assert [frame.file for frame in info.stack] == [__file__] * 3 + [info_of.__code__.co_filename]
        assert all(frame.line > 0 for frame in info.stack)

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
def test_the_chain_of_awaits_ends_with_the_native_function(run, runtime):
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
