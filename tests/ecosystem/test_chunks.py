"""Streams of events and of WebSocket messages, from handlers that compute between two of them.

The handler is the test: after each chunk it waits, in the same step, until the client has the chunk. It counts what the
client has, and needs no clock: a chunk that is held back never comes.
"""

import asyncio
import base64
import os
import select
import socket

import pytest

from tests.ecosystem.support import need

pytestmark = pytest.mark.timeout(60)

EVENTS = 5
RESPONSES = 100


class Client:
    """A client in the server's own thread."""

    def __init__(self, address):
        self._socket = socket.create_connection(address)
        self._socket.setblocking(False)
        self._received = b""

    def send(self, data):
        self._socket.sendall(data)

    def until(self, token):
        """Blocks until `token` has come, and drops everything up to it."""
        while token not in self._received:
            assert select.select([self._socket], [], [], 10)[0], f"{token} is held back"
            self._take(self._socket.recv(65536))
        self._received = self._received.partition(token)[2]

    async def receive(self, token):
        """The same, while the loop runs."""
        while token not in self._received:
            self._take(await asyncio.get_running_loop().sock_recv(self._socket, 65536))
        self._received = self._received.partition(token)[2]

    def _take(self, data):
        assert data, f"closed after {self._received}"
        self._received += data

    def close(self):
        self._socket.close()


async def application(scope, receive, send):
    """GET /: a response of head and body. GET /events: a stream. A WebSocket: messages."""
    client = CLIENT[-1]
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        for number in range(EVENTS):
            await send({"type": "websocket.send", "text": f"event {number};"})
            client.until(b"event %d;" % number)
        await send({"type": "websocket.close"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/":
        await send({"type": "http.response.body", "body": b"the end"})
        return
    for number in range(EVENTS):
        await send({"type": "http.response.body", "body": b"event %d;" % number, "more_body": True})
        client.until(b"event %d;" % number)
    await send({"type": "http.response.body", "body": b"the end"})


#: The client of the running test.
CLIENT: list[Client] = []


async def get(client, path):
    client.send(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
    await client.receive(b"the end")


async def events(address, responses):
    client = Client(address)
    CLIENT.append(client)
    try:
        for _ in range(responses):
            await get(client, b"/")
        for _ in range(2):
            await get(client, b"/events")
    finally:
        CLIENT.pop()
        client.close()


async def messages(address):
    client = Client(address)
    CLIENT.append(client)
    try:
        key = base64.b64encode(os.urandom(16))
        client.send(
            b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: %s\r\n\r\n" % key
        )
        await client.receive(b"\x88")  # the close frame, after the handler has seen every message arrive
    finally:
        CLIENT.pop()
        client.close()


def uvicorn_server(http):
    from tests.ecosystem.test_uvicorn import Inside

    inside = Inside(http, lifespan="off")
    inside._server.config.app = application
    return inside


class Hypercorn:
    async def __aenter__(self):
        serve = need("hypercorn.asyncio")[0].serve
        config = need("hypercorn.config")[0].Config()
        with socket.create_server(("127.0.0.1", 0)) as sock:
            sock.setblocking(False)
            address = sock.getsockname()
            config.bind = [f"fd://{os.dup(sock.fileno())}"]
        config.errorlog = config.accesslog = None
        config.keep_alive_timeout = 3600
        self._end = asyncio.Event()
        self._serving = asyncio.create_task(serve(application, config, shutdown_trigger=self._end.wait))
        return address

    async def __aexit__(self, *error):
        self._end.set()
        await self._serving


SERVERS = {
    "uvicorn-h11": lambda: uvicorn_server("h11"),
    "uvicorn-httptools": lambda: uvicorn_server("httptools"),
    "hypercorn": Hypercorn,
}


@pytest.mark.parametrize("responses", [0, RESPONSES])
@pytest.mark.parametrize("server", SERVERS)
def test_every_event_is_there_before_the_next_computation_begins(run, server, responses):
    async def main():
        async with SERVERS[server]() as address:
            await events(address, responses)

    run(main())


@pytest.mark.parametrize("server", SERVERS)
def test_every_message_is_there_before_the_next_computation_begins(run, server):
    async def main():
        async with SERVERS[server]() as address:
            await messages(address)

    run(main())


@pytest.mark.parametrize("responses", [0, RESPONSES])
def test_every_event_of_aiohttp_is_there_before_the_next_computation_begins(run, responses):
    (web,) = need("aiohttp.web")

    async def page(request):
        return web.Response(body=b"the end")

    async def stream(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(EVENTS):
            await response.write(b"event %d;" % number)
            CLIENT[-1].until(b"event %d;" % number)
        await response.write(b"the end")
        return response

    async def main():
        application = web.Application()
        application.router.add_get("/", page)
        application.router.add_get("/events", stream)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            await events(runner.addresses[0], responses)
        finally:
            await runner.cleanup()

    run(main())
