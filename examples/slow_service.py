"""A service with three faults, for the guide "Finding out why a service is slow" (docs/guides/slow.md).

python examples/slow_service.py           then:  curl http://127.0.0.1:8000/price
"""

import asyncio
import time
from typing import Any

import uvicorn

import wakeloop


async def price() -> str:
    return ask_supplier()


def ask_supplier() -> str:
    time.sleep(0.3)  # stands for a request of a library that blocks
    return "12.50"


async def report() -> str:
    return await asyncio.to_thread(compute)


def compute() -> str:
    return str(sum(number % 7 for number in range(10_000_000)))


database = asyncio.Lock()  # there is one connection


async def stock() -> str:
    async with database:
        await asyncio.sleep(0.2)  # stands for a query
    return "7"


async def health() -> str:
    return "fine"


async def tasks() -> str:
    return "\n".join(str(task) for task in wakeloop.tasks())


PATHS = {f"/{handler.__name__}": handler for handler in (price, report, stock, health, tasks)}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    handler = PATHS.get(scope["path"])
    body = await handler() if handler is not None else "no such path"
    status, headers = 200 if handler is not None else 404, [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{body}\n".encode()})


if __name__ == "__main__":
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=8000, log_level="warning"))
    try:
        wakeloop.run(server.serve())
    except KeyboardInterrupt:
        pass
