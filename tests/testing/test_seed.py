"""The order of ready callbacks: asyncio's without a seed, and with one a choice that the seed repeats."""

import asyncio
import collections
import contextlib
import gc
import itertools
import os
import random
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.support import differential
from tests.testing.asyncio_clock import EventLoop as AsyncioLoop
from tests.testing.real_time import EventLoop as RealTime
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


async def entangled(apart=0):
    """Tasks that meet in a lock, a queue, an event, timers with equal deadlines or so far apart, and sets of tasks."""
    seen, lock, queue, event = [], asyncio.Lock(), asyncio.Queue(), asyncio.Event()

    async def worker(number):
        async with lock:
            seen.append(("lock", number))
            await asyncio.sleep(0)
        await asyncio.sleep(1 + number * apart)
        seen.append(("slept", number))
        await queue.put(number)
        await event.wait()
        seen.append(("event", number))

    workers = [asyncio.create_task(worker(number)) for number in range(4)]
    for _ in workers:
        seen.append(("got", await queue.get()))
    event.set()
    done, _ = await asyncio.wait(workers)
    seen += [("done", workers.index(task)) for task in done]
    # On asyncio, threads that run at once have no order.
    for number in range(3):
        await asyncio.to_thread(seen.append, ("thread", number))
    return seen


def observed(main, **options):
    loop = testing.EventLoop(**options)
    return testing.run_on(loop, main), [str(step) for step in loop.steps], loop.schedule


# -- without a seed --------------------------------------------------------------------------------------------


def test_without_a_seed_the_order_is_that_of_asyncio():
    with asyncio.Runner(loop_factory=AsyncioLoop) as runner:
        expected = runner.run(entangled(0.1))

    def in_order(seen):
        # asyncio's own order here is that of a set of objects with random addresses.
        return [each for each in seen if each[0] != "done"]

    found = testing.run(entangled(0.1))
    assert in_order(found) == in_order(expected)
    assert [number for what, number in found if what == "done"] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["unix", "server", "sockets", "streams", "processes", "schedules"])
def test_a_random_scenario_looks_the_same_as_on_asyncio(kind, asyncio_log):
    """The full comparison is that of tests/compat/test_differential.py and of CPython's own tests: see real_time.py."""
    for seed in range(8):
        difference = differential.difference(kind, seed, RealTime, debug=seed % 2 == 1)
        assert difference is None, difference


def test_callbacks_of_one_turn_run_before_those_that_they_schedule():
    async def main():
        loop, seen, done = asyncio.get_running_loop(), [], asyncio.get_running_loop().create_future()

        def first():
            seen.append("first")
            loop.call_soon(seen.append, "scheduled by first")
            loop.call_soon(done.set_result, None)

        loop.call_soon(first)
        loop.call_soon(seen.append, "second")
        await done
        return seen

    assert testing.run(main) == ["first", "second", "scheduled by first"]


# -- with a seed -----------------------------------------------------------------------------------------------


def test_a_seed_repeats_its_run_step_by_step():
    orders = set()
    for seed in range(20):
        runs = [observed(entangled, seed=seed) for _ in range(2)]
        assert runs[0][:2] == runs[1][:2] and runs[0][2].decisions == runs[1][2].decisions
        orders.add(str(runs[0][0]))
    assert len(orders) > 15


def test_a_run_is_repeated_from_its_decisions():
    result, steps, schedule = observed(entangled, seed=5)
    again = observed(entangled, schedule=testing.Replay(schedule.decisions))
    assert again[:2] == (result, steps)
    numbers = [decision.chosen for decision in schedule.decisions]
    assert observed(entangled, schedule=testing.Replay(numbers))[:2] == (result, steps)


def test_decisions_of_zero_are_asyncios_order():
    """Whatever a shrunk schedule does not say is as without a seed."""

    async def main():
        seen = []

        async def worker(name):
            for step in range(3):
                seen.append((name, step))
                await asyncio.sleep(0)

        await asyncio.gather(*(worker(name) for name in "abc"))
        return seen

    assert testing.run(main, schedule=testing.Replay([])) == testing.run(main)


