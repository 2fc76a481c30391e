"""The same programs on the loopback, with asyncio's own loop, and on the simulated network: nobody can tell.

The random scenarios are those that compare wakeloop's own transports with asyncio's. Here the sockets are simulated as
well, also those of the scenarios' peers. `SCENARIOS` and `FIRST_SEED` are as in `tests.compat.test_differential`.
"""

import asyncio
import contextvars
import os
import re
import socket
import ssl
import struct

import pytest

from tests.support import differential
from tests.testing.network_sockets import Sockets, simulated_sockets
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native

COUNT = int(os.environ.get("SCENARIOS", 10))
FIRST = int(os.environ.get("FIRST_SEED", 0))


def simulated_loop():
    """A testing loop on a network whose buffers are as large as those of the loopback."""
    return testing.EventLoop(network=Network(send_buffer=2_000_000, receive_buffer=2_000_000))


@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("kind", ["tcp", "unix", "datagrams", "server", "sockets", "streams"])
def test_a_random_scenario_looks_the_same_as_on_the_loopback(kind, debug, asyncio_log):
    with simulated_sockets():
        for seed in range(FIRST, FIRST + COUNT):
            difference = differential.difference(kind, seed, simulated_loop, debug=debug)
            assert difference is None, difference


# -- programs ------------------------------------------------------------------------------------

variable = contextvars.ContextVar("variable", default="nothing")


class Scene:
    """What a program observes, by protocol. What two protocols see has no order between them."""

    def __init__(self, tls):
        self.tls = tls
        self.seen = {}

    def note(self, who, *what):
        self.seen.setdefault(who, []).append(tuple(self.clean(one) for one in what))

    def clean(self, it):
        """A value without ports, descriptors and addresses of objects."""
        if isinstance(it, BaseException):
            it = f"{type(it).__name__} {getattr(it, 'errno', None)}: {it}"
        if isinstance(it, (bytes, int, type(None))):
            return it
        text = re.sub(r"fd=-?\d+", "fd", str(it))
        text = re.sub(r"0x[0-9a-f]+|<.* object at.*>", "it", text)
        text = re.sub(r"(\('(?:127\.0\.0\.1|::1)', )[1-9]\d*", r"\1port", text)
        return re.sub(r" ?\(_ssl\.c(:\d+)?\)", "", text)

    async def fails(self, who, awaitable):
        try:
            result = await awaitable
        except Exception as error:
            self.note(who, error)
            return None
        self.note(who, "did not fail")
        return result


