"""The exception handler's context for a protocol whose method fails: people filter by these messages."""

import asyncio
import os
import socket
import sys
import tempfile
from asyncio import selector_events, unix_events

import pytest

from tests.support.sockets import socketpair

STREAM = selector_events._SelectorSocketTransport
DATAGRAM = selector_events._SelectorDatagramTransport
READ_PIPE, WRITE_PIPE = unix_events._UnixReadPipeTransport, unix_events._UnixWritePipeTransport


def failing(base, name):
    """Returns a protocol of that kind whose method fails."""

    def fail(self, *args):
        raise ZeroDivisionError(name)

    return type("Failing", (base,), {name: fail})


async def stream(loop, protocol):
    with socketpair() as (near, far):
        transport, _ = await loop.create_connection(protocol, sock=near)
        await asyncio.sleep(0.01)
        transport.close()
        await asyncio.sleep(0.01)


async def datagram(loop, protocol):
    transport, _ = await loop.create_datagram_endpoint(protocol, local_addr=("127.0.0.1", 0))
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.sendto(b"x", transport.get_extra_info("sockname"))
        await asyncio.sleep(0.01)
    transport.close()
    await asyncio.sleep(0.01)


async def refused_datagram(loop, protocol):
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        nobody = other.getsockname()
    transport, _ = await loop.create_datagram_endpoint(protocol, remote_addr=nobody)
    transport.sendto(b"x")
    await asyncio.sleep(0.02)
    transport.close()
    await asyncio.sleep(0.01)


async def datagram_that_had_to_wait(loop, protocol):
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as far:
        far.bind(f"{folder}/far")
        transport, _ = await loop.create_datagram_endpoint(
            protocol, family=socket.AF_UNIX, remote_addr=far.getsockname()
        )
        transport.pause_reading()  # whose protocol would get eof_received as well
        while transport.get_write_buffer_size() == 0 and not transport.is_closing():
            transport.sendto(b"x" * 1000)
    await asyncio.sleep(0.02)
    transport.abort()
    await asyncio.sleep(0.01)


async def read_pipe(loop, protocol):
    reading, writing = os.pipe()
    transport, _ = await loop.connect_read_pipe(protocol, open(reading, "rb", 0))
    os.write(writing, b"x")
    await asyncio.sleep(0.01)
    transport.close()
    await asyncio.sleep(0.01)
    os.close(writing)


async def write_pipe(loop, protocol):
    reading, writing = os.pipe()
    transport, _ = await loop.connect_write_pipe(protocol, open(writing, "wb", 0))
    transport.abort()
    await asyncio.sleep(0.01)
    os.close(reading)


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize(
    ("scene", "base", "name", "step"),
    [
        (stream, asyncio.Protocol, "connection_lost", STREAM._call_connection_lost),
        (stream, asyncio.BufferedProtocol, "connection_lost", STREAM._call_connection_lost),
        (datagram, asyncio.DatagramProtocol, "connection_lost", DATAGRAM._call_connection_lost),
        (datagram, asyncio.DatagramProtocol, "datagram_received", DATAGRAM._read_ready),
        (refused_datagram, asyncio.DatagramProtocol, "error_received", DATAGRAM._read_ready),
        (datagram_that_had_to_wait, asyncio.DatagramProtocol, "error_received", DATAGRAM._sendto_ready),
        (read_pipe, asyncio.Protocol, "connection_lost", READ_PIPE._call_connection_lost),
        (read_pipe, asyncio.Protocol, "data_received", READ_PIPE._read_ready),
        (write_pipe, asyncio.Protocol, "connection_lost", WRITE_PIPE._call_connection_lost),
    ],
)
def test_an_exception_in_a_protocol_is_reported_with_asyncios_message(
    run, scene, base, name, step, debug
):
    reported = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: reported.append((context, repr(context["handle"]))))
        await scene(loop, failing(base, name))

    run(main(), debug=debug)
    ((context, handle),) = reported
    arguments = "None" if name == "connection_lost" and (debug or sys.version_info < (3, 13)) else ""
    assert context["message"].startswith(f"Exception in callback {step.__qualname__}({arguments})")
    assert isinstance(context["exception"], ZeroDivisionError)
    assert isinstance(context["handle"], asyncio.Handle)
    assert handle.startswith(f"<Handle {step.__qualname__}(")
    assert sorted(context) == ["exception", "handle", "message"] + ["source_traceback"] * debug
