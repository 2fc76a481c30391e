"""A `wakeloop.TcpStream`, and the plain socket at its other end."""

import contextlib
import random
import socket
import threading

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


@contextlib.asynccontextmanager
async def connected(**options):
    """Gives a stream, and the plain blocking socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1], **options)
        peer, _ = server.accept()
        peer.settimeout(10)
    try:
        with peer:
            yield stream, peer
    finally:
        stream.close()


def in_pieces(peer, data, largest=1000, end=True):
    """Sends data in a thread, in pieces of random sizes. Only the bytes matter, not how they are split."""

    def work():
        rest = memoryview(data)
        while rest:
            size = random.randint(1, largest)
            peer.sendall(rest[:size])
            rest = rest[size:]
        if end:
            peer.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=work)
    thread.start()
    return thread
