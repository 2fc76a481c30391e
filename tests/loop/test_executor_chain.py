"""How a job's result reaches the loop. Each test holds on asyncio's loop, whose functions ours replace."""

import asyncio
import concurrent.futures
import gc
import re
import sys
import threading
import time
import weakref

import pytest

from wakeloop._loop.executor import STANDS_IN


class Inline(concurrent.futures.Executor):
    """Runs the job before submit() returns."""

    def submit(self, function, /, *args, **kwargs):
        job = concurrent.futures.Future()
        job.set_result(function(*args, **kwargs))
        return job


class Later(concurrent.futures.Executor):
    """Keeps the job, for the test to finish."""

    def __init__(self, kind=concurrent.futures.Future):
        self.job = kind()

    def submit(self, function, /, *args, **kwargs):
        return self.job


def elsewhere(function, *args):
    """Calls the function in a new thread, which ends before this returns."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def reported(loop):
    """Collects the contexts that the loop's exception handler gets."""
    contexts = []
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.native
def test_the_native_executor_future_is_enabled_on_this_python(loop_name):
    assert STANDS_IN


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("own"), ValueError),
        (concurrent.futures.CancelledError("c"), asyncio.CancelledError),
        (concurrent.futures.InvalidStateError("i"), asyncio.InvalidStateError),
        (concurrent.futures.TimeoutError("t"), asyncio.TimeoutError),
        (KeyboardInterrupt("k"), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
    ],
)
def test_an_exception_in_a_job_is_set_on_the_future(run, error, expected):
    async def main():
        later = Later()
        future = asyncio.get_running_loop().run_in_executor(later, int)
        elsewhere(later.job.set_exception, error)
        await asyncio.wait([future])
        assert type(future.exception()) is expected and future.exception().args == error.args
        if isinstance(error, (ValueError, KeyboardInterrupt, SystemExit)):
            assert future.exception() is error

    run(main())


def test_a_stop_iteration_in_a_job_is_converted_as_in_asyncio(run):
    async def main():
        loop = asyncio.get_running_loop()
        contexts = reported(loop)
        later = Later()
        future = loop.run_in_executor(later, int)
        elsewhere(later.job.set_exception, StopIteration(1))
        while not (future.done() or contexts):
            await asyncio.sleep(0.001)
        # What a future of asyncio's own reports by itself. A patch release of 3.12 changed that.
        try:
            sample = loop.create_future()
            sample.set_exception(StopIteration(1))
            refused = sample.exception() is None
        except TypeError:
            refused = True
        if not refused:
            assert isinstance(future.exception(), RuntimeError)
            assert isinstance(future.exception().__cause__, StopIteration)
        else:
            assert isinstance(contexts[0]["exception"], TypeError) and not future.done()
            future.cancel()

    run(main())


def test_cancelling_takes_a_job_out_of_the_queue(run):
    async def main():
        loop, go_on, done = asyncio.get_running_loop(), threading.Event(), []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = loop.run_in_executor(pool, go_on.wait, 10)
            second = loop.run_in_executor(pool, done.append, 1)
            assert second.cancel()
            await turns()
            go_on.set()
            assert await first
        with pytest.raises(asyncio.CancelledError):
            await second
        assert done == []

    run(main())


def test_a_job_that_runs_is_not_stopped_by_cancelling_and_its_result_is_dropped(run):
    async def main():
        loop, started, go_on = asyncio.get_running_loop(), threading.Event(), threading.Event()
        contexts = reported(loop)

        def job():
            started.set()
            return go_on.wait(10)

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = loop.run_in_executor(pool, job)
            started.wait(10)
            future.cancel()
            await turns()
            assert future.cancelled()
            go_on.set()
            assert await loop.run_in_executor(pool, int) == 0
        await turns()
        assert future.cancelled() and contexts == []

    run(main())


def test_a_job_that_its_executor_cancels_cancels_the_future(run):
    async def main():
        loop, go_on = asyncio.get_running_loop(), threading.Event()
        pool = concurrent.futures.ThreadPoolExecutor(1)
        first, second = loop.run_in_executor(pool, go_on.wait, 10), loop.run_in_executor(pool, int)
        pool.shutdown(wait=False, cancel_futures=True)
        go_on.set()
        assert await first
        with pytest.raises(asyncio.CancelledError):
            await second

    run(main())


def test_a_result_for_a_future_that_is_already_done_is_reported_to_the_exception_handler(run):
    async def main():
        loop, later = asyncio.get_running_loop(), Later()
        contexts = reported(loop)
        future = loop.run_in_executor(later, int)
        future.set_result("mine")
        elsewhere(later.job.set_result, "theirs")
        while not contexts:
            await asyncio.sleep(0.001)
        assert isinstance(contexts[0]["exception"], AssertionError)
        assert contexts[0]["message"].startswith("Exception in callback ") and "chain" in contexts[0]["message"]
        assert future.result() == "mine"

    run(main())


def test_a_job_that_is_done_already_brings_its_result(run):
    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(Inline(), divmod, 7, 2) == (3, 1)

    run(main())


def test_a_job_that_completes_in_the_loops_thread_completes_its_future_when_asyncio_does(run):
    async def main():
        loop, later = asyncio.get_running_loop(), Later()
        future = loop.run_in_executor(later, int)
        later.job.set_result(1)
        assert future.done() == (sys.version_info >= (3, 14))
        assert await future == 1

    run(main())


