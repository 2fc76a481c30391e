"""A loop embedded in another main loop, of a GUI toolkit for example. That one waits for the selector's descriptor,
and runs an iteration when it is readable or when a timer is due.
"""

import asyncio
import contextlib
import heapq
import select
import socket
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems' selectors need not have descriptors")

#: The limit for every wait, in seconds.
LIMIT = 5


@contextlib.contextmanager
def running(loop):
    asyncio.events._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(None)


def stop_and_run(loop):
    loop.stop()
    loop.run_forever()


def run_once(loop):
    with running(loop):
        loop._run_once()


def select_and_run(loop):
    """Does what _run_once does, in the other main loop."""
    with running(loop):
        loop._process_events(loop._selector.select(0))
        while loop._scheduled and loop._scheduled[0].when() <= loop.time():
            handle = heapq.heappop(loop._scheduled)
            handle._scheduled = False
            loop._ready.append(handle)
        for _ in range(len(loop._ready)):
            handle = loop._ready.popleft()
            if not handle.cancelled():
                handle._run()


@pytest.fixture(params=[stop_and_run, run_once, select_and_run])
def turn(request):
    return request.param


def is_readable(descriptor, timeout=0):
    return bool(select.select([descriptor], [], [], timeout)[0])


def turned(loop, turn, main):
    """Returns the result of `main`, on a loop that runs an iteration only when there is a reason."""
    descriptor, task = loop._selector.fileno(), loop.create_task(main)
    while not task.done():
        timeout = LIMIT
        if loop._ready:
            timeout = 0
        elif loop._scheduled:
            timeout = min(max(0, min(handle.when() for handle in loop._scheduled) - loop.time()), LIMIT)
        came = is_readable(descriptor, timeout)
        assert came or timeout < LIMIT, f"nothing makes the descriptor readable: {task!r}"
        turn(loop)
    return task.result()


async def echo(reader, writer):
    while data := await reader.read(1000):
        await asyncio.sleep(0)
        writer.write(data.upper())
    writer.close()


def test_sockets_timers_and_processes_work_in_a_foreign_main_loop(loop, turn):
    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(3):
            writer.write(b"hello")
            assert await reader.read(1000) == b"HELLO"
            await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        server.close()
        process = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
        assert await process.communicate() == (b"child\n", None)
        return "done"

    assert turned(loop, turn, main()) == "done"


def test_call_soon_threadsafe_works_in_a_foreign_main_loop(loop, turn):
    async def main():
        for _ in range(3):
            assert await loop.run_in_executor(None, lambda: time.sleep(0.005) or "job") == "job"
            signalled = loop.create_future()
            thread = threading.Timer(0.005, loop.call_soon_threadsafe, (signalled.set_result, None))
            thread.start()
            await signalled
            thread.join()
        await loop.shutdown_default_executor()
        return "done"

    assert turned(loop, turn, main()) == "done"


@pytest.mark.native
def test_primitives_work_in_a_foreign_main_loop(loop, turn, runtime):
    import wakeloop

    async def main():
        for _ in range(3):
            await wakeloop.sleep(0.005)
            assert await wakeloop.spawn_blocking(lambda: time.sleep(0.005) or "job") == "job"
        return "done"

    assert turned(loop, turn, main()) == "done"


def test_large_transfers_complete_in_a_foreign_main_loop(loop, turn):
    """More data than one iteration reads: the rest must make the descriptor readable again."""
    size = 8 << 20

    class Counting(asyncio.Protocol):
        def __init__(self):
            self.count, self.ended = 0, loop.create_future()

        def data_received(self, data):
            self.count += len(data)

        def connection_lost(self, exc):
            self.ended.set_result(self.count)

    async def main():
        counting = Counting()
        server = await loop.create_server(lambda: counting, "127.0.0.1", 0)
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        transport.write(bytes(size))
        transport.close()
        count = await counting.ended
        server.close()
        return count

    assert turned(loop, turn, main()) == size


def test_data_that_one_iteration_leaves_makes_the_descriptor_readable(loop, turn):
    """The peer has sent all of it before, so that the poller reports nothing more."""
    ours, peer = socket.socketpair()
    with ours, peer:
        for sock, option in (peer, socket.SO_SNDBUF), (ours, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
            sock.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += peer.send(bytes(64 << 10))

        class Counting(asyncio.Protocol):
            def __init__(self):
                self.count, self.done = 0, loop.create_future()

            def data_received(self, data):
                self.count += len(data)
                if self.count == sent:
                    self.done.set_result(None)

        async def main():
            transport, counting = await loop.create_connection(Counting, sock=ours)
            await counting.done
            transport.abort()
            await asyncio.sleep(0)

        turned(loop, turn, main())


def test_the_descriptor_is_readable_for_as_long_as_there_is_something_to_do(loop, turn):
    descriptor, seen = loop._selector.fileno(), []
    assert not is_readable(descriptor)
    for number in range(3):
        threads = [threading.Thread(target=loop.call_soon_threadsafe, args=(seen.append, number)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_readable(descriptor)
        for _ in range(3):
            if is_readable(descriptor):
                turn(loop)
        assert seen == [number] * 5 and not is_readable(descriptor, 0.01)
        seen.clear()
    loop.run_until_complete(asyncio.sleep(0.001))
    assert loop.run_until_complete(asyncio.wait_for(loop.run_in_executor(None, lambda: "job"), LIMIT)) == "job"
    loop.run_until_complete(loop.shutdown_default_executor())


@pytest.mark.native
def test_what_another_thread_sends_during_an_iteration_makes_the_descriptor_readable(loop, turn):
    import wakeloop

    descriptor, event = loop._selector.fileno(), wakeloop.Event()
    task = loop.create_task(event.wait())
    turn(loop)

    def set_by_another_thread():
        thread = threading.Thread(target=event.set)
        thread.start()
        thread.join()

    loop.call_soon(set_by_another_thread)
    turn(loop)
    while not task.done():
        assert loop._ready or is_readable(descriptor), "the task is not woken"
        turn(loop)
    assert task.result() is True


def test_a_loop_with_an_exposed_descriptor_still_wakes_from_its_own_poll(loop):
    descriptor = loop._selector.fileno()
    assert loop._selector.fileno() == descriptor
    thread = threading.Timer(0.02, loop.call_soon_threadsafe, (loop.stop,))
    thread.start()
    loop.run_forever()
    thread.join()


def test_a_closed_loops_selector_has_no_descriptor(loop_factory):
    loop = loop_factory()
    selector = loop._selector
    selector.fileno()
    loop.close()
    with pytest.raises(ValueError, match="I/O operation on closed epoll object"):
        selector.fileno()
