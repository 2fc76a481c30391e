"""A loop's life cycle: creating, running, closing, subclassing, collecting. tests/process has the exit of processes."""

import asyncio
import contextlib
import gc
import os
import socket
import sys
import threading
import warnings
import weakref

import pytest

from tests.loop.test_scheduling import run_once
from tests.support.script import run_script
from tests.support.sockets import listener, socketpair


def test_a_new_loop_neither_runs_nor_is_closed(loop):
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert not loop.is_running() and not loop.is_closed() and not loop.get_debug()
    assert loop.get_task_factory() is None and loop.get_exception_handler() is None
    text = repr(loop)
    assert "running=False closed=False debug=False" in text
    loop.close()
    assert "closed=True" in repr(loop)


@pytest.mark.native
def test_a_loop_says_whose_it_is_and_one_of_a_subclass_its_class(loop):
    class Own(type(loop)):
        pass

    assert repr(loop) == "<wakeloop.EventLoop running=False closed=False debug=False>"
    with contextlib.closing(Own()) as own:
        assert repr(own) == "<Own running=False closed=False debug=False>"


def test_run_until_complete_returns_or_raises_what_the_coroutine_does(loop):
    async def fail():
        raise KeyError("failed")

    assert loop.run_until_complete(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(KeyError):
        loop.run_until_complete(fail())
    future = loop.create_future()
    loop.call_soon(future.set_result, 5)
    assert loop.run_until_complete(future) == 5
    assert loop.run_until_complete(future) == 5


def test_a_loop_that_stops_before_its_future_is_done_raises(loop):
    future = loop.create_future()
    loop.call_soon(loop.stop)
    with pytest.raises(RuntimeError, match="Event loop stopped before Future completed"):
        loop.run_until_complete(future)


def test_a_future_of_another_loop_is_refused(loop, loop_factory):
    other = loop_factory()
    try:
        with pytest.raises(ValueError, match="belongs to a different loop|belong"):
            loop.run_until_complete(other.create_future())
    finally:
        other.close()


def test_a_loop_can_run_many_times(loop):
    for number in range(100):
        assert loop.run_until_complete(asyncio.sleep(0, number)) == number
    seen = []
    timer = loop.call_later(0.02, seen.append, "kept between the runs")
    run_once(loop)
    assert seen == []
    loop.run_until_complete(asyncio.sleep(0.05))
    assert seen and not timer.cancelled()


def test_running_a_running_loop_is_an_error(run):
    async def main():
        loop = asyncio.get_running_loop()
        assert loop.is_running()
        with pytest.raises(RuntimeError, match="This event loop is already running"):
            loop.run_until_complete(loop.create_future())
        await asyncio.sleep(0)

    run(main())


def test_running_a_second_loop_inside_the_first_is_an_error(run, loop_factory):
    async def main():
        other = loop_factory()
        try:
            with pytest.raises(RuntimeError, match="Cannot run the event loop while another loop is running"):
                other.run_until_complete(other.create_future())
            assert asyncio.get_running_loop() is not other and not other.is_running()
        finally:
            other.close()

    run(main())


@pytest.mark.native
def test_a_refused_run_forever_leaves_the_running_loop_running(run, loop_factory):
    """On 3.13.0 asyncio's own clean-up resets the running loop here."""

    async def main():
        loop, other = asyncio.get_running_loop(), loop_factory()
        with pytest.raises(RuntimeError, match="This event loop is already running"):
            loop.run_forever()
        with pytest.raises(RuntimeError, match="Cannot run the event loop while another loop is running"):
            other.run_forever()
        other.close()
        assert asyncio.get_running_loop() is loop and loop.is_running()
        await asyncio.sleep(0.001)

    run(main())


def test_closing_a_running_loop_is_an_error(run):
    async def main():
        with pytest.raises(RuntimeError, match="Cannot close a running event loop"):
            asyncio.get_running_loop().close()

    run(main())


def test_the_running_loop_is_known_while_it_runs_and_only_then(loop):
    seen = []
    loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))
    run_once(loop)
    assert seen == [loop]
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_a_closed_loop_stays_closed_and_refuses_work(loop_factory):
    loop = loop_factory()
    timer = loop.call_later(100, print)
    loop.close()
    loop.close()
    assert loop.is_closed()
    coroutine = asyncio.sleep(0)
    for attempt in (
        loop.run_forever,
        lambda: loop.run_until_complete(coroutine),
        lambda: loop.call_soon(print),
        lambda: loop.call_later(0, print),
        lambda: loop.call_at(0, print),
        lambda: loop.call_soon_threadsafe(print),
        lambda: loop.create_task(coroutine),
        lambda: loop.run_in_executor(None, print),
    ):
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            attempt()
    coroutine.close()
    loop.stop()
    assert loop.create_future().get_loop() is loop
    assert loop.time() > 0
    timer.cancel()


