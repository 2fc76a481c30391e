"""Messages over a TcpStream, and a listener that serves each connection in a task."""

import asyncio
import json
from typing import Any, assert_type

import wakeloop


async def serve(stream: wakeloop.TcpStream) -> None:
    async with stream:
        async for frame in stream.frames(max_size=1 << 20):
            message: dict[str, Any] = json.loads(assert_type(frame, bytes))
            await stream.write_frame(json.dumps(message).encode())


async def accept(listener: wakeloop.TcpListener) -> None:
    async with listener, asyncio.TaskGroup() as group:
        async for stream in listener:
            group.create_task(serve(stream))


async def main() -> None:
    listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
    serving = asyncio.create_task(accept(listener))
    async with wakeloop.TcpStream.connect(listener.host, listener.port, timeout=1) as stream:
        await stream.write_frame(b"{}")
        print(await asyncio.wait_for(stream.read_frame(), 1))
    listener.close()
    await serving


wakeloop.run(main())