def test_a_seed_gives_the_same_steps_in_another_process():
    """Neither the hash of strings nor the addresses of objects decide anything."""
    program = textwrap.dedent("""
        import sys
        ballast = [bytearray(17 * n) for n in range(int(sys.argv[1]))]
        from tests.testing.test_seed import entangled, observed
        import hashlib
        for seed in range(5):
            result, steps, schedule = observed(entangled, seed=seed)
            print(hashlib.sha256(repr((result, steps, schedule.decisions)).encode()).hexdigest())
    """)
    said = set()
    for number in (1, 5000):
        run = [sys.executable, "-c", program, str(number)]
        done = subprocess.run(run, capture_output=True, text=True, env=environment(PYTHONHASHSEED=str(number)))
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1 and said.pop().count("\n") == 5


def environment(**changes):
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | changes


def test_every_order_of_independent_tasks_is_reached():
    async def main():
        seen = []

        async def append(name):
            seen.append(name)

        await asyncio.gather(*(append(name) for name in "abc"))
        return "".join(seen)

    reached = collections.Counter(testing.run(main, seed=seed, check=False) for seed in range(100))
    assert set(reached) == {"".join(order) for order in itertools.permutations("abc")}


def test_every_order_of_timers_with_one_deadline_is_reached():
    async def main():
        loop, seen = asyncio.get_running_loop(), []
        loop.call_at(1, seen.append, "a")
        loop.call_at(1, lambda: seen.append("b"))
        loop.call_at(1, lambda: seen.append("c"))
        loop.call_at(0.5, seen.append, "first")
        await asyncio.sleep(2)
        return "".join(seen)

    reached = {testing.run(main, seed=seed, check=False) for seed in range(100)}
    assert reached == {"first" + "".join(order) for order in itertools.permutations("abc")}


