"""Tests of the example extension. `make extension` runs them on asyncio's loop and on wakeloop's."""

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import wakeloop
import wakeloop_example as example

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.SelectorEventLoop, wakeloop.new_event_loop], ids=["asyncio", "wakeloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(coroutine)

    yield run
    deadline = time.monotonic() + 5
    while example.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert example.alive() == 0


def test_a_result_comes_back(run: Run) -> None:
    async def main() -> None:
        assert await example.double_after(0.001, 21) == 42
        results = await asyncio.gather(*(example.double_after(random.uniform(0, 0.05), n) for n in range(1000)))
        assert results == [2 * n for n in range(1000)]

    run(main())


def test_cancelling_the_task_drops_the_future(run: Run) -> None:
    async def main() -> None:
        tasks = [asyncio.ensure_future(example.double_after(60, 1)) for _ in range(100)]
        while example.alive() < 100:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        assert {type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)} == {asyncio.CancelledError}
        while example.alive():
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(example.double_after(60, 1), 0.01)

    run(main())


def test_a_future_that_is_never_awaited_never_starts(run: Run) -> None:
    async def main() -> None:
        with pytest.warns(RuntimeWarning, match="never awaited"):
            example.double_after(60, 1)
        await asyncio.sleep(0.01)
        assert example.alive() == 0

    run(main())


def test_errors_and_panics_are_exceptions(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="no luck"):
            await example.fail("no luck")
        with pytest.raises(example.RuntimePanic, match="at the disco"):
            await example.panic("at the disco")
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError):
                await example.count_bytes(*sock.getsockname())
        assert await example.double_after(0, 1) == 2

    run(main())


def test_a_socket_of_the_runtime_is_read(run: Run) -> None:
    data = os.urandom(1_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()

        async def main() -> int:
            received: int = await example.count_bytes(*server.getsockname())
            return received

        assert run(main()) == len(data)
        thread.join()


def test_rust_awaits_python(run: Run) -> None:
    async def answer(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "answer"

    async def failing() -> None:
        raise LookupError("lost")

    async def main() -> None:
        assert await example.relay(answer(0.001), 10) == "answer"
        assert await example.relay(asyncio.ensure_future(answer(0)), 10) == "answer"
        assert await example.relay(wakeloop.sleep(0.001, "slept"), 10) == "slept"
        with pytest.raises(LookupError, match="lost"):
            await example.relay(failing(), 10)
        with pytest.raises(TypeError):
            await example.relay(1, 10)

    run(main())


def test_a_python_task_that_rust_gives_up_is_cancelled(run: Run) -> None:
    async def main() -> None:
        slow = asyncio.ensure_future(asyncio.sleep(60))
        with pytest.raises(ValueError, match="too slow"):
            await example.relay(slow, 0.01)
        with pytest.raises(asyncio.CancelledError):
            await slow

    run(main())


def test_both_copies_of_the_runtime_in_one_program(run: Run) -> None:
    async def main() -> None:
        await asyncio.gather(*(wakeloop.sleep(0.01) for _ in range(100)), *(example.double_after(0.01, n) for n in range(100)))

    run(main())
