"""Whatever is opened can be entered in an exit stack, awaited or not."""

import contextlib
from typing import assert_type

import wakeloop


async def main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        listener = await stack.enter_async_context(wakeloop.TcpListener.bind("127.0.0.1", 0))
        assert_type(listener, wakeloop.TcpListener)
        stream = await stack.enter_async_context(wakeloop.TcpStream.connect("127.0.0.1", listener.port))
        assert_type(stream, wakeloop.TcpStream)
        peer = await stack.enter_async_context(await listener.accept())
        assert_type(peer, wakeloop.TcpStream)
        socket = await stack.enter_async_context(wakeloop.UdpSocket.bind("127.0.0.1", 0))
        assert_type(socket, wakeloop.UdpSocket)
        server = await stack.enter_async_context(wakeloop.start_echo_server("127.0.0.1", 0))
        assert_type(server, wakeloop.EchoServer)
        file = await stack.enter_async_context(wakeloop.open("/dev/null", "rb"))
        assert_type(file, wakeloop.File)


wakeloop.run(main())