class Noting(asyncio.Protocol):
    """Notes every callback, and joins the data between two others."""

    def __init__(self, scene, who, **actions):
        self.scene, self.who, self.actions = scene, who, actions
        self.data = 0
        self.ended = asyncio.get_running_loop().create_future()
        self.made = asyncio.get_running_loop().create_future()

    def note(self, *what):
        if self.data:
            self.scene.note(self.who, "data", self.data)
            self.data = 0
        self.scene.note(self.who, *what, variable.get())

    def act(self, name):
        if name in self.actions:
            self.actions[name](self)

    def connection_made(self, transport):
        self.transport = transport
        self.note("made", transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        self.made.set_result(None)
        self.act("made")

    def data_received(self, data):
        self.data += len(data)
        self.act("data")

    def eof_received(self):
        self.note("eof")
        self.act("eof")
        return self.actions.get("keep", False)

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")

    def connection_lost(self, error):
        self.note("lost", error, self.transport.is_closing(), self.transport.get_write_buffer_size())
        self.ended.set_result(None)
        self.act("lost")


async def pair(scene, client=None, server=None, **options):
    """A server and a client of it, with the actions of their protocols."""
    loop = asyncio.get_running_loop()
    made = loop.create_future()

    def accepted():
        protocol = Noting(scene, "server", **(server or {}))
        made.set_result(protocol)
        return protocol

    listener = await loop.create_server(accepted, "127.0.0.1", 0, **options)
    token = variable.set("client")
    port = listener.sockets[0].getsockname()[1]
    _, one = await loop.create_connection(lambda: Noting(scene, "client", **(client or {})), "127.0.0.1", port)
    variable.reset(token)
    other = await made
    await other.made
    return one, other, listener


async def a_conversation(scene):
    one, other, listener = await pair(scene, server={"data": lambda it: it.transport.write(b"yes" * 10)})
    one.transport.write(b"question")
    await asyncio.sleep(0.05)
    one.transport.writelines([b"a", b"", b"b"])
    await asyncio.sleep(0.05)
    one.transport.close()
    one.transport.write(b"ignored")
    await one.ended
    await other.ended
    listener.close()


async def one_half_closes(scene):
    one, other, listener = await pair(scene, server={"keep": True, "eof": lambda it: it.transport.write(b"late" * 1000)})
    one.transport.write(b"x")
    one.transport.write_eof()
    scene.note("client", one.transport.can_write_eof())
    try:
        one.transport.write(b"y")
    except RuntimeError as error:
        scene.note("client", error)
    await asyncio.sleep(0.05)
    other.transport.close()
    await one.ended
    await other.ended
    listener.close()


async def one_aborts_with_data_in_its_buffer(scene):
    one, other, listener = await pair(scene)
    other.transport.pause_reading()
    one.transport.write(bytes(20_000_000))
    await asyncio.sleep(0.05)
    one.transport.abort()
    await one.ended
    other.data = 0
    other.transport.abort()
    await other.ended
    listener.close()


async def one_resets(scene):
    one, other, listener = await pair(scene)
    sock = one.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.transport.abort()
    await one.ended
    await other.ended
    listener.close()


async def one_closes_with_unread_data(scene):
    one, other, listener = await pair(scene)
    other.transport.pause_reading()
    one.transport.write(b"nobody reads it")
    await asyncio.sleep(0.05)
    other.transport.close()
    await one.ended
    await other.ended
    listener.close()


async def one_writes_to_a_closed_peer(scene):
    one, other, listener = await pair(scene, client={"keep": True})
    other.transport.close()
    await other.ended
    await asyncio.sleep(0.05)
    for _ in range(3):
        one.transport.write(b"x")
        await asyncio.sleep(0.05)
    await one.ended
    listener.close()


async def a_reader_pauses(scene):
    one, other, listener = await pair(scene, server={"made": lambda it: it.transport.pause_reading()})
    one.transport.set_write_buffer_limits(high=1000)
    one.transport.write(bytes(20_000_000))
    await asyncio.sleep(0.05)
    scene.note("server", other.transport.is_reading(), other.data)
    other.transport.resume_reading()
    scene.note("server", other.transport.is_reading())
    one.transport.close()
    await one.ended
    await other.ended
    listener.close()


async def a_server_closes(scene):
    loop = asyncio.get_running_loop()
    one, other, listener = await pair(scene)
    scene.note("listener", listener.is_serving(), len(listener.sockets), type(listener.sockets).__name__)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    scene.note("listener", listener.is_serving(), len(listener.sockets))
    await scene.fails("connect", loop.create_connection(asyncio.Protocol, "127.0.0.1", port))
    waiting = asyncio.create_task(listener.wait_closed())
    await asyncio.sleep(0.05)
    scene.note("listener", waiting.done())
    one.transport.close()
    await other.ended
    await waiting
    if hasattr(listener, "close_clients"):
        one, other, listener = await pair(scene)
        listener.close_clients()
        await other.ended
        await one.ended
        listener.abort_clients()
        listener.close()
    await scene.fails("listener", listener.serve_forever())


async def calls_fail(scene):
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    address = listener.sockets[0].getsockname()
    with socket.socket() as sock:
        made = [
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1),
            loop.create_connection(asyncio.Protocol, "::1", 1),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, local_addr=("127.0.0.1", 0)),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, local_addr=("127.0.0.1", address[1])),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, happy_eyeballs_delay=0.25),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, server_hostname="x"),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, family=socket.AF_INET6),
            loop.create_connection(asyncio.Protocol),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, sock=sock),
            loop.create_connection(asyncio.Protocol, "127.0.0.1", 1, ssl_handshake_timeout=1),
            loop.create_server(asyncio.Protocol, *address),
            loop.create_server(asyncio.Protocol, "127.0.0.1", address[1], reuse_address=False),
            loop.create_server(asyncio.Protocol),
            loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=True),
            loop.create_server(asyncio.Protocol, "127.0.0.1", 0, sock=sock),
            loop.create_datagram_endpoint(asyncio.DatagramProtocol),
            loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1",)),
            loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=sock),
            loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0), ("::1", 1)),
            loop.create_unix_connection(asyncio.Protocol, "/nowhere/to/be/found"),
            loop.create_unix_connection(asyncio.Protocol),
            loop.create_unix_server(asyncio.Protocol, "/nowhere/to/be/found"),
            loop.create_unix_server(asyncio.Protocol, "x" * 200),
            loop.getaddrinfo("127.0.0.1", "no service"),
            loop.getaddrinfo(1, 2),
        ]
        for number, call in enumerate(made):
            await scene.fails(number, call)
    listener.close()


