"""What users of websockets do: both ends of every kind of connection, in one process, over loopback."""

import asyncio
import contextlib
import functools
import http
import os
import ssl
import threading

import pytest
import trustme
from websockets.asyncio.client import connect, unix_connect
from websockets.asyncio.router import route
from websockets.asyncio.server import basic_auth, broadcast, serve, unix_serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import connect as sync_connect
from werkzeug.routing import Map, Rule

SIZES = (0, 1, 125, 126, 4096, 65_535, 65_536, 1_000_000)


async def echo(connection):
    async for message in connection:
        await connection.send(message)


def address_of(server, scheme="ws"):
    host, port = server.sockets[0].getsockname()[:2]
    return f"{scheme}://{host}:{port}"


@contextlib.asynccontextmanager
async def pair(handler=echo, *, scheme="ws", server=None, **client):
    """A server, and one client's connection to it."""
    async with serve(handler, "127.0.0.1", 0, **server or {}) as serving:
        async with connect(address_of(serving, scheme), **client) as connection:
            yield serving, connection


def in_a_loop(test):
    @functools.wraps(test)
    def wrapper(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 50))

    return wrapper


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def contexts(authority):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("compression", ["deflate", None])
@in_a_loop
async def test_text_and_bytes_of_every_length_come_back(compression):
    options = {"compression": compression, "max_size": None}
    async with pair(server=options, **options) as (_, connection):
        for size in SIZES:
            for message in ("é" * size, os.urandom(size)):
                await connection.send(message)
                assert await connection.recv() == message


@in_a_loop
async def test_many_clients_talk_at_once():
    async with serve(echo, "127.0.0.1", 0) as server:

        async def client(number):
            async with connect(address_of(server)) as connection:
                for turn in range(50):
                    await connection.send(f"{number}:{turn}" * (turn + 1))
                    assert await connection.recv() == f"{number}:{turn}" * (turn + 1)

        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(client(number))


@in_a_loop
async def test_messages_keep_their_order_while_both_ends_send():
    async def counter(connection):
        for number in range(2000):
            await connection.send(str(number))

    async with pair(counter) as (_, connection):
        assert [message async for message in connection] == [str(number) for number in range(2000)]


@in_a_loop
async def test_a_message_in_fragments_arrives_whole_and_as_fragments():
    async def fragments():
        for number in range(10):
            await asyncio.sleep(0)
            yield f"{number}" * 1000

    async with pair() as (_, connection):
        await connection.send(fragments())
        assert await connection.recv() == "".join(f"{number}" * 1000 for number in range(10))

    received = asyncio.get_running_loop().create_future()

    async def stream(connection):
        received.set_result([part async for part in connection.recv_streaming()])

    async with pair(stream) as (_, connection):
        await connection.send([b"one", b"two", b"three"])
        parts = await received
    assert b"".join(parts) == b"onetwothree" and len(parts) >= 3


@in_a_loop
async def test_ping_is_answered_and_latency_is_measured():
    async with pair(ping_interval=0.05) as (_, connection):
        waiter = await connection.ping()
        assert await waiter >= 0
        await asyncio.sleep(0.2)
        assert connection.latency > 0


@in_a_loop
async def test_a_silent_peer_is_given_up_after_the_ping_timeout():
    async def deaf(reader, writer):
        request = await reader.readuntil(b"\r\n\r\n")
        key = next(line for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
        from websockets.utils import accept_key

        accept = accept_key(key.split(b": ")[1].decode())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    async with server:
        async with connect(address_of(server), ping_interval=0.05, ping_timeout=0.05, close_timeout=0.2) as connection:
            with pytest.raises(ConnectionClosedError) as caught:
                await connection.recv()
            assert caught.value.sent.code == CloseCode.INTERNAL_ERROR


@in_a_loop
async def test_the_closing_handshake_carries_code_and_reason():
    async def goodbye(connection):
        await connection.close(4001, "that is all")

    async with pair(goodbye) as (_, connection):
        with pytest.raises(ConnectionClosedError) as caught:
            await connection.recv()
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4001, "that is all")

    seen = asyncio.get_running_loop().create_future()

    async def listener(connection):
        try:
            await connection.recv()
        except ConnectionClosedOK as closed:
            seen.set_result((closed.rcvd.code, closed.rcvd.reason))

    async with pair(listener) as (_, connection):
        await connection.close(reason="enough")
        assert await seen == (1000, "enough")


@in_a_loop
async def test_a_connection_cut_without_a_closing_handshake_is_an_error():
    ended = asyncio.get_running_loop().create_future()

    async def handler(connection):
        try:
            await connection.recv()
        except ConnectionClosed as closed:
            ended.set_result(type(closed))

    async with pair(handler) as (_, connection):
        connection.transport.abort()
        assert await ended is ConnectionClosedError
        with pytest.raises(ConnectionClosedError):
            await connection.recv()


@in_a_loop
async def test_a_message_over_the_limit_closes_with_1009():
    async with pair(server={"max_size": 1000}) as (_, connection):
        await connection.send(b"x" * 1001)
        with pytest.raises(ConnectionClosedError) as caught:
            await connection.recv()
        assert caught.value.rcvd.code == CloseCode.MESSAGE_TOO_BIG


@in_a_loop
async def test_an_error_in_the_handler_closes_with_1011():
    async def broken(connection):
        raise ZeroDivisionError

    async with pair(broken) as (_, connection):
        with pytest.raises(ConnectionClosedError) as caught:
            await connection.recv()
        assert caught.value.rcvd.code == CloseCode.INTERNAL_ERROR