def test_methods_of_a_closed_loop_raise_runtime_error(loop_factory):
    """A library may have kept the loop of an earlier run. Its awaits must raise, not hang."""
    stale, loop = loop_factory(), loop_factory()
    stale.close()

    async def awaited(attempt):
        await asyncio.wait_for(attempt(), 5)

    with listener() as listening, socketpair() as (near, _), socket.socket() as sock:
        sock.setblocking(False)
        (reading, writing), address = os.pipe(), listening.getsockname()
        for attempt in (
            lambda: stale.sock_recv(near, 1),
            lambda: stale.sock_recv_into(near, bytearray(1)),
            lambda: stale.sock_recvfrom(near, 1),
            lambda: stale.sock_sendall(near, bytes(10_000_000)),
            lambda: stale.sock_accept(listening),
            lambda: stale.sock_connect(sock, address),
            lambda: stale.create_connection(asyncio.Protocol, *address),
            lambda: stale.create_connection(asyncio.Protocol, sock=near.dup()),
            lambda: stale.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)),
            lambda: stale.connect_read_pipe(asyncio.Protocol, os.fdopen(reading, "rb", 0)),
            lambda: stale.connect_write_pipe(asyncio.Protocol, os.fdopen(writing, "wb", 0)),
        ):
            with warnings.catch_warnings():
                # What asyncio and we allocated before the error is left to the collector.
                warnings.simplefilter("ignore", ResourceWarning)
                with pytest.raises(RuntimeError, match="Event loop is closed"):
                    loop.run_until_complete(awaited(attempt))
                gc.collect()
    loop.close()


def test_close_drops_what_was_scheduled(loop_factory):
    class Thing:
        def __call__(self):
            pass

    loop, thing = loop_factory(), Thing()
    watched = weakref.ref(thing)
    loop.call_soon(thing)
    timer = loop.call_later(100, thing)
    loop.call_soon_threadsafe(thing)
    del thing, timer
    loop.close()
    gc.collect()
    assert watched() is None


def test_a_loop_dropped_unclosed_warns_and_is_freed(loop_factory):
    loop = loop_factory()
    watched = weakref.ref(loop)
    with pytest.warns(ResourceWarning, match="unclosed event loop"):
        del loop
        gc.collect()
    assert watched() is None


@pytest.mark.filterwarnings("ignore:unclosed event loop")
def test_a_loop_in_a_cycle_with_its_callbacks_is_collected(loop_factory):
    watched = []
    for _ in range(5):
        loop = loop_factory()

        def callback(loop=loop):
            pass

        loop.call_soon(callback)
        loop.call_later(1000, callback)
        loop.call_soon_threadsafe(callback)
        loop.callback = callback
        watched.append(weakref.ref(loop))
        del loop, callback
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
        gc.collect()
    assert [reference() for reference in watched] == [None] * 5


