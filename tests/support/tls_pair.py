"""Two protocols connected by TLS, and a connection between them that can be disturbed."""

import asyncio

from tests.support.protocol import Buffered, Recording, close


class Viewed(Buffered):
    """Returns a memoryview as its buffer. asyncio would slice copies of a bytearray, and fill those."""

    def get_buffer(self, sizehint):
        return memoryview(super().get_buffer(sizehint))


class Echo(Recording):
    def data_received(self, data):
        super().data_received(data)
        self.transport.write(data)


async def secure_pair(tls, near=Recording, far=Recording, *, client=None, server=None, **options):
    """Returns two protocols connected by TLS: (client's, server's). The server is closed already."""
    loop = asyncio.get_running_loop()
    accepted = loop.create_future()

    def accept():
        protocol = far()
        accepted.set_result(protocol)
        return protocol

    listening = await loop.create_server(accept, "127.0.0.1", 0, ssl=server or tls.server())
    try:
        options = {"ssl": client or tls.client(), "server_hostname": "localhost", **options}
        _, protocol = await loop.create_connection(near, *listening.sockets[0].getsockname()[:2], **options)
        peer = await accepted
        while peer.transport is None:
            await asyncio.sleep(0)
    finally:
        listening.close()
    return protocol, peer


async def talk(near, far):
    """Sends data in both directions."""
    near.transport.write(b"from the client")
    assert await far.received(15) == b"from the client"
    far.transport.write(b"from the server")
    assert await near.received(15) == b"from the server"


async def finish(*protocols):
    """Closes what is open, and lets the other side notice."""
    await close(*protocols)
    await asyncio.sleep(0.01)


class Wire:
    """A TCP relay that a test can inspect and tamper with."""

    def __init__(self, address):
        self._address = address
        self.to_client = lambda data: data
        self.silent = False
        self.writers = []

    async def __aenter__(self):
        self._tasks = []
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]
        return self

    async def _relay(self, reader, writer):
        other, onward = await asyncio.open_connection(*self._address)
        self.writers += [writer, onward]
        self._tasks.append(asyncio.current_task())
        await asyncio.gather(self._copy(reader, onward, None), self._copy(other, writer, self))

    async def _copy(self, reader, writer, change):
        try:
            while data := await reader.read(65536):
                if change is None:
                    writer.write(data)
                elif not self.silent:
                    writer.write(change.to_client(data))
        except ConnectionError:
            pass
        if change is None or not self.silent:
            writer.close()

    async def __aexit__(self, *error):
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.02)


async def over_wire(tls, far=Echo):
    loop, accepted = asyncio.get_running_loop(), []

    def accept():
        accepted.append(far())
        return accepted[-1]

    server = await loop.create_server(accept, "127.0.0.1", 0, ssl=tls.server())
    return server, accepted
