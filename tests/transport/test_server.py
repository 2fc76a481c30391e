"""create_server and the Server it returns."""

import asyncio
import contextvars
import gc
import socket
import sys

import pytest

import wakeloop
from tests.support.protocol import Recording

variable = contextvars.ContextVar("variable", default="unset")


class Greeting(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


async def visited_server():
    """Gives a server, its protocols, those of its clients, and a function that connects one more."""
    loop, accepted, clients = asyncio.get_running_loop(), [], []
    server = await loop.create_server(lambda: accepted.append(Recording()) or accepted[-1], "127.0.0.1", 0)

    async def connect():
        clients.append((await loop.create_connection(Recording, *server.sockets[0].getsockname()))[1])
        while len(accepted) < len(clients):
            await asyncio.sleep(0)
        await accepted[-1].connected

    return server, accepted, clients, connect


async def greeting_of(address):
    reader, writer = await asyncio.open_connection(*address)
    greeting = await reader.read()
    writer.close()
    await writer.wait_closed()
    return greeting


def test_a_server_serves_until_it_is_closed(run):
    async def main():
        server = await asyncio.get_running_loop().create_server(Greeting, "127.0.0.1", 0)
        assert server.is_serving() and len(server.sockets) == 1
        address = server.sockets[0].getsockname()
        assert await greeting_of(address) == b"hello"
        server.close()
        assert not server.is_serving() and server.sockets == ()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        await server.wait_closed()
        server.close()

    run(main())


def test_a_server_is_a_context_manager_and_knows_its_loop(run):
    async def main():
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Greeting, "127.0.0.1", 0) as server:
            assert server.get_loop() is loop
            assert isinstance(server.sockets[0], asyncio.trsock.TransportSocket)
            assert await greeting_of(server.sockets[0].getsockname()) == b"hello"
        assert not server.is_serving()

    run(main())


@pytest.mark.parametrize("asked", ["while it is open", "when it is closed"])
@pytest.mark.parametrize("proto", [0, socket.IPPROTO_TCP])
def test_an_accepted_socket_has_the_protocol_number_of_its_listener(run, proto, asked):
    """It is 0 if the listener was made without one, as by socket.create_server()."""

    async def main():
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, proto)
        listener.bind(("127.0.0.1", 0))

        class Accepted(Recording):
            def connection_made(self, transport):
                super().connection_made(transport)
                accepted.set_result(self)

        server = await loop.create_server(Accepted, sock=listener)
        _, client = await loop.create_connection(Recording, *listener.getsockname())
        protocol = await accepted
        if asked == "when it is closed":
            client.transport.close()
            await protocol.lost
        shown = protocol.transport.get_extra_info("socket")
        assert (shown.family, shown.type, shown.proto) == (socket.AF_INET, socket.SOCK_STREAM, proto)
        assert client.transport.get_extra_info("socket").proto == socket.IPPROTO_TCP
        client.transport.close()
        await asyncio.gather(client.lost, protocol.lost)
        server.close()
        await server.wait_closed()

    run(main())


