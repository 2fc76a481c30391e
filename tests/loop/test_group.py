"""wakeloop.EventLoopGroup: several loops in one process, and servers on all of them."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the group is wakeloop's; the control group has none")

MODES = pytest.mark.parametrize("reuse_port", [True, False], ids=["a socket each", "one for all"])


@pytest.fixture
def group(loop_factory):
    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        yield group


async def thread_and_loop():
    return threading.current_thread().name, asyncio.get_running_loop()


async def thread_ident():
    return threading.get_ident()


async def echo(reader, writer):
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    finally:
        writer.close()


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def connect(server):
    return await asyncio.open_connection(*server.addresses[0][:2])


async def ask(connection, line):
    reader, writer = connection
    writer.write(line)
    return await reader.readline()


async def disconnect(connection):
    connection[1].close()
    await connection[1].wait_closed()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


# -- loops -----------------------------------------------------------------------------------------------------------


def test_each_loop_runs_in_a_thread_of_its_own_and_the_first_in_the_callers(group):
    async def main():
        results = await group.run_on_each(thread_and_loop)
        assert [name for name, _ in results] == [threading.current_thread().name, "wakeloop-1", "wakeloop-2"]
        assert tuple(loop for _, loop in results) == group.loops
        return "result"

    assert group.run(main()) == "result"
    assert group.run(main()) == "result"


def test_a_group_of_one_has_no_thread(loop_factory):
    with wakeloop.EventLoopGroup(1, loop_factory=loop_factory) as group:
        before = threading.active_count()
        assert len(group.loops) == 1 and threading.active_count() == before
        assert group.run(group.run_on_each(thread_and_loop)) == [(threading.current_thread().name, group.loops[0])]


def test_the_size_is_that_of_the_processors():
    with wakeloop.EventLoopGroup() as group:
        assert len(group.loops) == len(os.sched_getaffinity(0))
    for size in (0, -1):
        with pytest.raises(ValueError, match="size must be at least 1"):
            wakeloop.EventLoopGroup(size)


def test_run_on_passes_on_results_exceptions_and_cancellation(group):
    async def fail():
        raise LookupError("from there")

    async def hang(events):
        try:
            events.append("begun")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            events.append("cancelled")
            raise

    async def back(number):
        return await group.run_on(group.loops[0], thread_and_loop), number

    async def main():
        first, second, _ = group.loops
        assert (await group.run_on(second, back, 5)) == ((threading.main_thread().name, first), 5)
        with pytest.raises(LookupError, match="from there"):
            await group.run_on(second, fail)
        events = []
        task = asyncio.ensure_future(group.run_on(second, hang, events))
        await until(lambda: events)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert events == ["begun", "cancelled"], "the end of the task was waited for"

    group.run(main())


def test_run_on_refuses_a_loop_of_somebody_else(group, loop_factory):
    other = loop_factory()

    async def main():
        for loop in (other, None):
            with pytest.raises(ValueError, match="is not a loop of this group"):
                await group.run_on(loop, thread_ident)

    group.run(main())
    other.close()


def test_run_on_passes_on_what_a_task_factory_raises(group):
    def refuse(loop, coroutine, **options):
        raise ZeroDivisionError

    async def main():
        loop = group.loops[1]
        loop.call_soon_threadsafe(loop.set_task_factory, refuse)
        with pytest.raises(ZeroDivisionError):
            await group.run_on(loop, thread_ident)
        loop.call_soon_threadsafe(loop.set_task_factory, None)
        assert await group.run_on(loop, thread_ident) == group._members[0].thread.ident

    group.run(main())


def test_run_on_ends_with_a_loop_that_does_not_run_the_function_any_more(loop_factory, asyncio_log):
    """The last thing that a loop runs as it ends is the end of its asynchronous generators and of its executor."""
    begun, goes_on = threading.Event(), threading.Event()
    outcomes = []

    async def last():
        try:
            yield
        finally:
            begun.set()
            goes_on.wait()

    async def begin(generators):
        generators.append(last())
        await anext(generators[0])

    async def at_the_end():
        try:
            await asyncio.sleep(60)
        finally:
            while not begun.is_set():
                await asyncio.sleep(0.001)
            calling = asyncio.ensure_future(group.run_on(loops[1], asyncio.sleep, 60))
            cancelled = asyncio.ensure_future(group.run_on(loops[1], asyncio.sleep, 60))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.sleep(0)
            goes_on.set()
            outcomes.extend(await asyncio.gather(calling, cancelled, return_exceptions=True))

    async def main():
        generators = []
        await group.run_on(group.loops[1], begin, generators)
        ending = asyncio.ensure_future(group.run_on(group.loops[2], at_the_end))
        await asyncio.sleep(0)
        return generators, ending

    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        loops = group.loops
        kept = group.run(main())
    del kept
    assert [type(outcome) for outcome in outcomes] == [RuntimeError, asyncio.CancelledError]
    assert str(outcomes[0]) == "Event loop is closed"
    # The tasks that the loop has left: asyncio logs them.
    outcomes.clear()
    gc.collect()


def test_one_failure_of_run_on_each_cancels_the_others(group):
    cancelled = []

    async def fail_on_the_second():
        if asyncio.get_running_loop() is group.loops[1]:
            await asyncio.sleep(0.01)
            raise LookupError
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop())
            raise

    with pytest.raises(ExceptionGroup) as raised:
        group.run(group.run_on_each(fail_on_the_second))
    assert [type(error) for error in raised.value.exceptions] == [LookupError]
    assert set(cancelled) == {group.loops[0], group.loops[2]}


def test_the_end_cancels_the_tasks_of_all_loops_and_waits_for_them(loop_factory):
    ended = []

    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(asyncio.get_running_loop())

    async def begin():
        tasks.append(asyncio.ensure_future(background()))
        await asyncio.sleep(0)

    tasks = []
    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        group.run(group.run_on_each(begin))
        loops = group.loops
    assert set(ended) == set(loops) and all(loop.is_closed() for loop in loops)
    group.close()
    with pytest.raises(RuntimeError, match="closed"):
        group.run(thread_and_loop())


def test_what_ends_on_another_loop_may_use_the_first_one(loop_factory):
    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(await group.run_on(first, thread_and_loop))

    async def begin():
        tasks.append(asyncio.ensure_future(background()))
        await asyncio.sleep(0)

    tasks, ended = [], []
    with wakeloop.EventLoopGroup(2, loop_factory=loop_factory) as group:
        first, other = group.loops
        group.run(group.run_on(other, begin))
    assert ended == [(threading.current_thread().name, first)]


def test_a_group_cannot_be_closed_from_its_loops(group):
    async def main():
        with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
            group.close()

    group.run(group.run_on_each(main))


@pytest.mark.parametrize("runs", ["run()", "the first loop"])
def test_a_group_that_runs_in_another_thread_refuses_to_close_or_run_and_goes_on(loop_factory, runs):
    group = wakeloop.EventLoopGroup(2, loop_factory=loop_factory)

    def refused():
        with pytest.raises(RuntimeError, match=r"close\(\) cannot be called while its first event loop is running"):
            group.close()
        with pytest.raises(RuntimeError, match=r"run\(\) cannot be called while its first event loop is running"):
            group.run(thread_and_loop())
        with pytest.raises(RuntimeError, match="its first event loop is running"), group:
            pass

    async def main():
        await asyncio.to_thread(refused)
        return await group.run_on(group.loops[1], thread_and_loop)

    first, other = group.loops
    found = group.run(main()) if runs == "run()" else first.run_until_complete(main())
    assert found[1] is other
    assert group.run(thread_and_loop())[1] is first, "it runs again"
    group.close()
    assert first.is_closed() and other.is_closed()
    with pytest.raises(RuntimeError, match="EventLoopGroup is closed"):
        group.run(thread_and_loop())


def test_an_exit_on_one_loop_ends_run(loop_factory):
    async def leave():
        asyncio.get_running_loop().call_soon(sys.exit, 7)
        await asyncio.sleep(60)

    with wakeloop.EventLoopGroup(2, loop_factory=loop_factory) as group:

        async def main():
            asyncio.run_coroutine_threadsafe(leave(), group.loops[1])
            await asyncio.sleep(60)

        with pytest.raises(SystemExit) as raised:
            group.run(main())
        assert raised.value.code == 7


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_task_that_others_await_closes_all_loops(loop_factory, error):
    """It ends the first loop again when that runs to the end of the others."""

    async def leave():
        raise error

    async def main():
        await asyncio.create_task(leave())

    with pytest.raises(error), wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        loops = group.loops
        group.run(main())
    assert all(loop.is_closed() for loop in loops)
    assert not any(member.thread.is_alive() for member in group._members)


def test_a_loop_that_cannot_be_made_leaves_nothing_behind(loop_factory):
    made = []

    def factory():
        if len(made) == 2:
            raise OSError("no descriptors")
        made.append(loop_factory())
        return made[-1]

    group = wakeloop.EventLoopGroup(3, loop_factory=factory)
    with pytest.raises(OSError, match="no descriptors"):
        group.run(thread_and_loop())
    assert all(loop.is_closed() for loop in made)


def test_metrics_are_those_of_every_loop():
    with wakeloop.EventLoopGroup(2) as group:

        async def main():
            await group.run_on_each(asyncio.sleep, 0.001)
            return group.metrics()

        metrics = group.run(main())
        assert len(metrics) == 2 and all(loop.running and loop.turns for loop in metrics)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_loops_gracefully(signum):
    program = """if True:
        import asyncio, os, sys, wakeloop

        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                # print would write the newline on its own, between those of other threads.
                os.write(1, b"ended\\n")

        async def main():
            asyncio.get_running_loop().call_later(0.2, sys.stderr.write, "ready\\n")
            await group.run_on_each(work)

        with wakeloop.EventLoopGroup(3) as group:
            group.run(main())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signum)
    output, _ = process.communicate(timeout=20)
    assert output == "ended\n" * 3
    assert process.returncode == (-signal.SIGINT if signum == signal.SIGINT else 128 + signal.SIGTERM)


