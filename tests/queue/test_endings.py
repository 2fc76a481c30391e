"""What the end of a loop, of a task or of a process does to the waits for a wakeloop.Queue."""

import asyncio
import gc
import os
import subprocess
import sys
import time

import pytest

from tests.support.queues import in_thread

wakeloop = pytest.importorskip("wakeloop", reason="the queue is wakeloop's; the control group has none")


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


def test_a_daemon_thread_that_waits_does_not_hinder_the_end_of_the_process():
    program = """if True:
        import threading, wakeloop
        items, event = wakeloop.Queue(), wakeloop.Event()
        for wait in (items.sync_q.get, event.sync_wait, lambda: items.sync_q.get(timeout=3600)):
            threading.Thread(target=wait, daemon=True).start()
        print("end")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


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
