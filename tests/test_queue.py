"""wakeloop.Queue: between tasks of any loops, and between them and threads."""

import asyncio
import gc
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")

SHUTS_DOWN = hasattr(asyncio, "QueueShutDown")


class Value:
    """An item that can be referred to weakly."""


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


# -- as asyncio.Queue ------------------------------------------------------------------------------------------------


def test_items_come_in_the_order_in_which_they_were_put(run):
    async def main():
        items = wakeloop.Queue()
        for number in range(10):
            await items.put(number)
        items.put_nowait(10)
        assert items.qsize() == 11 and not items.empty() and not items.full()
        assert [await items.get() for _ in range(5)] + [items.get_nowait() for _ in range(6)] == list(range(11))
        assert items.empty()

    run(main())


def test_errors_are_those_of_asyncio_and_of_the_queue_module(run):
    async def main():
        items = wakeloop.Queue(maxsize=1)
        assert items.maxsize == items.sync_q.maxsize == 1
        for get_nowait, error in [
            (items.get_nowait, asyncio.QueueEmpty),
            (items.sync_q.get_nowait, queue.Empty),
            (lambda: items.sync_q.get(block=False), queue.Empty),
            (lambda: items.sync_q.get(timeout=0), queue.Empty),
        ]:
            with pytest.raises(error) as raised:
                get_nowait()
            assert type(raised.value) is error and str(raised.value) == ""
        items.put_nowait("only")
        assert items.full()
        for put_nowait, error in [
            (items.put_nowait, asyncio.QueueFull),
            (items.sync_q.put_nowait, queue.Full),
            (lambda item: items.sync_q.put(item, False), queue.Full),
            (lambda item: items.sync_q.put(item, timeout=0.001), queue.Full),
        ]:
            with pytest.raises(error) as raised:
                put_nowait("more")
            assert type(raised.value) is error and str(raised.value) == ""
        with pytest.raises(ValueError, match="called too many times"):
            for _ in range(2):
                items.task_done()
        for method in (items.sync_q.get, lambda timeout: items.sync_q.put(1, timeout=timeout)):
            with pytest.raises(ValueError, match="'timeout' must be a non-negative number"):
                method(timeout=-1)
            with pytest.raises(TypeError):
                method(timeout="soon")
        with pytest.raises(TypeError):
            wakeloop.Queue("large")
        with pytest.raises(TypeError):
            wakeloop.SyncQueue()

    run(main())


def test_a_maxsize_of_zero_or_less_means_any_number_of_items():
    for maxsize in (0, -1, -(10**30)):
        items = wakeloop.Queue(maxsize)
        for _ in range(100):
            items.put_nowait(None)
        assert not items.full()


def test_join_waits_until_all_items_are_done_with(run):
    async def main():
        items = wakeloop.Queue()
        await items.join()
        for number in range(3):
            items.put_nowait(number)
        joined = [asyncio.ensure_future(items.join()) for _ in range(3)]
        thread = in_thread(items.sync_q.join)
        for _ in range(3):
            await asyncio.sleep(0)
            assert not any(task.done() for task in joined) and thread.is_alive()
            items.get_nowait()
            items.task_done()
        await asyncio.gather(*joined)
        await until(lambda: not thread.is_alive())

    run(main())


def test_the_queue_shows_what_it_is():
    items = wakeloop.Queue[int](3)
    items.put_nowait(1)
    assert repr(items) == "<wakeloop.Queue maxsize=3 qsize=1 tasks=1>"
    items.shutdown()
    assert repr(items) == "<wakeloop.Queue maxsize=3 qsize=1 tasks=1 shutdown>"
    assert repr(items.sync_q) == f"<wakeloop.SyncQueue of {items!r}>"
    assert weakref.ref(items)() is items


# -- shutdown --------------------------------------------------------------------------------------------------------


def test_a_queue_that_is_shut_down_gives_its_items_and_takes_none(run):
    async def main():
        items = wakeloop.Queue()
        items.put_nowait("last")
        items.shutdown()
        for put in (items.put_nowait, items.sync_q.put, items.sync_q.put_nowait):
            with pytest.raises(wakeloop.QueueShutDown):
                put("more")
        with pytest.raises(wakeloop.QueueShutDown):
            await items.put("more")
        assert await items.get() == "last"
        for get in (items.get_nowait, items.sync_q.get, items.sync_q.get_nowait):
            with pytest.raises(wakeloop.QueueShutDown):
                get()
        with pytest.raises(wakeloop.QueueShutDown):
            await items.get()
        items.shutdown()

    run(main())


