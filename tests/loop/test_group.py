"""wakeloop.EventLoopGroup: several loops in one process, and servers on all of them."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the group is wakeloop's; the control group has none")


@pytest.fixture
def group(loop_factory):
    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        yield group


async def thread_and_loop():
    return threading.current_thread().name, asyncio.get_running_loop()


async def thread_ident():
    return threading.get_ident()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_each_loop_runs_in_a_thread_of_its_own_and_the_first_in_the_callers(group):
    async def main():
        results = await group.run_on_each(thread_and_loop)
        assert [name for name, _ in results] == [threading.current_thread().name, "wakeloop-1", "wakeloop-2"]
        assert tuple(loop for _, loop in results) == group.loops
        return "result"

    assert group.run(main()) == "result"
    assert group.run(main()) == "result"


def test_a_group_of_one_has_no_thread(loop_factory):
    with wakeloop.EventLoopGroup(1, loop_factory=loop_factory) as group:
        before = threading.active_count()
        assert len(group.loops) == 1 and threading.active_count() == before
        assert group.run(group.run_on_each(thread_and_loop)) == [(threading.current_thread().name, group.loops[0])]


def test_the_size_is_that_of_the_processors():
    with wakeloop.EventLoopGroup() as group:
        assert len(group.loops) == len(os.sched_getaffinity(0))
    for size in (0, -1):
        with pytest.raises(ValueError, match="size must be at least 1"):
            wakeloop.EventLoopGroup(size)


def test_run_on_passes_on_results_exceptions_and_cancellation(group):
    async def fail():
        raise LookupError("from there")

    async def hang(events):
        try:
            events.append("begun")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            events.append("cancelled")
            raise

    async def back(number):
        return await group.run_on(group.loops[0], thread_and_loop), number

    async def main():
        first, second, _ = group.loops
        assert (await group.run_on(second, back, 5)) == ((threading.main_thread().name, first), 5)
        with pytest.raises(LookupError, match="from there"):
            await group.run_on(second, fail)
        events = []
        task = asyncio.ensure_future(group.run_on(second, hang, events))
        await until(lambda: events)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert events == ["begun", "cancelled"], "the end of the task was waited for"

    group.run(main())


def test_run_on_refuses_a_loop_of_somebody_else(group, loop_factory):
    other = loop_factory()

    async def main():
        for loop in (other, None):
            with pytest.raises(ValueError, match="is not a loop of this group"):
                await group.run_on(loop, thread_ident)

    group.run(main())
    other.close()


def test_run_on_passes_on_what_a_task_factory_raises(group):
    def refuse(loop, coroutine, **options):
        raise ZeroDivisionError

    async def main():
        loop = group.loops[1]
        loop.call_soon_threadsafe(loop.set_task_factory, refuse)
        with pytest.raises(ZeroDivisionError):
            await group.run_on(loop, thread_ident)
        loop.call_soon_threadsafe(loop.set_task_factory, None)
        assert await group.run_on(loop, thread_ident) == group._members[0].thread.ident

    group.run(main())


def test_run_on_ends_with_a_loop_that_does_not_run_the_function_any_more(loop_factory, asyncio_log):
    """The last thing that a loop runs as it ends is the end of its asynchronous generators and of its executor."""
    begun, goes_on = threading.Event(), threading.Event()
    outcomes = []

    async def last():
        try:
            yield
        finally:
            begun.set()
            goes_on.wait()

    async def begin(generators):
        generators.append(last())
        await anext(generators[0])

    async def at_the_end():
        try:
            await asyncio.sleep(60)
        finally:
            while not begun.is_set():
                await asyncio.sleep(0.001)
            calling = asyncio.ensure_future(group.run_on(loops[1], asyncio.sleep, 60))
            cancelled = asyncio.ensure_future(group.run_on(loops[1], asyncio.sleep, 60))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            outcomes.extend(await asyncio.gather(calling, cancelled, return_exceptions=True))

    async def main():
        generators = []
        await group.run_on(group.loops[1], begin, generators)
        ending = asyncio.ensure_future(group.run_on(group.loops[2], at_the_end))
        await asyncio.sleep(0)
        return generators, ending

    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        loops = group.loops
        kept = group.run(main())
    del kept
    assert [type(outcome) for outcome in outcomes] == [RuntimeError, asyncio.CancelledError]
    assert str(outcomes[0]) == "Event loop is closed"
    # The tasks that the loop has left: asyncio logs them.
    outcomes.clear()
    gc.collect()


def test_one_failure_of_run_on_each_cancels_the_others(group):
    cancelled = []

    async def fail_on_the_second():
        if asyncio.get_running_loop() is group.loops[1]:
            await asyncio.sleep(0.01)
            raise LookupError
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop())
            raise

    with pytest.raises(ExceptionGroup) as raised:
        group.run(group.run_on_each(fail_on_the_second))
    assert [type(error) for error in raised.value.exceptions] == [LookupError]
    assert set(cancelled) == {group.loops[0], group.loops[2]}


def test_the_end_cancels_the_tasks_of_all_loops_and_waits_for_them(loop_factory):
    ended = []

    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(asyncio.get_running_loop())

    async def begin():
        tasks.append(asyncio.ensure_future(background()))
        await asyncio.sleep(0)

    tasks = []
    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        group.run(group.run_on_each(begin))
        loops = group.loops
    assert set(ended) == set(loops) and all(loop.is_closed() for loop in loops)
    group.close()
    with pytest.raises(RuntimeError, match="closed"):
        group.run(thread_and_loop())


def test_what_ends_on_another_loop_may_use_the_first_one(loop_factory):
    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(await group.run_on(first, thread_and_loop))

    async def begin():
        tasks.append(asyncio.ensure_future(background()))
        await asyncio.sleep(0)

    tasks, ended = [], []
    with wakeloop.EventLoopGroup(2, loop_factory=loop_factory) as group:
        first, other = group.loops
        group.run(group.run_on(other, begin))
    assert ended == [(threading.current_thread().name, first)]


def test_a_group_cannot_be_closed_from_its_loops(group):
    async def main():
        with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
            group.close()

    group.run(group.run_on_each(main))


@pytest.mark.parametrize("runs", ["run()", "the first loop"])
def test_a_group_that_runs_in_another_thread_refuses_to_close_or_run_and_goes_on(loop_factory, runs):
    group = wakeloop.EventLoopGroup(2, loop_factory=loop_factory)

    def refused():
        with pytest.raises(RuntimeError, match=r"close\(\) cannot be called while its first event loop is running"):
            group.close()
        with pytest.raises(RuntimeError, match=r"run\(\) cannot be called while its first event loop is running"):
            group.run(thread_and_loop())
        with pytest.raises(RuntimeError, match="its first event loop is running"), group:
            pass

    async def main():
        await asyncio.to_thread(refused)
        return await group.run_on(group.loops[1], thread_and_loop)

    first, other = group.loops
    found = group.run(main()) if runs == "run()" else first.run_until_complete(main())
    assert found[1] is other
    assert group.run(thread_and_loop())[1] is first, "it runs again"
    group.close()
    assert first.is_closed() and other.is_closed()
    with pytest.raises(RuntimeError, match="EventLoopGroup is closed"):
        group.run(thread_and_loop())


def test_an_exit_on_one_loop_ends_run(loop_factory):
    async def leave():
        asyncio.get_running_loop().call_soon(sys.exit, 7)
        await asyncio.sleep(60)

    with wakeloop.EventLoopGroup(2, loop_factory=loop_factory) as group:

        async def main():
            asyncio.run_coroutine_threadsafe(leave(), group.loops[1])
            await asyncio.sleep(60)

        with pytest.raises(SystemExit) as raised:
            group.run(main())
        assert raised.value.code == 7


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_task_that_others_await_closes_all_loops(loop_factory, error):
    """It ends the first loop again when that runs to the end of the others."""

    async def leave():
        raise error

    async def main():
        await asyncio.create_task(leave())

    with pytest.raises(error), wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        loops = group.loops
        group.run(main())
    assert all(loop.is_closed() for loop in loops)
    assert not any(member.thread.is_alive() for member in group._members)


def test_a_loop_that_cannot_be_made_leaves_nothing_behind(loop_factory):
    made = []

    def factory():
        if len(made) == 2:
            raise OSError("no descriptors")
        made.append(loop_factory())
        return made[-1]

    group = wakeloop.EventLoopGroup(3, loop_factory=factory)
    with pytest.raises(OSError, match="no descriptors"):
        group.run(thread_and_loop())
    assert all(loop.is_closed() for loop in made)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_while_a_loop_is_made_ends_the_group(loop_factory, error):
    entered, goes_on, made = threading.Event(), threading.Event(), []

    def factory():
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            goes_on.wait(20)
        made.append(loop_factory())
        return made[-1]

    def leave(*_):
        raise error

    def interrupt():
        entered.wait(20)
        os.kill(os.getpid(), signal.SIGUSR1)
        # After the group has begun to end.
        timer.start()

    timer = threading.Timer(0.1, goes_on.set)
    before = signal.signal(signal.SIGUSR1, leave)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(error), wakeloop.EventLoopGroup(2, loop_factory=factory):
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()
        timer.join()
    assert len(made) == 2 and all(loop.is_closed() for loop in made)


def test_an_exit_on_another_loop_before_the_run_cancels_it(loop_factory):
    with wakeloop.EventLoopGroup(2, loop_factory=loop_factory) as group:
        group.loops[1].call_soon_threadsafe(sys.exit, 7)
        group._members[0].thread.join(20)
        with pytest.raises(SystemExit) as raised:
            group.run(asyncio.sleep(60))
        assert raised.value.code == 7


def test_sigterm_before_the_first_step_ends_the_run(loop_factory):
    def factory(loop, coroutine, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        loop.set_task_factory(None)
        return asyncio.Task(coroutine, loop=loop, **options)

    with wakeloop.EventLoopGroup(1, loop_factory=loop_factory) as group:
        group.loops[0].set_task_factory(factory)
        with pytest.raises(SystemExit) as raised:
            group.run(asyncio.sleep(60))
        assert raised.value.code == 128 + signal.SIGTERM


def test_run_refuses_what_a_runner_refuses(group, loop_factory):
    with pytest.raises((ValueError, TypeError)) as expected, asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(5)
    with pytest.raises(type(expected.value)) as raised:
        group.run(5)
    assert str(raised.value) == str(expected.value)
    assert group.run(asyncio.sleep(0, "result")) == "result"


def test_metrics_are_those_of_every_loop():
    with wakeloop.EventLoopGroup(2) as group:

        async def main():
            await group.run_on_each(asyncio.sleep, 0.001)
            return group.metrics()

        metrics = group.run(main())
        assert len(metrics) == 2 and all(loop.running and loop.turns for loop in metrics)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_loops_gracefully(signum):
    program = """if True:
        import asyncio, os, sys, wakeloop

        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                # print would write the newline on its own, between those of other threads.
                os.write(1, b"ended\\n")

        async def main():
            asyncio.get_running_loop().call_later(0.2, sys.stderr.write, "ready\\n")
            await group.run_on_each(work)

        with wakeloop.EventLoopGroup(3) as group:
            group.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signum)
    output, _ = process.communicate(timeout=20)
    assert output == "ended\n" * 3
    assert process.returncode == (-signal.SIGINT if signum == signal.SIGINT else 128 + signal.SIGTERM)


def test_a_handler_that_the_program_sets_during_the_run_gets_sigterm_alone():
    # uvicorn's server sets one, and raises the signal again once it has ended.
    program = """if True:
        import asyncio, os, signal, wakeloop

        async def main():
            event = asyncio.Event()
            outer = signal.signal(signal.SIGTERM, lambda *_: event.set())
            os.kill(os.getpid(), signal.SIGTERM)
            await event.wait()
            # A handler of the group's would cancel this.
            await asyncio.sleep(0.1)
            print("ended by the program", flush=True)
            signal.signal(signal.SIGTERM, outer)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)

        try:
            with wakeloop.EventLoopGroup(2) as group:
                group.run(main())
        finally:
            print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (found.stdout, found.returncode) == ("ended by the program\nTrue\n", 128 + signal.SIGTERM), found.stderr
