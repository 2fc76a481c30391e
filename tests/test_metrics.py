"""loop.metrics(): numbers about the loop, which grow with what it does."""

import asyncio

import pytest

pytestmark = pytest.mark.native


def as_dict(metrics):
    if isinstance(metrics, dict):
        return metrics
    names = [name for name in dir(metrics) if not name.startswith("_") and not callable(getattr(metrics, name))]
    return {name: getattr(metrics, name) for name in names}


def test_metrics_are_numbers_that_never_fall(run):
    async def main():
        loop = asyncio.get_running_loop()
        before = as_dict(loop.metrics())
        assert before and all(isinstance(value, (int, float)) and value >= 0 for value in before.values()), before
        for _ in range(100):
            loop.call_soon(int)
            await asyncio.sleep(0.0002)
        after = as_dict(loop.metrics())
        assert after.keys() == before.keys()
        grown = [name for name in before if after[name] >= before[name] + 100]
        assert grown, (before, after)

    run(main())


def test_metrics_can_be_read_before_after_and_beside_the_run(loop):
    import threading

    as_dict(loop.metrics())
    thread_saw = []
    loop.call_later(0.02, loop.stop)
    thread = threading.Timer(0.005, lambda: thread_saw.append(as_dict(loop.metrics())))
    thread.start()
    loop.run_forever()
    thread.join()
    assert thread_saw
    loop.close()
    as_dict(loop.metrics())


def test_two_loops_count_for_themselves(loop, loop_factory):
    other = loop_factory()
    before = as_dict(other.metrics())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert as_dict(other.metrics()) == before
    other.close()
