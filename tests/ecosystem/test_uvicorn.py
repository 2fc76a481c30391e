"""uvicorn, inside the test's own loop and as a program."""

import asyncio
import signal
import sys

import pytest

from tests.ecosystem.support import application, environment, free_port, load, need, raw_load, until_listening

(uvicorn,) = need("uvicorn")

pytestmark = pytest.mark.timeout(90)


class Inside:
    """uvicorn's server as a task of the running loop."""

    def __init__(self, http, **options):
        if http != "h11":
            need(http)
        options.setdefault("lifespan", "on")
        config = uvicorn.Config(application, host="127.0.0.1", port=0, http=http, log_level="warning", **options)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = __import__("contextlib").nullcontext

    async def __aenter__(self):
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.005)
        return self._server.servers[0].sockets[0].getsockname()

    async def __aexit__(self, *error):
        self._server.should_exit = True
        await self._serving


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_uvicorn_answers_keep_alive_connections(run, http):
    async def main():
        async with Inside(http) as address:
            await raw_load(*address)

    run(main())


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_uvicorn_answers_httpx(run, http):
    (httpx,) = need("httpx")

    async def main():
        async with Inside(http) as (host, port), httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:

            async def fetch(method, path, body):
                response = await client.request(method, path, content=body)
                return response.status_code, response.content

            await load(fetch, total=1000, clients=20)

    run(main())


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_uvicorn_answers_aiohttps_client(run, http):
    (aiohttp,) = need("aiohttp")

    async def main():
        async with Inside(http) as (host, port), aiohttp.ClientSession(f"http://{host}:{port}") as session:

            async def fetch(method, path, body):
                async with session.request(method, path, data=body) as response:
                    return response.status, await response.read()

            await load(fetch)
        await asyncio.sleep(0.05)

    run(main())


def test_uvicorn_answers_over_tls(run, tls):
    (aiohttp,) = need("aiohttp")

    async def main():
        options = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
        async with Inside("h11", **options) as (_, port):
            connector = aiohttp.TCPConnector(ssl=tls.client())
            async with aiohttp.ClientSession(f"https://localhost:{port}", connector=connector) as session:

                async def fetch(method, path, body):
                    async with session.request(method, path, data=body) as response:
                        return response.status, await response.read()

                await load(fetch, total=800)
        await asyncio.sleep(0.1)

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("workers", [1, 2])
def test_uvicorn_as_a_program_takes_our_loop_by_name(run, workers):
    (httptools,) = need("httptools")

    async def main():
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "uvicorn", "tests.ecosystem.support:application", "--loop", "wakeloop:new_event_loop",
            "--http", "httptools", "--port", str(port), "--log-level", "warning", "--workers", str(workers),
            env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            await until_listening(port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /bytes/1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b"x-loop: wakeloop" in await reader.read()
            writer.close()
            await raw_load("127.0.0.1", port, total=3000, clients=50)
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = await asyncio.wait_for(process.communicate(), 15)
        assert out == b"" and process.returncode in (0, -signal.SIGTERM), out

    run(main())
