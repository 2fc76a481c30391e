"""wakeloop.tasks() changes nothing in the program: it keeps no object alive, and calls no code of the program."""

import asyncio
import collections.abc
import gc
import subprocess
import sys
import weakref

import pytest

import wakeloop
from tests.support.waits import info_of, waiting


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

    class Steps(Iterator, collections.abc.Coroutine):
        def send(self, _):
            return next(self.inner)

        def throw(self, *error):
            return self.inner.throw(*error)

    async def main():
        async with waiting(Awkward().get()) as first:
            calls.clear()
            assert info_of(first).kind == "queue" and "Awkward at " in info_of(first).waits_for
            assert calls == []
        async with waiting(Iterator(asyncio.get_running_loop().create_future())) as second:
            calls.clear()
            assert info_of(second).kind == "future"
            assert [name for name in calls if name != "throw"] == []
        task = asyncio.get_running_loop().create_task(Steps(asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0.001)
        calls.clear()
        assert info_of(task).coroutine == Steps.__qualname__
        assert calls == []
        task.cancel()

    run(main())


def test_an_object_that_refuses_all_questions_is_a_future_that_is_waited_for(run):
    class Refuses(asyncio.Future):
        def done(self):
            raise ValueError

        __repr__ = cancelled = done

    async def main():
        async def waits():
            await Refuses()

        async with waiting(waits()) as task:
            assert (info_of(task).kind, info_of(task).state) == ("future", "waiting")

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
