"""Scenarios that need no second process: the cost of a loop iteration, a callback, a timer and a task.

Each function does one batch of work on the loop it is given and returns the number of operations. The worker repeats it
while a round lasts, and divides the CPU time of the process by the number of operations.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

from loops import LoopFactory

Loop = asyncio.AbstractEventLoop
Scenario = Callable[[Loop], int]

SCENARIOS: dict[str, Scenario] = {}
# These make their own loops, so they take the factory.
FACTORY_SCENARIOS: dict[str, Callable[[LoopFactory], int]] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        return function

    return register


def nothing(*args: object) -> None:
    pass


# -- callbacks ---------------------------------------------------------------------------------------------------


@scenario("call_soon/noargs")
def call_soon(loop: Loop) -> int:
    for _ in range(10_000):
        loop.call_soon(nothing)
    loop.call_soon(loop.stop)
    loop.run_forever()
    return 10_000


@scenario("call_soon/3args")
def call_soon_three_arguments(loop: Loop) -> int:
    for _ in range(10_000):
        loop.call_soon(nothing, 1, 2, 3)
    loop.call_soon(loop.stop)
    loop.run_forever()
    return 10_000


@scenario("call_soon/chain")
def chain(loop: Loop) -> int:
    """One callback per turn: each schedules the next."""
    left = 10_000

    def step() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(step)
        else:
            loop.stop()

    loop.call_soon(step)
    loop.run_forever()
    return 10_000


@scenario("call_soon_threadsafe/flood")
def threadsafe_burst(loop: Loop) -> int:
    """Another thread schedules a burst while the loop waits."""
    count = 10_000

    def flood() -> None:
        for _ in range(count):
            loop.call_soon_threadsafe(nothing)
        loop.call_soon_threadsafe(loop.stop)

    thread = threading.Thread(target=flood)
    loop.call_soon(thread.start)
    loop.run_forever()
    thread.join()
    return count


# -- timers ------------------------------------------------------------------------------------------------------


@scenario("call_later/schedule+cancel")
def schedule_and_cancel(loop: Loop) -> int:
    """A timeout that never fires."""
    for _ in range(10_000):
        loop.call_later(30, nothing).cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    return 10_000


@scenario("call_later/100k-firing")
def timers_firing(loop: Loop) -> int:
    count = 100_000
    for i in range(count):
        loop.call_later(0.001 + (i * 7919 % count) * 1e-7, nothing)
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    return count


# -- tasks -------------------------------------------------------------------------------------------------------


@scenario("task/sleep0")
def sleep_zero(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(5_000):
            await asyncio.sleep(0)

    loop.run_until_complete(main())
    return 5_000


@scenario("task/sleep0-100tasks")
def sleep_zero_hundred(loop: Loop) -> int:
    async def one() -> None:
        for _ in range(100):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*[one() for _ in range(100)])

    loop.run_until_complete(main())
    return 10_000


async def trivial() -> None:
    pass


@scenario("task/create+await")
def create_and_await(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(3_000):
            await asyncio.create_task(trivial())

    loop.run_until_complete(main())
    return 3_000


@scenario("task/gather1000")
def gather_thousand(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(5):
            await asyncio.gather(*[trivial() for _ in range(1_000)])

    loop.run_until_complete(main())
    return 5_000


@scenario("task/queue-pingpong")
def queue_ping_pong(loop: Loop) -> int:
    rounds = 2_000

    async def main() -> None:
        there: asyncio.Queue[int] = asyncio.Queue(1)
        back: asyncio.Queue[int] = asyncio.Queue(1)

        async def pong() -> None:
            for _ in range(rounds):
                await back.put(await there.get())

        task = asyncio.create_task(pong())
        for i in range(rounds):
            await there.put(i)
            assert await back.get() == i
        await task

    loop.run_until_complete(main())
    return rounds


@scenario("future/set_result-wake")
def future_wake(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(5_000):
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await future

    loop.run_until_complete(main())
    return 5_000


@scenario("task/timeout-ctx")
def timeout_context(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(2_000):
            async with asyncio.timeout(30):
                await asyncio.sleep(0)

    loop.run_until_complete(main())
    return 2_000


@scenario("executor/round-trip")
def executor_round_trip(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(500):
            await loop.run_in_executor(None, nothing)

    loop.run_until_complete(main())
    return 500


@scenario("executor/100-jobs")
def executor_jobs_together(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(10):
            await asyncio.gather(*(loop.run_in_executor(None, nothing) for _ in range(100)))

    loop.run_until_complete(main())
    return 1_000


# -- processes and pipes -----------------------------------------------------------------------------------------


@scenario("subprocess/spawn+wait")
def spawn_and_wait(loop: Loop) -> int:
    async def main() -> None:
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("/bin/true")
            await process.wait()

    loop.run_until_complete(main())
    return 20


@scenario("subprocess/communicate")
def spawn_and_communicate(loop: Loop) -> int:
    pipe, text = asyncio.subprocess.PIPE, b"x" * 1000

    async def main() -> None:
        for _ in range(20):
            process = await asyncio.create_subprocess_exec("/bin/cat", stdin=pipe, stdout=pipe)
            out, _ = await process.communicate(text)
            assert out == text

    loop.run_until_complete(main())
    return 20


class Sink(asyncio.Protocol):
    """Counts the bytes that come out of a pipe, up to its end."""

    def __init__(self, ended: asyncio.Future[int]) -> None:
        self._ended, self._size = ended, 0

    def data_received(self, data: bytes) -> None:
        self._size += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(self._size)


class Writer(asyncio.BaseProtocol):
    """Fills a pipe with chunks, as fast as flow control allows."""

    def __init__(self, chunk: bytes, count: int) -> None:
        self._chunk, self._left, self._paused = chunk, count, False
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's.
        self._transport = transport  # type: ignore[assignment]
        self._fill()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._fill()

    def _fill(self) -> None:
        assert self._transport is not None
        while self._left and not self._paused:
            self._left -= 1
            self._transport.write(self._chunk)
        if not self._left:
            # Not from within resume_writing: asyncio would lose the last write.
            asyncio.get_running_loop().call_soon(self._transport.close)


@scenario("pipe/64k-chunks")
def pipe_chunks(loop: Loop) -> int:
    count, chunk = 500, bytes(64 * 1024)

    async def main() -> None:
        reader, writer = os.pipe()
        ended: asyncio.Future[int] = loop.create_future()
        await loop.connect_read_pipe(lambda: Sink(ended), open(reader, "rb", 0))
        await loop.connect_write_pipe(lambda: Writer(chunk, count), open(writer, "wb", 0))
        assert await ended == count * len(chunk)

    loop.run_until_complete(main())
    return count


# -- name resolution ---------------------------------------------------------------------------------------------


def look_up(loop: Loop, host: str, count: int) -> int:
    async def main() -> None:
        for _ in range(count):
            assert await loop.getaddrinfo(host, 80, type=socket.SOCK_STREAM)

    loop.run_until_complete(main())
    return count


@scenario("getaddrinfo/numeric")
def look_up_numeric(loop: Loop) -> int:
    return look_up(loop, "127.0.0.1", 2_000)


@scenario("getaddrinfo/localhost")
def look_up_localhost(loop: Loop) -> int:
    return look_up(loop, "localhost", 200)


# -- the loop itself ---------------------------------------------------------------------------------------------


def run_trivial(new_loop: LoopFactory) -> int:
    """asyncio.run of a coroutine that does nothing: the cost of starting and closing a loop."""
    for _ in range(50):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(trivial())
    return 50


FACTORY_SCENARIOS["loop/run-trivial"] = run_trivial