@pytest.mark.skipif(not SHUTS_DOWN, reason="asyncio's queues have no shutdown() before Python 3.13")
def test_the_exception_is_that_of_both_modules():
    assert issubclass(wakeloop.QueueShutDown, (asyncio.QueueShutDown,))
    assert issubclass(wakeloop.QueueShutDown, (queue.ShutDown,))


@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_wakes_all_who_wait(run, immediate):
    async def main():
        empty, full = wakeloop.Queue(), wakeloop.Queue(1)
        full.put_nowait("first")
        results = []

        def block(method, *args):
            try:
                method(*args)
            except wakeloop.QueueShutDown:
                results.append("shut down")

        threads = [in_thread(block, empty.sync_q.get), in_thread(block, full.sync_q.put, "more")]
        tasks = [asyncio.ensure_future(call) for call in (empty.get(), empty.get(), full.put("more"), full.put("more"))]
        join = asyncio.ensure_future(full.join())
        await asyncio.sleep(0.01)
        empty.shutdown()
        full.sync_q.shutdown(immediate=immediate)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, wakeloop.QueueShutDown)
        await until(lambda: not any(thread.is_alive() for thread in threads))
        assert results == ["shut down"] * 2
        assert full.qsize() == (0 if immediate else 1)
        if not immediate:
            assert full.get_nowait() == "first"
            full.task_done()
        await join

    run(main())


# -- cancellation and fairness ---------------------------------------------------------------------------------------


def test_a_getter_that_is_cancelled_while_it_is_notified_passes_that_on(run):
    async def main():
        items = wakeloop.Queue()
        first, second = (asyncio.ensure_future(items.get()) for _ in range(2))
        await asyncio.sleep(0)
        items.put_nowait("item")
        first.cancel()
        assert await second == "item"
        assert first.cancelled() or (await asyncio.gather(first, return_exceptions=True)) and first.cancelled()

    run(main())


def test_a_putter_that_is_cancelled_while_it_is_notified_passes_that_on(run):
    async def main():
        items = wakeloop.Queue(1)
        items.put_nowait("first")
        cancelled, other = (asyncio.ensure_future(items.put(item)) for item in ("cancelled", "other"))
        await asyncio.sleep(0)
        assert items.get_nowait() == "first"
        cancelled.cancel()
        await other
        assert items.get_nowait() == "other" and items.empty()
        await asyncio.gather(cancelled, return_exceptions=True)

    run(main())


