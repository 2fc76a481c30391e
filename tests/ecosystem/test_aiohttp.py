"""aiohttp's server and client, HTTP and WebSocket."""

import asyncio
import os

import pytest

from tests.ecosystem.support import body_of, load, need, raw_load

(aiohttp,) = need("aiohttp")
web = aiohttp.web if hasattr(aiohttp, "web") else __import__("aiohttp.web").web

pytestmark = pytest.mark.timeout(90)


async def some_bytes(request):
    return web.Response(body=body_of(int(request.match_info["size"])))


async def stream(request):
    body = body_of(int(request.match_info["size"]))
    response = web.StreamResponse(headers={"content-length": str(len(body))})
    await response.prepare(request)
    step = max(1, len(body) // 10)
    for start in range(0, len(body), step):
        await response.write(body[start : start + step])
    await response.write_eof()
    return response


async def slow(request):
    await asyncio.sleep(0.002)
    return web.Response(body=b"slow " + request.match_info["number"].encode())


async def echo(request):
    return web.Response(body=await request.read())


async def talk(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await (socket.send_bytes if message.type is aiohttp.WSMsgType.BINARY else socket.send_str)(message.data)
    return socket


class Serving:
    def __init__(self, ssl=None):
        self._ssl = ssl

    async def __aenter__(self):
        application = web.Application(client_max_size=1 << 24)
        application.router.add_get("/bytes/{size}", some_bytes)
        application.router.add_get("/stream/{size}", stream)
        application.router.add_get("/slow/{number}", slow)
        application.router.add_post("/echo", echo)
        application.router.add_get("/talk", talk)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._ssl)
        await site.start()
        return self._runner.addresses[0]

    async def __aexit__(self, *error):
        await self._runner.cleanup()
        await asyncio.sleep(0.05)


def fetcher(session):
    async def fetch(method, path, body):
        async with session.request(method, path, data=body) as response:
            return response.status, await response.read()

    return fetch


def test_server_and_client_exchange_thousands_of_requests(run):
    async def main():
        async with Serving() as (host, port), aiohttp.ClientSession(f"http://{host}:{port}") as session:
            await load(fetcher(session), total=3000, clients=50)

    run(main())


def test_the_server_answers_raw_keep_alive_connections(run):
    async def main():
        async with Serving() as address:
            await raw_load(*address)

    run(main())


def test_a_new_connection_for_every_request(run):
    async def main():
        async with Serving() as (host, port):
            connector = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(f"http://{host}:{port}", connector=connector) as session:
                await load(fetcher(session), total=1000)

    run(main())


def test_https(run, tls):
    async def main():
        async with Serving(tls.server()) as (_, port):
            connector = aiohttp.TCPConnector(ssl=tls.client())
            async with aiohttp.ClientSession(f"https://localhost:{port}", connector=connector) as session:
                await load(fetcher(session), total=1000)
            await asyncio.sleep(0.1)

    run(main())


def test_web_sockets(run):
    async def main():
        async with Serving() as (host, port), aiohttp.ClientSession(f"http://{host}:{port}") as session:

            async def client(number):
                async with session.ws_connect("/talk") as socket:
                    for turn in range(50):
                        message = os.urandom(1 + (number * turn * 37) % 20_000)
                        await socket.send_bytes(message)
                        assert await socket.receive_bytes() == message
                        await socket.send_str(f"{number} {turn}")
                        assert await socket.receive_str() == f"{number} {turn}"

            await asyncio.gather(*(client(number) for number in range(30)))

    run(main())


def test_requests_that_time_out_and_are_cancelled_do_no_harm(run):
    async def main():
        async with Serving() as (host, port), aiohttp.ClientSession(f"http://{host}:{port}") as session:
            fetch = fetcher(session)
            for _ in range(100):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.0005):
                        await fetch("GET", "/slow/1", None)
                        await asyncio.sleep(1)
            assert await fetch("GET", "/bytes/10", None) == (200, body_of(10))

    run(main())
