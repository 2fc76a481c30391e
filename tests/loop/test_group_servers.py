"""Servers of wakeloop.EventLoopGroup, on all of its loops."""

import asyncio
import errno
import gc
import os
import socket
import sys
import threading

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the group is wakeloop's; the control group has none")


@pytest.fixture
def group(loop_factory):
    with wakeloop.EventLoopGroup(3, loop_factory=loop_factory) as group:
        yield group


async def echo(reader, writer):
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    finally:
        writer.close()


async def thread_ident():
    return threading.get_ident()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


MODES = pytest.mark.parametrize("reuse_port", [True, False], ids=["a socket each", "one for all"])


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


def test_a_server_that_cannot_have_its_sockets_leaves_none_behind(group, monkeypatch):
    made = []

    async def main():
        loop = asyncio.get_running_loop()
        create = loop.create_server

        async def create_server(*args, **options):
            made.append(await create(*args, **options))
            return made[-1]

        def dup(_):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        loop.create_server = create_server
        monkeypatch.setattr(asyncio.trsock.TransportSocket, "dup", dup)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            await group.start_server(lambda *_: None, "127.0.0.1", 0, reuse_port=False)
        monkeypatch.undo()
        assert not made[0].sockets

    group.run(main())


@MODES
def test_the_end_of_the_group_ends_a_server_on_the_loop_that_has_made_it(loop_factory, reuse_port):
    ends = []

    async def serve():
        server = await group.start_server(lambda *_: None, "127.0.0.1", 0, reuse_port=reuse_port)
        end = server._end
        server._end = lambda: (ends.append(asyncio.get_running_loop()), end())
        return server

    with wakeloop.EventLoopGroup(2, debug=True, loop_factory=loop_factory) as group:
        server = group.run(group.run_on(group.loops[1], serve))
        home = group.loops[1]
    assert ends == [home] and not server.is_serving()


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