def test_cancelled_waits_take_and_put_nothing(run):
    async def main():
        items = wakeloop.Queue(1)
        for wait in (items.get, items.join):
            if wait == items.join:
                items.put_nowait("only")
            tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        tasks = [asyncio.ensure_future(items.put("more")) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert items.get_nowait() == "only" and items.empty()
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await asyncio.wait_for(items.get(), 0.001)
        items.put_nowait("kept")
        assert await items.get() == "kept"

    run(main())


def test_waiting_getters_are_served_in_order(run):
    async def main():
        items, served = wakeloop.Queue(), []

        async def get(name):
            served.append((name, await items.get()))

        tasks = [asyncio.ensure_future(get(name)) for name in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        for number in range(4):
            items.put_nowait(number)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [(0, 0), (1, 1), (3, 2), (4, 3)]

    run(main())


def test_a_getter_that_is_overtaken_keeps_its_place(run):
    async def main():
        items, served = wakeloop.Queue(), []

        async def get(name):
            served.append((name, await items.get()))

        tasks = [asyncio.ensure_future(get(name)) for name in ("first", "second")]
        await asyncio.sleep(0)
        items.put_nowait("taken")
        assert items.get_nowait() == "taken"
        await asyncio.sleep(0.001)
        items.put_nowait(1)
        items.put_nowait(2)
        await asyncio.gather(*tasks)
        assert served == [("first", 1), ("second", 2)]

    run(main())


def test_a_task_that_never_has_to_wait_still_lets_others_run(run):
    async def main():
        items, turns, done = wakeloop.Queue(), 0, False

        async def other():
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(10_000):
            await items.put(None)
            await items.get()
        done = True
        await task
        assert turns >= 5

    run(main())


# -- as asyncio.Queue, in random sequences ---------------------------------------------------------------------------


class Reference(asyncio.Queue):
    """asyncio's queue, with the one difference: a waiter that was overtaken goes back to its place, not to the end."""

    def _init(self, maxsize):
        super()._init(maxsize)
        self._places = {}

    async def _wait(self, waiters, place):
        waiter = asyncio.get_running_loop().create_future()
        place = place or len(self._places) + 1
        self._places[waiter] = place
        waiters.insert(sum(self._places[other] < place for other in waiters), waiter)
        try:
            await waiter
        except BaseException:
            waiter.cancel()
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiter.cancelled() and not (self.full() if waiters is self._putters else self.empty()):
                self._wakeup_next(waiters)
            raise
        return place

    async def put(self, item):
        place = None
        while self.full():
            if getattr(self, "_is_shutdown", False):
                raise asyncio.QueueShutDown
            place = await self._wait(self._putters, place)
        self.put_nowait(item)

    async def get(self):
        place = None
        while self.empty():
            if getattr(self, "_is_shutdown", False):
                raise asyncio.QueueShutDown
            place = await self._wait(self._getters, place)
        return self.get_nowait()


class Scenario:
    """Applies random operations to a queue, and writes down what can be seen from outside."""

    def __init__(self, make, seed):
        self.random = random.Random(seed)
        self.items = make(self.random.choice([0, 0, 1, 2, 5]))
        self.number = 0
        self.seen = []
        self.waiting = []

    async def call(self, method, *args):
        name = method.__name__
        try:
            self.seen.append((name, await method(*args)))
        except asyncio.CancelledError:
            self.seen.append((name, "cancelled"))
        except Exception as error:
            self.seen.append((name, kind(error)))

    def call_nowait(self, method, *args):
        try:
            self.seen.append((method.__name__, method(*args)))
        except Exception as error:
            self.seen.append((method.__name__, kind(error)))

    async def settle(self):
        for _ in range(5):
            await asyncio.sleep(0)

    async def run(self):
        items, random = self.items, self.random
        for _ in range(random.randrange(20, 120)):
            self.number += 1
            step = random.random()
            if step < 0.2:
                self.call_nowait(items.put_nowait, self.number)
            elif step < 0.35:
                self.call_nowait(items.get_nowait)
            elif step < 0.5:
                self.waiting.append(asyncio.ensure_future(self.call(items.put, self.number)))
            elif step < 0.7:
                self.waiting.append(asyncio.ensure_future(self.call(items.get)))
            elif step < 0.75:
                self.waiting.append(asyncio.ensure_future(self.call(items.join)))
            elif step < 0.8:
                self.call_nowait(items.task_done)
            elif step < 0.87 and self.waiting:
                # asyncio passes over a future that was cancelled, while here the task passes the notification on when it
                # runs. So that this does not change an order, the others are at rest.
                await self.settle()
                notify = random.choice([None, items.put_nowait, items.get_nowait])
                if notify is not None:
                    self.call_nowait(notify, *[self.number] * (notify.__name__ == "put_nowait"))
                random.choice(self.waiting).cancel()
                await self.settle()
            elif step < 0.875 and SHUTS_DOWN:
                items.shutdown(random.random() < 0.3)
            else:
                await asyncio.sleep(0)
            self.seen.append((items.qsize(), items.empty(), items.full()))
        await self.settle()
        self.seen.append(("pending", sum(not task.done() for task in self.waiting)))
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)
        self.seen.append((items.qsize(), items.empty(), items.full()))
        return self.seen


def kind(error):
    return "QueueShutDown" if isinstance(error, wakeloop.QueueShutDown) else type(error).__name__


@pytest.mark.timeout(60)
def test_random_sequences_do_what_they_do_with_asyncios_queue(run):
    first = int(os.environ.get("FIRST_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("SCENARIOS", "400"))):
        expected = run(Scenario(Reference, seed).run())
        assert run(Scenario(wakeloop.Queue, seed).run()) == expected, f"seed {seed}"


# -- loops and threads -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(60)
@pytest.mark.parametrize("maxsize", [0, 1, 7])
def test_nothing_is_lost_or_doubled_between_loops_and_threads(loop_factory, maxsize):
    """Three loops and three threads put and get, and cancel some of their waits."""
    items, count = wakeloop.Queue(maxsize), 400
    taken, errors = [], []

    async def produce(name, seed):
        chance = random.Random(seed)
        for number in range(count):
            while True:
                put = asyncio.ensure_future(items.put((name, number)))
                if chance.random() < 0.1:
                    await asyncio.sleep(0)
                    put.cancel()
                try:
                    await put
                    break
                except asyncio.CancelledError:
                    pass

    async def consume(seed):
        chance, mine = random.Random(seed), []
        while True:
            get = asyncio.ensure_future(items.get())
            if chance.random() < 0.1:
                await asyncio.sleep(0)
                get.cancel()
            try:
                mine.append(await get)
                items.task_done()
            except asyncio.CancelledError:
                pass
            except wakeloop.QueueShutDown:
                taken.append(mine)
                return

    def in_loop(*coroutines):
        async def main():
            await asyncio.gather(*coroutines)

        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(main())
        except BaseException as error:
            errors.append(error)

    def produce_blocking(name):
        for number in range(count):
            while True:
                try:
                    items.sync_q.put((name, number), timeout=random.choice([None, 0.0005]))
                    break
                except queue.Full:
                    pass

    def consume_blocking():
        mine = []
        while True:
            try:
                mine.append(items.sync_q.get(timeout=random.choice([None, 0.0005])))
                items.sync_q.task_done()
            except queue.Empty:
                pass
            except wakeloop.QueueShutDown:
                taken.append(mine)
                return

    producers = [in_thread(in_loop, produce(f"task {n}", n), produce(f"other task {n}", n + 9)) for n in range(2)]
    producers += [in_thread(produce_blocking, f"thread {n}") for n in range(2)]
    consumers = [in_thread(in_loop, consume(n), consume(n + 9)) for n in range(2)]
    consumers += [in_thread(consume_blocking) for _ in range(2)]
    for thread in producers:
        thread.join()
    items.sync_q.join()
    items.shutdown()
    for thread in consumers:
        thread.join()
    assert not errors and items.empty()
    every = [item for mine in taken for item in mine]
    assert len(every) == len(set(every)) == 6 * count
    for mine in taken:
        for name in {name for name, _ in mine}:
            numbers = [number for other, number in mine if other == name]
            assert numbers == sorted(numbers), "a consumer sees the items of one producer in their order"


def test_the_queue_goes_between_wakeloop_and_asyncio():
    there, back = wakeloop.Queue(1), wakeloop.Queue(1)

    async def answer():
        while (item := await there.get()) is not None:
            await back.put(item + 1)

    async def ask():
        for number in range(200):
            await there.put(number)
            assert await back.get() == number + 1
        await there.put(None)

    for asking, answering in [(wakeloop.new_event_loop, asyncio.new_event_loop)] * 1 + [
        (asyncio.new_event_loop, wakeloop.new_event_loop)
    ]:

        def other(factory=answering):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(answer())

        thread = in_thread(other)
        with asyncio.Runner(loop_factory=asking) as runner:
            runner.run(ask())
        thread.join()


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_item_is_not_lost_when_the_loop_of_a_waiting_getter_is_closed(loop_factory, when):
    """`before` and `after` the item was put: then the loop is closed with the wake-up in its inbox."""
    items = wakeloop.Queue()
    closing, other = loop_factory(), loop_factory()
    asyncio_messages = []
    closing.set_exception_handler(lambda _, context: asyncio_messages.append(context["message"]))
    lost = [closing.create_task(items.get()) for _ in range(3)]
    closing.run_until_complete(asyncio.sleep(0))

    async def get():
        return await items.get()

    task = other.create_task(get())
    other.run_until_complete(asyncio.sleep(0))
    if when == "before":
        closing.close()
    items.put_nowait("item")
    if when == "after":
        closing.close()
    assert other.run_until_complete(asyncio.wait_for(task, 5)) == "item"
    other.close()
    del lost, task
    gc.collect()
    assert asyncio_messages == ["Task was destroyed but it is pending!"] * 3


def test_room_is_not_lost_when_the_loop_of_a_waiting_putter_is_closed(loop_factory):
    items = wakeloop.Queue(1)
    items.put_nowait("first")
    closing = loop_factory()
    closing.set_exception_handler(lambda *_: None)
    lost = closing.create_task(items.put("lost"))
    closing.run_until_complete(asyncio.sleep(0))
    thread = in_thread(items.sync_q.put, "kept")
    while "waits" in str(thread) or items.qsize() != 1:
        time.sleep(0.001)
    time.sleep(0.01)
    closing.close()
    assert items.sync_q.get() == "first"
    assert items.sync_q.get(timeout=5) == "kept"
    thread.join()
    del lost
    gc.collect()
    assert items.empty()


def test_many_getters_of_a_closed_loop_are_passed_over(loop_factory):
    """No recursion: there are more of them than a stack has frames."""
    items, closing = wakeloop.Queue(), loop_factory()
    closing.set_exception_handler(lambda *_: None)
    lost = [closing.create_task(items.get()) for _ in range(20_000)]
    closing.run_until_complete(asyncio.sleep(0))
    result = []
    thread = in_thread(lambda: result.append(items.sync_q.get()))
    while not result:
        if thread.is_alive() and not closing.is_closed():
            time.sleep(0.01)
            closing.close()
            items.put_nowait("item")
    thread.join()
    assert result == ["item"]
    del lost
    gc.collect()


def test_a_task_that_is_destroyed_while_it_is_notified_passes_that_on(loop_factory):
    items = wakeloop.Queue()
    closing = loop_factory()
    closing.set_exception_handler(lambda *_: None)
    closing.create_task(items.get())
    closing.run_until_complete(asyncio.sleep(0))
    result = []
    thread = in_thread(lambda: result.append(items.sync_q.get()))
    time.sleep(0.02)
    # The wake-up completes the future in this turn, and the loop is closed before the task continues.
    closing.call_soon(items.put_nowait, "item")
    closing.call_soon(closing.stop)
    closing.run_forever()
    closing.close()
    gc.collect()
    thread.join()
    assert result == ["item"]


# -- threads that block ----------------------------------------------------------------------------------------------


def test_a_blocking_wait_ends_at_its_timeout_and_not_before():
    items = wakeloop.Queue(1)
    for wait in (lambda: items.sync_q.get(timeout=0.02), lambda: items.sync_q.put(1, timeout=0.02)):
        start = time.monotonic()
        with pytest.raises((queue.Empty, queue.Full)):
            wait()
        assert time.monotonic() - start >= 0.02
        if items.empty():
            items.put_nowait("full")


@pytest.mark.parametrize("wait", ["get", "put", "join", "event"])
def test_a_signal_handler_may_end_a_blocking_wait(wait):
    items, event = wakeloop.Queue(1), wakeloop.Event()
    if wait != "get":
        items.put_nowait("item")
    method = {
        "get": items.sync_q.get,
        "put": lambda: items.sync_q.put("more"),
        "join": items.sync_q.join,
        "event": event.sync_wait,
    }[wait]

    def interrupt(*_):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            method()
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, old)
    # Nothing was taken, nothing was put, and nobody is in line.
    assert items.qsize() == (0 if wait == "get" else 1)
    if wait == "get":
        items.put_nowait("next")
    assert items.get_nowait() == ("next" if wait == "get" else "item")


def test_a_signal_handler_that_raises_nothing_does_not_end_a_blocking_wait():
    items, calls = wakeloop.Queue(), []

    def handle(*_):
        calls.append(1)
        if len(calls) == 3:
            items.put_nowait("item")

    old = signal.signal(signal.SIGUSR1, handle)

    def send():
        for _ in range(3):
            time.sleep(0.02)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    thread = in_thread(send)
    try:
        assert items.sync_q.get() == "item" and len(calls) == 3
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, old)


def test_a_daemon_thread_that_waits_does_not_hinder_the_end_of_the_process():
    program = """if True:
        import threading, time, wakeloop
        items, event = wakeloop.Queue(), wakeloop.Event()
        for wait in (items.sync_q.get, event.sync_wait, lambda: items.sync_q.get(timeout=0.02)):
            threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.05)
        print("end")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


# -- memory and processes --------------------------------------------------------------------------------------------


def test_the_collector_sees_the_items():
    items = wakeloop.Queue()
    value = Value()
    value.queue, value.side, gone = items, items.sync_q, weakref.ref(value)
    items.put_nowait(value)
    del value, items
    gc.collect()
    assert gone() is None


def test_the_collector_takes_a_task_that_waits_for_a_queue_that_nobody_has(loop):
    messages = []
    loop.set_exception_handler(lambda _, context: messages.append(context["message"]))

    async def wait():
        items = wakeloop.Queue()
        await items.get()

    tasks = [weakref.ref(loop.create_task(wait())) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    gc.collect()
    assert [task() for task in tasks] == [None] * 3
    assert messages == ["Task was destroyed but it is pending!"] * 3


def test_waits_leak_nothing(run):
    async def main():
        items, event = wakeloop.Queue(1), wakeloop.Event()
        value = Value()

        async def once():
            get = asyncio.ensure_future(items.get())
            await asyncio.sleep(0)
            items.put_nowait(value)
            await get
            await items.put(value)
            put = asyncio.ensure_future(items.put(value))
            await asyncio.sleep(0)
            put.cancel()
            await asyncio.gather(put, return_exceptions=True)
            items.get_nowait()
            with pytest.raises(queue.Empty):
                items.sync_q.get(timeout=0.00001)
            wait = asyncio.ensure_future(event.wait())
            await asyncio.sleep(0)
            event.set()
            await wait
            event.clear()
            items.get(), items.put(value), event.wait()

        async def many():
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those at the end of `once` are never awaited
                for _ in range(300):
                    await once()
            gc.collect()
            return sys.getrefcount(value), len(gc.get_objects())

        await many()
        references, objects = await many()
        again, more = await many()
        assert references == again and more - objects < 50

    run(main())


def test_a_forked_child_has_the_items_and_not_the_waiters(run):
    items, event = wakeloop.Queue(), wakeloop.Event()

    async def main():
        waiting = [asyncio.ensure_future(items.get()) for _ in range(2)] + [asyncio.ensure_future(event.wait())]
        await asyncio.sleep(0)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                event.set()
                for number in range(3):
                    items.put_nowait(number)
                assert [items.sync_q.get() for _ in range(3)] == [0, 1, 2]
                thread = in_thread(items.sync_q.put, "from a thread")
                assert items.sync_q.get(timeout=5) == "from a thread"
                thread.join()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not any(task.done() for task in waiting) and not event.is_set()
        event.set()
        items.put_nowait("first")
        items.put_nowait("second")
        assert await asyncio.gather(*waiting) == ["first", "second", True]

    run(main())


def test_calls_are_coroutines_that_can_be_awaited_once(run):
    async def main():
        items = wakeloop.Queue()
        call = items.get()
        assert asyncio.iscoroutine(call) and call.__qualname__ == "Queue.get"
        items.put_nowait(1)
        assert await call == 1
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        call = items.put(2)
        call.close()
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        assert items.empty()

    run(main())


def test_a_wait_outside_of_a_loop_is_an_error():
    call = wakeloop.Queue().get()
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)


# -- Event -----------------------------------------------------------------------------------------------------------


def test_an_event_wakes_all_who_wait_for_it(run):
    async def main():
        event, results = wakeloop.Event(), []
        assert not event.is_set() and repr(event) == "<wakeloop.Event unset>"
        tasks = [asyncio.ensure_future(event.wait()) for _ in range(3)]
        thread = in_thread(lambda: results.append(event.sync_wait()))
        await until(lambda: repr(event) == "<wakeloop.Event unset waiters:4>")
        tasks[0].cancel()
        in_thread(event.set).join()
        # Those who have waited are served, even if it is reset before they run.
        event.clear()
        assert await asyncio.gather(*tasks[1:]) == [True, True]
        await until(lambda: results == [True])
        thread.join()
        assert not event.is_set() and event.sync_wait(0.001) is False and event.sync_wait(-1) is False
        event.set()
        assert event.is_set() and await event.wait() is True and event.sync_wait() is True
        assert repr(event) == "<wakeloop.Event set>" and weakref.ref(event)() is event
        with pytest.raises(TypeError):
            wakeloop.Event(1)
        await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_an_event_is_set_from_another_loop(loop_factory):
    event, other = wakeloop.Event(), wakeloop.Event()

    async def set_later():
        await event.wait()
        other.set()

    def in_loop():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(set_later())

    async def main():
        thread = in_thread(in_loop)
        await asyncio.sleep(0.01)
        event.set()
        assert await other.wait() is True
        thread.join()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_random_sequences_do_what_they_do_with_asyncios_event(run):
    async def scenario(make, seed):
        chance, event, seen, waiting = random.Random(seed), make(), [], []

        async def wait(name):
            try:
                seen.append((name, await event.wait()))
            except asyncio.CancelledError:
                seen.append((name, "cancelled"))

        for number in range(60):
            step = chance.random()
            if step < 0.3:
                waiting.append(asyncio.ensure_future(wait(number)))
            elif step < 0.45:
                event.set()
            elif step < 0.6:
                event.clear()
            elif step < 0.7 and waiting:
                chance.choice(waiting).cancel()
            else:
                await asyncio.sleep(0)
            seen.append(event.is_set())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return seen

    for seed in range(100):
        assert run(scenario(wakeloop.Event, seed)) == run(scenario(asyncio.Event, seed)), f"seed {seed}"
