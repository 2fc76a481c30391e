"""One exchange with a stream server, in this process or in a program that runs in another one."""

import asyncio


async def answer(reader, writer):
    writer.write(await reader.readline())
    writer.close()


async def exchange(serve=answer, sent=b"line\n"):
    """Starts a server, sends it this from a client, and returns all that the client receives."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(sent)
    received = await reader.read()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    return received
