"""`cancel_everywhere`: a program is cancelled at each of its await points, one after the other."""

import asyncio

import pytest

from wakeloop import testing

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