@pytest.mark.parametrize("schedule", ["call_soon", "call_soon_threadsafe", "call_later", "_add_reader"])
@pytest.mark.parametrize("runs", [False, True])
def test_what_a_pending_handle_refers_to_is_freed_after_close(loop_factory, schedule, runs):
    class Owner:
        def callback(self):
            pass

    loop, owner = loop_factory(), Owner()
    owner.loop, owner.sockets = loop, socket.socketpair()
    arguments = {"call_later": (1e9,), "_add_reader": owner.sockets[:1]}.get(schedule, ())
    if runs:
        loop.call_soon(loop.stop)
        loop.run_forever()
    owner.handle = getattr(loop, schedule)(*arguments, owner.callback)
    watched = [weakref.ref(loop), weakref.ref(owner)]
    loop.close()
    for sock in owner.sockets:
        sock.close()
    del loop, owner, arguments, sock
    gc.collect()
    assert [reference() for reference in watched] == [None] * 2


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("schedule", ["call_later", "call_at"])
def test_a_loop_that_has_never_run_is_collected_with_the_owner_of_a_timer(loop_factory, schedule):
    class Owner:
        def expire(self):
            pass

    loop, owner = loop_factory(), Owner()
    owner.timer = getattr(loop, schedule)(1e9, owner.expire)
    watched = [weakref.ref(loop), weakref.ref(owner)]
    del loop, owner
    gc.collect()
    assert [reference() for reference in watched] == [None] * 2


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", ["sleep", "timeout", "handle"])
def test_a_loop_that_is_dropped_while_a_task_waits_for_a_timer_is_collected(loop_factory, wait):
    """The loop and the waiting task hold the timer's handle, and only the handle holds the task."""
    finished = []

    async def main():
        try:
            if wait == "sleep":
                await asyncio.sleep(1000)
            elif wait == "timeout":
                async with asyncio.timeout(1000):
                    await asyncio.Event().wait()
            else:
                future = asyncio.get_running_loop().create_future()
                future.handle = asyncio.get_running_loop().call_later(1000, future.set_result, None)
                await future
        finally:
            finished.append(wait)

    loop = loop_factory()
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(main())
    run_once(loop)
    run_once(loop)
    watched = [weakref.ref(loop), weakref.ref(task)]
    del loop, task
    gc.collect()
    assert [reference() for reference in watched] == [None] * 2
    assert finished == [wait]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_closed_loop_frees_its_tasks_and_transports(loop_factory):
    from tests.support.sockets import socketpair

    loop = loop_factory()
    with socketpair() as (near, _):
        transport, protocol = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))
        task = loop.create_task(asyncio.sleep(1000))
        run_once(loop)
        task.cancel()
        run_once(loop)
        transport.abort()
        run_once(loop)
        watched = [weakref.ref(loop), weakref.ref(transport), weakref.ref(task)]
        loop.close()
        del loop, transport, task, protocol
        gc.collect()
        assert [reference() for reference in watched] == [None] * 3


def test_loops_can_be_subclassed(loop_factory):
    (probe := loop_factory()).close()

    class Sub(type(probe)):
        def __init__(self, name, *, option=None):
            super().__init__()
            self.name, self.option, self.calls = name, option, []

        def call_soon(self, callback, *args, context=None):
            self.calls.append(callback)
            return super().call_soon(callback, *args, context=context)

    loop = Sub("named", option=1)
    try:
        assert (loop.name, loop.option) == ("named", 1)
        seen = []
        loop.call_soon(seen.append, 1)
        run_once(loop)
        assert seen == [1] and len(loop.calls) >= 2
        assert loop.run_until_complete(asyncio.sleep(0, "slept")) == "slept"
        loop.attribute = "free"
    finally:
        loop.close()


def test_an_overridden_exception_handler_method_is_called(loop_factory):
    (probe := loop_factory()).close()
    contexts = []

    class Sub(type(probe)):
        def call_exception_handler(self, context):
            contexts.append(context)

    loop = Sub()
    loop.call_soon(int, "no number")
    run_once(loop)
    loop.close()
    assert isinstance(contexts[0]["exception"], ValueError)


def test_task_and_future_classes_put_into_asyncio_are_the_ones_that_are_made(loop, monkeypatch):
    """nest_asyncio, debuggers and asyncio's own tests replace them. The loop looks them up each time, as asyncio
    does.
    """

    class MyTask(asyncio.tasks._PyTask):
        pass

    class MyFuture(asyncio.futures._PyFuture):
        pass

    monkeypatch.setattr(asyncio.tasks, "Task", MyTask)
    monkeypatch.setattr(asyncio.futures, "Future", MyFuture)

    async def main():
        return loop.create_future()

    task = loop.create_task(main(), name="mine")
    assert type(task) is MyTask and task.get_name() == "mine"
    assert type(loop.run_until_complete(task)) is MyFuture


def test_a_task_factory_makes_the_tasks(run):
    made = []

    def factory(loop, coroutine, **options):
        task = asyncio.Task(coroutine, loop=loop, **options)
        made.append(task)
        return task

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        assert loop.get_task_factory() is factory
        task = asyncio.create_task(asyncio.sleep(0, "done"), name="mine")
        assert made == [task] and task.get_name() == "mine"
        assert await task == "done"
        with pytest.raises(TypeError, match="task factory must be a callable or None"):
            loop.set_task_factory(5)
        loop.set_task_factory(None)

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
def test_eager_tasks_run_at_once(run):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        seen = []

        async def child():
            seen.append("started")
            await asyncio.sleep(0)
            seen.append("went on")
            return asyncio.current_task()

        task = asyncio.create_task(child())
        assert seen == ["started"]
        assert await task is task and seen == ["started", "went on"]

        async def immediate():
            return "at once"

        task = asyncio.create_task(immediate())
        assert task.done() and task.result() == "at once"

    run(main())


