"""The services of the demo, written as a user would write them. They do not depend on the loop.

``worker.py`` runs them as scenarios, beside those of ``servers.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from servers import KIB, Echo, echo_exactly, keep, serve_protocol, serve_streams, serve_uvicorn

MESSAGE = KIB
HELLO = b"Hello, world!\n"
DOCUMENT = json.dumps({"items": [{"id": n, "name": f"item {n}", "tags": ["a", "b"]} for n in range(10)]}).encode()
BODY = bytes(range(256)) * 40
ANSWERS = {"/": (b"text/plain", HELLO), "/json": (b"application/json", DOCUMENT), "/body": (b"image/png", BODY)}


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI application: a greeting, a JSON document that is made anew for each request, and a 10 KiB body."""
    kind, body = ANSWERS.get(scope["path"], (b"text/plain", b"not found\n"))
    if scope["path"] == "/json":
        body = json.dumps(json.loads(body)).encode()
    status = 200 if scope["path"] in ANSWERS else 404
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve_rust(path: str) -> int:
    """The echo server on wakeloop's Rust runtime; Python starts it and waits."""
    import wakeloop

    return int(keep(await wakeloop.start_echo_server("127.0.0.1", 0)).port)


#: By scenario: a coroutine function that listens and returns the port.
SERVICES: dict[str, Callable[[str], Coroutine[Any, Any, int]]] = {
    "demo/uvicorn": partial(serve_uvicorn, application, "httptools"),
    "demo/streams": partial(serve_streams, echo_exactly(MESSAGE)),
    "demo/protocol": partial(serve_protocol, Echo),
    "demo/rust": serve_rust,
}
