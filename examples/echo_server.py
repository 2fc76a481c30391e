"""The echo server of asyncio's documentation, on wakeloop.

    python examples/echo_server.py            then, in another terminal:  nc 127.0.0.1 8888
"""

import asyncio

import wakeloop


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 8888)
    print(f"listening on {server.sockets[0].getsockname()} on {asyncio.get_running_loop()!r}")
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        wakeloop.run(main())
    except KeyboardInterrupt:
        pass