def test_a_handler_that_the_program_sets_during_the_run_gets_sigterm_alone():
    # uvicorn's server sets one, and raises the signal again once it has ended.
    program = """if True:
        import asyncio, os, signal, wakeloop

        async def main():
            event = asyncio.Event()
            outer = signal.signal(signal.SIGTERM, lambda *_: event.set())
            os.kill(os.getpid(), signal.SIGTERM)
            await event.wait()
            # A handler of the group's would cancel this.
            await asyncio.sleep(0.1)
            print("ended by the program", flush=True)
            signal.signal(signal.SIGTERM, outer)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)

        try:
            with wakeloop.EventLoopGroup(2) as group:
                group.run(main())
        finally:
            print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    """
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (found.stdout, found.returncode) == ("ended by the program\nTrue\n", 128 + signal.SIGTERM), found.stderr


# -- servers ---------------------------------------------------------------------------------------------------------


@MODES
def test_every_loop_serves(group, reuse_port):
    async def serve(reader, writer):
        writer.write(f"{group.loops.index(asyncio.get_running_loop())}\n".encode())
        await reader.read()
        writer.close()

    async def main():
        async with await group.start_server(serve, "127.0.0.1", 0, reuse_port=reuse_port) as server:
            assert server.is_serving() and "serving" in repr(server)
            connections = [await connect(server) for _ in range(60)]
            served = [int(await reader.readline()) for reader, _ in connections]
            counts = [served.count(number) for number in range(3)]
            # The system chooses by a hash of the addresses: some loop may have few of them.
            assert sum(count > 0 for count in counts) >= 2 and server.connections == counts
            if not reuse_port:
                assert counts == [20] * 3
            for connection in connections:
                await disconnect(connection)
        assert server.connections == [0] * 3 and not server.is_serving() and "closed" in repr(server)

    group.run(main())


