"""For the tests of streams: a stream with a plain socket at the other end, and which of asyncio's functions run."""

import asyncio
import contextlib
import socket
import sys


@contextlib.asynccontextmanager
async def connection(package=asyncio, **options):
    """Gives (reader, writer, the blocking socket at the other end). The streams are those of asyncio or wakeloop."""
    near, far = socket.socketpair()
    with far:
        far.settimeout(10)
        reader, writer = await package.open_connection(sock=near, **options)
        try:
            yield reader, writer, far
        finally:
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


@contextlib.contextmanager
def python_calls():
    """Collects the names of the functions of asyncio.streams that are called in the block."""
    calls = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == asyncio.streams.__file__:
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
