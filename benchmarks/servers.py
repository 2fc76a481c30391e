"""Server scenarios: what one request costs the server, with the client in another process.

A ``Server`` has a coroutine function that listens on a TCP port of its choice, or at the path of a Unix socket, and
the options of the load that it gets.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import load_generator
import tls
from processes import ChildError

KIB = 1024


@dataclass(frozen=True)
class Server:
    """How to serve, and what load to put on it."""

    listen: Callable[[str], Coroutine[Any, Any, int]]
    """Given the path for a Unix socket (unused by TCP), listens and returns the TCP port, or 0 for the path."""
    load: dict[str, Any] = field(default_factory=dict)
    """The scheme of the target (``tls`` for the load of ``tls.py``), and options of ``load_generator.run``."""
    metric: str = "cpu_us"
    """The value by which the loops are compared: a key of a round's sample. Lower is better."""
    unpinned: bool = False
    """Runs on both cores, and in a new process in each round: the age of a process would change the result."""
    rounds: int | None = None
    """Fewer rounds than usual, because one takes long."""


SERVERS: dict[str, Server] = {}


def put_load(
    name: str, pid: int, port: int, path: str, cpu: int, duration: float, warmup: float, **more: Any
) -> dict[str, Any]:
    """Puts the load of a scenario on its server and reports; ChildError unless every answer was right.

    The load generator, which also takes ``more``, runs on core ``cpu``; so does the TLS load, in this process.
    """
    options = dict(SERVERS[name].load)
    scheme = options.pop("scheme")
    if scheme == "tls":
        result = tls.run(port, pid, options, duration, warmup, cpu)
    else:
        target = f"{scheme}://127.0.0.1:{port}" if port else f"unix:{path}"
        options |= more
        result = load_generator.run(target, pid, cpu=cpu, duration=duration, warmup=warmup, **options)
    if result["errors"]:
        raise ChildError(f"errors {result['errors']}; the first: {result['first_error']}")
    return result


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


# A loop refers to some servers, transports and tasks only weakly. This list keeps them alive.
_alive: list[object] = []


def keep(thing: Any) -> Any:
    _alive.append(thing)
    return thing


# -- protocols ---------------------------------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.buffer = bytearray(256 * KIB)
        self.view = memoryview(self.buffer)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self.view[:nbytes]))


class HeaderAndBody(Echo):
    """Answers in two writes, as HTTP servers do. A message of 1 KiB arrives in one piece."""

    def data_received(self, data: bytes) -> None:
        self.transport.write(data[:100])
        self.transport.write(data[100:])


class CloseAtOnce(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def serve_protocol(protocol: Callable[[], asyncio.BaseProtocol], path: str) -> int:
    loop = asyncio.get_running_loop()
    return port_of(keep(await loop.create_server(protocol, "127.0.0.1", 0, backlog=1024)))


async def serve_beside_a_busy_thread(path: str) -> int:
    """An echo server in a process whose other thread never gives the GIL up by itself."""

    def burn() -> None:
        while True:
            pass

    threading.Thread(target=burn, daemon=True).start()
    return await serve_protocol(Echo, path)


async def serve_unix_protocol(protocol: type[asyncio.BaseProtocol], path: str) -> int:
    keep(await asyncio.get_running_loop().create_unix_server(protocol, path, backlog=1024))
    return 0


# -- streams -----------------------------------------------------------------------------------------------------

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def echo_exactly(size: int) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(await reader.readexactly(size))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return handle


async def echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def serve_streams(handle: Handler, path: str) -> int:
    return port_of(keep(await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024, limit=KIB * KIB)))


async def serve_native_streams(handle: Handler, path: str) -> int:
    """The loop's own streams, if it has any: wakeloop.start_server on wakeloop, asyncio's on the other loops."""
    loop = asyncio.get_running_loop()
    streams: Any = importlib.import_module("wakeloop" if type(loop).__module__.startswith("wakeloop") else "asyncio")
    return port_of(keep(await streams.start_server(handle, "127.0.0.1", 0, backlog=1024, limit=KIB * KIB)))


async def serve_unix_streams(handle: Handler, path: str) -> int:
    keep(await asyncio.start_unix_server(handle, path, backlog=1024, limit=KIB * KIB))
    return 0


# -- TLS ---------------------------------------------------------------------------------------------------------