def test_start_serving_false_waits_for_start_serving(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Greeting, "127.0.0.1", 0, start_serving=False)
        assert not server.is_serving()
        address = server.sockets[0].getsockname()
        await server.start_serving()
        await server.start_serving()
        assert server.is_serving() and await greeting_of(address) == b"hello"
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.native
def test_a_connection_accepted_before_its_server_closes_is_made(run):
    async def main(iterations):
        loop, accepted = asyncio.get_running_loop(), []
        server = await loop.create_server(lambda: accepted.append(Recording()) or accepted[-1], "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            for _ in range(iterations):
                await asyncio.sleep(0)
            server.close()
            closed = asyncio.ensure_future(server.wait_closed())
            for protocol in accepted:
                transport = await protocol.connected
                transport.write(b"made")
                assert await loop.run_in_executor(None, client.recv, 100) == b"made"
                assert closed.done() is (sys.version_info < (3, 12))
                transport.close()
            await closed
        return len(accepted)

    # The server closes before it accepts, right after, and later.
    assert {run(main(iterations), debug=True) for iterations in range(6)} == {0, 1}


@pytest.mark.parametrize("closes", ["in connection_made", "in a callback of it", "in the stream's task"])
def test_a_server_that_closes_at_its_first_connection_serves_those_that_wait(run, closes):
    async def main():
        loop, made = asyncio.get_running_loop(), []

        class Closing(Greeting):
            def connection_made(self, transport):
                made.append(self)
                if len(made) == 1:
                    server.close() if closes == "in connection_made" else loop.call_soon(server.close)
                super().connection_made(transport)

        async def client(reader, writer):
            made.append(writer)
            server.close()
            writer.write(b"hello")
            writer.close()

        if closes == "in the stream's task":
            server = await asyncio.start_server(client, "127.0.0.1", 0)
        else:
            server = await loop.create_server(Closing, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        clients = [socket.create_connection(address, timeout=10) for _ in range(20)]
        await loop.run_in_executor(None, lambda: [client.close() for client in clients if client.recv(100) != b"hello"])
        for waiting in clients:
            waiting.close()
        await server.wait_closed()
        return len(made)

    assert run(main()) == 20


@pytest.mark.native
def test_a_server_that_closes_at_its_first_connection_accepts_its_backlog_at_most(run):
    async def main():
        loop, protocols = asyncio.get_running_loop(), []

        class Closing(Recording):
            def connection_made(self, transport):
                protocols.append(self)
                server.close()
                super().connection_made(transport)
                transport.close()

        # The system has room for one more than the backlog. asyncio accepts that one in its next iteration, and drops it.
        server = await loop.create_server(Closing, "127.0.0.1", 0, backlog=3)
        address = server.sockets[0].getsockname()
        clients = [socket.create_connection(address, timeout=10) for _ in range(4)]
        while not protocols:
            await asyncio.sleep(0)
        await asyncio.gather(*(protocol.lost for protocol in protocols))
        await server.wait_closed()
        for client in clients:
            client.close()
        return len(protocols)

    assert run(main()) == 3


def test_serve_forever_serves_until_cancelled_and_closes(run):
    async def main():
        server = await asyncio.get_running_loop().create_server(Greeting, "127.0.0.1", 0, start_serving=False)
        address = server.sockets[0].getsockname()
        serving = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already being awaited"):
            await server.serve_forever()
        assert await greeting_of(address) == b"hello"
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert not server.is_serving()
        with pytest.raises(RuntimeError, match="is closed"):
            await server.serve_forever()

    run(main())


def test_closing_a_server_leaves_its_connections_open(run):
    async def main():
        accepted = []

        def factory():
            accepted.append(Recording())
            return accepted[-1]

        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"before")
        while not accepted:
            await asyncio.sleep(0)
        await accepted[0].received(6)
        server.close()
        writer.write(b" after")
        await accepted[0].received(12)
        accepted[0].transport.write(b"answer")
        assert await reader.read(100) == b"answer"
        waiting = asyncio.create_task(server.wait_closed())
        await asyncio.sleep(0.01)
        if sys.version_info >= (3, 12):
            assert not waiting.done(), "since 3.12 wait_closed waits for the connections"
        writer.close()
        await accepted[0].lost
        await waiting

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="close_clients is new in 3.13")
@pytest.mark.parametrize("method", ["close_clients", "abort_clients"])
def test_close_clients_and_abort_clients_end_the_connections(run, method):
    async def main():
        accepted = []

        def factory():
            accepted.append(Recording())
            return accepted[-1]

        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        streams = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(5)]
        while len(accepted) < 5 or not all(protocol.transport for protocol in accepted):
            await asyncio.sleep(0)
        server.close()
        getattr(server, method)()
        async with asyncio.timeout(5):
            await asyncio.gather(*(protocol.lost for protocol in accepted))
            await server.wait_closed()
        for reader, writer in streams:
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()

    run(main())


