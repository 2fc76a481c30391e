"""A wakeloop.Queue between loops and threads, and the calls that block a thread."""

import asyncio
import queue
import random
import signal
import threading
import time

import pytest

from tests.support.queues import in_thread

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")


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
        # A signal that comes before the handler of the last one has run makes no further call of it.
        while len(calls) < 3 and threading.main_thread().is_alive():
            time.sleep(0.02)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    thread = in_thread(send)
    try:
        assert items.sync_q.get(timeout=20) == "item" and len(calls) >= 3
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, old)