@pytest.mark.parametrize("kind", ["subclass", "own add_done_callback"])
def test_futures_of_other_classes_or_with_overridden_methods_are_called_through_their_methods(run, kind):
    calls = []

    class Job(concurrent.futures.Future):
        def add_done_callback(self, fn):
            calls.append(fn)
            super().add_done_callback(fn)

    async def main():
        loop = asyncio.get_running_loop()
        later = Later(Job if kind == "subclass" else concurrent.futures.Future)
        if kind != "subclass":
            plain = later.job.add_done_callback
            later.job.add_done_callback = lambda fn: (calls.append(fn), plain(fn))
        future = loop.run_in_executor(later, int)
        elsewhere(later.job.set_result, 5)
        assert await future == 5 and len(calls) == 1

    run(main())


def test_other_objects_are_handled_as_wrap_future_handles_them(run):
    async def main():
        loop = asyncio.get_running_loop()
        later = Later(loop.create_future)
        assert loop.run_in_executor(later, int) is later.job
        with pytest.raises(AssertionError, match="concurrent.futures.Future is expected, got 'text'"):
            loop.run_in_executor(Later(lambda: "text"), int)

    run(main())


@pytest.mark.parametrize("name", ["wrap_future", "_chain_future", "_copy_future_state"])
def test_replaced_functions_of_asyncio_futures_are_called(run, monkeypatch, name):
    calls, own = [], getattr(asyncio.futures, name)

    def replaced(*args, **kwargs):
        calls.append(name)
        return own(*args, **kwargs)

    async def main():
        later = Later()
        monkeypatch.setattr(asyncio.futures, name, replaced)
        future = asyncio.get_running_loop().run_in_executor(later, int)
        elsewhere(later.job.set_result, 5)
        assert await future == 5

    run(main())
    assert calls == [name]


def test_a_run_in_executor_patched_on_base_event_loop_is_called(run, monkeypatch):
    calls, own = [], asyncio.BaseEventLoop.run_in_executor

    def replaced(self, executor, func, *args):
        calls.append(func)
        return own(self, executor, func, *args)

    async def main():
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, int)
        monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", replaced)
        await loop.run_in_executor(None, float)

    run(main())
    assert calls == [float]


@pytest.mark.parametrize("native", [True, False])
def test_a_create_future_and_a_call_soon_threadsafe_of_a_subclass_are_used(loop_factory, native):
    made, scheduled, later = [], [], Later()
    sample = loop_factory()
    sample.close()

    class Future(asyncio.futures._PyFuture):
        pass

    class Loop(type(sample)):
        def create_future(self):
            made.append(1)
            return super().create_future() if native else Future(loop=self)

        def call_soon_threadsafe(self, callback, *args, **kwargs):
            scheduled.append(threading.get_ident())
            return super().call_soon_threadsafe(callback, *args, **kwargs)

    async def main():
        future = asyncio.get_running_loop().run_in_executor(later, int)
        assert isinstance(future, Future) != native
        elsewhere(later.job.set_result, 5)
        assert await future == 5
        assert len(made) == 1 and len(scheduled) == 1 and scheduled[0] != threading.get_ident()

    loop = Loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_closed_loop_refuses_jobs_and_silently_drops_late_results(loop_factory, caplog):
    loop, later = loop_factory(), Later()
    future = loop.run_in_executor(later, int)
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.run_in_executor(Inline(), int)
    later.job.set_result(1)
    assert not future.done() and caplog.records == []


def test_debug_mode_refuses_coroutine_functions_in_run_in_executor(loop):
    async def coroutine():
        pass

    loop.set_debug(True)
    loop.run_until_complete(loop.run_in_executor(None, int))
    for wrong in (coroutine, 5):
        with pytest.raises(TypeError, match="run_in_executor"):
            loop.run_in_executor(None, wrong)
    loop.run_until_complete(loop.shutdown_default_executor())


def test_an_exception_of_a_job_that_is_never_retrieved_is_logged(run):
    async def main():
        loop, later = asyncio.get_running_loop(), Later()
        contexts = reported(loop)
        future = loop.run_in_executor(later, int)
        elsewhere(later.job.set_exception, ValueError())
        await asyncio.wait([future])
        del future, later
        await turns()
        gc.collect()
        assert [context["message"] for context in contexts] == ["Future exception was never retrieved"]

    run(main())


def test_two_chained_futures_without_other_references_are_collected(loop):
    later = Later()
    future = loop.run_in_executor(later, int)
    gone = weakref.ref(future), weakref.ref(later.job)
    del later, future
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.native
def test_a_job_that_is_done_leaves_no_cycle(loop):
    async def main():
        job = Later()
        future = loop.run_in_executor(job, int)
        elsewhere(job.job.set_result, 5)
        assert await future == 5
        return weakref.ref(future), weakref.ref(job.job)

    gc.disable()
    try:
        gone = loop.run_until_complete(main())
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_the_callback_has_the_name_and_the_place_of_asyncios_in_the_futures_repr(loop):
    shown = repr(loop.run_in_executor(Later(), int))
    place = re.escape(asyncio.futures.__file__)
    name = r"_chain_future\.<locals>\._call_check_cancel\(\)"
    assert re.fullmatch(rf"<Future pending cb=\[{name} at {place}:\d+\]>", shown)


@pytest.mark.native
def test_the_callback_refuses_other_arguments(loop):
    later = Later()
    loop.run_in_executor(later, int)
    (chain,) = later.job._done_callbacks
    for wrong in ((1, 2), ()):
        with pytest.raises(TypeError):
            chain(*wrong, key=1)
    assert chain(object()) is None
