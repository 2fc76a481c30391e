"""`wakeloop.spawn_blocking`: Python functions on the runtime's blocking pool, awaited from any loop."""

import asyncio
import contextvars
import gc
import threading
import time
import weakref

import pytest

from tests.support import script

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_a_function_runs_on_another_thread_with_its_arguments(run):
    async def main():
        def function(*args, **kwargs):
            return threading.get_ident(), args, kwargs

        thread, args, kwargs = await wakeloop.spawn_blocking(function, 1, "two", three=3)
        assert thread != threading.get_ident() and args == (1, "two") and kwargs == {"three": 3}

    run(main())


@pytest.mark.parametrize("error", [ValueError("no"), OSError(2, "gone"), KeyError("key")])
def test_an_exception_in_the_function_reaches_the_awaiting_task(run, error):
    async def main():
        def function():
            raise error

        with pytest.raises(type(error)) as raised:
            await wakeloop.spawn_blocking(function)
        assert raised.value is error
        assert raised.traceback[-1].name == "function"

    run(main())


def test_a_stop_iteration_does_not_look_like_a_result(run):
    async def main():
        with pytest.raises(RuntimeError, match="StopIteration") as raised:
            await wakeloop.spawn_blocking(next, iter(()))
        assert isinstance(raised.value.__cause__, StopIteration)

    run(main())


def test_the_function_sees_a_copy_of_the_context_of_the_await(run):
    variable = contextvars.ContextVar("variable", default="outside")

    async def main():
        variable.set("inside")
        seen = []

        def function():
            seen.append(variable.get())
            variable.set("changed")

        await wakeloop.spawn_blocking(function)
        assert seen == ["inside"] and variable.get() == "inside"

    run(main())


def test_the_loop_goes_on_while_functions_block(run):
    async def main():
        begin = threading.Barrier(5)
        calls = [asyncio.ensure_future(wakeloop.spawn_blocking(begin.wait, 10)) for _ in range(4)]
        await asyncio.sleep(0.01)
        assert not any(call.done() for call in calls)
        begin.wait(10)
        assert sorted(await asyncio.gather(*calls)) != []

    run(main())


def test_a_call_that_has_begun_outlives_the_task_that_was_cancelled(run):
    async def main():
        begun, released, ended = threading.Event(), threading.Event(), threading.Event()

        def function():
            begun.set()
            released.wait(10)
            ended.set()
            return "dropped"

        task = asyncio.ensure_future(wakeloop.spawn_blocking(function))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ended.is_set()
        released.set()
        while not ended.is_set():
            await asyncio.sleep(0.001)

    run(main())


def test_a_call_releases_its_objects_when_it_ends_or_never_begins(run):
    class Thing:
        pass

    async def main():
        thing = Thing()
        references = weakref.ref(thing)
        await wakeloop.spawn_blocking(id, thing)
        with pytest.warns(RuntimeWarning, match="never awaited"):
            wakeloop.spawn_blocking(id, thing)
        del thing
        gc.collect()
        while references() is not None:
            await wakeloop.spawn_blocking(int)
            gc.collect()

    run(main())


def test_a_cancelled_call_releases_its_objects_and_result_without_another_call(run):
    class Thing:
        pass

    async def main():
        references, begun, go_on = [], threading.Event(), threading.Event()

        def function(_thing):
            begun.set()
            go_on.wait(10)
            result = Thing()
            references.append(weakref.ref(result))
            return result

        def call():
            argument = Thing()
            references.append(weakref.ref(argument))
            return asyncio.ensure_future(wakeloop.spawn_blocking(function, argument))

        running = call()
        while not begun.is_set():
            await asyncio.sleep(0.001)
        # More than the pool has threads, so some wait for one.
        calls = [running, *(call() for _ in range(600))]
        await asyncio.sleep(0)
        for each in calls:
            each.cancel()
        go_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        del running, calls
        gc.collect()
        while any(ref() for ref in references):
            await asyncio.sleep(0.01)
            gc.collect()
        assert len(references) > 600

    run(main())


def test_a_thousand_calls_of_which_half_are_cancelled(run):
    async def main():
        tasks = [asyncio.ensure_future(wakeloop.spawn_blocking(lambda n=n: n)) for n in range(1000)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == list(range(1, 1000, 2))
        for number, result in enumerate(results[::2]):
            assert result == 2 * number or isinstance(result, asyncio.CancelledError)

    run(main())


@pytest.mark.parametrize("bad", [None, 1, "text"])
def test_an_object_that_is_not_callable_is_refused_at_once(run, bad):
    async def main():
        with pytest.raises(TypeError, match="callable"):
            wakeloop.spawn_blocking(bad)

    run(main())


@pytest.mark.parametrize("state", ["time.sleep(60)", "sum(0 for _ in iter(int, 1))"])
def test_the_interpreter_exits_silently_while_calls_run(loop_name, state):
    start = time.monotonic()
    done = script.run_script(
        loop_name,
        f"""
        import time, wakeloop
        async def main():
            calls = [asyncio.ensure_future(wakeloop.spawn_blocking(lambda: {state})) for _ in range(3)]
            await asyncio.sleep(0.05)
            print("leaving", flush=True)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
    )
    assert (done.code, done.out, done.err) == (0, "leaving\n", "")
    assert time.monotonic() - start < 30
