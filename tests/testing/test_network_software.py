"""Other people's clients and servers, unchanged, in one process on the simulated network."""

import asyncio

import pytest

from tests.testing.fakes import FakePostgres, FakeRedis
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native

#: A clean network, and a bad one.
NETWORKS = {
    "clean": {},
    "slow and lossy": {"latency": (0.01, 0.2), "loss": 0.1, "bandwidth": 1_000_000, "send_buffer": 20_000},
}


@pytest.fixture(params=NETWORKS)
def run(request):
    """`run(main)` runs a program on a network with the hosts `client` and `server`; its end is checked."""

    def run(main):
        network = Network(**NETWORKS[request.param])
        network.host("client", "10.0.0.1", "fd00::1")
        network.host("server", "10.0.0.2", "fd00::2")
        with network.host("client"):
            result = testing.run(lambda: main(network), network=network, seed=4, debug=False)
        assert network.sockets() == []
        return result

    return run


def test_aiohttp_serves_itself(run):
    aiohttp = pytest.importorskip("aiohttp")
    from aiohttp import web

    async def main(network):
        async def echo(request):
            return web.Response(body=await request.read(), headers={"X-From": request.remote})

        async def count(request):
            response = web.StreamResponse()
            await response.prepare(request)
            for number in range(3):
                await asyncio.sleep(60)
                await response.write(b"%d" % number)
            return response

        async def talk(request):
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                await socket.send_str(message.data.upper())
            return socket

        app = web.Application()
        app.add_routes([web.post("/echo", echo), web.get("/count", count), web.get("/talk", talk)])
        runner = web.AppRunner(app, access_log=None)
        with network.host("server"):
            await runner.setup()
            await web.TCPSite(runner, "server", 80).start()
        async with aiohttp.ClientSession("http://server") as session:
            body = bytes(range(256)) * 400
            for _ in range(3):
                async with session.post("/echo", data=body) as response:
                    assert await response.read() == body and response.headers["X-From"] == "10.0.0.1"
            async with session.get("/count") as response:
                assert await response.read() == b"012"
            async with session.ws_connect("/talk") as socket:
                await socket.send_str("hello")
                assert (await socket.receive()).data == "HELLO"
            with pytest.raises(TimeoutError):
                async with session.get("/count", timeout=aiohttp.ClientTimeout(total=10)) as response:
                    await response.read()
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get("http://server:81/")
            with pytest.raises(aiohttp.ClientConnectorDNSError):
                await session.get("http://nowhere.example/")
        await runner.cleanup()
        await asyncio.sleep(60)
        return asyncio.get_running_loop().time()

    # It has waited for minutes, and the test has not.
    assert run(main) > 180


def test_aiohttp_speaks_tls(run, tls):
    aiohttp = pytest.importorskip("aiohttp")
    from aiohttp import web

    async def page(request):
        return web.Response(text="x" * 100_000)

    async def main(network):
        app = web.Application()
        app.add_routes([web.get("/", page)])
        runner = web.AppRunner(app, access_log=None)
        network.name("localhost.example", "server")
        with network.host("server"):
            await runner.setup()
            await web.TCPSite(runner, "server", 443, ssl_context=tls.server()).start()
        context = tls.client()
        context.check_hostname = False
        async with aiohttp.ClientSession() as session:
            async with session.get("https://server/", ssl=context) as response:
                assert len(await response.text()) == 100_000
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get("https://server/", ssl=tls.client())
        await runner.cleanup()
        await asyncio.sleep(60)

    run(main)


def test_websockets_serves_itself(run):
    websockets = pytest.importorskip("websockets")
    from websockets.asyncio.client import connect
    from websockets.asyncio.server import serve

    async def main(network):
        async def handle(connection):
            async for message in connection:
                await connection.send(message[::-1])

        with network.host("server"):
            server = await serve(handle, "server", 80, ping_interval=20)
        async with connect("ws://server", proxy=None, ping_interval=20) as connection:
            for text in ("hello", "x" * 100_000 + "y"):
                await connection.send(text)
                assert await connection.recv() == text[::-1]
            # An hour of pings.
            await asyncio.sleep(3600)
            assert connection.latency < 10
            network.partition("server")
            with pytest.raises(websockets.ConnectionClosedError, match="keepalive ping timeout"):
                await connection.recv()
        network.heal()
        server.close()
        await server.wait_closed()
        # What the partition has held back is sent again within two minutes.
        await asyncio.sleep(300)

    run(main)


@pytest.mark.parametrize("implementation", ["h11", "httptools"])
def test_uvicorn_serves_an_app(run, implementation):
    uvicorn = pytest.importorskip("uvicorn")
    aiohttp = pytest.importorskip("aiohttp")
    pytest.importorskip(implementation)
    events = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                events.append(message["type"])
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body")
        await asyncio.sleep(60)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d from %s" % (size, scope["client"][0].encode())})

    async def main(network):
        config = uvicorn.Config(
            app, host="10.0.0.2", port=80, http=implementation, lifespan="on", loop="none", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        serving = network.host("server").create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.1)
        async with aiohttp.ClientSession("http://server") as session:
            for _ in range(2):
                async with session.post("/", data=bytes(100_000)) as response:
                    assert await response.text() == "100000 from 10.0.0.1"
        server.should_exit = True
        await serving
        await asyncio.sleep(60)

    run(main)
    assert events == ["lifespan.startup", "lifespan.shutdown"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_redis_client_talks_to_a_fake_server(run, protocol):
    redis = pytest.importorskip("redis.asyncio")

    async def main(network):
        with network.host("server"):
            fake = await FakeRedis("server", 6379).__aenter__()
        async with redis.Redis(host="server", protocol=protocol) as client:
            await client.set("key", "value" * 1000)
            assert await client.get("key") == b"value" * 1000 and await client.get("nothing") is None
            async with client.pipeline(transaction=False) as pipeline:
                for number in range(100):
                    pipeline.incr("counter").echo(f"{number}")
                assert await pipeline.execute() == [it for number in range(100) for it in (number + 1, b"%d" % number)]
            async with client.pubsub() as channel:
                await channel.subscribe("news")
                assert (await channel.get_message(timeout=10))["type"] == "subscribe"
                await client.publish("news", "hello")
                assert (await channel.get_message(timeout=10))["data"] == b"hello"
                assert await channel.get_message(timeout=1000) is None
        await fake.__aexit__()
        await asyncio.sleep(60)

    run(main)


def test_asyncpg_talks_to_a_fake_server(run):
    asyncpg = pytest.importorskip("asyncpg")

    async def main(network):
        with network.host("server"):
            fake = await FakePostgres("server", 5432).__aenter__()
        options = {"host": "server", "user": "user", "database": "base", "ssl": False}
        connection = await asyncpg.connect(**options)
        assert await connection.fetchval("SELECT 42") == 42
        assert await connection.fetchval("SELECT $1::text", "x" * 50_000) == "x" * 50_000
        assert await connection.execute("SET something") == "SELECT 0"
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT sleep(3600)", timeout=10)
        await connection.close(timeout=10_000)
        async with asyncpg.create_pool(min_size=1, max_size=3, **options) as pool:
            queries = (pool.fetchval("SELECT $1::int4", number) for number in range(10))
            assert await asyncio.gather(*queries) == list(range(10))
        await fake.__aexit__()
        await asyncio.sleep(60)

    run(main)