def test_a_connection_goes_to_the_loop_with_the_fewest(group):
    async def main():
        async with await group.start_server(echo, "127.0.0.1", 0, reuse_port=False) as server:
            connections = [await connect(server) for _ in range(9)]
            for connection in connections:
                await ask(connection, b"line\n")
            assert server.connections == [3, 3, 3]
            # Those of one loop end: by its turn, every third is the same loop's.
            busiest = connections[0::3]
            for connection in busiest:
                await disconnect(connection)
            await until(lambda: sum(server.connections) == 6)
            assert sorted(server.connections) == [0, 3, 3]
            more = [await connect(server) for _ in range(3)]
            for connection in more:
                await ask(connection, b"line\n")
            assert server.connections == [3, 3, 3]
            for connection in connections + more:
                await disconnect(connection)

    group.run(main())


def test_a_connection_for_a_loop_that_has_ended_is_closed_and_not_counted(loop_factory):
    async def main():
        ended = group.loops[1]
        async with await group.start_server(echo, "127.0.0.1", 0, reuse_port=False) as server:
            ended.call_soon_threadsafe(sys.exit, 7)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(60)
            await until(ended.is_closed)
            for _ in range(4):
                connection = await connect(server)
                try:
                    answers.append(await ask(connection, b"line\n"))
                except ConnectionResetError:
                    answers.append(b"")
                assert server.connections[1] == 0
                connections.append(connection)
            for _, writer in connections:
                writer.close()

    answers, connections = [], []
    group = wakeloop.EventLoopGroup(2, loop_factory=loop_factory)
    with pytest.raises(SystemExit), group:
        group.run(main())
    assert set(answers) == {b"", b"line\n"}