@pytest.mark.parametrize("seed", range(10))
def test_the_promises_of_asyncio_are_kept_under_every_seed(seed):
    """Steps of one task, callbacks of one future, and functions passed to call_soon keep their order."""

    async def main():
        loop, seen = asyncio.get_running_loop(), collections.defaultdict(list)
        future = loop.create_future()

        async def waiter():
            await future
            seen["future"].append("task")

        async def stepping(name):
            for number in range(5):
                seen[name].append(number)
                await asyncio.sleep(0)

        future.add_done_callback(lambda _: seen["future"].append("before"))
        task = asyncio.create_task(waiter())
        await asyncio.sleep(0)
        while not future._callbacks or len(future._callbacks) < 2:
            await asyncio.sleep(0)
        future.add_done_callback(lambda _: seen["future"].append("after"))
        steppers = [asyncio.create_task(stepping(name)) for name in "xy"]
        for number in range(5):
            loop.call_soon(seen["soon"].append, number)
        future.set_result(None)
        await asyncio.gather(task, *steppers)
        await asyncio.sleep(1)
        return seen

    seen = testing.run(main, seed=seed)
    assert seen["future"] == ["before", "task", "after"]
    assert seen["soon"] == seen["x"] == seen["y"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_a_real_connection_keeps_the_order_of_its_calls_under_every_seed(seed):
    calls = []

    class Recording(asyncio.Protocol):
        def __init__(self):
            self.lost = asyncio.get_running_loop().create_future()

        def connection_made(self, transport):
            calls.append("made")
            self.transport = transport

        def data_received(self, data):
            calls.append("data")
            self.transport.close()

        def connection_lost(self, error):
            calls.append("lost")
            self.lost.set_result(None)

    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with far:
            far.send(b"at once")
            near.setblocking(False)
            _, protocol = await loop.create_connection(Recording, sock=near)
            calls.append("connected")
            await protocol.lost

    testing.run(main, seed=seed)
    # The task that has waited for the connection is independent of what the protocol is told.
    assert [call for call in calls if call != "connected"] == ["made", "data", "lost"]
    assert calls.index("made") < calls.index("connected")


def test_a_callback_runs_before_a_task_that_the_same_step_wakes_after_it():
    """asyncio's transports pass connection_made to call_soon, and then wake the task that waits for the connection."""

    async def main():
        loop, seen = asyncio.get_running_loop(), []
        future, others = loop.create_future(), []

        async def waiter():
            await future
            seen.append("woken")

        async def new():
            seen.append("started")

        async def other():
            for _ in range(3):
                await asyncio.sleep(0)

        woken = asyncio.create_task(waiter())
        others += [asyncio.create_task(other()) for _ in range(3)]
        await asyncio.sleep(1)
        others += [asyncio.create_task(other()) for _ in range(3)]
        loop.call_soon(seen.append, "first")
        loop.call_soon(seen.append, "second")
        future.set_result(None)
        started = asyncio.create_task(new())
        await asyncio.sleep(0)
        seen.append("yielded")
        await asyncio.gather(woken, started, *others)
        return seen

    orders = set()
    for seed in range(50):
        seen = testing.run(main, seed=seed)
        assert seen[:2] == ["first", "second"]
        orders.add(tuple(seen[2:]))
    # The tasks are independent of each other.
    assert orders == set(itertools.permutations(["woken", "started", "yielded"]))


def test_a_callback_and_a_task_that_different_steps_make_ready_come_in_both_orders():
    async def main():
        loop, seen = asyncio.get_running_loop(), []
        future = loop.create_future()

        async def waiter():
            await future
            seen.append("woken")

        async def call():
            loop.call_soon(seen.append, "called")

        async def wake():
            future.set_result(None)

        await asyncio.gather(waiter(), call(), wake())
        return tuple(seen)

    assert {testing.run(main, seed=seed) for seed in range(50)} == {("called", "woken"), ("woken", "called")}


def test_a_child_process_is_connected_before_the_program_has_it():
    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        assert await process.communicate(b"hello") == (b"hello", None) and process.returncode == 0

    for seed in range(10):
        testing.run(main, seed=seed)


def test_drain_raises_after_a_write_that_has_failed():
    async def main():
        async def close(_, writer):
            await asyncio.sleep(0.05)
            writer.close()

        async with await asyncio.start_server(close, "127.0.0.1", 80):
            reader, writer = await asyncio.open_connection("127.0.0.1", 80)
            # The other end does not read it, so that it answers with a reset.
            writer.write(b"unread")
            await asyncio.sleep(0.1)
            writer.write(b"refused")
            await asyncio.sleep(0.1)
            writer.write(b"failed")
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(writer.drain(), 1)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    for seed in range(20):
        testing.run(main, seed=seed, network=Network())


def test_more_callbacks_than_a_choice_has_run_in_every_possible_place():
    async def main():
        seen = []

        async def append(number):
            await asyncio.sleep(0)
            seen.append(number)

        await asyncio.gather(*map(append, range(500)))
        return seen

    schedule = testing.Seeded(1)
    seen = testing.run(main, schedule=schedule)
    assert sorted(seen) == list(range(500)) and max(decision.count for decision in schedule.decisions) == 64
    assert testing.run(main, seed=1) == seen and testing.run(main, schedule=testing.Replay([])) == list(range(500))


def test_sets_of_tasks_and_futures_have_the_order_in_which_they_were_made():
    async def main():
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(50)]
        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(50)]
        assert list(set(random.Random(1).sample(futures, 50))) == futures
        assert list(set(random.Random(1).sample(tasks, 50))) == tasks
        assert len({*futures, *tasks}) == 100 and asyncio.all_tasks() == {asyncio.current_task(), *tasks}
        await asyncio.gather(*tasks)

    testing.run(main)