async def serve_tls_protocol(protocol: type[asyncio.BaseProtocol], path: str) -> int:
    loop, context = asyncio.get_running_loop(), tls.server_context()
    return port_of(keep(await loop.create_server(protocol, "127.0.0.1", 0, backlog=1024, ssl=context)))


async def serve_tls_streams(handle: Handler, path: str) -> int:
    context = tls.server_context()
    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1024, limit=KIB * KIB, ssl=context)
    return port_of(keep(server))


# -- sockets and datagrams ---------------------------------------------------------------------------------------


async def serve_sockets(size: int, path: str) -> int:
    """sock_accept, sock_recv and sock_sendall."""
    loop = asyncio.get_running_loop()
    listener = keep(socket.create_server(("127.0.0.1", 0), backlog=1024))
    listener.setblocking(False)

    async def echo(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                while data := await loop.sock_recv(connection, 2 * size):
                    await loop.sock_sendall(connection, data)
            except ConnectionError:
                pass

    async def accept() -> None:
        while True:
            connection, _ = await loop.sock_accept(listener)
            keep(loop.create_task(echo(connection)))

    keep(loop.create_task(accept()))
    return int(listener.getsockname()[1])


class DatagramEcho(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.DatagramTransport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(data, addr)


async def serve_datagrams(path: str) -> int:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(DatagramEcho, local_addr=("127.0.0.1", 0))
    keep(transport)
    return int(transport.get_extra_info("sockname")[1])


# -- bulk --------------------------------------------------------------------------------------------------------

ANSWER = bytes(range(256)) * 4 * 4 * KIB


class Bulk(asyncio.Protocol):
    """Answers each request with 4 MiB in writes of one size, as fast as the flow control lets it."""

    def __init__(self, size: int) -> None:
        self.chunk, self.chunks = ANSWER[:size], len(ANSWER) // size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.left, self.paused = 0, False

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(ANSWER))
        self.left = self.chunks
        self.send()

    def send(self) -> None:
        while self.left and not self.paused:
            self.left -= 1
            self.transport.write(self.chunk)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.send()


UPLOAD = 4 * KIB * KIB
RECEIVED = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nreceived"


class Upload(asyncio.Protocol):
    """Counts what a request uploads, 4 MiB, and answers when it has all."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.left = 0

    def data_received(self, data: bytes) -> None:
        if not self.left:
            self.left = UPLOAD + data.index(b"\r\n\r\n") + 4
        self.left -= len(data)
        if not self.left:
            self.transport.write(RECEIVED)


async def receive_upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(UPLOAD)
            writer.write(RECEIVED)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


# -- HTTP --------------------------------------------------------------------------------------------------------

HELLO = b"Hello, world!"


async def hello_app(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(HELLO))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": HELLO})


async def serve_uvicorn(app: Any, http: Any, path: str) -> int:
    import uvicorn

    # uvicorn gets a host and a port and not a socket made here, because asyncio sets TCP_NODELAY only on sockets whose
    # protocol it knows.
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, http=http, lifespan="off", access_log=False, log_level="warning"
    )
    server = uvicorn.Server(config)
    serving = keep(asyncio.get_running_loop().create_task(server.serve()))
    while not server.started:
        await asyncio.wait([serving], timeout=0.01)
        if serving.done():
            await serving
    return port_of(server.servers[0])


async def serve_fastapi(path: str) -> int:
    from fastapi import FastAPI

    async def hello() -> dict[str, str]:
        return {"message": "Hello, world!"}

    app = FastAPI()
    app.add_api_route("/", hello)
    return await serve_uvicorn(app, "httptools", path)


async def serve_aiohttp(path: str) -> int:
    from aiohttp import web

    async def hello(request: web.Request) -> web.Response:
        return web.Response(body=HELLO)

    app = web.Application()
    app.router.add_get("/", hello)
    runner = keep(web.AppRunner(app, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


# -- the table ---------------------------------------------------------------------------------------------------


def echo_load(size: int, connections: int, scheme: str = "tcp", **more: Any) -> dict[str, Any]:
    return {"scheme": scheme, "size": size, "connections": connections, **more}


def add(
    name: str, listen: Callable[[str], Coroutine[Any, Any, int]], load: dict[str, Any], **more: Any
) -> None:
    SERVERS[name] = Server(listen, load, **more)


for _connections in (1, 10, 100):
    add(f"tcp/proto/1k/c{_connections}", partial(serve_protocol, Echo), echo_load(KIB, _connections))
add("tcp/proto/10k/c10", partial(serve_protocol, Echo), echo_load(10 * KIB, 10))
add("tcp/proto/100k/c10", partial(serve_protocol, Echo), echo_load(100 * KIB, 10))
add("tcp/buffered/1k/c10", partial(serve_protocol, BufferedEcho), echo_load(KIB, 10))
add("tcp/two-writes/1k/c10", partial(serve_protocol, HeaderAndBody), echo_load(KIB, 10))
add("tcp/streams/1k/c1", partial(serve_streams, echo_exactly(KIB)), echo_load(KIB, 1))
add("tcp/streams/1k/c10", partial(serve_streams, echo_exactly(KIB)), echo_load(KIB, 10))
add("tcp/streams/100k/c10", partial(serve_streams, echo_exactly(100 * KIB)), echo_load(100 * KIB, 10))
add("tcp/native-streams/1k/c10", partial(serve_native_streams, echo_exactly(KIB)), echo_load(KIB, 10))
add(
    "tcp/native-streams/100k/c10",
    partial(serve_native_streams, echo_exactly(100 * KIB)),
    echo_load(100 * KIB, 10),
)
add("tcp/readline/1k/c10", partial(serve_streams, echo_lines), echo_load(KIB, 10, lines=True))
add("tcp/sock/1k/c10", partial(serve_sockets, KIB), echo_load(KIB, 10))
add("tcp/accept+close/c10", partial(serve_protocol, CloseAtOnce), {"scheme": "tcp", "accept": True, "connections": 10})
add("unix/proto/1k/c10", partial(serve_unix_protocol, Echo), echo_load(KIB, 10))
add("unix/streams/1k/c10", partial(serve_unix_streams, echo_exactly(KIB)), echo_load(KIB, 10))
add("udp/1k/c10", serve_datagrams, echo_load(KIB, 10, "udp"))

for _kib, _connections in ((4, 1), (64, 1), (1024, 1), (64, 4)):
    add(f"tcp/bulk/{_kib}k-writes/c{_connections}", partial(serve_protocol, partial(Bulk, _kib * KIB)),
        {"scheme": "http", "connections": _connections, "expect_body": ANSWER})  # fmt: skip

_upload = {"scheme": "http", "connections": 1, "post": UPLOAD, "expect_body": b"received"}
add("tcp/upload/4m/c1", partial(serve_protocol, Upload), _upload)
for _kib in (4, 64):
    add(f"tcp/upload/{_kib}k-writes/c1", partial(serve_protocol, Upload), _upload | {"chunk": _kib * KIB})
add("tcp/native-streams/upload/4m/c1", partial(serve_native_streams, receive_upload), _upload)

# Scenarios of memory, and of how long a client waits.
_crowd = partial(serve_protocol, Echo)
add("tcp/idle-memory/c5000", _crowd, echo_load(KIB, 1, idle=5_000, rate=100.0), metric="kib_per_idle", unpinned=True,
    rounds=5)  # fmt: skip
add("tcp/active-among-idle/c50+9950", _crowd, echo_load(KIB, 50, idle=9_950, rate=2_000.0), metric="p99_us",
    unpinned=True, rounds=5)  # fmt: skip
add("tcp/busy-thread/c50", serve_beside_a_busy_thread, echo_load(KIB, 50), metric="p99_us", unpinned=True, rounds=7)


for _size in (1, 100):
    add(f"tls/proto/{_size}k/c10", partial(serve_tls_protocol, Echo), echo_load(_size * KIB, 10, "tls"))
add("tls/streams/1k/c10", partial(serve_tls_streams, echo_exactly(KIB)), echo_load(KIB, 10, "tls"))
for _size, _idle in ((1, 500), (100, 100)):
    add(f"tls/memory/{_size}k/c{_idle}", partial(serve_tls_protocol, Echo), echo_load(_size * KIB, 10, "tls", idle=_idle),
        metric="kib_per_idle", unpinned=True, rounds=3)  # fmt: skip

_http = {"scheme": "http", "connections": 10, "expect_body": HELLO}
add("http/uvicorn-httptools", partial(serve_uvicorn, hello_app, "httptools"), _http)
add("http/uvicorn-h11", partial(serve_uvicorn, hello_app, "h11"), _http)
add("http/fastapi", serve_fastapi, _http | {"expect_body": b'{"message":"Hello, world!"}'})
add("http/aiohttp", serve_aiohttp, _http)