@MODES
def test_a_server_may_be_started_later_and_closed_from_serve_forever(group, reuse_port):
    async def main():
        server = await group.start_server(echo, "127.0.0.1", 0, reuse_port=reuse_port, start_serving=False)
        assert not server.is_serving()
        forever = asyncio.ensure_future(server.serve_forever())
        await until(server.is_serving)
        await server.start_serving()
        with pytest.raises(RuntimeError, match="already being awaited"):
            await server.serve_forever()
        connection = await connect(server)
        assert await ask(connection, b"line\n") == b"line\n"
        forever.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forever
        # Open connections go on; new ones are refused.
        assert await ask(connection, b"more\n") == b"more\n"
        await asyncio.sleep(0.02)
        with pytest.raises(OSError):
            await connect(server)
        waits = asyncio.ensure_future(server.wait_closed())
        await asyncio.sleep(0.05)
        assert not waits.done()
        await disconnect(connection)
        await waits
        server.close()
        with pytest.raises(RuntimeError, match="is closed"):
            await server.start_serving()

    group.run(main())


def test_each_loop_stops_to_listen_in_its_own_thread(group):
    async def main():
        server = await group.start_server(echo, "127.0.0.1", 0)
        stopped = {}
        for loop in group.loops:
            stop = loop._stop_serving
            # asyncio's servers call this.
            loop._stop_serving = lambda sock, loop=loop, stop=stop: (
                stopped.update({loop: threading.get_ident()}),
                stop(sock),
            )
        server.close()
        # The loop that closes the server does so at once.
        assert stopped[group.loops[0]] == threading.get_ident()
        idents = [await group.run_on(loop, thread_ident) for loop in group.loops]
        assert stopped == dict(zip(group.loops, idents, strict=True))
        await server.wait_closed()

    group.run(main())


@MODES
def test_wait_closed_wakes_the_loop_when_the_last_connection_ends_and_not_before(reuse_port):
    async def main(group):
        loop = asyncio.get_running_loop()
        server = await group.start_server(echo, "127.0.0.1", 0, reuse_port=reuse_port)
        connections = [await connect(server) for _ in range(6)]
        for connection in connections:
            await ask(connection, b"line\n")
        waits = [asyncio.ensure_future(server.wait_closed()) for _ in range(2)]
        before = loop.metrics()
        await asyncio.sleep(0.2)
        server.close()
        await asyncio.sleep(0.2)
        # The timers are those of this test, and each of them is a turn, as closing is.
        between = loop.metrics() - before
        assert (between.timers_fired, between.turns < 20) == (2, True), between
        assert not any(wait.done() for wait in waits)
        for connection in connections:
            await disconnect(connection)
        await asyncio.gather(*waits)
        assert not any(server.connections)
        assert (loop.metrics() - before).timers_fired == 2

    with wakeloop.EventLoopGroup(3) as group:
        group.run(main(group))