def test_hundreds_of_clients_at_once_are_all_served(run):
    async def main():
        server = await asyncio.get_running_loop().create_server(Greeting, "127.0.0.1", 0, backlog=500)
        address = server.sockets[0].getsockname()
        assert await asyncio.gather(*(greeting_of(address) for _ in range(400))) == [b"hello"] * 400
        server.close()
        await server.wait_closed()

    run(main())


def test_clients_that_vanish_before_they_are_accepted_do_no_harm(run):
    async def main():
        server = await asyncio.get_running_loop().create_server(Greeting, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        for _ in range(50):
            sock = socket.create_connection(address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.close()
        assert await greeting_of(address) == b"hello"
        server.close()
        await server.wait_closed()

    loop_problems_are_fine = []

    async def quiet():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: loop_problems_are_fine.append(context))
        await main()

    run(quiet())


@pytest.mark.parametrize("asked", ["in connection_lost", "after it"])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_an_accepted_connection_that_ended_still_knows_both_addresses(run, host, reset, asked):
    """A listener on every address cannot say to which of them a connection came."""

    async def main():
        loop = asyncio.get_running_loop()
        lost = loop.create_future()

        class Asking(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport

            def connection_lost(self, exc):
                lost.set_result((self.transport, asked == "in connection_lost" and addresses_of(self.transport)))

        def addresses_of(transport):
            return transport.get_extra_info("sockname"), transport.get_extra_info("peername")

        server = await loop.create_server(Asking, host, 0)
        with socket.create_connection(("127.0.0.1", server.sockets[0].getsockname()[1])) as client:
            await asyncio.sleep(0.01)
            expected = client.getpeername(), client.getsockname()
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        transport, addresses = await lost
        await asyncio.sleep(0)
        assert (addresses or addresses_of(transport)) == expected
        server.close()
        await server.wait_closed()

    run(main())


def test_no_context_variable_leaks_from_one_connection_to_the_next(run):
    seen = []

    class Marking(asyncio.Protocol):
        def __init__(self):
            seen.append(("factory", variable.get()))
            variable.set("factory")

        def connection_made(self, transport):
            self.transport = transport
            seen.append(("made", variable.get()))
            variable.set("made")

        def data_received(self, data):
            seen.append(("data", variable.get()))
            variable.set("data")
            self.transport.close()

        def connection_lost(self, exc):
            seen.append(("lost", variable.get() in ("made", "data")))

    async def main():
        variable.set("server")
        server = await asyncio.get_running_loop().create_server(Marking, "127.0.0.1", 0)
        variable.set("after")
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"x")
            await reader.read()
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert [value for name, value in seen if name == "factory"] == ["server"] * 3
        assert "after" not in [value for _, value in seen]
        assert variable.get() == "after"

    run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_in_the_factory_is_reported_in_debug_mode_and_serving_goes_on(run):
    """asyncio leaves the accepted socket to the garbage collector, which warns."""

    async def main():
        loop, problems, calls = asyncio.get_running_loop(), [], []
        loop.set_exception_handler(lambda loop, context: problems.append(context))

        def factory():
            calls.append(1)
            if len(calls) == 1:
                raise ZeroDivisionError
            return Greeting()

        server = await loop.create_server(factory, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address)
        while not problems:
            await asyncio.sleep(0.001)
        assert problems[0]["message"] == "Error on transport creation for incoming connection"
        assert isinstance(problems[0]["exception"], ZeroDivisionError)
        problems.clear()
        assert await greeting_of(address) == b"hello"
        writer.close()
        await writer.wait_closed()
        server.close()

    run(main(), debug=True)


def test_one_server_listens_on_several_sockets(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Greeting, ["127.0.0.1", "127.0.0.2"], 0)
        addresses = [sock.getsockname() for sock in server.sockets]
        assert {address[0] for address in addresses} == {"127.0.0.1", "127.0.0.2"}
        for address in addresses:
            assert await greeting_of(address) == b"hello"
        server.close()
        await server.wait_closed()

    run(main())


def test_a_server_takes_a_socket_of_the_users(run):
    async def main():
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(Greeting, sock=sock)
        assert await greeting_of(sock.getsockname()) == b"hello"
        server.close()
        await server.wait_closed()
        assert sock.fileno() == -1

    run(main())


def test_two_servers_share_a_port_with_reuse_port(run):
    async def main():
        loop = asyncio.get_running_loop()
        one = await loop.create_server(Greeting, "127.0.0.1", 0, reuse_port=True)
        address = one.sockets[0].getsockname()
        other = await loop.create_server(Greeting, *address, reuse_port=True)
        for _ in range(20):
            assert await greeting_of(address) == b"hello"
        for server in (one, other):
            server.close()
            await server.wait_closed()

    run(main())


def test_a_port_in_use_is_an_error_that_names_it(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Greeting, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=f"error while attempting to bind on address.*{port}"):
            await loop.create_server(Greeting, "127.0.0.1", port)
        server.close()
        await server.wait_closed()

    run(main())


def test_too_many_open_files_pauses_accepting_and_it_recovers_in_its_context(run, asyncio_log):
    import resource

    async def main():
        loop, problems, seen = asyncio.get_running_loop(), [], []
        loop.set_exception_handler(lambda loop, context: problems.append(context["message"]))

        def factory():
            seen.append(variable.get())
            return Greeting()

        variable.set("server")
        server = await loop.create_server(factory, "127.0.0.1", 0)
        variable.set("after")
        with socket.socket() as client:
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
            try:
                await loop.sock_connect(client, server.sockets[0].getsockname())
                while not problems:
                    await asyncio.sleep(0.005)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert set(problems) == {"socket.accept() out of system resource"}
            async with asyncio.timeout(10):
                assert await loop.sock_recv(client, 100) == b"hello"
            assert seen == ["server"]
        server.close()
        await server.wait_closed()

    run(main())


@pytest.mark.native
def test_a_server_that_is_closed_while_it_cannot_accept_does_not_begin_again(run, monkeypatch):
    """asyncio's begins again, with a socket that is closed, and reports a ValueError."""
    import resource

    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.001)

    async def main():
        loop, problems = asyncio.get_running_loop(), []
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)

        def close(loop, context):
            problems.append(context["message"])
            server.close()

        loop.set_exception_handler(close)
        with socket.socket() as client:
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
            try:
                client.connect_ex(server.sockets[0].getsockname())
                while not problems:
                    await asyncio.sleep(0)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            # The retry was scheduled before this sleep began, and is due before it ends.
            await asyncio.sleep(0.002)
            assert problems == ["socket.accept() out of system resource"]

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="a server's list of clients is new in 3.13")
def test_a_server_knows_its_clients_as_long_as_they_are_connected(run):
    async def main():
        server, accepted, clients, connect = await visited_server()
        for _ in range(3):
            await connect()
        assert set(server._clients) == {protocol.transport for protocol in accepted}
        accepted[0].transport.close()
        await accepted[0].lost
        await asyncio.sleep(0)
        assert set(server._clients) == {protocol.transport for protocol in accepted[1:]}
        server.close()
        closed = asyncio.create_task(server.wait_closed())
        accepted[1].transport.close()
        await accepted[1].lost
        await asyncio.sleep(0.01)
        assert not closed.done()
        accepted[2].transport.abort()
        await asyncio.wait_for(closed, 5)
        assert not server._clients
        await asyncio.gather(*[protocol.lost for protocol in clients])

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="a server's list of clients is new in 3.13")
def test_a_servers_list_of_clients_is_correct_on_every_access(run):
    async def main():
        server, accepted, clients, connect = await visited_server()

        def transports():
            return {protocol.transport for protocol in accepted if not protocol.lost.done()}

        assert not server._clients and set(server._clients) == set()
        await connect()
        await connect()
        assert len(server._clients) == 2 and server._clients
        # One of them ends before anybody has read the list.
        accepted[0].transport.close()
        await accepted[0].lost
        await asyncio.sleep(0)
        assert len(server._clients) == 1
        assert accepted[0].transport not in server._clients and accepted[1].transport in server._clients
        # Others connect after that.
        await connect()
        await connect()
        assert len(server._clients) == 3
        copy = server._clients.copy()
        assert set(copy) == set(server._clients) == transports()
        await connect()
        assert (len(copy), len(server._clients)) == (3, 4)
        for protocol in accepted[1], accepted[-1]:
            protocol.transport.abort()
            await protocol.lost
        await asyncio.sleep(0)
        assert len(server._clients) == 2 and set(server._clients) == transports()
        await connect()
        server.close_clients()
        server.close()
        await asyncio.wait_for(server.wait_closed(), 5)
        assert all(protocol.lost.done() for protocol in accepted) and not server._clients
        await asyncio.gather(*[protocol.lost for protocol in clients])

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="a server's list of clients is new in 3.13")
def test_a_listed_clients_end_does_not_search_the_other_clients(run):
    async def main():
        server, accepted, clients, connect = await visited_server()

        await connect()
        assert accepted[0].transport in server._clients
        await connect()
        await connect()
        accepted[0].transport.abort()
        await accepted[0].lost
        await asyncio.sleep(0)
        if isinstance(asyncio.get_running_loop(), wakeloop.EventLoop):
            assert server._clients.counted == 2
        # A transport that is only counted can be removed as well.
        server._clients.discard(accepted[1].transport)
        assert len(server._clients) == 1 and set(server._clients) == {accepted[2].transport}
        accepted[1].transport.abort()
        server.close_clients()
        server.close()
        await asyncio.wait_for(server.wait_closed(), 5)
        assert len(server._clients) == 0
        await asyncio.gather(*[protocol.lost for protocol in [*accepted, *clients]])

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="a server's list of clients is new in 3.13")
@pytest.mark.parametrize("looked", [False, True])
def test_an_unreferenced_client_leaves_the_servers_list(run, looked):
    async def main():
        server, accepted, clients, connect = await visited_server()
        await connect()
        # Nobody waits for its data or references it.
        accepted.pop().transport.pause_reading()
        await asyncio.sleep(0)
        assert len(server._clients) == 1
        if looked:
            assert len(list(server._clients)) == 1
        with pytest.warns(ResourceWarning):
            gc.collect()
        assert len(server._clients) == 0 and list(server._clients) == []
        await asyncio.wait_for(clients[0].lost, 5)
        server.close()
        await asyncio.wait_for(server.wait_closed(), 5)

    run(main())


