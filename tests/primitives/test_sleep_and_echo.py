"""Primitives that Python awaits and the Rust runtime runs: sleep and the echo server."""

import asyncio
import gc
import math
import os
import random
import socket
import statistics
import threading
import time
import weakref

import pytest

from tests.support import script

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


async def main_sleeps(seconds, *result):
    return await wakeloop.sleep(seconds, *result)


def test_sleep_returns_its_result(run):
    assert run(main_sleeps(0.001)) is None
    assert run(main_sleeps(0.001, "result")) == "result"
    assert run(main_sleeps(0, "at once")) == "at once"
    assert run(main_sleeps(-1, "past")) == "past"


@pytest.mark.parametrize("delay", [0, 0.0, -1])
def test_a_sleep_of_zero_lets_other_tasks_run(run, delay):
    async def main():
        turns = []

        async def take(name, sleep):
            for _ in range(100):
                turns.append(name)
                await sleep()

        await asyncio.gather(take("ours", lambda: wakeloop.sleep(delay)), take("asyncio's", lambda: asyncio.sleep(0)))
        assert turns == ["ours", "asyncio's"] * 100
        assert await wakeloop.sleep(delay, "result") == "result"
        call = wakeloop.sleep(delay)
        await call
        with pytest.raises(RuntimeError, match="already awaited"):
            await call
        task = asyncio.ensure_future(wakeloop.sleep(delay))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_awaits_that_are_always_ready_still_let_other_tasks_run(run):
    """There is always data and room. Timers, signals and other tasks still run."""

    async def turns(work):
        count, done = 0, False

        async def others():
            nonlocal count
            while not done:
                count += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        count = 0
        await work
        done = True
        await task
        return count

    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        udp = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        stream = await wakeloop.TcpStream.connect("127.0.0.1", listener.port)
        other = await listener.accept()
        data = b"x" * 99 + b"\n"

        async def lines():
            count = 0
            async for _ in stream:
                count += 1
                if count == 5000:
                    break

        async def reads():
            for _ in range(5000):
                await stream.readexactly(100)

        async def writes():
            for _ in range(10_000):
                await other.write_all(data)

        async def datagrams():
            for _ in range(200):
                await udp.send_to(b"", ("127.0.0.1", udp.port))

        async def entered():
            for _ in range(500):
                await udp.__aenter__()

        for work, least in [(writes(), 10), (lines(), 5), (reads(), 5), (datagrams(), 2), (entered(), 5)]:
            assert await turns(work) >= least
        for end in (stream, other, udp, listener):
            end.close()

    run(main())


async def lateness_of_sleeps(count):
    late = []
    for _ in range(count):
        seconds = random.uniform(0, 0.004)
        start = time.monotonic()
        await wakeloop.sleep(seconds)
        late.append(time.monotonic() - start - seconds)
    return late


def test_sleep_never_returns_early(run):
    assert min(run(lateness_of_sleeps(101))) >= 0


@pytest.mark.measured
def test_sleep_returns_hardly_late(run):
    assert statistics.median(run(lateness_of_sleeps(1001))) < 0.002


def test_ten_thousand_sleeps_at_once_all_wake_and_none_early(run):
    async def main():
        start, late = time.monotonic(), []

        async def sleeper(seconds):
            deadline = time.monotonic() + seconds
            await wakeloop.sleep(seconds)
            late.append(time.monotonic() - deadline)

        await asyncio.gather(*(sleeper(0.05 + number % 100 / 1000) for number in range(10_000)))
        assert len(late) == 10_000 and min(late) >= 0 and time.monotonic() - start < 5

    run(main())


def test_a_cancelled_sleep_raises_and_releases_its_result(run):
    async def main():
        async def sleeper():
            await wakeloop.sleep(60)

        for delay in (0, 0.001):
            tasks = [asyncio.create_task(sleeper()) for _ in range(1000)]
            await asyncio.sleep(delay)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.CancelledError}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await wakeloop.sleep(60)

    run(main())


def test_cancellation_that_races_with_the_wake_up_loses_neither(run):
    async def main():
        async def sleeper(seconds):
            await wakeloop.sleep(seconds)
            return "slept"

        outcomes = []
        for _ in range(500):
            task = asyncio.create_task(sleeper(0.001))
            await asyncio.sleep(random.uniform(0, 0.002))
            task.cancel()
            try:
                outcomes.append(await task)
            except asyncio.CancelledError:
                outcomes.append("cancelled")
        assert set(outcomes) <= {"slept", "cancelled"} and len(outcomes) == 500

    run(main())