def test_close_wakes_the_first_loop_when_another_ends_and_not_before():
    async def work(begun):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)

    async def start(tasks):
        begun = asyncio.Event()
        tasks.append(asyncio.ensure_future(work(begun)))
        await begun.wait()

    async def main(group, tasks):
        for loop in group.loops[1:]:
            await group.run_on(loop, start, tasks)

    tasks = []
    with wakeloop.EventLoopGroup(3) as group:
        group.run(main(group, tasks))
        first = group.loops[0]
        before = first.metrics()
    between = first.metrics() - before
    assert (between.timers_fired, between.turns < 20) == (0, True), between


@MODES
def test_connections_that_do_not_end_are_aborted_after_the_graceful_timeout(group, reuse_port):
    async def main():
        server = await group.start_server(echo, "127.0.0.1", 0, reuse_port=reuse_port, graceful_timeout=0.05)
        connections = [await connect(server) for _ in range(6)]
        for connection in connections:
            await ask(connection, b"line\n")
        server.close()
        await server.wait_closed()
        if not reuse_port or sys.version_info >= (3, 13):
            await until(lambda: not any(server.connections))
            for reader, _ in connections:
                with pytest.raises(ConnectionResetError):
                    if await reader.read() == b"":
                        raise ConnectionResetError
        for _, writer in connections:
            writer.close()
        await until(lambda: not any(server.connections))

    group.run(main())


@MODES
def test_protocols_are_made_on_the_loop_of_their_connection(group, reuse_port):
    class Protocol(asyncio.Protocol):
        def __init__(self):
            self.made_on = asyncio.get_running_loop()

        def connection_made(self, transport):
            assert asyncio.get_running_loop() is self.made_on
            transport.write(b"%d" % group.loops.index(self.made_on))
            transport.close()

    async def main():
        async with await group.create_server(Protocol, "127.0.0.1", 0, reuse_port=reuse_port) as server:
            seen = set()
            for _ in range(30):
                reader, writer = await connect(server)
                seen.add(await reader.read())
                writer.close()
            assert len(seen) > 1

    group.run(main())


@MODES
def test_a_factory_that_raises_loses_no_count(group, loop_name, reuse_port, asyncio_log):
    if reuse_port and loop_name == "asyncio":
        pytest.skip("asyncio leaves such a connection to the garbage collector")

    def factory():
        raise LookupError

    async def main():
        async with await group.create_server(factory, "127.0.0.1", 0, reuse_port=reuse_port) as server:
            for _ in range(6):
                reader, writer = await connect(server)
                assert await reader.read() == b""
                writer.close()
            await until(lambda: not any(server.connections))

    group.run(main())


@MODES
def test_servers_speak_tls_on_every_loop(group, reuse_port, tls):
    async def main():
        options = {"ssl": tls.server(), "reuse_port": reuse_port}
        async with await group.start_server(echo, "127.0.0.1", 0, **options) as server:
            for _ in range(9):
                host, port = server.addresses[0][:2]
                connection = await asyncio.open_connection(
                    host, port, ssl=tls.client(), server_hostname="localhost"
                )
                assert await ask(connection, b"secret\n") == b"secret\n"
                await disconnect(connection)
            if not reuse_port:
                # One that does not speak TLS.
                reader, writer = await connect(server)
                writer.write(b"hello\n")
                await reader.read()
                writer.close()
            await until(lambda: not any(server.connections))

    group.run(main())


@MODES
def test_an_address_in_use_is_an_error_that_leaves_nothing_behind(group, reuse_port):
    async def main():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(OSError):
                await group.start_server(echo, *taken.getsockname(), reuse_port=reuse_port)

    group.run(main())


def test_a_server_belongs_to_the_loops_of_its_group(loop_factory):
    async def outside():
        with pytest.raises(RuntimeError, match="from a loop of the group"):
            await group.start_server(echo, "127.0.0.1", 0)

    with wakeloop.EventLoopGroup(1, loop_factory=loop_factory) as group:
        group.run(asyncio.sleep(0))
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(outside())


