"""What a testing run says of a program: deadlocks, what it leaves behind, and how a failure is run again."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest

from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


def test_a_deadlock_is_reported_at_once_with_the_chains_of_awaits():
    async def main():
        lock = asyncio.Lock()

        async def hold():
            async with lock:
                await asyncio.Event().wait()

        async def want():
            async with lock:
                pass

        await asyncio.sleep(60)
        await asyncio.gather(asyncio.create_task(hold(), name="holder"), asyncio.create_task(want(), name="waiter"))

    before = time.monotonic()
    with pytest.raises(testing.Deadlock) as raised:
        testing.run(main)
    assert time.monotonic() - before < 20
    text = str(raised.value)
    assert text.startswith("deadlock at 60 s: every task waits, no timer is set, and nothing real is awaited")
    for part in ("'holder'", "wait of Event", "'waiter'", "acquire of Lock", "gather() of 2", "test_verdicts.py", "hold"):
        assert part in text
    assert [info.name for info in raised.value.tasks] == ["Task-1", "holder", "waiter"]


def complaints(log):
    return [record.getMessage() for record in log.records if record.levelno >= logging.WARNING]


async def await_each_other():
    """Two tasks in a circle, which asyncio cannot cancel: RecursionError."""

    async def wait(tasks, other):
        await asyncio.sleep(0)
        await tasks[other]

    tasks = []
    tasks += [asyncio.create_task(wait(tasks, 1), name="one"), asyncio.create_task(wait(tasks, 0), name="two")]
    await asyncio.sleep(1)
    return tasks


async def await_a_circle():
    await asyncio.gather(*await await_each_other())


@pytest.mark.parametrize("seed", [None, 1])
def test_tasks_that_await_each_other_are_a_deadlock(seed, asyncio_log):
    with pytest.raises(testing.Deadlock, match="'one'(.|\n)*'two'") as raised:
        testing.run(await_a_circle, seed=seed)
    assert raised.value.__context__ is None
    with pytest.raises(testing.Deadlock):
        testing.explore(await_a_circle, 1).check()
    with pytest.raises(testing.Deadlock):
        testing.cancel_everywhere(await_a_circle)
    gc.collect()
    assert complaints(asyncio_log) == []


def test_tasks_that_await_each_other_at_the_end_are_left_behind(asyncio_log):
    with pytest.raises(testing.LeftBehind) as raised:
        testing.run(await_each_other)
    assert [text.split()[1] for text in raised.value.found] == ["'one'", "'two'"]
    del raised
    gc.collect()
    assert complaints(asyncio_log) == []


def test_a_clock_that_nobody_can_move_is_a_deadlock():
    with pytest.raises(testing.Deadlock, match="the clock is frozen(.|\n)*clock.advance(.|\n)*due in 5.0 s"):
        testing.run(lambda: asyncio.sleep(5), clock="frozen")


def test_a_sleep_without_end_is_a_deadlock():
    with pytest.raises(testing.Deadlock):
        testing.run(lambda: asyncio.sleep(float("inf")))


def test_a_loop_that_waits_for_a_thread_or_a_descriptor_is_no_deadlock():
    async def main():
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        thread = threading.Timer(0.02, loop.call_soon_threadsafe, [told.set_result, "by a thread"])
        thread.start()
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            assert await told == "by a thread"
            thread.join()
            thread = threading.Timer(0.02, far.send, [b"by a socket"])
            thread.start()
            assert await loop.sock_recv(near, 20) == b"by a socket"
            thread.join()

    testing.run(main)


def test_run_forever_waits_for_other_threads():
    loop = testing.EventLoop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(1000), loop).result(10)
    assert loop.time() == 1000
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_loop_in_another_thread_is_not_accused_of_a_deadlock():
    """Whoever has started the thread may have something to say to its loop."""
    loop = testing.EventLoop()
    told, seen = loop.create_future(), []
    thread = threading.Thread(target=lambda: seen.append(loop.run_until_complete(told)))
    thread.start()
    time.sleep(0.02)
    loop.call_soon_threadsafe(told.set_result, "told")
    thread.join()
    loop.close()
    assert seen == ["told"]


@pytest.mark.parametrize("daemon", [False, True])
def test_a_deadlock_in_a_thread_is_reported_if_all_others_wait_for_the_threads_end(daemon):
    seen = []

    def run():
        with pytest.raises(testing.Deadlock, match="wait of Event") as raised:
            testing.run(asyncio.Event().wait)
        seen.append(raised.value.tasks[0].name)

    thread = threading.Thread(target=run, daemon=daemon)
    thread.start()
    thread.join()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(run)
    assert seen == ["Task-1", "Task-1"]


def test_a_loop_whose_worker_is_not_listed_by_its_executor_yet_does_not_wait_for_itself(monkeypatch):
    begun, listed, start = threading.Event(), threading.Event(), threading.Thread.start

    def start_and_wait(thread):
        start(thread)
        begun.wait()

    async def main():
        begun.set()
        listed.wait()
        await asyncio.Event().wait()

    with monkeypatch.context() as patches, concurrent.futures.ThreadPoolExecutor(1) as executor:
        patches.setattr(threading.Thread, "start", start_and_wait)
        job = executor.submit(testing.run, main)
        listed.set()
    assert isinstance(job.exception(), testing.Deadlock)


def test_a_deadlock_is_reported_when_the_process_waits_for_its_threads():
    program = textwrap.dedent("""
        import asyncio, threading
        from wakeloop import testing
        threading.Thread(target=testing.run, args=[asyncio.Event().wait]).start()
    """)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert "wakeloop.testing.Deadlock: deadlock at 0 s" in done.stderr


def test_a_loop_in_a_thread_says_that_only_another_thread_can_make_it_go_on(monkeypatch):
    monkeypatch.setattr("wakeloop.testing._loop.PATIENCE", 0.05)
    loop = testing.EventLoop()
    told, seen = loop.create_future(), []

    def run():
        with pytest.warns(testing.SimulationWarning, match="only another thread could(.|\n)*deadlock at 0 s") as caught:
            seen.append(loop.run_until_complete(told))
        seen.append(len(caught))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    loop.call_soon_threadsafe(told.set_result, "told")
    thread.join()
    loop.close()
    assert seen == ["told", 1]


def test_a_thread_may_move_a_clock_that_stands_still_in_another_one():
    loop = testing.EventLoop(clock="frozen")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(loop.run_until_complete(asyncio.sleep(5, "slept"))))
    thread.start()
    time.sleep(0.05)
    loop.call_soon_threadsafe(loop.clock.resume)
    thread.join(10)
    loop.close()
    assert seen == ["slept"] and loop.time() == 5


def test_workers_of_an_executor_that_are_idle_do_not_hide_a_deadlock():
    async def main():
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            await asyncio.wrap_future(executor.submit(int))
            executor.submit(time.sleep, 0.02)
            await asyncio.Event().wait()

    with pytest.raises(testing.Deadlock):
        testing.run(main, clock="auto")


async def never_ending(ended):
    try:
        while True:
            await asyncio.sleep(0)
    finally:
        for _ in range(50):
            await asyncio.sleep(0)
        ended.append(True)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_program_that_runs_on_and_on_is_ended_after_its_last_step(seed):
    ended = []
    with pytest.raises(testing.StepLimit, match="still runs after 100 steps, at 0 s(.|\n)* 100  (.|\n)*never_ending at test_"):
        testing.run(lambda: never_ending(ended), max_steps=100, seed=seed)
    assert ended == [True]


def test_a_task_that_outlasts_its_cancellation_without_rest_does_not_hang_the_run(asyncio_log):
    async def main():
        try:
            while True:
                await asyncio.sleep(0)
        finally:
            while True:
                await asyncio.sleep(0)

    with pytest.raises(testing.StepLimit):
        testing.run(main, max_steps=100, check=False)


def test_a_program_that_does_not_end_after_the_limit_either_is_reported_once(asyncio_log):
    async def main():
        while True:
            try:
                while True:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass

    with pytest.raises(testing.StepLimit, match="still runs after 100 steps") as raised:
        testing.run(main, max_steps=100)
    assert raised.value.__context__ is None
    del raised
    gc.collect()
    assert complaints(asyncio_log) == []
    # asyncio says that a task was destroyed while it was pending.
    gc.collect()


def test_as_many_steps_as_are_allowed_may_run():
    async def main():
        await asyncio.sleep(0)

    loop = testing.EventLoop()
    testing.run_on(loop, main)
    testing.run(main, max_steps=loop.steps.total)
    with pytest.raises(testing.StepLimit):
        testing.run(main, max_steps=loop.steps.total - 1)


def test_a_search_ends_a_run_that_never_ends():
    found = testing.explore(lambda: never_ending([]), 2, shrink_runs=1, max_steps=200)
    assert isinstance(found.failure.error, testing.StepLimit)
    with pytest.raises(testing.StepLimit):
        testing.cancel_everywhere(lambda: never_ending([]), max_steps=200)
    with pytest.raises(testing.StepLimit, match="after 100,000 steps"):
        testing.explore(lambda: never_ending([]), 1, shrink_runs=0).check()


def test_a_step_that_blocks_without_a_call_that_is_reported_is_named(monkeypatch):
    monkeypatch.setattr("wakeloop.testing._escapes.BLOCKED", 0.05)

    async def receive():
        near, far = socket.socketpair()
        with near, far:
            thread = threading.Timer(0.3, far.send, [b"by a thread"])
            thread.start()
            near.recv(20)
            thread.join()

    async def reported():
        time.sleep(0.1)

    with pytest.warns(testing.SimulationWarning, match=r"Task-1: .*receive at test_verdicts.py:\d+ has blocked the thread") as seen:
        testing.run(receive)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", testing.SimulationWarning)
        testing.run(receive, clock="real")
    with pytest.warns(testing.SimulationWarning, match="time.sleep") as seen:
        testing.run(reported)
    assert len(seen) == 1


# -- what is left ----------------------------------------------------------------------------------------------


def left_by(main, **options):
    with pytest.raises(testing.LeftBehind) as raised:
        testing.run(main, **options)
    return raised.value.found


@pytest.mark.parametrize("network", [None, Network], ids=["real", "in memory"])
def test_listeners_transports_and_sockets_of_every_network_are_left_behind(network):
    kept = []

    async def serve():
        return await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)

    async def forgotten():
        await serve()

    async def listening():
        kept.append(await serve())

    async def connected():
        async with await serve() as server:
            kept.append(await asyncio.open_connection(*server.sockets[0].getsockname()))

    async def accepted():
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, socket.socket() as client:
            listener.setblocking(False)
            client.setblocking(False)
            accepting = asyncio.ensure_future(loop.sock_accept(listener))
            await loop.sock_connect(client, listener.getsockname())
            kept.append((await accepting)[0])

    def left(main):
        made = network and network()
        found = left_by(main, network=made)
        kept.clear()
        gc.collect()
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        [watched] = left(forgotten)
        assert re.fullmatch(r"descriptor \d+ is watched: .*_accept_connection", watched)
        watched, descriptor = left(listening)
        assert watched.endswith("_accept_connection") and descriptor.startswith("descriptor ")
        transport, descriptor = left(connected)
        assert transport.startswith("transport ") and descriptor.startswith("descriptor ")
        [descriptor] = left(accepted)
        assert descriptor.startswith("descriptor ")


@pytest.mark.parametrize("network", [None, Network], ids=["real", "in memory"])
@pytest.mark.parametrize("family", ["inet", "unix"])
def test_a_cancellation_leaves_a_server_behind_where_the_program_does(network, family, tmp_path):
    async def main():
        def answer(reader, writer):
            writer.close()

        if family == "inet":
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
        else:
            server = await asyncio.start_unix_server(answer, tmp_path / "socket")
        await asyncio.sleep(1)
        server.close()
        await server.wait_closed()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        results = testing.cancel_everywhere(main, network=network)
        failed = [(len(results) - failure.point, type(failure.error)) for failure in results.failures]
        del results
        gc.collect()
    # asyncio loses a server whose start is cancelled, for which the program cannot be blamed.
    assert failed == [(0, testing.LeftBehind)]


def test_a_clean_program_leaves_nothing_behind():
    async def main():
        async def echo(reader, writer):
            writer.write(await reader.read())
            writer.close()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x")
            writer.write_eof()
            assert await reader.read() == b"x"
            writer.close()
            await writer.wait_closed()
        await asyncio.to_thread(int)
        return "clean"

    assert testing.run(main) == "clean"
    for seed in range(5):
        assert testing.run(main, seed=seed) == "clean"


def test_a_pending_task_is_left_behind():
    async def main():
        asyncio.create_task(asyncio.sleep(5), name="forgotten")
        await asyncio.sleep(1)

    (found,) = left_by(main)
    assert found.startswith("task 'forgotten'") and "due in 4.0 s" in found
    assert testing.run(main, check=False) is None


def test_a_task_that_ends_without_waiting_is_not_left_behind():
    async def main():
        async def steps():
            for _ in range(20):
                await asyncio.sleep(0)

        asyncio.create_task(steps())

    testing.run(main)
    testing.run(main, seed=1)


def test_a_task_that_outlasts_its_cancellation_does_not_hang_the_run(asyncio_log):
    async def main():
        async def stubborn():
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    pass

        asyncio.create_task(stubborn(), name="stubborn")
        await asyncio.sleep(1)

    assert any("'stubborn'" in found for found in left_by(main))
    gc.collect()


def test_open_transports_and_their_descriptors_are_left_behind():
    kept = []

    async def main():
        loop = asyncio.get_running_loop()
        kept.append(await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)))
        kept.append(await loop.create_server(asyncio.Protocol, "127.0.0.1", 0))

    found = left_by(main)
    try:
        assert [each for each in found if each.startswith("transport DatagramTransport ('127.0.0.1', ")]
        assert [each for each in found if "is watched: " in each and "_accept_connection" in each]
        assert len([each for each in found if each.startswith("descriptor ") and "socket:" in each]) == 2
    finally:
        close(kept)


def close(kept):
    kept[1].close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        kept.clear()
        gc.collect()


def test_descriptors_and_threads_are_left_behind():
    kept, go = [], threading.Event()

    async def main():
        kept.append(socket.socket())
        kept.append(threading.Thread(target=go.wait, name="forgotten"))
        kept[-1].start()

    found = left_by(main)
    go.set()
    kept.pop().join()
    kept.pop().close()
    assert len(found) == 2 and found[0].startswith("descriptor ") and found[1] == "thread 'forgotten'"


def test_a_descriptor_with_the_number_of_one_that_was_closed_is_left_behind():
    number = os.open(os.devnull, os.O_RDONLY)

    async def main():
        with socket.socket() as sock:
            os.dup2(sock.fileno(), number)

    [found] = left_by(main)
    os.close(number)
    assert found.startswith(f"descriptor {number}: socket:")


def test_what_multiprocessing_keeps_for_the_life_of_the_process_is_not_left_behind():
    program = textwrap.dedent("""
        import asyncio, multiprocessing, os, sys
        from multiprocessing import forkserver, resource_sharer, shared_memory, sharedctypes
        from wakeloop import testing

        context = multiprocessing.get_context("spawn")

        async def lock():
            context.Lock()

        async def memory():
            memory = shared_memory.SharedMemory(create=True, size=100)
            memory.close()
            memory.unlink()

        async def value():
            context.Value("i", 3)

        async def server():
            forkserver.ensure_running()

        async def share():
            near, far = os.pipe()
            os.close(resource_sharer.DupFd(near).detach())
            os.close(near)
            os.close(far)
            # Its thread does not stop the clock.
            await asyncio.sleep(3600)

        async def leak():
            os.pipe()

        for main in lock, memory, value, server, share, leak:
            try:
                testing.run(main)
            except testing.LeftBehind as verdict:
                print(main.__name__, *(each.partition(":")[2] for each in verdict.found))
        resource_sharer.stop()
    """)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith("leak  pipe:") and line.count("pipe:") == 2


@pytest.mark.parametrize("make_network", [lambda: None, Network])
def test_a_refused_connection_leaves_no_cycle_behind(make_network):
    async def main():
        error = None
        try:
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", port)
        except OSError as refused:
            error = refused
        assert [each for each in gc.get_referrers(error) if isinstance(each, list)] == []

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        testing.run(main, network=make_network())


def test_exceptions_that_nobody_has_seen_are_left_behind(asyncio_log):
    async def main():
        async def fail():
            raise ValueError("unseen")

        asyncio.create_task(fail(), name="failing")
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(KeyError("unseen too"))
        del future
        await asyncio.sleep(1)

    for options in ({}, {"seed": 1}):
        found = " ".join(left_by(main, **options))
        for part in ("'failing'", "ValueError: unseen", "ZeroDivisionError", "KeyError: 'unseen too'", "test_verdicts.py:"):
            assert part in found


def test_exceptions_that_the_programs_own_handler_gets_are_seen():
    async def main():
        seen = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        return seen

    assert [type(error) for error in testing.run(main)] == [ZeroDivisionError]


def test_slow_callbacks_are_measured_in_real_time():
    async def main():
        deadline = time.perf_counter() + 0.05
        while time.perf_counter() < deadline:
            pass
        await asyncio.sleep(3600)

    (found,) = left_by(main, slow_callback=0.04)
    assert "of real time: Task-1" in found and "test_verdicts.py" in found
    testing.run(main)


def test_debug_mode_logs_slow_callbacks_by_real_time(asyncio_log):
    async def main():
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = 0.02
        loop.call_soon(lambda: threading.Event().wait(0.03))
        await asyncio.sleep(3600)

    testing.run(main, debug=True)
    assert [record for record in asyncio_log.records if "Executing <Handle" in record.getMessage()]
    assert "took 0." in asyncio_log.text and "took 3600" not in asyncio_log.text


# -- failures --------------------------------------------------------------------------------------------------


async def fails_sometimes():
    seen = []

    async def append(name):
        seen.append(name)

    await asyncio.gather(append("a"), append("b"))
    assert seen == ["a", "b"]


def test_a_failure_says_its_seed_and_how_to_run_it_again():
    failing = None
    for seed in range(50):
        try:
            testing.run(fails_sometimes, seed=seed)
        except AssertionError as error:
            failing = seed
            assert error.__notes__ == [
                f"seed {seed}: run it again with wakeloop.testing.run(fails_sometimes, seed={seed})"
            ]
            break
    assert failing is not None
    for _ in range(2):
        with pytest.raises(AssertionError):
            testing.run(fails_sometimes, seed=failing)


def test_a_failure_of_a_schedule_says_its_decisions():
    with pytest.raises(AssertionError) as raised:
        testing.run(fails_sometimes, schedule=testing.Replay([1, 0, 0]))
    assert raised.value.__notes__ == [
        "run it again with wakeloop.testing.run(fails_sometimes, schedule=wakeloop.testing.Replay([1]))"
    ]


def test_a_failure_without_a_seed_has_no_note():
    with pytest.raises(ZeroDivisionError) as raised:
        testing.run(lambda: asyncio.wait_for(failing(), 5))
    assert not hasattr(raised.value, "__notes__")


async def failing():
    return 1 / 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_an_exception_that_ends_the_process_leaves_the_run(error, options):
    async def main():
        asyncio.get_running_loop().call_later(5, fail)
        await asyncio.sleep(10)

    def fail():
        raise error

    with pytest.raises(error):
        testing.run(main, **options)


def test_an_interrupt_cancels_main_as_in_asyncio():
    async def main():
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    seen = []
    with pytest.raises(KeyboardInterrupt):
        testing.run(main)
    assert seen == ["cancelled"]


def test_callbacks_that_did_not_run_stay_for_the_next_run():
    loop = testing.EventLoop(seed=1)
    seen = []

    def fail():
        raise KeyboardInterrupt

    for number in range(3):
        loop.call_soon(seen.append, number)
    loop.call_soon(fail)
    loop.call_soon(seen.append, "after")
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert seen == [0, 1, 2, "after"]


@pytest.mark.parametrize("main", [5, lambda: 5, None])
def test_something_else_than_a_coroutine_is_refused(main):
    with pytest.raises(TypeError, match="a coroutine or a coroutine function was expected"):
        testing.run(main)


def test_a_coroutine_is_run_too():
    assert testing.run(asyncio.sleep(3600, "slept")) == "slept"


def test_a_run_in_a_running_loop_is_refused():
    async def main():
        with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
            testing.run(lambda: asyncio.sleep(1))

    asyncio.run(main())
    testing.run(main)


def test_a_testing_run_works_in_a_thread_of_another():
    """An inline job runs on the thread of the loop, where no loop runs for it."""

    async def inner():
        await asyncio.sleep(60)
        return asyncio.get_running_loop().time()

    async def main():
        await asyncio.sleep(5)
        return await asyncio.to_thread(testing.run, inner), asyncio.get_running_loop().time()

    assert testing.run(main, executor="inline") == (60, 5)
    assert testing.run(main, executor="inline", patch_time=True, seed=1) == (60, 5)


def test_a_loop_can_be_run_inside_of_a_callback():
    from tests.support.nesting import make_nestable, run_nested

    loop = testing.EventLoop(seed=1)
    make_nestable(loop)

    async def inner():
        await asyncio.sleep(60)
        return loop.time()

    async def main():
        return run_nested(loop, inner())

    try:
        assert loop.run_until_complete(main()) == 60
    finally:
        loop.close()
