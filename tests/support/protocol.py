"""Protocols that record what happens to them."""

import asyncio


class Recording(asyncio.Protocol):
    """Keeps the calls it gets, in order, and has futures for the important ones."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.calls = []
        self.data = bytearray()
        self.transport = None
        self.connected = loop.create_future()
        self.ended = loop.create_future()
        self.lost = loop.create_future()
        self.error = None
        self._expected = []

    def connection_made(self, transport):
        self.calls.append("connection_made")
        self.transport = transport
        self.connected.set_result(transport)

    def data_received(self, data):
        if self.calls[-1:] != ["data_received"]:
            self.calls.append("data_received")
        self.data += data
        for size, future in self._expected:
            if len(self.data) >= size and not future.done():
                future.set_result(bytes(self.data))

    def eof_received(self):
        self.calls.append("eof_received")
        self.ended.set_result(None)

    def connection_lost(self, exc):
        self.calls.append("connection_lost")
        self.error = exc
        self.lost.set_result(exc)

    def pause_writing(self):
        self.calls.append("pause_writing")

    def resume_writing(self):
        self.calls.append("resume_writing")

    def received(self, size):
        """Returns a future that is done as soon as `size` bytes have arrived."""
        future = asyncio.get_running_loop().create_future()
        if len(self.data) >= size:
            future.set_result(bytes(self.data))
        self._expected.append((size, future))
        return future


class HalfOpen(Recording):
    """Keeps its side of the connection open when the peer has closed the other."""

    def eof_received(self):
        super().eof_received()
        return True


class Buffered(asyncio.BufferedProtocol):
    """Receives into one fixed buffer and keeps what came."""

    def __init__(self, size=4096):
        self.buffer = bytearray(size)
        self.data = bytearray()
        self.hints = []
        self.transport = None
        self.lost = asyncio.get_running_loop().create_future()
        self.ended = False

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        self.hints.append(sizehint)
        return self.buffer

    def buffer_updated(self, nbytes):
        self.data += self.buffer[:nbytes]

    def eof_received(self):
        self.ended = True

    def connection_lost(self, exc):
        self.lost.set_result(exc)


async def pair(near=Recording, far=Recording, **options):
    """Two connected TCP transports on one loop: (near's protocol, far's protocol), server closed already."""
    loop = asyncio.get_running_loop()
    accepted = loop.create_future()

    def accept():
        protocol = far()
        accepted.set_result(protocol)
        return protocol

    server = await loop.create_server(accept, "127.0.0.1", 0, **options.pop("server", {}))
    try:
        _, protocol = await loop.create_connection(near, *server.sockets[0].getsockname()[:2], **options)
        peer = await accepted
        while peer.transport is None:
            await asyncio.sleep(0)
    finally:
        server.close()
    return protocol, peer


async def close(*protocols):
    """Abort what is still open and wait until every connection_lost was called."""
    for protocol in protocols:
        protocol.transport.abort()
    for protocol in protocols:
        await protocol.lost
