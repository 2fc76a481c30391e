"""uvicorn, inside the test's own loop and as a program."""

import asyncio
import pathlib
import signal
import sys

import pytest

from tests.ecosystem.support import application, environment, free_port, load, need, raw_load, until_listening

(uvicorn,) = need("uvicorn")

pytestmark = pytest.mark.timeout(90)

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"


class Inside:
    """uvicorn's server as a task of the running loop."""

    def __init__(self, http, **options):
        if http != "h11":
            need(http)
        options.setdefault("lifespan", "on")
        # uvicorn closes a connection that was idle for five seconds, as its clients are on a machine with other work.
        options.setdefault("timeout_keep_alive", 3600)
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


GROUP_APPLICATION = """
import asyncio, os, threading

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        scope["state"]["began"] = threading.current_thread().name
        while True:
            message = await receive()
            os.write(1, message["type"].encode() + b"\\n")
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/slow":
        os.write(1, b"slow\\n")
        await asyncio.sleep(0.5)
    body = f"{threading.current_thread().name} {scope['state']['began']}\\n".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""


def test_an_application_is_served_by_all_loops_of_a_group_with_one_lifespan(tmp_path):
    port = free_port()
    program = (EXAMPLES / "asgi_group.py").read_text()
    program = program.replace("EventLoopGroup()", "EventLoopGroup(3)")
    program = program.replace("port=8000", f"port={port}, log_level='warning'")
    (tmp_path / "asgi_group.py").write_text(program)
    (tmp_path / "web_app.py").write_text(GROUP_APPLICATION)

    async def ask(reader, writer, path):
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200") and b"\r\ndate: " in head
        return (await reader.readline()).decode().split()

    async def main():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-Wignore", "asgi_group.py",
            cwd=tmp_path, env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert await process.stdout.readline() == b"lifespan.startup\n"
            await until_listening(port)
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            answers = [await ask(*client, "/") for client in clients]
            threads = [thread for thread, _ in answers]
            assert sorted(threads.count(thread) for thread in set(threads)) == [4, 4, 4]
            assert {began for _, began in answers} == {"MainThread"}
            # A request that is being answered on another loop than the one with the signal.
            busy = clients[threads.index("wakeloop-1")]
            answer = asyncio.create_task(ask(*busy, "/slow"))
            assert await process.stdout.readline() == b"slow\n"
            process.send_signal(signal.SIGTERM)
            assert await answer == ["wakeloop-1", "MainThread"]
            assert await process.stdout.read() == b"lifespan.shutdown\n"
            assert await process.wait() == 128 + signal.SIGTERM
            for _, writer in clients:
                writer.close()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    asyncio.run(main())