def test_tasks_are_named_by_their_loop():
    async def main():
        names = [asyncio.current_task().get_name(), *(asyncio.create_task(asyncio.sleep(0)).get_name() for _ in "ab")]
        await asyncio.sleep(1)
        return [*names, asyncio.create_task(asyncio.sleep(0), name="own").get_name()]

    assert testing.run(main, check=False) == testing.run(main, check=False) == ["Task-1", "Task-2", "Task-3", "own"]


def test_a_task_factory_of_the_program_is_used():
    made = []

    def factory(loop, coro, **options):
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    async def main():
        asyncio.get_running_loop().set_task_factory(factory)
        await asyncio.create_task(asyncio.sleep(0))
        return [step.who for step in asyncio.get_running_loop().steps]

    who = testing.run(main, seed=1)
    # Some releases of asyncio name such a task "None".
    assert [name in ("Task #1", "None") for name in who] == [False, True, True, False] and made[0] == "sleep"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in Python 3.12")
def test_eager_tasks_run():
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        seen = []

        async def eager():
            seen.append("at once")
            await asyncio.sleep(1)
            seen.append("later")

        task = asyncio.create_task(eager())
        assert seen == ["at once"] and hash(task) < 100
        await task
        return seen

    assert testing.run(main, seed=1) == ["at once", "later"]


def test_the_log_of_steps_says_who_ran_and_where_it_continued():
    async def main():
        loop = asyncio.get_running_loop()
        loop.call_later(2, gc.isenabled)
        task = asyncio.create_task(asyncio.sleep(5), name="sleeper")
        await asyncio.to_thread(int)
        await task
        return loop

    loop = testing.run(main, executor="inline")
    steps = list(loop.steps)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    named = {(step.time, step.who, step.what.partition(" at ")[0]) for step in steps}
    assert {
        (0.0, "executor", "int"),
        (2.0, "timer", "isenabled"),
        (5.0, "sleeper", "sleep"),
        (5.0, "Task-1", f"{main.__qualname__}"),
    } <= named
    assert "test_seed.py:" in str(loop.steps) and "0x" not in str(loop.steps)


def test_hooks_are_called_when_a_task_is_suspended():
    async def main():
        seen = []
        asyncio.get_running_loop().on_suspend(lambda task: seen.append(task.get_name()))
        await asyncio.sleep(1)
        await asyncio.create_task(asyncio.sleep(0), name="other")
        return seen

    assert testing.run(main, check=False) == ["Task-1", "Task-1", "other"]


# -- schedules -------------------------------------------------------------------------------------------------


def test_a_schedule_remembers_what_it_decided():
    schedule = testing.Seeded(3)
    assert schedule.choose("ready", 1) == 0 and schedule.chance("loss", 0) is False and schedule.chance("loss", 1) is True
    assert schedule.uniform("latency", 2, 2) == 2 and schedule.decisions == []
    answers = [schedule.choose("ready", 10), schedule.chance("loss", 0.5), schedule.uniform("latency", 1, 3)]
    assert [(decision.kind, decision.count) for decision in schedule.decisions] == [("ready", 10), ("loss", 2), ("latency", 65536)]
    again = testing.Replay(schedule.decisions)
    assert [again.choose("ready", 10), again.chance("loss", 0.5), again.uniform("latency", 1, 3)] == answers
    assert again.choose("ready", 5) == 0 and again.chance("loss", 0.9) is False and again.uniform("latency", 1, 3) == 1


def test_chances_and_bounds_are_met():
    schedule = testing.Seeded(0)
    assert 150 < sum(schedule.chance("loss", 0.2) for _ in range(1000)) < 250
    drawn = [schedule.uniform("latency", -1, 1) for _ in range(1000)]
    assert -1 <= min(drawn) < -0.9 and 0.9 < max(drawn) <= 1


def test_impossible_questions_to_a_schedule_are_refused():
    schedule = testing.Fifo()
    for probability in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="probability"):
            schedule.chance("loss", probability)
    with pytest.raises(ValueError, match="bound"):
        schedule.uniform("latency", 2, 1)
