"""A small ASGI application and the load that checks every byte of its answers."""

import asyncio
import hashlib
import importlib.util
import os

import pytest


def need(*names):
    """Imports these modules, and skips the test if one is missing."""
    return [pytest.importorskip(name, reason=f"{name} is not installed: pip install --group test") for name in names]


def need_installed(*names):
    """Skips the test if one of these modules is missing. Imports none of them: another process does."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install --group test")


def body_of(size, seed=b""):
    """Returns `size` bytes that are unique to this size and seed."""
    block = hashlib.sha256(b"%d:" % size + seed).digest()
    return (block * (size // len(block) + 1))[:size]


async def application(scope, receive, send):
    """GET /bytes/N: that many bytes; /stream/N: the same in ten pieces; POST /echo: the body; /slow: after a timer."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    name, _, argument = scope["path"].strip("/").partition("/")
    if name == "bytes":
        pieces = [body_of(int(argument))]
    elif name == "stream":
        body = body_of(int(argument))
        step = max(1, len(body) // 10)
        pieces = [body[start : start + step] for start in range(0, len(body), step)]
    elif name == "slow":
        await asyncio.sleep(0.002)
        pieces = [b"slow " + argument.encode()]
    else:
        pieces, more = [], True
        while more:
            message = await receive()
            pieces.append(message.get("body", b""))
            more = message.get("more_body", False)
    length = str(sum(map(len, pieces))).encode()
    headers = [(b"content-length", length), (b"x-loop", type(asyncio.get_running_loop()).__module__.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, piece in enumerate(pieces):
        await send({"type": "http.response.body", "body": piece, "more_body": number + 1 < len(pieces)})
    if not pieces:
        await send({"type": "http.response.body", "body": b""})


def request_of(number):
    """Returns the `number`th request of a load: (method, path, body or None, expected answer)."""
    sizes = (0, 1, 100, 1024, 10_240, 65_536, 200_000)
    size = sizes[number % len(sizes)]
    match number % 4:
        case 0:
            return "GET", f"/bytes/{size}", None, body_of(size)
        case 1:
            return "GET", f"/stream/{size}", None, body_of(size)
        case 2:
            body = body_of(size, b"%d" % number)
            return "POST", "/echo", body, body
        case _:
            return "GET", f"/slow/{number}", None, b"slow %d" % number


async def raw_client(host, port, numbers):
    """Speaks HTTP by hand over one keep-alive connection. Returns how many answers it checked."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for number in numbers:
            method, path, body, expected = request_of(number)
            head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n"
            head += f"content-length: {len(body)}\r\n\r\n" if body is not None else "\r\n"
            writer.write(head.encode())
            if body:
                writer.write(body)
            await writer.drain()
            status = await reader.readline()
            assert status.startswith(b"HTTP/1.1 200 "), status
            headers = {}
            while (line := await reader.readline()) != b"\r\n":
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            assert await reader.readexactly(int(headers["content-length"])) == expected
    finally:
        writer.close()
        await writer.wait_closed()
    return len(numbers)


def shares(total, clients):
    """Divides the numbers 0..total among clients."""
    return [range(start, total, clients) for start in range(clients)]


async def raw_load(host, port, total=2000, clients=25):
    counts = await asyncio.gather(*(raw_client(host, port, numbers) for numbers in shares(total, clients)))
    assert sum(counts) == total


async def load(fetch, total=2000, clients=25):
    """Runs a load: `clients` tasks call `fetch(method, path, body)`, which returns (status, body), `total` times in
    all.
    """

    async def client(numbers):
        for number in numbers:
            method, path, body, expected = request_of(number)
            status, answer = await fetch(method, path, body)
            assert (status, answer) == (200, expected)
        return len(numbers)

    assert sum(await asyncio.gather(*(client(numbers) for numbers in shares(total, clients)))) == total


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


async def until_listening(port, patience=15.0):
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def environment():
    """Returns the environment for servers run as programs: with the project's root on the path, so that they find
    this application.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