async def plain_sockets(scene):
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as one:
        listener.setblocking(False)
        one.setblocking(False)
        accepting = asyncio.create_task(loop.sock_accept(listener))
        await asyncio.sleep(0.01)
        await loop.sock_connect(one, listener.getsockname())
        other, address = await accepting
        scene.note("accepted", address == one.getsockname(), other.gettimeout(), one.getpeername())
        with other:
            await loop.sock_sendall(other, b"hello")
            scene.note("one", await loop.sock_recv(one, 3), await loop.sock_recv(one, 3))
            for call in (loop.sock_connect(one, listener.getsockname()), loop.sock_accept(one)):
                await scene.fails("one", call)
            reading = asyncio.create_task(loop.sock_recv(other, 3))
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.sleep(0.01)
            one.shutdown(socket.SHUT_WR)
            scene.note("other", await loop.sock_recv(other, 3))
            await scene.fails("one", loop.sock_sendall(one, b"x"))
            many = asyncio.create_task(loop.sock_sendall(other, bytes(20_000_000)))
            room, count = bytearray(1 << 20), 0
            while count < 20_000_000:
                count += await loop.sock_recv_into(one, room)
            await many
            readable, writable = [], []
            loop.add_reader(one, readable.append, 1)
            loop.add_writer(one.fileno(), writable.append, 1)
            await asyncio.sleep(0.01)
            scene.note("one", bool(readable), bool(writable), loop.remove_writer(one), loop.remove_writer(one))
            other.close()
            await asyncio.sleep(0.01)
            scene.note("one", bool(readable), loop.remove_reader(one))
    with socket.socket() as never:
        never.setblocking(False)
        await scene.fails("never", loop.sock_connect(never, ("127.0.0.1", 1)))
        await scene.fails("never", loop.sock_recv(never, 1))


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, scene, who):
        self.scene, self.who = scene, who

    def connection_made(self, transport):
        self.transport = transport
        self.scene.note(self.who, "made", transport.get_extra_info("peername"), variable.get())

    def datagram_received(self, data, address):
        self.scene.note(self.who, data[:20], len(data), address, variable.get())

    def error_received(self, error):
        self.scene.note(self.who, error)

    def connection_lost(self, error):
        self.scene.note(self.who, "lost", error)


async def datagrams(scene):
    loop = asyncio.get_running_loop()
    receiving, receiver = await loop.create_datagram_endpoint(lambda: Datagrams(scene, "one"), ("127.0.0.1", 0))
    address = receiving.get_extra_info("sockname")
    variable.set("sender")
    sending, _ = await loop.create_datagram_endpoint(lambda: Datagrams(scene, "two"), None, address)
    for data in (b"first", b"", bytes(65507), bytes(65508), bytes(70_000)):
        sending.sendto(data)
        await asyncio.sleep(0.01)
    receiving.sendto(b"back", sending.get_extra_info("sockname"))
    receiving.sendto(b"nowhere", ("127.0.0.1", 1))
    await asyncio.sleep(0.01)
    receiving.close()
    await asyncio.sleep(0.01)
    for _ in range(3):
        sending.sendto(b"anyone?")
        await asyncio.sleep(0.01)
    sending.abort()
    await asyncio.sleep(0.01)


