"""Processes that listen on the same socket share its connections."""

import asyncio
import collections
import contextlib
import fcntl
import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import wakeloop
from tests.support.builds import needs_gil

pytestmark = [pytest.mark.native, pytest.mark.skipif(sys.platform != "linux", reason="needs EPOLLEXCLUSIVE")]

EXCLUSIVE = 1 << 28
#: How often to measure. What counts is the median.
ROUNDS = 7
# A worker that answers each connection with its process id. While it computes, a thread keeps its GIL.
WORKER = """
import asyncio, os, signal, socket, sys, threading
import wakeloop

class Answering(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"%010d" % os.getpid())

computes = threading.Event()

def compute():
    while computes.is_set():
        sum(range(1_000_000))

def start_or_stop():
    if computes.is_set():
        computes.clear()
    else:
        computes.set()
        threading.Thread(target=compute).start()

async def main():
    loop = asyncio.get_running_loop()
    sock = socket.socket(fileno=int(sys.argv[1]))
    server = await loop.create_server(Answering, sock=sock, backlog=1024)
    loop.add_signal_handler(signal.SIGUSR1, lambda: sock.dup().close())
    loop.add_signal_handler(signal.SIGUSR2, start_or_stop)
    print("serves", flush=True)
    await asyncio.get_running_loop().create_future()

wakeloop.run(main())
"""


class Workers:
    """Processes that listen on one socket."""

    def __init__(self, listener, count):
        self.listener, self.processes = listener, []
        for _ in range(count):
            self.start(listener)

    def start(self, listener):
        command = [sys.executable, "-c", WORKER, str(listener.fileno())]
        worker = subprocess.Popen(command, pass_fds=[listener.fileno()], stdout=subprocess.PIPE)
        self.processes.append(worker)
        assert worker.stdout.readline() == b"serves\n"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for worker in self.processes:
            worker.kill()
            worker.wait()
            worker.stdout.close()

    def each(self):
        return [worker.pid for worker in self.processes]

    def stop(self, number):
        """Stops a worker, and waits until it is."""
        pid = self.processes[number].pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


@contextlib.contextmanager
def workers(count, family=socket.AF_INET, address=("127.0.0.1", 0)):
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen(1024)
        with Workers(listener, count) as running:
            yield running


def connected(listener):
    client = socket.socket(listener.family)
    client.settimeout(20)
    client.connect(listener.getsockname())
    return client


def answer(client):
    """The process that has accepted a connection."""
    data = b""
    while len(data) < 10:
        data += client.recv(10 - len(data))
    return int(data)


def served(listener):
    with connected(listener) as client:
        return answer(client)


def served_at_once(listener, count):
    """How many of `count` connections, which all stay open, each process has accepted."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(listener)) for _ in range(count)]
        return collections.Counter(map(answer, clients))


def registrations(pid="self"):
    """The descriptors that a process has in an epoll set, with their events."""
    found = {}
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            for line in entry.read_text().splitlines():
                if line.startswith("tfd:"):
                    found[int(line.split()[1])] = int(line.split("events:")[1].split()[0], 16)
    return found


def alarms(pid="self"):
    """How many timers a process has as descriptors."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.readlink(entry) == "anon_inode:[timerfd]"
    return count


def is_exclusive(pid, listener):
    return bool(registrations(pid)[listener.fileno()] & EXCLUSIVE)


def until_all_share(running):
    """Makes connections until every worker has seen that it is not the only one."""
    eventually(lambda: (served(running.listener), all(is_exclusive(pid, running.listener) for pid in running.each()))[1])


