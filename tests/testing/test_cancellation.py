"""`cancel_everywhere`: a program is cancelled at each of its await points, one after the other."""

import asyncio
import contextlib
import pathlib
import subprocess
import warnings

import pytest

from wakeloop import testing
from wakeloop.testing._tasks import ASYNCIOS
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


async def three_sleeps():
    for delay in (1, 2, 3):
        await asyncio.sleep(delay)


def test_each_await_point_is_cancelled_once():
    results = testing.cancel_everywhere(three_sleeps)
    assert [(each.point, each.time, each.outcome) for each in results] == [
        (1, 0, "cancelled"),
        (2, 1, "cancelled"),
        (3, 3, "cancelled"),
    ]
    assert all("three_sleeps at test_cancellation.py:" in each.where for each in results)
    assert results.failures == [] and results.report() == "cancelled at each of 3 await points: no failure."
    results.check()


def test_a_program_may_handle_the_cancellation():
    async def main():
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            pass

    assert [each.outcome for each in testing.cancel_everywhere(main)] == ["returned"]


def test_a_lock_that_is_not_released_is_found_as_a_deadlock():
    async def main():
        lock = asyncio.Lock()

        async def hold():
            await lock.acquire()
            await asyncio.sleep(1)
            lock.release()

        async with asyncio.TaskGroup() as group:
            group.create_task(hold(), name="holder")
        async with lock:
            pass

    results = testing.cancel_everywhere(main)
    [failure] = results.failures
    assert failure.task == "holder" and isinstance(failure.error, testing.Deadlock)
    assert results.report().startswith(f"1 of {len(results)} cancellations make the program fail:")
    with pytest.raises(testing.Deadlock) as caught:
        results.check()
    assert results.report() in caught.value.__notes__


def test_a_task_that_a_cancelled_program_leaves_is_found():
    async def main():
        task = asyncio.create_task(asyncio.sleep(10), name="left")
        await asyncio.sleep(1)
        await task

    results = testing.cancel_everywhere(main)
    assert all(isinstance(each.error, testing.LeftBehind) and "'left'" in str(each.error) for each in results.failures)
    assert "Task-1" in {each.task for each in results.failures}
    assert "left" not in {each.task for each in results.failures}


def test_an_error_in_the_clean_up_is_found():
    async def main():
        file = None
        try:
            await asyncio.sleep(1)
            file = [1]
            await asyncio.sleep(1)
        finally:
            file.pop()

    results = testing.cancel_everywhere(main)
    assert [(each.outcome, type(each.error)) for each in results] == [("failed", AttributeError), ("cancelled", type(None))]


def cancelled_at(main, **options):
    """The functions at which a program was cancelled, without a failure."""
    with warnings.catch_warnings():
        # A connection or server that is cancelled while it is made leaves its socket to the destructor, as in asyncio.
        warnings.simplefilter("ignore", ResourceWarning)
        results = testing.cancel_everywhere(main, **options)
    assert results.failures == [], results.report()
    return [each.where.partition(" at ")[0].rpartition(".")[2] for each in results]


def test_a_task_with_which_asyncio_accepts_a_connection_is_not_the_programs():
    async def main():
        async def greet(_, writer):
            with contextlib.suppress(asyncio.CancelledError, OSError):
                writer.write(b"hello\n")
                await writer.drain()
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 80):
            reader, writer = await asyncio.open_connection("127.0.0.1", 80)
            try:
                assert await reader.readline() == b"hello\n"
            finally:
                writer.close()

    assert set(cancelled_at(main, network=Network)) == {"main"}


def test_the_tasks_of_create_server_and_of_happy_eyeballs_are_not_the_programs():
    async def main():
        async with await asyncio.start_server(lambda _, writer: writer.close(), ["127.0.0.1", "::1"], 80):
            _, writer = await asyncio.open_connection("localhost", 80, happy_eyeballs_delay=0.25)
            writer.close()

    # In Python 3.11 the second attempt waits in wait_for(), as a program may.
    assert set(cancelled_at(main, network=Network)) - {"wait"} == {"main"}


def test_the_tasks_of_a_child_process_are_not_the_programs():
    async def main():
        process = None
        try:
            process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert await process.communicate(b"hello") == (b"hello", None)
        finally:
            if process is not None:
                process._transport.close()
                await process.wait()

    with warnings.catch_warnings():
        # A start that is cancelled leaves the transport to its destructor, as in asyncio.
        warnings.simplefilter("ignore", ResourceWarning)
        tasks = [each.task for each in testing.cancel_everywhere(main, check=False)]
    assert len(tasks) >= 2 and set(tasks) == {"Task-1"}


def test_a_task_that_closes_a_generator_which_was_dropped_is_not_the_programs():
    async def main():
        closed = []

        async def numbers():
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(1)
                closed.append(True)

        async for _ in numbers():
            break
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(5)
            assert closed == [True]

    assert set(cancelled_at(main)) == {"main"}


def test_coroutines_of_asyncio_of_which_the_program_makes_tasks_are_its_own():
    async def main():
        lock = asyncio.Lock()
        await asyncio.gather(asyncio.sleep(1), lock.acquire())
        await asyncio.wait_for(asyncio.create_task(asyncio.sleep(1), name="sleeper"), 5)

    assert {"Task-2", "sleeper"} <= {each.task for each in testing.cancel_everywhere(main)}


def test_the_functions_of_which_asyncio_makes_tasks_are_those_of_the_version_that_runs():
    sources = [path.read_text() for path in pathlib.Path(asyncio.__file__).parent.glob("*.py")]
    assert {name for name in ASYNCIOS if any(f"async def {name}(" in text for text in sources)} == ASYNCIOS


def test_a_program_that_fails_by_itself_raises():
    async def main():
        await asyncio.sleep(1)
        raise LookupError("by itself")

    with pytest.raises(LookupError, match="by itself"):
        testing.cancel_everywhere(main)


def test_too_many_points_are_refused():
    with pytest.raises(RuntimeError, match="more than 2 await points"):
        testing.cancel_everywhere(three_sleeps, limit=2)


def test_a_coroutine_cannot_be_cancelled_everywhere():
    coroutine = three_sleeps()
    with pytest.raises(TypeError, match="coroutine function"):
        testing.cancel_everywhere(coroutine)
    coroutine.close()