@in_a_loop
async def test_a_slow_reader_holds_the_sender_back():
    sent = 0

    async def flood(connection):
        nonlocal sent
        for _ in range(400):
            await connection.send(b"x" * 100_000)
            sent += 1

    async with pair(flood, max_queue=4, compression=None) as (_, connection):
        await connection.recv()
        await asyncio.sleep(0.3)
        held = sent
        assert held < 350
        received = 1
        async for message in connection:
            assert len(message) == 100_000
            received += 1
        assert received == sent == 400


@in_a_loop
async def test_a_broadcast_reaches_everyone():
    connected = set()

    async def member(connection):
        connected.add(connection)
        await connection.wait_closed()

    async with serve(member, "127.0.0.1", 0) as server, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(address_of(server))) for _ in range(50)]
        while len(connected) < 50:
            await asyncio.sleep(0.01)
        for number in range(20):
            broadcast(connected, f"news {number}")
        for client in clients:
            assert [await client.recv() for _ in range(20)] == [f"news {number}" for number in range(20)]


@in_a_loop
async def test_closing_the_server_notifies_the_clients():
    async with pair() as (server, connection):
        server.close()
        with pytest.raises(ConnectionClosed) as caught:
            await connection.recv()
        assert caught.value.rcvd.code == CloseCode.GOING_AWAY
        await server.wait_closed()
        with pytest.raises(OSError):
            await connect(f"ws://127.0.0.1:{connection.remote_address[1]}")


@in_a_loop
async def test_a_client_reconnects_as_often_as_the_server_hangs_up():
    async def once(connection):
        await connection.send("hello")

    greetings = 0
    async with serve(once, "127.0.0.1", 0) as server:
        async for connection in connect(address_of(server)):
            try:
                async for message in connection:
                    greetings += message == "hello"
            except ConnectionClosed:
                pass
            if greetings == 5:
                break
    assert greetings == 5


@in_a_loop
async def test_passwords_subprotocols_and_plain_http_answers():
    def health(connection, request):
        if request.path == "/health":
            return connection.respond(http.HTTPStatus.OK, "well\n")

    async with serve(echo, "127.0.0.1", 0, process_request=health, subprotocols=["chat", "log"]) as server:
        async with connect(address_of(server), subprotocols=["log", "chat"]) as connection:
            assert connection.subprotocol in ("log", "chat")
        with pytest.raises(InvalidStatus) as caught:
            await connect(address_of(server) + "/health")
        assert (caught.value.response.status_code, caught.value.response.body) == (200, b"well\n")

    guard = basic_auth(credentials=("user", "secret"))
    async with serve(echo, "127.0.0.1", 0, process_request=guard) as server:
        with pytest.raises(InvalidStatus) as caught:
            await connect(address_of(server))
        assert caught.value.response.status_code == 401
        async with connect(address_of(server).replace("//", "//user:secret@")) as connection:
            await connection.send("in")
            assert await connection.recv() == "in"


@in_a_loop
async def test_a_router_chooses_the_handler():
    async def greet(connection, name):
        await connection.send(f"hello {name}")

    rules = Map([Rule("/greet/<name>", endpoint=greet)])
    async with route(rules, "127.0.0.1", 0) as server:
        async with connect(address_of(server) + "/greet/anna") as connection:
            assert await connection.recv() == "hello anna"


@in_a_loop
async def test_a_unix_socket_carries_a_connection(tmp_path):
    path = str(tmp_path / "s")
    async with unix_serve(echo, path), unix_connect(path) as connection:
        for size in SIZES[:-1]:
            await connection.send(b"u" * size)
            assert await connection.recv() == b"u" * size


@in_a_loop
async def test_messages_of_every_length_come_back_under_tls(contexts):
    server, client = contexts
    async with pair(scheme="wss", server={"ssl": server, "max_size": None}, ssl=client, max_size=None) as (_, connection):
        for size in SIZES:
            message = os.urandom(size)
            await connection.send(message)
            assert await connection.recv() == message
        assert connection.transport.get_extra_info("ssl_object").version().startswith("TLS")


@in_a_loop
async def test_many_clients_under_tls(contexts):
    server, client = contexts
    async with serve(echo, "127.0.0.1", 0, ssl=server) as serving:

        async def one(number):
            async with connect(address_of(serving, "wss"), ssl=client) as connection:
                for turn in range(20):
                    await connection.send(bytes([number]) * turn * 1000)
                    assert await connection.recv() == bytes([number]) * turn * 1000

        await asyncio.gather(*map(one, range(30)))


@in_a_loop
async def test_a_certificate_that_is_not_trusted_is_refused(contexts):
    server, _ = contexts
    async with serve(echo, "127.0.0.1", 0, ssl=server) as serving:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(address_of(serving, "wss"))


@in_a_loop
async def test_opening_gives_up_on_a_server_that_says_nothing():
    async def silent(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        with pytest.raises(TimeoutError):
            await connect(address_of(server), open_timeout=0.1)


@in_a_loop
async def test_recv_is_cancelled_without_losing_a_message():
    async with pair() as (_, connection):
        for number in range(50):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.002):
                    await connection.recv()
            await connection.send(str(number))
            assert await connection.recv() == str(number)


def test_a_client_of_another_thread_without_a_loop():
    def client(address, answers):
        with sync_connect(address) as connection:
            for size in SIZES[:-1]:
                connection.send(b"t" * size)
                answers.append(connection.recv() == b"t" * size)

    async def main():
        answers = []
        async with serve(echo, "127.0.0.1", 0) as server:
            threads = [threading.Thread(target=client, args=(address_of(server), answers)) for _ in range(4)]
            for thread in threads:
                thread.start()
            await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        assert answers == [True] * 4 * len(SIZES[:-1])

    asyncio.run(main())
