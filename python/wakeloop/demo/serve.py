"""One server of the demo: ``python -m wakeloop.demo.serve --service NAME --loop NAME``.

Prints ``{"port": N}`` once it listens and serves until it is killed. The services are what a user would write;
nothing in them knows which loop they run on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
from collections.abc import Callable, Coroutine
from typing import Any

from wakeloop.demo.processes import die_with_parent, pin

MESSAGE = 1024
HELLO = b"Hello, world!\n"
DOCUMENT = json.dumps({"items": [{"id": n, "name": f"item {n}", "tags": ["a", "b"]} for n in range(10)]}).encode()
BODY = bytes(range(256)) * 40
ANSWERS = {"/": (b"text/plain", HELLO), "/json": (b"application/json", DOCUMENT), "/body": (b"image/png", BODY)}

# asyncio holds servers only weakly in places.
_alive: list[object] = []


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application: a greeting, a JSON document made anew for each request, and a 10 KiB body."""
    kind, body = ANSWERS.get(scope["path"], (b"text/plain", b"not found\n"))
    if scope["path"] == "/json":
        body = json.dumps(json.loads(body)).encode()
    status = 200 if scope["path"] in ANSWERS else 404
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve_uvicorn() -> int:
    import uvicorn

    config = uvicorn.Config(
        application, "127.0.0.1", 0, http="httptools", lifespan="off", access_log=False, log_level="warning"
    )
    server = uvicorn.Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve())
    _alive.extend([server, serving])
    while not server.started:
        await asyncio.wait([serving], timeout=0.01)
        if serving.done():
            await serving
    return port_of(server.servers[0])


async def serve_streams() -> int:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(await reader.readexactly(MESSAGE))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, backlog=1024)
    _alive.append(server)
    return port_of(server)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve_protocol() -> int:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=1024)
    _alive.append(server)
    return port_of(server)


async def serve_rust() -> int:
    """The echo server that runs on wakeloop's Rust runtime; Python starts it and waits."""
    from wakeloop._core import start_echo_server

    server = await start_echo_server("127.0.0.1", 0)
    _alive.append(server)
    return int(server.port)


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


SERVERS: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {
    "uvicorn": serve_uvicorn,
    "streams": serve_streams,
    "protocol": serve_protocol,
    "rust": serve_rust,
}


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """asyncio's selector loop, or ``new_event_loop`` of the module of this name."""
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(name).new_event_loop
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", choices=SERVERS, required=True)
    parser.add_argument("--loop", required=True)
    parser.add_argument("--cpu", type=int, default=-1)
    arguments = parser.parse_args()
    die_with_parent()
    pin(arguments.cpu)
    try:
        with asyncio.Runner(loop_factory=loop_factory(arguments.loop)) as runner:
            port = runner.run(SERVERS[arguments.service]())
            print(json.dumps({"port": port}), flush=True)
            runner.get_loop().run_forever()
    except KeyboardInterrupt:
        pass
    except Exception as error:
        print(json.dumps({"fail": f"{type(error).__name__}: {error}"}), flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