def test_an_operation_that_is_never_awaited_does_nothing_and_warns(run):
    async def main():
        ran = []
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        async with await wakeloop.TcpStream.connect("127.0.0.1", server.port) as stream:
            calls = {
                "sleep": lambda: wakeloop.sleep(60),
                "spawn_blocking": lambda: wakeloop.spawn_blocking(ran.append, 1),
                "EchoServer.wait_closed": server.wait_closed,
                "TcpStream.wait_closed": stream.wait_closed,
                "TcpStream.connect": lambda: wakeloop.TcpStream.connect("127.0.0.1", server.port),
                "TcpStream.write_all": lambda: stream.write_all(b"not sent"),
                "TcpStream.readline": stream.readline,
                "UdpSocket.bind": lambda: wakeloop.UdpSocket.bind("127.0.0.1", 0),
            }
            for name, call in calls.items():
                with pytest.warns(RuntimeWarning, match=f"^coroutine '{name}' was never awaited$"):
                    call()
                closed = call()
                assert (closed.__qualname__, closed.__name__) == (name, name.rpartition(".")[2])
                closed.close()
                cancelled = asyncio.ensure_future(call())
                assert f"coro=<{name}()" in repr(cancelled)
                cancelled.cancel()
            await stream.write_all(b"sent")
            assert await stream.read(100) == b"sent" and not ran
        server.close()
        await server.wait_closed()

    run(main())


def test_a_sleep_that_is_dropped_halfway_is_harmless(run):
    async def main():
        task = asyncio.create_task(main_sleeps(60))
        await asyncio.sleep(0)
        task.cancel()
        reference = weakref.ref(task)
        del task
        await asyncio.sleep(0)
        gc.collect()
        assert reference() is None

    run(main())


@pytest.mark.parametrize("bad", [None, "1", object(), math.nan])
def test_an_invalid_duration_is_refused(run, bad):
    async def main():
        with pytest.raises((TypeError, ValueError)):
            await wakeloop.sleep(bad)
        await wakeloop.sleep(0)

    run(main())


@pytest.mark.parametrize("huge", [1e300, math.inf, 2.0**63])
def test_a_huge_duration_waits_until_it_is_cancelled(run, huge):
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await wakeloop.sleep(huge)

    run(main())


def test_a_loop_can_be_closed_while_sleeps_are_pending(loop):
    tasks = [loop.create_task(main_sleeps(20)) for _ in range(100)]
    loop.run_until_complete(asyncio.sleep(0))
    for task in tasks:
        task.cancel()
    results = loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    assert {type(result) for result in results} == {asyncio.CancelledError}
    pending = loop.create_task(main_sleeps(0.005))
    loop.run_until_complete(asyncio.sleep(0))
    pending.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    time.sleep(0.02)