def eventually(condition, seconds=25):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_asleep(pid):
    """Whether the main thread of a process waits for something."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_workers_take_turns_in_accepting_connections(kind, tmp_path):
    family, address = {
        "tcp": (socket.AF_INET, ("127.0.0.1", 0)),
        "unix": (socket.AF_UNIX, str(tmp_path / "socket")),
    }[kind]
    with workers(4, family, address) as running:
        until_all_share(running)
        counts = collections.Counter()
        for _ in range(80):
            # The kernel wakes the worker that has slept longest. One that still runs is not in the queue.
            eventually(lambda: all(map(is_asleep, running.each())))
            counts[served(running.listener)] += 1
        assert all(14 <= counts[pid] <= 26 for pid in running.each()), counts


@pytest.mark.measured
def test_workers_share_connections_that_are_made_at_once():
    def spread():
        with workers(4) as running:
            counts = served_at_once(running.listener, 200)
            assert counts.total() == 200
            return max(abs(counts[pid] - 50) for pid in running.each())

    spreads = [spread() for _ in range(ROUNDS)]
    assert statistics.median(spreads) <= 15, spreads


@pytest.mark.measured
def test_a_worker_with_fewer_connections_gets_its_share_of_those_that_come_at_once():
    def share():
        with workers(2) as running, contextlib.ExitStack() as stack:
            running.stop(1)
            held = [stack.enter_context(connected(running.listener)) for _ in range(60)]
            assert {answer(client) for client in held} == {running.each()[0]}
            os.kill(running.each()[1], signal.SIGCONT)
            time.sleep(1)
            return served_at_once(running.listener, 60)[running.each()[1]]

    shares = [share() for _ in range(ROUNDS)]
    assert statistics.median(shares) >= 25, shares


def test_the_others_take_over_from_a_stopped_worker():
    with workers(3) as running:
        for _ in range(6):
            served(running.listener)
        running.stop(0)
        counts = collections.Counter(served(running.listener) for _ in range(20))
        assert running.each()[0] not in counts and counts.total() == 20
        # Connections that come at once do not wait for the stopped one either, although it has fewer.
        counts = served_at_once(running.listener, 200)
        assert running.each()[0] not in counts and counts.total() == 200


def test_a_single_worker_that_runs_accepts_what_comes_at_once():
    with workers(3) as running:
        for _ in range(6):
            served(running.listener)
        running.stop(0)
        running.stop(1)
        assert served_at_once(running.listener, 300) == {running.each()[2]: 300}


def test_the_others_take_over_from_a_worker_that_is_killed():
    with workers(3) as running:
        for _ in range(6):
            served(running.listener)
        running.processes[0].kill()
        counts = collections.Counter(served(running.listener) for _ in range(20))
        assert counts.total() == 20


def test_a_connection_is_not_lost_if_the_process_that_was_woken_for_it_does_not_accept():
    """The test is that process: it waits in the same queue as the workers, and never accepts."""
    with workers(2) as running, select.epoll() as queue:
        listener = running.listener
        until_all_share(running)
        queue.register(listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        for _ in range(3):
            woken = threading.Event()
            thread = threading.Thread(target=lambda woken=woken: queue.poll(20) and woken.set())
            thread.start()
            time.sleep(0.2)
            # The workers go behind the test, one after the other.
            while not woken.wait(0.05):
                served(listener)
            thread.join()
            time.sleep(1)
        assert served(listener) in running.each()


def test_a_worker_that_has_become_the_only_one_no_longer_shares():
    with workers(2) as running:
        listener, (first, second) = running.listener, running.each()
        until_all_share(running)
        assert alarms(first) == alarms(second) == 2
        running.processes[1].kill()
        running.processes[1].wait()
        eventually(lambda: not is_exclusive(first, listener))
        eventually(lambda: alarms(first) == 1)
        assert served(listener) == first
        # A new one makes it share again.
        running.start(listener)
        eventually(lambda: (served(listener), is_exclusive(first, listener))[1])


def test_processes_with_a_socket_of_their_own_do_not_share():
    def bound(port):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen()
        return sock

    with bound(0) as first, bound(first.getsockname()[1]) as second, Workers(first, 1) as running:
        running.start(second)
        for _ in range(20):
            served(first)
        for pid, listener in zip(running.each(), (first, second)):
            assert not is_exclusive(pid, listener) and alarms(pid) == 1


def test_a_listener_of_one_process_accepts_its_backlog_in_few_turns():
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, backlog=1024)
        before, turns = loop.metrics(), 0
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connected(server.sockets[0]))
            while loop.metrics().connections_accepted - before.connections_accepted < 200:
                await asyncio.sleep(0)
                turns += 1
        assert turns <= 12
        assert not registrations()[server.sockets[0].fileno()] & EXCLUSIVE
        server.close()

    wakeloop.run(main())


async def until_shared(sock):
    while not registrations()[sock.fileno()] & EXCLUSIVE:
        with connected(sock):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("delay", [None, 0, 0.0002, 0.001, 0.003])
def test_a_server_that_is_closed_while_it_shares_leaves_nothing_behind(delay):
    """With a delay, it has just been asked to give way to a process with fewer connections."""

    async def main(running):
        loop, closed, accepted = asyncio.get_running_loop(), loop_future(), []
        before, timers = registrations(), alarms()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport):
                accepted.append(transport)
                if len(accepted) == 30:
                    loop.call_later(delay, lambda: (server.close(), closed.set_result(None)))

        # A duplicate, so that the socket of the workers stays open.
        server = await loop.create_server(Accepting, sock=running.listener.dup(), backlog=1024)
        await until_shared(server.sockets[0])
        assert alarms() == timers + 1
        accepted.clear()
        with contextlib.ExitStack() as stack:
            if delay is None:
                server.close()
            else:
                for _ in range(100):
                    stack.enter_context(connected(running.listener))
                await closed
            assert alarms() == timers
            for transport in accepted:
                transport.abort()
            await asyncio.sleep(0)
            assert registrations() == before
        # The worker can go on.
        os.kill(running.each()[0], signal.SIGCONT)
        assert await asyncio.to_thread(served, running.listener) == running.each()[0]

    def loop_future():
        return asyncio.get_running_loop().create_future()

    with workers(1) as running:
        served(running.listener)
        running.stop(0)
        wakeloop.run(main(running))


@needs_gil
def test_a_connection_wakes_others_too_while_a_thread_of_a_worker_keeps_the_gil():
    """The worker is woken then, and cannot accept: the others must not sleep meanwhile."""

    with workers(2) as running:
        listener, (first, second) = running.listener, running.each()

        def is_exclusive_now(pid):
            with connected(listener):
                return is_exclusive(pid, listener)

        until_all_share(running)
        os.kill(first, signal.SIGUSR2)
        eventually(lambda: not is_exclusive_now(first))
        assert is_exclusive(second, listener)
        os.kill(first, signal.SIGUSR2)
        eventually(lambda: is_exclusive_now(first))


def test_a_socket_that_the_program_closes_itself_leaves_no_alarm():
    async def main(running):
        loop, timers = asyncio.get_running_loop(), alarms()
        sock = running.listener.dup()
        server = await loop.create_server(asyncio.Protocol, sock=sock)
        await until_shared(sock)
        sock.close()
        while alarms() > timers:
            await asyncio.sleep(0.05)
        del server

    with workers(1) as running:
        served(running.listener)
        running.stop(0)
        wakeloop.run(main(running))


def test_a_worker_that_closes_a_duplicate_of_the_socket_is_seen_again():
    """The kernel then drops the lock by which other processes see the worker."""

    def is_seen(sock):
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return struct.unpack("hhqqi4x", fcntl.fcntl(sock, fcntl.F_GETLK, request))[0] != fcntl.F_UNLCK

    with workers(2) as running:
        listener, (first, second) = running.listener, running.each()
        for _ in range(4):
            served(listener)
        os.kill(second, signal.SIGKILL)
        running.processes[1].wait()
        assert is_seen(listener)
        eventually(lambda: not is_exclusive(first, listener))
        os.kill(first, signal.SIGUSR1)
        eventually(lambda: not is_seen(listener))
        eventually(lambda: served(listener) == first and is_seen(listener))


def test_sockets_in_a_wrapper_are_accepted_from_as_plain_ones_are():
    """gunicorn passes such objects."""

    class Wrapper:
        def __init__(self, sock):
            self.sock = sock

        def __getattr__(self, name):
            return getattr(self.sock, name)

    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as sock:
            server = await loop.create_server(asyncio.Protocol, sock=Wrapper(sock))
            assert loop.metrics().transports["listener"] == 1
            with connected(sock):
                while not loop.metrics().connections_accepted:
                    await asyncio.sleep(0.01)
            server.close()
            assert loop.metrics().transports["listener"] == 0

    wakeloop.run(main())


def test_readers_and_awaitable_calls_on_a_shared_socket_are_registered_as_before():
    async def main(running):
        loop, sock = asyncio.get_running_loop(), running.listener
        sock.setblocking(False)
        called = loop.create_future()
        loop.add_reader(sock, called.set_result, None)
        assert not registrations()[sock.fileno()] & EXCLUSIVE
        loop.remove_reader(sock)
        running.stop(0)
        accepting = asyncio.ensure_future(loop.sock_accept(sock))
        await asyncio.sleep(0)
        with connected(sock):
            (await accepting)[0].close()
        assert not registrations()[sock.fileno()] & EXCLUSIVE

    with workers(1) as running:
        wakeloop.run(main(running))
