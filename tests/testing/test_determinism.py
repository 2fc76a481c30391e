"""The same seed gives the same steps in every process; `make determinism` tries 200 programs."""

import asyncio

import pytest

from tests.testing import determinism
from tests.testing.asyncio_clock import EventLoop as AsyncioLoop
from tests.testing.programs import Program
from wakeloop import testing

pytestmark = pytest.mark.native


@pytest.mark.timeout(90)
def test_a_seed_repeats_every_step_in_another_process():
    differing, orders = determinism.compare(programs=25, seeds=4, runs=4)
    assert differing == []
    # Most seeds have an order of their own.
    assert len(orders) == 25 and all(orders) and sum(orders) > 75


def test_a_seed_repeats_every_step_in_the_same_process(asyncio_log):
    first = [determinism.run(number, 7) for number in range(20)]
    assert determinism.first_difference(first[2], determinism.run(2, 7)) == f"{len(first[2])} and {len(first[2])} lines"
    assert [determinism.run(number, 7) for number in range(20)] == first


def test_a_difference_is_seen():
    one, two = determinism.run(2, 1), determinism.run(2, 2)
    assert one != two and determinism.first_difference(one, two).startswith("line ")
    assert determinism.digest(one) != determinism.digest(two)


def test_without_a_seed_the_order_is_that_of_asyncio():
    def journal(number, factory):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(Program(number, ties=False)())

    for number in range(100):
        ours, asyncios = journal(number, testing.EventLoop), journal(number, AsyncioLoop)
        assert ours == asyncios, f"program {number}: {determinism.first_difference(ours, asyncios)}"


# -- as_completed ----------------------------------------------------------------------------------------------------


def test_as_completed_starts_coroutines_in_their_order():
    async def main():
        started = []

        async def note(number):
            started.append(number)
            await asyncio.sleep(1)
            return number

        parts = [note(number) for number in range(20)]
        found = [await part for part in asyncio.as_completed([*parts, parts[0]])]
        assert started == list(range(20)) and sorted(found) == started
        with pytest.raises(TypeError, match="expect"):
            list(asyncio.as_completed(asyncio.get_running_loop().create_future()))

    before = asyncio.as_completed
    testing.run(main)
    assert asyncio.as_completed is before is asyncio.tasks.as_completed


def test_as_completed_is_that_of_asyncio_on_another_loop_meanwhile():
    import threading

    async def short(number):
        await asyncio.sleep(0)
        return number

    async def other():
        return sorted([await part for part in asyncio.as_completed([short(1), short(2)], timeout=5)])

    async def main():
        found = []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(other())))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert found == [[1, 2]]

    testing.run(main)
