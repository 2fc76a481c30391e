"""What a peer may do during a TLS connection: the same on every engine and on asyncio."""

import asyncio
import socket
import ssl
import subprocess

import pytest

from tests.support.protocol import Recording
from tests.support.sockets import tcp_pair
from tests.support.tls_pair import Echo, Wire, over_wire, secure_pair


@pytest.fixture(autouse=True)
def with_every_engine(tls_engine):
    """Every test here runs with both of wakeloop's engines, and on asyncio."""


async def openssl_command(tls, command, announced, arguments=(), options=0):
    """Sends data around a command of `openssl s_client`, from it to an echoing server and back."""
    loop, connected = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    context = tls.server()
    context.options |= options

    def accept():
        connected.set_result(Echo())
        return connected.result()

    server = await loop.create_server(accept, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    client = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", f"127.0.0.1:{port}", *arguments, **pipes
    )
    try:
        far = await connected
        client.stdin.write(b"before\n")
        await far.received(7)
        # A line is a command only if it comes alone.
        client.stdin.write(command)
        await client.stderr.readuntil(announced)
        client.stdin.write(b"after\n")
        await far.received(13)
        await client.stdout.readuntil(b"after\n")
    finally:
        client.kill()
        await client.communicate()
    server.close()
    await far.lost
    assert bytes(far.data) == b"before\nafter\n"


def test_tls_1_2_renegotiation_goes_on_in_the_middle_of_data(run, tls):
    allow_client_renegotiation = 1 << 8
    run(openssl_command(tls, b"R\n", b"RENEGOTIATING\n", ["-tls1_2"], allow_client_renegotiation))


def test_a_key_update_goes_on_in_the_middle_of_data(run, tls):
    run(openssl_command(tls, b"K\n", b"KEYUPDATE\n", ["-tls1_3"]))


def test_a_corrupted_record_ends_the_connection_with_openssls_error(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        server, accepted = await over_wire(tls)
        async with Wire(server.sockets[0].getsockname()) as wire:
            _, near = await loop.create_connection(
                Recording, *wire.address, ssl=tls.client(), server_hostname="localhost"
            )
            near.transport.write(b"all right")
            assert await near.received(9) == b"all right"
            wire.to_client = lambda data: data[:-1] + bytes([data[-1] ^ 1])
            near.transport.write(b"not so")
            error = await near.lost
            assert isinstance(error, ssl.SSLError) and near.data == b"all right"
            # Newer versions of OpenSSL end their message with the second form.
            assert error.library == "SSL"
            assert error.reason in ("DECRYPTION_FAILED_OR_BAD_RECORD_MAC", "RECORD_LAYER_FAILURE")
            await accepted[0].lost
        server.close()
        await asyncio.sleep(0.01)

    run(main())


def test_records_that_arrive_byte_by_byte_are_put_together(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        server, accepted = await over_wire(tls)
        with tcp_pair() as (outer, inner):
            relay = await asyncio.open_connection(*server.sockets[0].getsockname())
            _, side = await loop.create_connection(Recording, sock=inner.dup())
            upgrade = loop.create_connection(
                Recording, sock=outer.dup(), ssl=tls.client(), server_hostname="localhost"
            )
            upgrade = asyncio.ensure_future(upgrade)
            side.data_received = lambda data: relay[1].write(data)
            side.transport.set_protocol(side)

            async def drip():
                while data := await relay[0].read(65536):
                    for byte in data:
                        side.transport.write(bytes([byte]))
                        await asyncio.sleep(0)

            dripping = asyncio.ensure_future(drip())
            _, near = await upgrade
            near.transport.write(b"x" * 500)
            assert await near.received(500) == b"x" * 500
            near.transport.abort()
            await near.lost
            dripping.cancel()
            relay[1].close()
            side.transport.abort()
            await asyncio.gather(side.lost, accepted[0].lost)
        server.close()
        await asyncio.sleep(0.02)

    run(main())


def test_an_end_without_close_notify_is_an_end_of_file(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        server, accepted = await over_wire(tls)
        async with Wire(server.sockets[0].getsockname()) as wire:
            _, near = await loop.create_connection(
                Recording, *wire.address, ssl=tls.client(), server_hostname="localhost"
            )
            near.transport.write(b"hello")
            await near.received(5)
            wire.writers[0].close()
            assert await near.lost is None
            assert near.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]
        server.close()
        await accepted[0].lost
        await asyncio.sleep(0.01)

    run(main())


def test_a_reset_of_a_tls_connection_is_reported_as_connection_reset(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        sock = far.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.transport.abort()
        assert isinstance(await near.lost, (ConnectionResetError, type(None)))
        await far.lost
        await asyncio.sleep(0.01)

    run(main())
