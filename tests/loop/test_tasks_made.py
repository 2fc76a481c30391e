"""create_task with every keyword, task factories and eager tasks, as in asyncio of each version."""

import asyncio
import contextvars
import gc
import inspect
import sys
import weakref

import pytest

variable = contextvars.ContextVar("variable", default="unset")

has_eager_factory = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
#: Task() takes eager_start since 3.12; create_task() passes it on since 3.13.3.
TAKES_EAGER_START = "kwargs" in inspect.signature(asyncio.BaseEventLoop.create_task).parameters


async def read_variable():
    return variable.get()


def test_name_and_context_reach_the_task(run):
    async def main():
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        context.run(variable.set, "from the context")
        task = loop.create_task(read_variable(), name="mine", context=context)
        assert task.get_name() == "mine" and await task == "from the context"
        if sys.version_info >= (3, 12):
            assert task.get_context() is context
        task = asyncio.create_task(read_variable(), name=5, context=None)
        assert task.get_name() == "5" and await task == "unset"

    run(main())


def test_the_first_task_of_a_program_is_task_1(loop_name):
    from tests.support.script import run_script

    done = run_script(
        loop_name,
        """
        async def main():
            print(asyncio.current_task().get_name())
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        """,
    )
    assert (done.code, done.out) == (0, "Task-1\n"), done


@pytest.mark.skipif(not TAKES_EAGER_START, reason="create_task() takes no such keyword in this Python")
def test_eager_start_runs_the_first_step_inside_of_create_task(run):
    async def main():
        seen = []

        async def child():
            seen.append("started")
            await asyncio.sleep(0)
            return asyncio.current_task()

        loop = asyncio.get_running_loop()
        task = loop.create_task(child(), eager_start=True, name="eager")
        assert seen == ["started"] and task.get_name() == "eager" and await task is task
        for not_eager in (False, None, 0):
            task = loop.create_task(child(), eager_start=not_eager)
            assert seen == ["started"]
            await task
            seen.pop()

    run(main())


@pytest.mark.skipif(not TAKES_EAGER_START, reason="create_task() takes no such keyword in this Python")
def test_an_eager_task_runs_in_its_context_and_may_end_or_fail_at_once(run):
    async def main():
        async def fail():
            raise ValueError(variable.get())

        context = contextvars.copy_context()
        context.run(variable.set, "from the context")
        done = asyncio.create_task(read_variable(), name="done", context=context, eager_start=True)
        assert done.done() and done.result() == "from the context" and done.get_name() == "done"
        failed = asyncio.create_task(fail(), context=context, eager_start=1)
        assert failed.done() and str(failed.exception()) == "from the context"
        assert asyncio.current_task() not in (done, failed)

    run(main())


def test_an_unknown_keyword_is_a_type_error_and_the_coroutine_is_not_lost(run):
    async def main():
        coroutine = read_variable()
        with pytest.raises(TypeError):
            asyncio.get_running_loop().create_task(coroutine, colour="blue")
        coroutine.close()

    run(main())


@pytest.mark.parametrize("bad", [5, None, "text", lambda: None])
def test_create_task_of_a_non_coroutine_is_a_type_error(loop, bad):
    with pytest.raises(TypeError, match="a coroutine was expected"):
        loop.create_task(bad)


def test_a_task_factory_gets_the_keywords_that_asyncio_passes(run):
    calls = []

    def factory(loop, coroutine, **keywords):
        calls.append(dict(keywords))
        return asyncio.Task(coroutine, loop=loop, **keywords)

    async def main():
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        loop.set_task_factory(factory)
        first = loop.create_task(asyncio.sleep(0))
        second = loop.create_task(asyncio.sleep(0), name="named", context=context)
        await asyncio.gather(first, second)
        assert second.get_name() == "named"
        assert {"context": context}.items() <= calls[1].items()
        return [sorted(call) for call in calls]

    assert run(main()) == asyncio_answer(main, calls)


def asyncio_answer(main, calls):
    """Returns what the same coroutine gives on asyncio's own loop."""
    calls.clear()
    loop = asyncio.SelectorEventLoop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_task_factory_may_return_any_future(run):
    async def main():
        loop = asyncio.get_running_loop()
        made = loop.create_future()

        class Named(asyncio.Future):
            def set_name(self, name):
                self.name = name

        def factory(loop, coroutine, **keywords):
            nonlocal made
            coroutine.close()
            made = Named(loop=loop)
            made.set_result("made by the factory")
            return made

        loop.set_task_factory(factory)
        task = loop.create_task(asyncio.sleep(0))
        loop.set_task_factory(None)
        assert task is made and await task == "made by the factory"

    run(main())


def test_an_exception_in_a_task_factory_propagates_to_the_caller(run):
    async def main():
        loop = asyncio.get_running_loop()

        def factory(loop, coroutine, **keywords):
            coroutine.close()
            raise KeyError("no tasks today")

        loop.set_task_factory(factory)
        try:
            with pytest.raises(KeyError):
                loop.create_task(asyncio.sleep(0))
        finally:
            loop.set_task_factory(None)

    run(main())


@has_eager_factory
def test_an_eager_task_factory_of_a_custom_task_class_works(run):
    class MyTask(asyncio.Task):
        pass

    async def main():
        loop, seen = asyncio.get_running_loop(), []
        loop.set_task_factory(asyncio.create_eager_task_factory(MyTask))

        async def child():
            seen.append("started")
            await asyncio.sleep(0)

        task = loop.create_task(child(), name="eager")
        assert type(task) is MyTask and seen == ["started"] and task.get_name() == "eager"
        await task
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            assert len(seen) == 2

    run(main())


@has_eager_factory
def test_an_eager_task_that_fails_at_once_keeps_its_exception(run):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)

        async def fail():
            raise ValueError("at once")

        task = loop.create_task(fail())
        assert task.done()
        with pytest.raises(ValueError, match="at once"):
            await task

    run(main())


def test_a_finished_task_is_freed_without_the_collector(run):
    async def main():
        async def fail():
            raise ValueError

        gc.collect()
        gc.disable()
        try:
            task = asyncio.get_running_loop().create_task(fail())
            watched = weakref.ref(task)
            await asyncio.wait([task])
            assert isinstance(task.exception(), ValueError)
            del task
            await asyncio.sleep(0)
            assert watched() is None
        finally:
            gc.enable()

    run(main())