async def sockets_share_an_address(scene):
    loop, first, last, sender = asyncio.get_running_loop(), *(Sockets.socket(type=socket.SOCK_DGRAM) for _ in range(3))
    with first, last, sender:
        for sock in (first, last, sender):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(("127.0.0.1", 0))
        last.bind(first.getsockname())
        receiving = {who: asyncio.create_task(loop.sock_recv(sock, 20)) for who, sock in [("1", first), ("2", last)]}
        await loop.sock_sendto(sender, b"for one of you", last.getsockname())
        await asyncio.sleep(0.01)
        for who, task in receiving.items():
            scene.note(who, task.done())
            task.cancel()
        await asyncio.wait(receiving.values())


class Upper(asyncio.Protocol):
    """Answers in capitals, and ends at the word `end`."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data.upper())
        if data.endswith(b"end"):
            self.transport.close()


async def tls(scene):
    loop = asyncio.get_running_loop()
    contexts = scene.tls.server(), scene.tls.client()
    listener = await loop.create_server(Upper, "127.0.0.1", 0, ssl=contexts[0])
    port = listener.sockets[0].getsockname()[1]
    client = Noting(scene, "client")
    transport, _ = await loop.create_connection(
        lambda: client, "127.0.0.1", port, ssl=contexts[1], server_hostname="localhost"
    )
    scene.note("client", transport.get_extra_info("sslcontext") is contexts[1], transport.get_extra_info("cipher"))
    transport.write(bytes(300_000))
    transport.write(b"end")
    await client.ended
    options = {"ssl": contexts[1], "server_hostname": "wrong.example"}
    await scene.fails("wrong name", loop.create_connection(asyncio.Protocol, "127.0.0.1", port, **options))
    options = {"ssl": ssl.create_default_context(), "server_hostname": "localhost"}
    await scene.fails("not trusted", loop.create_connection(asyncio.Protocol, "127.0.0.1", port, **options))
    plain = Noting(scene, "plain")
    transport, _ = await loop.create_connection(lambda: plain, "127.0.0.1", port)
    secure = await loop.start_tls(transport, plain, contexts[1], server_hostname="localhost")
    plain.transport = secure
    secure.write(b"start, and end")
    await plain.ended
    garbage = Noting(scene, "garbage")
    transport, _ = await loop.create_connection(lambda: garbage, "127.0.0.1", port)
    transport.write(b"GET / HTTP/1.1\r\n\r\n")
    await garbage.ended
    deaf = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    options = {"ssl": contexts[1], "server_hostname": "localhost", "ssl_handshake_timeout": 0.05}
    port = deaf.sockets[0].getsockname()[1]
    await scene.fails("deaf", loop.create_connection(asyncio.Protocol, "127.0.0.1", port, **options))
    for server in listener, deaf:
        server.close()


async def streams(scene):
    async def handle(reader, writer):
        try:
            line = await reader.readuntil(b"\n")
            writer.write(line * 3)
            await writer.drain()
            scene.note("server", await reader.read())
        finally:
            writer.close()
            await scene.fails("server", writer.wait_closed())

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"line\n")
        scene.note("client", await reader.readexactly(15))
        writer.write(b"rest")
        writer.write_eof()
        scene.note("client", await reader.read(), reader.at_eof())
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.01)


PROGRAMS = [
    a_conversation,
    one_half_closes,
    one_aborts_with_data_in_its_buffer,
    one_resets,
    one_closes_with_unread_data,
    one_writes_to_a_closed_peer,
    a_reader_pauses,
    a_server_closes,
    calls_fail,
    plain_sockets,
    datagrams,
    sockets_share_an_address,
    tls,
    streams,
]


def seen(program, loop_factory, tls):
    scene = Scene(tls)

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: scene.note("handler", context["message"], context.get("exception")))
        await program(scene)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    return scene.seen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_looks_the_same_as_on_the_loopback(program, tls, asyncio_log):
    expected = seen(program, asyncio.SelectorEventLoop, tls)
    assert expected
    assert seen(program, lambda: testing.EventLoop(network=Network()), tls) == expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("program", [program for program in PROGRAMS if program is not tls], ids=lambda it: it.__name__)
def test_latency_and_order_change_nothing_that_a_protocol_sees(program, seed, tls, asyncio_log):
    expected = seen(program, lambda: testing.EventLoop(network=Network()), tls)
    # Short enough for the sleeps of the programs.
    found = seen(program, lambda: testing.EventLoop(network=Network(latency=(0.0001, 0.002)), seed=seed), tls)
    assert found == expected


