"""Executor jobs on the loop's thread, and programs that leave the simulation."""

import asyncio
import concurrent.futures
import contextvars
import os
import socket
import subprocess
import sys
import threading
import time
import warnings

import pytest

import wakeloop
from wakeloop import testing

pytestmark = pytest.mark.native


def test_jobs_run_at_once_on_the_loops_thread():
    async def main():
        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        assert await loop.run_in_executor(None, pow, 2, 10) == 1024
        assert await wakeloop.spawn_blocking(dict, function=1, arguments=2) == {"function": 1, "arguments": 2}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            assert await loop.run_in_executor(pool, threading.get_ident) == threading.get_ident()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await loop.run_in_executor(pool, int)
        assert loop.time() == 0

    testing.run(main, executor="inline")
    testing.run(main, seed=1)


def test_a_job_has_its_context_and_no_running_loop():
    name = contextvars.ContextVar("name", default="nobody")

    def job():
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        return name.get(), asyncio.run(asyncio.sleep(0, "in a loop of its own"))

    async def main():
        loop = asyncio.get_running_loop()
        name.set("caller")
        own = "in a loop of its own"
        assert await asyncio.to_thread(job) == ("caller", own)
        assert await wakeloop.spawn_blocking(job) == ("caller", own)
        # As in a thread of an executor.
        assert await loop.run_in_executor(None, job) == ("nobody", own)
        assert asyncio.get_running_loop() is loop

    testing.run(main, executor="inline")


def test_the_exceptions_of_jobs_are_raised():
    async def main():
        for error in (ValueError("wrong"), OSError(5, "io"), concurrent.futures.CancelledError()):
            with pytest.raises((type(error), asyncio.CancelledError)):
                await asyncio.get_running_loop().run_in_executor(None, fail, error)

    def fail(error):
        raise error

    testing.run(main, executor="inline")


def test_a_job_takes_its_delay():
    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.gather(asyncio.to_thread(int), asyncio.to_thread(int))
        assert loop.time() == 2.5
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(ran.append, "never"), 1)
        await asyncio.sleep(10)

    ran = []
    testing.run(main, executor="inline", executor_delay=2.5)
    assert ran == []


def test_the_schedule_draws_the_delay_and_the_order_of_jobs():
    async def main():
        seen = []
        await asyncio.gather(*(asyncio.to_thread(seen.append, number) for number in range(3)))
        return tuple(seen), asyncio.get_running_loop().time()

    found = {testing.run(main, seed=seed, executor_delay=(0.1, 2)) for seed in range(30)}
    assert len({order for order, _ in found}) == 6 and all(0.1 <= took <= 2 for _, took in found)
    assert len({testing.run(main, seed=seed)[0] for seed in range(50)}) == 6


def test_jobs_can_fail_by_hand_and_from_the_seed():
    async def main():
        try:
            return await asyncio.to_thread(os.getpid)
        except OSError as error:
            return error.errno

    assert testing.run(main, executor="inline", executor_fault=lambda function: OSError(28, "full")) == 28
    found = set()
    for seed in range(20):
        schedule = testing.Seeded(seed)

        def fault(function, schedule=schedule):
            return OSError(28, "full") if schedule.chance("fault", 0.3) else None

        found.add(testing.run(main, schedule=schedule, executor_fault=fault))
    assert found == {28, os.getpid()}


def test_names_are_resolved_inline():
    async def main():
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
        assert found and await loop.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICHOST)
        assert loop.time() == 0 and threading.active_count() == count

    count = threading.active_count()
    testing.run(main, seed=1)


def test_files_are_real(tmp_path, runtime):
    async def main():
        async with await wakeloop.open(tmp_path / "file", "w") as file:
            await file.write("written")
        return (tmp_path / "file").read_text()

    assert testing.run(main) == testing.run(main, seed=1) == "written"


def test_jobs_on_files_repeat_with_the_seed(tmp_path, runtime):
    async def main():
        async def lines(name):
            async with wakeloop.open(tmp_path / name, "w") as file:
                for number in range(5):
                    await file.write(f"{number}\n")
            async with wakeloop.open(tmp_path / name) as file:
                return [line async for line in file]

        found = await asyncio.gather(*(lines(name) for name in "abc"))
        return found, threading.active_count()

    for seed in range(3):
        loops = [testing.EventLoop(seed=seed) for _ in range(3)]
        assert len({repr(testing.run_on(loop, main)) for loop in loops}) == 1
        assert loops[0].steps == loops[1].steps == loops[2].steps


# -- programs that leave the simulation ------------------------------------------------------------------------


def warned(main, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        testing.run(main, **options)
    return [(str(each.message), each.filename) for each in caught if each.category is testing.SimulationWarning]


def test_a_sleep_on_the_loops_thread_is_named():
    async def main():
        time.sleep(0.001)
        time.sleep(0)

    assert warned(main) == [("time.sleep(0.001) blocks the thread of the loop, and takes real time", __file__)]
    assert warned(main, clock="real") == []


def test_a_sleep_in_a_thread_is_named():
    async def main():
        await asyncio.to_thread(lambda: time.sleep(0.001))

    ((text, file),) = warned(main)
    assert "time.sleep(0.001) in the thread 'asyncio_0' takes real time" in text and file == __file__
    ((text, file),) = warned(main, executor="inline")
    assert "blocks the thread" in text and file == __file__


def test_a_sleep_that_is_a_job_itself_is_named_where_the_job_was_submitted():
    async def main():
        await asyncio.to_thread(time.sleep, 0.001)

    assert warned(main, executor="inline")[0][1] == __file__


def test_a_blocking_connect_is_named():
    async def main():
        with socket.socket() as listener, socket.socket() as sock:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            sock.connect(listener.getsockname())

    ((text, file),) = warned(main)
    assert text.startswith("connect() of a blocking socket to ('127.0.0.1', ") and file == __file__


def test_a_lookup_on_the_loops_thread_is_named():
    async def main():
        socket.getaddrinfo("localhost", 80)
        socket.getaddrinfo("127.0.0.1", 80)

    assert [text for text, _ in warned(main)] == [
        "a lookup of the name 'localhost' blocks the thread of the loop, and takes real time"
    ]


def test_what_asyncio_does_itself_is_not_named():
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "localhost", 0)
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname()[:2])
        transport.close()
        server.close()
        await server.wait_closed()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()

    assert warned(main) == [] and warned(main, seed=1) == []


def test_a_warning_can_be_an_error():
    async def main():
        time.sleep(60)

    with warnings.catch_warnings():
        warnings.simplefilter("error", testing.SimulationWarning)
        with pytest.raises(testing.SimulationWarning, match=r"time.sleep\(60\)"):
            testing.run(main)


def test_nothing_is_named_while_no_testing_loop_runs():
    with warnings.catch_warnings():
        warnings.simplefilter("error", testing.SimulationWarning)
        testing.run(lambda: asyncio.sleep(1))
        time.sleep(0.001)

        async def main():
            time.sleep(0.001)

        wakeloop.run(main())
        asyncio.run(main())


def test_time_sleep_is_restored():
    real = time.sleep
    testing.run(lambda: asyncio.sleep(1))
    assert time.sleep is real


# -- the rest of the package -----------------------------------------------------------------------------------


def test_importing_wakeloop_loads_nothing_of_it():
    program = "import sys, wakeloop; print(*(name for name in sys.modules if name.startswith('wakeloop.testing')))"
    program += "; wakeloop.testing.run; print(len([n for n in sys.modules if n.startswith('wakeloop.testing')]) > 5)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert done.stdout == "\nTrue\n", done.stderr


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