def test_async_generators_are_closed_at_the_end(run):
    seen = []

    async def generator():
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    async def main():
        main.kept = generator()
        assert await anext(main.kept) == 1

    run(main())
    assert seen == ["closed"]


def test_an_async_generator_that_is_dropped_is_closed_by_the_loop(run):
    seen = []

    async def generator():
        try:
            yield 1
        finally:
            seen.append("closed")

    async def main():
        async for _ in generator():
            break
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        assert seen == ["closed"]

    run(main())


def test_every_thread_can_have_its_loop(loop_factory):
    results = []

    def work(number):
        loop = loop_factory()
        results.append(loop.run_until_complete(asyncio.sleep(0.001, number)))
        loop.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(20))


def test_hundreds_of_loops_leave_nothing(loop_factory):
    for _ in range(500):
        loop = loop_factory()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.mark.native
class TestEntryPoints:
    @pytest.fixture(autouse=True)
    def _module(self):
        self.wakeloop = pytest.importorskip("wakeloop")

    def test_run_runs_on_our_loop(self):
        async def main():
            return type(asyncio.get_running_loop())

        assert issubclass(self.wakeloop.run(main()), self.wakeloop.EventLoop)

    def test_run_passes_debug_on(self):
        async def main():
            return asyncio.get_running_loop().get_debug()

        assert self.wakeloop.run(main(), debug=True) is True

    def test_a_new_loop_is_named_in_the_debug_log(self, asyncio_log):
        self.wakeloop.new_event_loop().close()
        assert f"Using event loop: wakeloop {self.wakeloop.__version__}" in asyncio_log.messages

    def test_run_takes_a_loop_factory(self):
        class Loop(self.wakeloop.EventLoop):
            pass

        async def main():
            return type(asyncio.get_running_loop())

        assert self.wakeloop.run(main(), loop_factory=Loop) is Loop
        assert self.wakeloop.run(main(), loop_factory=asyncio.SelectorEventLoop) is asyncio.SelectorEventLoop
        assert self.wakeloop.run(main(), loop_factory=None) is self.wakeloop.EventLoop

    def test_new_event_loop_makes_an_event_loop(self):
        loop = self.wakeloop.new_event_loop()
        assert type(loop) is self.wakeloop.EventLoop
        assert isinstance(loop, asyncio.SelectorEventLoop)
        loop.close()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_the_policy_and_install_change_what_asyncio_run_uses(self):
        async def main():
            return type(asyncio.get_running_loop())

        try:
            asyncio.set_event_loop_policy(self.wakeloop.EventLoopPolicy())
            assert asyncio.run(main()) is self.wakeloop.EventLoop
            asyncio.set_event_loop_policy(None)
            self.wakeloop.install()
            assert asyncio.run(main()) is self.wakeloop.EventLoop
        finally:
            asyncio.set_event_loop_policy(None)
        assert asyncio.run(main()) is asyncio.SelectorEventLoop

    def test_without_policies_install_says_what_to_write_instead(self):
        """As on Python 3.16, where asyncio has none."""
        code = """
        import asyncio, asyncio.events, asyncio.unix_events, warnings
        warnings.simplefilter("error")
        for module in asyncio, asyncio.events, asyncio.unix_events:
            for name in [name for name in vars(module) if "policy" in name.lower()]:
                delattr(module, name)
        import wakeloop
        assert not hasattr(wakeloop, "EventLoopPolicy") and "EventLoopPolicy" not in wakeloop.__all__
        try:
            wakeloop.install()
        except RuntimeError as error:
            print(error)
        async def main(): return type(asyncio.get_running_loop())
        assert wakeloop.run(main()) is wakeloop.EventLoop
        """
        done = run_script("asyncio", code)
        assert not done.code, done
        assert done.out == "asyncio has no event loop policies here: use asyncio.run(main(), loop_factory=wakeloop.new_event_loop)\n"

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="loop_factory is new in 3.12")
    def test_asyncio_run_takes_the_factory(self):
        async def main():
            return type(asyncio.get_running_loop())

        assert asyncio.run(main(), loop_factory=self.wakeloop.new_event_loop) is self.wakeloop.EventLoop
