"""loop.metrics(): counters of the loop, which grow with what it does."""

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

pytestmark = pytest.mark.native

#: Clients of an echo server, in a process of their own. Each sends 64 bytes and waits for them, for 0.3 s.
CLIENTS = """
import select, socket, sys, time

sockets = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
poll = select.poll()
by_fd = {each.fileno(): each for each in sockets}
for each in sockets:
    poll.register(each, select.POLLIN)
    each.sendall(bytes(64))
end = time.monotonic() + 0.3
while time.monotonic() < end:
    for fd, _ in poll.poll(1000):
        assert by_fd[fd].recv(64) == bytes(64)
        by_fd[fd].sendall(bytes(64))
"""


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


def test_two_loops_have_separate_metrics(loop, loop_factory):
    other = loop_factory()
    before = as_dict(other.metrics())
    loop.run_until_complete(asyncio.sleep(0.01))
    assert as_dict(other.metrics()) == before
    other.close()


def test_a_thread_that_computes_does_not_get_the_gil_after_every_batch_of_events(loop_factory):
    """The loop waits briefly for clients that answer at once, before it releases the GIL for a whole switch interval.

    Each poll reports at most one event per connection. So if all polls released the GIL, there would be no more
    events than that for each of them.
    """
    connections, done = 10, threading.Event()

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    def burn():
        while not done.is_set():
            pass

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        burning = threading.Thread(target=burn)
        burning.start()
        try:
            for _ in range(20):
                before = loop.metrics()
                command = [sys.executable, "-c", CLIENTS, str(port), str(connections)]
                await loop.run_in_executor(None, partial(subprocess.run, command, check=True, timeout=30))
                events, sleeps = (loop.metrics()[name] - before[name] for name in ("io_events", "blocking_polls"))
                if events > 3 * connections * sleeps:
                    return
            pytest.fail(f"{events} events in {sleeps} polls without the GIL")
        finally:
            done.set()
            burning.join()
            server.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
