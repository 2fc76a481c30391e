"""Waits that begin with a spin: when the loop polls again before it goes to sleep, and what of that can be seen."""

import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

import pytest

import wakeloop
from tests.support.builds import needs_gil
from tests.support.script import run_script
from wakeloop import _core

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a spin on the only processor keeps its peer from answering"),
]

#: How often to measure. What counts is the median.
ROUNDS = 11

#: Answers `e` at once and `d` after a while.
PEER = """
import socket, sys, time
peer = socket.socket(fileno=int(sys.argv[1]))
while command := peer.recv(1):
    if command == b"e":
        peer.send(b"x")
    else:
        time.sleep(0.005)
        peer.send(b"x")
"""


@contextlib.contextmanager
def peer_process():
    """A process that answers, and our end of the connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    arguments = [sys.executable, "-c", PEER, str(theirs.fileno())]
    with ours, subprocess.Popen(arguments, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            ours.setblocking(False)
            yield ours
        finally:
            ours.close()
            process.wait(30)


@pytest.fixture
def spins_for_long(monkeypatch):
    """Spins last longer than by default, so that they find what they wait for on a slow machine too."""
    monkeypatch.setenv("WAKELOOP_SPIN", "200")


class Pings:
    """A connection to the peer."""

    def __init__(self, peer):
        self.peer = peer

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(sock=self.peer)
        await self.send(b"e", 50)
        return self

    async def __aexit__(self, *_):
        self.writer.close()
        await self.writer.wait_closed()

    async def send(self, command, times=1):
        for _ in range(times):
            self.writer.write(command)
            await self.reader.readexactly(1)


def spins():
    metrics = asyncio.get_running_loop().metrics()
    return metrics.spins, metrics.spin_hits


@pytest.mark.measured
@pytest.mark.usefixtures("spins_for_long")
def test_waits_for_a_peer_that_answers_at_once_begin_with_a_spin(run):
    async def main():
        async with Pings(peer) as pings:
            hits = []
            for _ in range(ROUNDS):
                _, before = spins()
                await pings.send(b"e", 100)
                hits.append(spins()[1] - before)
            assert statistics.median(hits) > 80, hits

    with peer_process() as peer:
        run(main())


@pytest.mark.usefixtures("spins_for_long")
def test_waits_for_a_slow_peer_do_not(run):
    async def main():
        async with Pings(peer) as pings:
            await pings.send(b"d", 10)
            before, _ = spins()
            await pings.send(b"d", 100)
            assert spins()[0] - before <= 2

    with peer_process() as peer:
        run(main())


@pytest.mark.parametrize("value", ["off", "0"])
def test_the_environment_turns_spins_off(run, monkeypatch, value):
    monkeypatch.setenv("WAKELOOP_SPIN", value)

    async def main():
        async with Pings(peer) as pings:
            await pings.send(b"e", 1000)
            assert spins() == (0, 0)

    with peer_process() as peer:
        run(main())


@pytest.mark.usefixtures("spins_for_long")
def test_a_loop_with_nothing_to_do_is_asleep_also_after_a_burst(run):
    async def main():
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def watch():
            # The burst's last spin may have to end first.
            time.sleep(0.1)
            before = loop.metrics().polls
            time.sleep(0.5)
            polls.append(loop.metrics().polls - before)
            loop.call_soon_threadsafe(ended.set)

        async with Pings(peer) as pings:
            await pings.send(b"e", 1000)
            thread = threading.Thread(target=watch)
            thread.start()
            await ended.wait()
            thread.join()

    polls = []
    with peer_process() as peer:
        run(main())
    assert polls == [0]


def test_a_signal_during_a_spin_is_handled_before_the_loop_sleeps_and_so_is_its_callback(monkeypatch):
    """No descriptor wakes the loop for the signal. A new loop spins in the first waits that it expects to be short, so
    each signal has a new one."""
    monkeypatch.setenv("WAKELOOP_SPIN", "1000")
    outcome = run_script(
        "wakeloop",
        """
        import signal, socket

        async def handle_one():
            loop, called = asyncio.get_running_loop(), asyncio.Event()
            before, polls = None, []

            def handle(*_):
                now = loop.metrics()
                polls.append(now.blocking_polls)
                change = now - before
                in_spins.append((change.spins, change.spin_hits, change.blocking_polls) == (1, 0, 1))
                loop.call_soon(callback)

            def callback():
                polls.append(loop.metrics().blocking_polls)
                called.set()

            signal.signal(signal.SIGALRM, handle)
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=near)
            # What these waits are for is there already.
            for _ in range(20):
                far.send(b"x")
                await reader.readexactly(1)
            before = loop.metrics()
            assert before.spin_hits > 0
            signal.setitimer(signal.ITIMER_REAL, 0.0003)
            # If the loop sleeps before that, this is what ends the sleep.
            loop.call_later(5, int)
            await called.wait()
            assert polls[0] == polls[1], "the loop has slept before the callback"
            writer.close()
            far.close()
            await writer.wait_closed()

        def run(coroutine):
            with asyncio.Runner(loop_factory=new_loop) as runner:
                return runner.run(coroutine)

        in_spins = []
        for _ in range(20):
            run(handle_one())
        print(any(in_spins), in_spins)
        """,
    )
    assert outcome.code == 0 and outcome.out.startswith("True"), outcome


@pytest.mark.measured
@pytest.mark.usefixtures("spins_for_long")
def test_a_twentieth_of_the_time_at_most_is_lost(run):
    async def main():
        async with Pings(peer) as pings:
            start = asyncio.get_running_loop().metrics()
            for times in (1, 2, 9, 3, 17, 4, 26, 5) * 5:
                await pings.send(b"e", times)
                await pings.send(b"d")
            took = asyncio.get_running_loop().metrics() - start
        assert took.spins > took.spin_hits
        return took, took.spin_lost_seconds - took.running_seconds / 20

    with peer_process() as peer:
        took, beyond = run(main())
    # At first a millisecond may be lost. Of the last spin, the system may have taken any part for another process.
    assert beyond < 0.002 or took.spins - took.spin_hits < 3


@needs_gil
@pytest.mark.usefixtures("spins_for_long")
def test_the_loop_does_not_spin_while_another_thread_computes(run):
    async def main():
        over = False

        def compute():
            while not over:
                pass

        async with Pings(peer) as pings:
            thread = threading.Thread(target=compute)
            thread.start()
            try:
                await pings.send(b"e", 20)
                before, _ = spins()
                await pings.send(b"e", 50)
                assert spins()[0] - before <= 5
            finally:
                over = True
                thread.join()

    with peer_process() as peer:
        run(main())


@needs_gil
@pytest.mark.usefixtures("spins_for_long")
def test_the_loop_does_not_spin_while_it_awaits_a_job_whose_thread_will_want_the_gil(run):
    seen = []

    async def main():
        loop, started, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
        near, far = socket.socketpair()
        with far:
            reader, writer = await asyncio.open_connection(sock=near)

            async def wait_for_data():
                """A wait that is short, because its data is there already."""
                far.send(b"x")
                await reader.readexactly(1)

            def work():
                loop.call_soon_threadsafe(started.set)
                release.wait()

            # asyncio's own code takes the first job of a loop.
            await asyncio.to_thread(int)
            job = loop.run_in_executor(None, work)
            try:
                await started.wait()
                for _ in range(100):
                    begin = loop.time()
                    while (now := loop.time()) < begin + 0.006:
                        pass
                    # This wait gives the GIL to other threads. For 50 ms the loop expects that they want it again.
                    await wait_for_data()
                    before, _ = spins()
                    await wait_for_data()
                    if loop.time() < now + 0.05:
                        seen.append(spins()[0] - before)
            finally:
                release.set()
                await job
            writer.close()
            await writer.wait_closed()

    run(main())
    assert set(seen) == {0}


@pytest.mark.usefixtures("spins_for_long")
def test_a_loop_that_python_code_steps_does_not_spin(loop):
    async def main():
        async with Pings(peer) as pings:
            await pings.send(b"e", 200)

    with peer_process() as peer:
        asyncio.events._set_running_loop(loop)
        try:
            task = loop.create_task(main())
            while not task.done():
                loop._run_once()
        finally:
            asyncio.events._set_running_loop(None)
        assert loop.metrics().spins == 0


@pytest.mark.parametrize(("value", "window"), [("20", 20_000), ("off", 0), ("1000", 1_000_000)])
def test_a_setting_is_the_window_of_new_loops(monkeypatch, value, window):
    monkeypatch.setenv("WAKELOOP_SPIN", value)
    wakeloop.new_event_loop().close()
    assert _core._spin_window() == window


#: Sends 4 KiB at a time, as fast as it can.
SENDER = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20_000):
    peer.sendall(bytes(4096))
"""


@pytest.mark.measured
def test_small_chunks_of_a_long_upload_are_not_awaited_with_spins(run):
    """A spin finds each chunk alone, and so doubles the processor time of the same bytes at the same rate."""

    async def upload():
        loop = asyncio.get_running_loop()
        lost = loop.create_future()

        class Receiving(asyncio.Protocol):
            def connection_lost(self, error):
                lost.set_result(error)

        async with await loop.create_server(Receiving, "127.0.0.1", 0) as server:
            before = loop.metrics()
            port = server.sockets[0].getsockname()[1]
            with subprocess.Popen([sys.executable, "-c", SENDER, str(port)]):
                assert await asyncio.wait_for(lost, 60) is None
        after = loop.metrics()
        return (after.spins - before.spins) / (after.io_events - before.io_events)

    async def main():
        return [await upload() for _ in range(ROUNDS)]

    shares = run(main())
    assert statistics.median(shares) < 0.5, shares