@MODES
def test_the_end_of_the_group_ends_servers_and_connections(loop_factory, reuse_port):
    if reuse_port and sys.version_info < (3, 13):
        pytest.skip("servers know their connections since Python 3.13")
    with socket.socket() as client:
        with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:

            async def main():
                server = await group.create_server(Echo, "127.0.0.1", 0, reuse_port=reuse_port)
                client.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(client, server.addresses[0])
                await loop.sock_sendall(client, b"line\n")
                assert await loop.sock_recv(client, 10) == b"line\n"
                assert server.is_serving()

            group.run(main())
        gc.collect()
        client.settimeout(5)
        with pytest.raises(ConnectionResetError):
            if client.recv(10) == b"":
                raise ConnectionResetError


# -- groups that nobody closes ---------------------------------------------------------------------------------------

UNCLOSED = {
    "after a run": "print(group.run(asyncio.sleep(0, 'done')))",
    "that never ran": "group.loops; print('done')",
    "after an exception": "group.run(asyncio.sleep(0)); print('done', flush=True); raise SystemExit",
    "in another thread": """
        async def later():
            while threading.main_thread().is_alive():
                await asyncio.sleep(0.01)
            return await group.run_on(group.loops[1], asyncio.sleep, 0, 'done')
        threading.Thread(target=lambda: print(group.run(later()))).start()
    """,
    "in a daemon thread": """
        started = threading.Event()
        async def forever():
            started.set()
            await asyncio.sleep(1000)
        group.loops
        threading.Thread(target=lambda: group.run(forever()), daemon=True).start()
        started.wait(); print('done')
    """,
    "with tasks that have to be cancelled": """
        async def forever():
            try:
                await asyncio.sleep(1000)
            finally:
                await group.run_on(loops[0], asyncio.sleep, 0)
                await asyncio.get_running_loop().run_in_executor(None, print, 'done')
        async def main():
            await group.run_on(loops[1], begin)
        async def begin():
            tasks.append(asyncio.create_task(forever()))
            await asyncio.sleep(0)
        loops, tasks = group.loops, []
        group.run(main())
    """,
    "made as the interpreter exits": """
        def late():
            threading.main_thread().join()
            print(wakeloop.EventLoopGroup(2).run(asyncio.sleep(0, 'done')))
        threading.Thread(target=late).start()
    """,
    "with a server": """
        async def serve():
            await group.start_server(lambda reader, writer: None, '127.0.0.1', 0)
        group.run(serve()); print('done')
    """,
    "the first loop in a daemon thread": """
        first, begun = group.loops[0], threading.Event()
        first.call_soon(begun.set)
        threading.Thread(target=first.run_forever, daemon=True).start()
        begun.wait(); print('done')
    """,
    "after a fork": """
        group.run(asyncio.sleep(0))
        warnings.simplefilter("ignore")
        if (pid := os.fork()) == 0:
            sys.exit()
        print('done' if os.waitpid(pid, 0)[1] == 0 else 'failed')
    """,
}


@pytest.mark.parametrize("case", UNCLOSED)
def test_a_group_that_is_not_closed_does_not_keep_the_interpreter_from_exiting(case):
    script = "import asyncio, os, sys, threading, warnings, wakeloop\ngroup = wakeloop.EventLoopGroup(2)\n"
    done = subprocess.run(
        [sys.executable, "-c", script + textwrap.dedent(UNCLOSED[case])], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_group_that_is_not_closed_is_reported_at_exit_as_a_resource_warning():
    script = "import asyncio, wakeloop\ngroup = wakeloop.EventLoopGroup(2)\ngroup.run(asyncio.sleep(0))\n"
    done = subprocess.run([sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert done.stderr.count("ResourceWarning: unclosed event loop group") == 1


def test_a_group_that_is_collected_before_it_is_closed_warns_and_ends_its_threads(loop_factory):
    group = wakeloop.EventLoopGroup(3, loop_factory=loop_factory, thread_name_prefix="collected")
    group.run(asyncio.sleep(0))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("collected")]
    assert len(threads) == 2
    first = group.loops[0]
    with pytest.warns(ResourceWarning, match="unclosed event loop group"):
        del group
        gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    first.close()
