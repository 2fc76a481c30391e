"""The flight recorder beside loops of several threads, which start, run and end as they like."""

import asyncio
import contextlib
import os
import threading

import pytest
import wakeloop

from tests.support.recorder import recorded, recorder_stops, trace_path, wait_for  # noqa: F401
from tests.support.trace import Trace

pytestmark = pytest.mark.native


@contextlib.contextmanager
def loops_in_threads(count, loop_factory, main):
    """Runs `main(index, stop)` on a loop in each of so many threads, until the block ends. Yields the threads."""
    stop = threading.Event()
    failed = []

    def run(index):
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(main(index, stop))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_loop_of_another_thread_heeds_the_start_and_the_end_of_a_recording(path, loop_factory):
    turns = [0]

    async def main(_index, stop):
        while not stop.is_set():
            turns[0] += 1
            await asyncio.sleep(0)

    with loops_in_threads(1, loop_factory, main) as [thread]:
        wait_for(lambda: turns[0] > 0)
        for _ in range(3):
            with recorded(path) as found:
                goes_on(turns)
            tasks = [event for event in found[0].find(category="task") if event["name"].endswith("main")]
            assert tasks and {event["tid"] for event in tasks} == {thread.native_id}
        recorder = wakeloop.record()
        goes_on(turns)
        recorder.stop()
        # An event that was being written is counted.
        goes_on(turns)
        events = recorder.events
        goes_on(turns)
        assert recorder.events == events > 0


def goes_on(turns):
    before = turns[0]
    wait_for(lambda: turns[0] > before + 100)


def test_traces_beside_loops_of_four_threads_are_whole_while_tasks_get_other_names(path, loop_factory):
    tasks = {}

    async def step(index, number):
        asyncio.current_task().set_name(f"{index}.{number}")
        await asyncio.sleep(0)

    async def main(index, stop):
        tasks[index] = asyncio.current_task()
        number = 0
        while not stop.is_set():
            number += 1
            await asyncio.gather(step(index, number), asyncio.sleep(0))

    with loops_in_threads(4, loop_factory, main) as threads:
        wait_for(lambda: len(tasks) == 4)
        for number in range(8):
            with wakeloop.record(size=1 << 14) as recorder:
                wait_for(lambda: recorder.events > 2000)
                for index, task in tasks.items():
                    task.set_name(f"{index}.main {number}")
                recorder.save(path)
            trace = Trace.read(path)
            steps = [event for event in trace.find(category="task") if event["name"].endswith("step")]
            steps = [event for event in steps if not event["name"].startswith("Task-")]
            assert steps
            # Each is in the track of the thread whose number is in its name.
            assert all(event["tid"] == threads[int(event["name"].split(".")[0])].native_id for event in steps)


def test_loops_that_run_one_after_the_other_need_the_memory_of_one(path, loop_factory):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    size = 16 << 20
    with recorded(path, size=size) as found:
        for number in range(20):
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(named(number))
            if number == 0:
                before = resident()
        assert resident() - before < 4 * size
    names = {event["args"]["task"] for event in found[0].find(category="task")}
    assert {f"run {number}" for number in range(20)} <= names


async def named(number):
    asyncio.current_task().set_name(f"run {number}")
    await asyncio.sleep(0)