def test_loops_in_several_threads_sleep_at_once(loop_factory):
    done = []

    def work():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(sleeps())
        done.append(1)

    async def sleeps():
        await asyncio.gather(*(wakeloop.sleep(random.uniform(0, 0.05)) for _ in range(500)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4


def exchange(port, message, times=1):
    """A blocking client: it needs no event loop to talk to a server of the runtime."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        for _ in range(times):
            sock.sendall(message)
            received = bytearray()
            while len(received) < len(message):
                data = sock.recv(65536)
                assert data
                received += data
            assert received == message


def test_the_echo_server_sends_every_byte_back(run):
    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        assert server.host == "127.0.0.1" and 0 < server.port < 65536
        reader, writer = await asyncio.open_connection(server.host, server.port)
        for size in (1, 1000, 65_537, 1_000_000):
            message = os.urandom(size)
            writer.write(message)
            assert await reader.readexactly(size) == message
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)

    run(main())


def test_the_echo_server_serves_hundreds_at_once(run):
    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)

        async def client(number):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            for turn in range(10):
                message = b"%d:%d\n" % (number, turn)
                writer.write(message)
                assert await reader.readline() == message
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(client(number) for number in range(300)))
        server.close()
        await server.wait_closed()

    run(main())


def test_the_echo_server_answers_while_the_loop_and_the_gil_are_blocked(run):
    """The server answers although its loop is blocked in Python code."""

    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        exchange(server.port, os.urandom(10_000), times=50)  # the loop does not run during this
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.measured
def test_a_thread_that_holds_the_gil_does_not_slow_the_echo_server(run):
    """The client is another process. In this one, a thread computes without a pause."""
    import subprocess
    import sys

    client = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(10):
    sock.sendall(b"warm"); sock.recv(4)
times = []
for _ in range(1001):
    start = time.perf_counter(); sock.sendall(b"ping"); assert sock.recv(4) == b"ping"
    times.append(time.perf_counter() - start)
print(sorted(times)[500])
"""

    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        stop = threading.Event()

        def burn():
            while not stop.is_set():
                sum(range(1000))

        burner = threading.Thread(target=burn)
        burner.start()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", client, str(server.port), stdout=subprocess.PIPE
            )
            out, _ = await process.communicate()
        finally:
            stop.set()
            burner.join()
        server.close()
        await server.wait_closed()
        assert process.returncode == 0
        assert float(out) < 0.004, "a round trip that waits for the interpreter takes its switch interval, 5 ms"

    run(main())


def test_closing_the_echo_server_ends_its_connections(run):
    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        streams = [await asyncio.open_connection(server.host, server.port) for _ in range(10)]
        for reader, writer in streams:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        async with asyncio.timeout(5):
            server.close()
            await server.wait_closed()
            for reader, writer in streams:
                try:
                    assert await reader.read() == b""
                except ConnectionError:
                    pass
                writer.close()
        server.close()
        await server.wait_closed()

    run(main())


def test_an_address_that_cannot_be_bound_is_pythons_os_error(run):
    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        with pytest.raises(OSError) as caught:
            await wakeloop.start_echo_server("127.0.0.1", server.port)
        assert caught.value.errno is not None
        server.close()
        await server.wait_closed()
        with pytest.raises(OSError):
            await wakeloop.start_echo_server("192.0.2.1", 0)
        with pytest.raises(OverflowError, match=r"^bind\(\): port must be 0-65535\.$"):
            wakeloop.start_echo_server("127.0.0.1", 70_000)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, -1, -(10**30)])
def test_fewer_workers_than_one_are_a_value_error(workers):
    with pytest.raises(ValueError, match="^workers must be at least 1$"):
        wakeloop.configure(workers=workers)


def test_an_echo_server_that_a_forked_child_closes_serves_on(loop_name):
    done = script.run_script(
        loop_name,
        """
        import os, wakeloop
        async def main():
            server = await wakeloop.start_echo_server("127.0.0.1", 0)
            if not (child := os.fork()):
                asyncio.events._set_running_loop(None)
                async def in_child():
                    async with asyncio.timeout(5):
                        server.close()
                        await server.wait_closed()
                    print("child:", server.is_serving(), flush=True)
                new_loop().run_until_complete(in_child())
                os._exit(0)
            print(os.waitpid(child, 0)[1])
            async with wakeloop.TcpStream.connect("127.0.0.1", server.port) as stream:
                await stream.write_all(b"still there\\n")
                print(await stream.readline(), server.is_serving(), flush=True)
            async with server:
                pass
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        options=("-W", "ignore::DeprecationWarning"),
    )
    assert (done.code, done.out, done.err) == (0, "child: False\n0\nb'still there\\n' True\n", "")


def test_the_stats_of_the_echo_server_count(run):
    async def main():
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        assert server.stats() == {"accepted": 0, "open": 0, "reads": 0, "bytes": 0, "errors": 0}
        for _ in range(3):
            exchange(server.port, b"x" * 1000, times=10)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"y")
        await reader.readexactly(1)
        async with asyncio.timeout(5):
            while server.stats()["open"] != 1:
                await asyncio.sleep(0.001)
        stats = server.stats()
        assert (stats["accepted"], stats["bytes"], stats["errors"]) == (4, 30_001, 0) and stats["reads"] >= 31
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert server.stats()["open"] == 0

    run(main())


def test_a_panic_is_an_exception():
    assert issubclass(wakeloop.RuntimePanic, Exception)


def test_an_echo_server_that_is_closed_no_longer_listens(run):
    """Closing waits for the listening socket too: the port is free at once."""

    async def main():
        for _ in range(100):
            server = await wakeloop.start_echo_server("127.0.0.1", 0)
            server.close()
            await server.wait_closed()
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", server.port))
                sock.listen()

    run(main())
