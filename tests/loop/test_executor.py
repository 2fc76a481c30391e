"""run_in_executor, name resolution and the executor's end."""

import asyncio
import concurrent.futures
import contextvars
import socket
import threading
import time

import pytest

variable = contextvars.ContextVar("variable", default="unset")


def test_run_in_executor_returns_results_and_raises_exceptions(run):
    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 7, 0)
        assert await loop.run_in_executor(None, threading.get_ident) != threading.get_ident()

    run(main())


def test_the_loop_runs_on_while_threads_work(run):
    async def main():
        loop, enough = asyncio.get_running_loop(), threading.Event()
        working = [loop.run_in_executor(None, enough.wait) for _ in range(4)]
        try:
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert not any(future.done() for future in working)
        finally:
            enough.set()
        assert await asyncio.gather(*working) == 4 * [True]

    run(main())


def test_thousands_of_calls_bring_back_every_result(run):
    async def main():
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = await asyncio.gather(*(loop.run_in_executor(pool, int, str(n)) for n in range(3000)))
        assert results == list(range(3000))

    run(main())


def test_to_thread_takes_the_context_along(run):
    async def main():
        variable.set("in main")
        assert await asyncio.to_thread(variable.get) == "in main"

    run(main())


def test_names_are_resolved(run):
    async def main():
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        assert found == socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        assert ("127.0.0.1", 80) in [entry[4] for entry in await loop.getaddrinfo("localhost", 80)]
        assert await loop.getnameinfo(("127.0.0.1", 80), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV) == ("127.0.0.1", "80")
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("no such name", 80)

    run(main())


def test_shutdown_waits_for_the_threads_and_refuses_new_work(run):
    async def main():
        loop, finished = asyncio.get_running_loop(), []
        future = loop.run_in_executor(None, lambda: (time.sleep(0.02), finished.append(1)))
        await loop.shutdown_default_executor()
        assert finished == [1] and future.done()
        with pytest.raises(RuntimeError, match="Executor shutdown has been called"):
            loop.run_in_executor(None, int)

    run(main())


def test_a_default_executor_set_by_the_user_is_used(run):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine"))
        name = await loop.run_in_executor(None, lambda: threading.current_thread().name)
        assert name.startswith("mine")
        with pytest.raises(TypeError):
            loop.set_default_executor(object())

    run(main())


def test_work_that_ends_after_the_loop_closed_does_no_harm(loop_factory):
    loop, pool, go_on = loop_factory(), concurrent.futures.ThreadPoolExecutor(1), threading.Event()
    future = loop.run_in_executor(pool, go_on.wait, 5)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    go_on.set()
    pool.shutdown()
    assert not future.done()
