"""The flight recorder changes nothing in the program: no lifetime, no name of a task, no traceback."""

import asyncio
import contextlib
import functools
import gc
import sys
import weakref

import pytest
import wakeloop

from tests.support.builds import needs_ordered_collector
from tests.support.recorder import recorder_stops, trace_path  # noqa: F401
from tests.support.script import run_script

pytestmark = pytest.mark.native


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


@needs_ordered_collector
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