@pytest.mark.native
def test_a_foreign_server_object_is_notified_through_its_methods(run):
    calls = []

    class Server(asyncio.base_events.Server):
        def _attach(self, *args):
            calls.append("attach")
            super()._attach(*args)

        def _detach(self, *args):
            calls.append("detach")
            super()._detach(*args)

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Recording, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        server.close()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            other = Server(loop, [listener], Recording, None, 10, None)
            await other.start_serving()
            _, client = await loop.create_connection(Recording, *listener.getsockname())
            while not calls:
                await asyncio.sleep(0)
            client.transport.close()
            await client.lost
            while len(calls) < 2:
                await asyncio.sleep(0)
            other.close()
        assert calls == ["attach", "detach"] and address

    run(main())


@pytest.mark.parametrize("name", ["_make_socket_transport", "_accept_connection2"])
def test_overridden_loop_methods_are_called_for_accepted_connections(loop_factory, name):
    base, made = type(probe := loop_factory()), []
    probe.close()

    def overridden(self, *args, **options):
        made.append(args)
        return getattr(base, name)(self, *args, **options)

    loop = type("Loop", (base,), {name: overridden})()

    async def main():
        server = await loop.create_server(Greeting, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            assert await asyncio.to_thread(client.recv, 10) == b"hello"
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    assert len(made) == 1
