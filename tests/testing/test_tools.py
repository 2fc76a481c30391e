"""Tools that poll through the selector of a testing loop, as looptime's plugin does with every loop of pytest-asyncio."""

import asyncio
import time

import pytest

from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native

HOUR = 3600.0


class Wrapped:
    """A tool around a loop's `select`. As looptime does, it polls first, and then waits."""

    def __init__(self, loop):
        self.timeouts = []
        self._select = loop._selector.select
        loop._selector.select = self.select

    def select(self, timeout=None):
        self.timeouts.append(timeout)
        return self._select(timeout=0) or self._select(timeout=timeout)


async def work():
    loop, log = asyncio.get_running_loop(), []

    async def job(name, delay):
        for _ in range(3):
            await asyncio.sleep(delay)
            log.append((name, loop.time()))

    await asyncio.gather(job("a", HOUR), job("b", HOUR), job("c", 2 * HOUR))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(HOUR):
            await loop.create_future()
    return log, loop.time()


def run(options, wraps):
    loop = testing.EventLoop(**options)
    tool = Wrapped(loop) if wraps else None
    return testing.run_on(loop, work()), loop, tool


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"while_waiting": "jump"}], ids=str)
def test_a_wrapped_select_leaves_clock_and_order_as_they_are(options):
    before = time.monotonic()
    (result, loop, tool), (expected, plain, _) = run(options, True), run(options, False)
    assert result == expected and result[1] == 7 * HOUR
    assert [step for step in loop.steps if step.who != "events"] == [step for step in plain.steps if step.who != "events"]
    assert tool.timeouts and time.monotonic() - before < 60


def test_a_deadlock_is_found_through_a_wrapped_select():
    loop = testing.EventLoop()
    Wrapped(loop)

    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(testing.Deadlock):
        testing.run_on(loop, main())


def test_a_frozen_clock_stays_frozen_under_a_wrapped_select():
    loop = testing.EventLoop(clock="frozen")
    Wrapped(loop)

    async def main():
        task = asyncio.create_task(asyncio.sleep(10, "done"))
        await asyncio.sleep(0)
        loop.clock.advance(10)
        return await task, loop.time()

    assert testing.run_on(loop, main()) == ("done", 10)


def test_the_network_works_under_a_wrapped_select():
    loop = testing.EventLoop(network=Network(latency=1))
    Wrapped(loop)

    async def main():
        async def serve(reader, writer):
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 8000):
            reader, writer = await asyncio.open_connection("127.0.0.1", 8000)
            writer.write(b"line\n")
            line = await reader.read()
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(2 * HOUR)
        return line

    assert testing.run_on(loop, main()) == b"line\n"


def test_a_tool_that_polls_with_a_short_timeout_lets_the_clock_go_on_by_it():
    loop, seen = testing.EventLoop(), []
    select = loop._selector.select

    def poll(timeout=None):
        seen.append(loop.time())
        return select(timeout if timeout is None else min(timeout, 0.25))

    loop._selector.select = poll
    testing.run_on(loop, asyncio.sleep(1))
    assert [moment for moment in (0, 0.25, 0.5, 0.75) if moment not in seen] == []


def test_the_clock_of_a_tool_counts_while_it_replaces_the_loops():
    loop = testing.EventLoop()
    select, now = loop._selector.select, [1000.0]

    def jump(timeout=None):
        found = select(0)
        if not found and timeout:
            now[0] += timeout
        return found

    async def main():
        await asyncio.sleep(HOUR)
        loop._selector.select, loop.time = jump, lambda: now[0]
        await asyncio.sleep(HOUR)
        times = loop.time(), loop.clock.time()
        del loop._selector.select, loop.time
        await asyncio.sleep(HOUR)
        return *times, loop.time()

    assert testing.run_on(loop, main()) == (1000 + HOUR, HOUR, 2 * HOUR)
