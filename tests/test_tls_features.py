"""TLS as contexts configure it, as protocols live with it, and as it ends: the same on every engine and on asyncio."""

import asyncio
import contextvars
import gc
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import warnings
import weakref

import pytest

from tests.support.certificate import Certificate
from tests.support.protocol import Buffered, Recording, close
from tests.support.sockets import tcp_pair


@pytest.fixture(autouse=True)
def with_every_engine(tls_engine):
    """Every test here runs with both of wakeloop's engines, and on asyncio."""


class Viewed(Buffered):
    """Gives out a view: of a bytearray asyncio would slice copies, and fill those."""

    def get_buffer(self, sizehint):
        return memoryview(super().get_buffer(sizehint))


class Echo(Recording):
    def data_received(self, data):
        super().data_received(data)
        self.transport.write(data)


async def secure_pair(tls, near=Recording, far=Recording, *, client=None, server=None, **options):
    """Two protocols that TLS connects: (client's, server's). The server is closed already."""
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
    """Both directions carry data."""
    near.transport.write(b"from the client")
    assert await far.received(15) == b"from the client"
    far.transport.write(b"from the server")
    assert await near.received(15) == b"from the server"


async def finish(*protocols):
    await close(*protocols)
    await asyncio.sleep(0.01)


# -- what a context configures -----------------------------------------------------------------------------------


def test_alpn_is_negotiated(run, tls):
    async def main():
        client, server = tls.client(), tls.server()
        client.set_alpn_protocols(["h2", "http/1.1"])
        server.set_alpn_protocols(["http/1.1"])
        near, far = await secure_pair(tls, client=client, server=server)
        for protocol in (near, far):
            assert protocol.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        await finish(near, far)

    run(main())


def test_the_sni_callback_sees_the_name_and_may_switch_the_context(run, tls, tmp_path):
    async def main():
        other, seen = Certificate(tmp_path), []

        def choose(ssl_object, name, context):
            seen.append((type(ssl_object), name, context))
            ssl_object.context = other.server()

        server = tls.server()
        server.sni_callback = choose
        near, far = await secure_pair(tls, client=other.client(), server=server)
        assert seen == [(ssl.SSLObject, "localhost", server)]
        await talk(near, far)
        await finish(near, far)

    run(main())


def test_an_sni_callback_that_fails_fails_the_handshake(run, tls, asyncio_log):
    async def main():
        server, unraisable = tls.server(), []
        server.sni_callback = lambda *args: 1 / 0
        hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
        try:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await secure_pair(tls, server=server)
            await asyncio.sleep(0.02)
        finally:
            sys.unraisablehook = hook
        assert [failure.exc_type for failure in unraisable] == [ZeroDivisionError]
        unraisable.clear()

    run(main())


def test_session_keys_are_logged(run, tls, tmp_path):
    async def main():
        client, log = tls.client(), tmp_path / "keys"
        client.keylog_filename = str(log)
        near, far = await secure_pair(tls, client=client)
        await talk(near, far)
        assert "CLIENT_TRAFFIC_SECRET_0" in log.read_text()
        await finish(near, far)

    run(main())


def test_sslkeylogfile_is_honoured(run, tls, tmp_path, monkeypatch):
    log = tmp_path / "keys"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))

    async def main():
        client = ssl.create_default_context(cafile=tls.certificate)
        near, far = await secure_pair(tls, client=client)
        await talk(near, far)
        assert "SERVER_TRAFFIC_SECRET_0" in log.read_text()
        await finish(near, far)

    run(main())


def test_the_message_callback_sees_every_record(run, tls):
    async def main():
        client, seen = tls.client(), []
        client._msg_callback = lambda connection, direction, *rest: seen.append((type(connection), direction))
        near, far = await secure_pair(tls, client=client)
        before = len(seen)
        await talk(near, far)
        assert {direction for _, direction in seen} == {"read", "write"} and len(seen) > before
        assert {kind for kind, _ in seen} == {ssl.SSLObject}
        await finish(near, far)

    run(main())


def test_an_error_in_the_message_callback_reaches_the_connection(run, tls):
    async def main():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context["exception"]))
        client, fail = tls.client(), []

        def callback(*args):
            if fail:
                raise ZeroDivisionError

        client._msg_callback = callback
        near, far = await secure_pair(tls, client=client)
        await talk(near, far)
        fail.append(True)
        near.transport.write(b"x")
        assert isinstance(await near.lost, ZeroDivisionError)
        assert any(isinstance(problem, ZeroDivisionError) for problem in problems)
        await far.lost
        await asyncio.sleep(0.01)

    run(main())


@pytest.mark.skipif(not hasattr(ssl.SSLContext, "set_psk_client_callback"), reason="pre-shared keys came with 3.13")
def test_pre_shared_keys_serve_instead_of_certificates(run, tls):
    async def main():
        client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        for context in (client, server):
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers("PSK")
        client.set_psk_client_callback(lambda hint: ("somebody", b"secret"))
        server.set_psk_server_callback(lambda identity: b"secret" if identity == "somebody" else b"")
        near, far = await secure_pair(tls, client=client, server=server)
        await talk(near, far)
        assert "PSK" in near.transport.get_extra_info("cipher")[0]
        await finish(near, far)

    run(main())


def test_a_client_certificate_is_asked_for_and_shown(run, tls):
    async def main():
        client, server = tls.client(), tls.server()
        client.load_cert_chain(tls.certificate, tls.key)
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(tls.certificate)
        near, far = await secure_pair(tls, client=client, server=server)
        assert far.transport.get_extra_info("peercert")["subject"] == ((("commonName", "localhost"),),)
        await talk(near, far)
        await finish(near, far)

    run(main())


def test_a_client_without_the_certificate_that_is_asked_for_is_refused(run, tls, asyncio_log):
    async def main():
        client, server = tls.client(), tls.server()
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(tls.certificate)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await secure_pair(tls, client=client, server=server)
        await asyncio.sleep(0.02)

    run(main())


def test_a_certificate_can_be_asked_for_after_the_handshake(run, tls):
    async def main():
        client, server = tls.client(), tls.server()
        client.load_cert_chain(tls.certificate, tls.key)
        client.post_handshake_auth = server.post_handshake_auth = True
        server.verify_mode = ssl.CERT_REQUIRED
        server.load_verify_locations(tls.certificate)
        near, far = await secure_pair(tls, client=client, server=server)
        ssl_object = far.transport.get_extra_info("ssl_object")
        assert not ssl_object.getpeercert(binary_form=True)
        near.transport.write(b"early")
        await far.received(5)
        ssl_object.verify_client_post_handshake()
        far.transport.write(b"who are you?")
        await near.received(12)
        near.transport.write(b"this is me")
        await far.received(15)
        assert ssl_object.getpeercert(binary_form=True)
        await finish(near, far)

    run(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_session_can_be_used_again(run, tls, version):
    class Resuming(ssl.SSLContext):
        kept = None

        def wrap_bio(self, *args, **kwargs):
            return super().wrap_bio(*args, **kwargs, session=self.kept)

    async def main():
        client, server = Resuming(ssl.PROTOCOL_TLS_CLIENT), tls.server()
        client.load_verify_locations(tls.certificate)
        client.maximum_version = version
        near, far = await secure_pair(tls, client=client, server=server)
        await talk(near, far)
        ssl_object = near.transport.get_extra_info("ssl_object")
        assert not ssl_object.session_reused and ssl_object.session.has_ticket
        client.kept = ssl_object.session
        # A session is worth keeping only if its connection ended well.
        near.transport.close()
        await asyncio.gather(near.lost, far.lost)
        near, far = await secure_pair(tls, client=client, server=server)
        assert near.transport.get_extra_info("ssl_object").session_reused
        await talk(near, far)
        await finish(near, far)

    run(main())


# -- what the peer may do ----------------------------------------------------------------------------------------


async def openssl_command(tls, command, announced, arguments=(), options=0):
    """Data around a command of `openssl s_client`, from it to an echoing server and back."""
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


class Wire:
    """A TCP relay that a test can look at and tamper with."""

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


def test_a_record_that_was_tampered_with_ends_the_connection_with_openssls_words(run, tls):
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
            # The second is how newer versions of OpenSSL close their report of the first.
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


def test_a_reset_is_told_as_one(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        sock = far.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.transport.abort()
        assert isinstance(await near.lost, (ConnectionResetError, type(None)))
        await far.lost
        await asyncio.sleep(0.01)

    run(main())


# -- how it ends -------------------------------------------------------------------------------------------------


def test_both_sides_see_a_clean_close(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        near.transport.close()
        assert near.transport.is_closing()
        assert await asyncio.gather(near.lost, far.lost) == [None, None]
        assert far.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]

    run(main())


def test_a_shutdown_that_is_never_answered_times_out(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        server, accepted = await over_wire(tls)
        async with Wire(server.sockets[0].getsockname()) as wire:
            _, near = await loop.create_connection(
                Recording, *wire.address, ssl=tls.client(), server_hostname="localhost", ssl_shutdown_timeout=0.1
            )
            near.transport.write(b"hello")
            await near.received(5)
            wire.silent = True
            near.transport.close()
            error = await near.lost
            if sys.version_info >= (3, 12, 2):
                assert isinstance(error, TimeoutError) and str(error) == "SSL shutdown timed out"
        server.close()
        accepted[0].transport.abort()
        await accepted[0].lost
        await asyncio.sleep(0.02)

    run(main())


def test_writes_after_close_are_counted_and_warned_of(run, tls, asyncio_log):
    async def main():
        near, far = await secure_pair(tls)
        transport = near.transport
        transport.close()
        for _ in range(7):
            transport.write(b"x")
        await asyncio.gather(near.lost, far.lost)
        warnings = [record.message for record in asyncio_log.records if record.levelno == logging.WARNING]
        assert warnings == ["SSL connection is closed"] * 2
        assert far.data == b""

    run(main())


def test_what_was_written_before_an_abort_has_left(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        near.transport.write(b"last words")
        near.transport.abort()
        await asyncio.gather(near.lost, far.lost)
        assert far.data == b"last words"

    run(main())


def test_nothing_is_left_of_a_closed_connection(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        kept = [weakref.ref(near.transport), weakref.ref(near.transport.get_extra_info("ssl_object")), weakref.ref(near)]
        await talk(near, far)
        near.transport.close()
        await asyncio.gather(near.lost, far.lost)
        return kept

    kept = run(main())
    gc.collect()
    assert [reference() for reference in kept] == [None] * 3


def test_the_ssl_object_outlives_its_connection(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        ssl_object = near.transport.get_extra_info("ssl_object")
        await finish(near, far)
        return ssl_object

    ssl_object = run(main())
    gc.collect()
    assert ssl_object.version() == "TLSv1.3" and ssl_object.getpeercert()
    with pytest.raises(ssl.SSLError):
        ssl_object.read(1)
    done = []
    thread = threading.Thread(target=lambda kept: done.append(kept.pop().version()), args=([ssl_object],))
    del ssl_object
    thread.start()
    thread.join()
    assert done == ["TLSv1.3"]


def test_a_loop_that_is_closed_under_a_connection_leaves_nothing(loop_factory, tls, asyncio_log):
    loop = loop_factory()
    near, far = loop.run_until_complete(secure_pair(tls))
    transports = [near.transport, far.transport]
    near.transport.write(b"never sent, perhaps")
    loop.close()
    kept = weakref.ref(transports[0])
    with pytest.warns(ResourceWarning):
        del near, far, transports
        gc.collect()
    assert kept() is None


# -- what a protocol may do --------------------------------------------------------------------------------------


def test_a_buffered_protocol_gets_its_data_into_its_buffer(run, tls):
    async def main():
        near, far = await secure_pair(tls, near=lambda: Viewed(1000))
        message = os.urandom(100_000)
        far.transport.write(message)
        while len(near.data) < len(message):
            await asyncio.sleep(0.001)
        assert near.data == message
        near.transport.close()
        assert await asyncio.gather(near.lost, far.lost) == [None, None]

    run(main())


def test_a_buffered_protocol_that_pauses_between_two_buffers_gets_the_rest_later(run, tls, loop_name):
    class Pausing(Viewed):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.transport.pause_reading()

    async def main():
        near, far = await secure_pair(tls, near=lambda: Pausing(1000))
        message = os.urandom(10_500)
        far.transport.write(message)
        far.transport.close()
        while len(near.data) < len(message):
            before = len(near.data)
            await asyncio.sleep(0.005)
            assert len(near.data) <= before + 1000
            if loop_name != "asyncio":  # which tells of the end before it has told of all the data
                assert not near.ended
            near.transport.resume_reading()
        assert near.data == message
        near.transport.resume_reading()
        assert await asyncio.gather(near.lost, far.lost) == [None, None]
        assert near.ended

    run(main())


def test_a_protocol_can_be_exchanged_between_two_messages(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        second, third = Recording(), Buffered()
        near.transport.set_protocol(second)
        assert near.transport.get_protocol() is second
        far.transport.write(b"second")
        assert await second.received(6) == b"second"
        near.transport.set_protocol(third)
        far.transport.write(b"third")
        while third.data != b"third":
            await asyncio.sleep(0.001)
        near.transport.abort()
        await asyncio.gather(third.lost, far.lost)
        await asyncio.sleep(0.01)

    run(main())


def test_a_protocol_may_close_while_it_receives(run, tls):
    class Closing(Echo):
        def data_received(self, data):
            super().data_received(data)
            self.transport.close()

    async def main():
        near, far = await secure_pair(tls, far=Closing)
        near.transport.write(b"x" * 1000)
        assert await asyncio.gather(near.lost, far.lost) == [None, None]
        assert near.data == far.data == b"x" * 1000
        assert near.calls[-2:] == ["eof_received", "connection_lost"]

    run(main())


def test_a_protocol_may_abort_while_it_receives(run, tls):
    class Aborting(Echo):
        def data_received(self, data):
            super().data_received(data)
            self.transport.abort()

    async def main():
        near, far = await secure_pair(tls, far=Aborting)
        near.transport.write(b"answer this")
        await asyncio.gather(near.lost, far.lost)
        assert near.data == b"answer this", "what was written before the abort had left"

    run(main())


def test_a_protocol_may_write_much_and_close_other_connections_while_it_receives(run, tls):
    """Everything in between shares the loop's buffers."""

    async def main():
        pairs = [await secure_pair(tls) for _ in range(6)]
        ends = [near for near, _ in pairs[3:]]

        class Meddling(Recording):
            def data_received(self, data):
                super().data_received(data)
                for near, _ in pairs:
                    if not near.transport.is_closing():
                        near.transport.write(b"%d" % len(data) * 50_000)
                for near in ends:
                    near.transport.close()

        near, far = await secure_pair(tls, far=Meddling)
        message = os.urandom(300_000)
        near.transport.write(message)
        assert await far.received(len(message)) == message
        for close_it, (_, peer) in zip([False] * 3 + [True] * 3, pairs):
            await peer.received(100_000)
            text = bytes(peer.data)
            assert text.strip(b"0123456789") == b""
            if close_it:
                assert await peer.lost is None
        await finish(near, far, *[protocol for pair in pairs[:3] for protocol in pair])
        await asyncio.gather(*[near.lost for near in ends])

    run(main())


def test_header_and_body_arrive_in_order_with_everything_around_them(run, tls):
    class Answering(Recording):
        def data_received(self, data):
            super().data_received(data)
            self.transport.write(b"header ")
            self.transport.writelines([b"one ", bytearray(b"two "), memoryview(b"three "), b""])
            self.transport.write(b"body " * 20_000)
            self.transport.write(memoryview(bytearray(b"end")))

    async def main():
        near, far = await secure_pair(tls, far=Answering)
        near.transport.write(b"?")
        expected = b"header one two three " + b"body " * 20_000 + b"end"
        assert await near.received(len(expected)) == expected
        await finish(near, far)

    run(main())


def test_what_a_mutable_buffer_held_when_it_was_written_is_what_arrives(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        data = bytearray(b"as it was")
        near.transport.write(data)
        data[:] = b"different"
        assert await far.received(9) == b"as it was"
        await finish(near, far)

    run(main())


def test_what_is_no_data_is_refused_in_asyncios_words(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        with pytest.raises(TypeError, match="data: expecting a bytes-like instance, got str"):
            near.transport.write("text")
        near.transport.write(b"")
        near.transport.write(b"good")
        assert await far.received(4) == b"good"
        await finish(near, far)

    run(main())


def test_callbacks_run_in_the_connections_own_context(run, tls):
    variable = contextvars.ContextVar("variable", default=0)

    class Counting(Recording):
        def data_received(self, data):
            variable.set(variable.get() + 1)
            self.seen = variable.get()
            super().data_received(data)

    async def main():
        variable.set(10)
        pairs = [await secure_pair(tls, far=Counting) for _ in range(2)]
        for near, far in pairs:
            for number in range(3):
                near.transport.write(b"x")
                await far.received(number + 1)
            assert far.seen == 13
        assert variable.get() == 10
        await finish(*[protocol for pair in pairs for protocol in pair])

    run(main())


def test_limits_and_sizes_are_asyncios(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        transport = near.transport
        assert transport.get_write_buffer_limits() == (128 * 1024, 512 * 1024)
        transport.set_write_buffer_limits(high=1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        with pytest.raises(ValueError, match="must be >= low"):
            transport.set_write_buffer_limits(high=1, low=2)
        transport.write(b"x" * 100)
        assert transport.get_write_buffer_size() == 0
        await far.received(100)
        await finish(near, far)

    run(main())


def test_a_peer_that_does_not_read_pauses_the_writer_and_reading_on_resumes_it(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        far.transport.pause_reading()
        block, written = os.urandom(65_536), 0
        while "pause_writing" not in near.calls and written < 256 << 20:
            near.transport.write(block)
            written += len(block)
            await asyncio.sleep(0)
        assert near.calls[-1] == "pause_writing"
        assert near.transport.get_write_buffer_size() >= near.transport.get_write_buffer_limits()[1]
        far.transport.resume_reading()
        assert await far.received(written) == block * (written // len(block))
        while near.calls[-1] != "resume_writing":
            await asyncio.sleep(0.001)
        assert near.transport.get_write_buffer_size() == 0
        await finish(near, far)

    run(main())


def test_closing_with_much_to_send_sends_it_all(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        far.transport.pause_reading()
        message = os.urandom(1 << 20) * 16
        near.transport.write(message)
        near.transport.close()
        await asyncio.sleep(0.02)
        far.transport.resume_reading()
        assert await far.received(len(message)) == message
        assert await asyncio.gather(near.lost, far.lost) == [None, None]

    run(main())


# -- upgrades ----------------------------------------------------------------------------------------------------


def test_tls_inside_tls(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await secure_pair(tls)
        await talk(near, far)
        inner, outer = Recording(), Recording()
        sides = await asyncio.gather(
            loop.start_tls(near.transport, inner, tls.client(), server_hostname="localhost"),
            loop.start_tls(far.transport, outer, tls.server(), server_side=True),
        )
        inner.transport, outer.transport = sides
        message = os.urandom(300_000)
        inner.transport.write(message)
        assert await outer.received(len(message)) == message
        outer.transport.write(message)
        assert await inner.received(len(message)) == message
        inner.transport.close()
        assert await asyncio.gather(inner.lost, outer.lost) == [None, None]
        await asyncio.sleep(0.02)

    run(main())


def test_what_arrived_with_the_last_plain_line_is_the_beginning_of_tls(run, tls, loop_name):
    if loop_name == "asyncio" and sys.version_info < (3, 14):
        pytest.skip("asyncio loses it before gh-142352")

    async def main():
        done = asyncio.get_running_loop().create_future()

        async def handler(reader, writer):
            assert await reader.readline() == b"STARTTLS\n"
            await asyncio.sleep(0.05)  # the ClientHello is in the reader's buffer by then
            await writer.start_tls(tls.server())
            done.set_result(await reader.readexactly(6))
            writer.close()

        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"STARTTLS\n")
        await writer.start_tls(tls.client(), server_hostname="localhost")
        writer.write(b"secret")
        assert await done == b"secret"
        writer.close()
        await writer.wait_closed()
        server.close()
        await asyncio.sleep(0.01)

    run(main())


def test_start_tls_refuses_what_is_no_context_and_what_is_no_transport(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = await secure_pair(tls)
        with pytest.raises(TypeError, match="sslcontext is expected to be an instance of ssl.SSLContext"):
            await loop.start_tls(near.transport, near, None)
        with pytest.raises(TypeError, match="is not supported by start_tls"):
            await loop.start_tls(object(), near, tls.client())
        await finish(near, far)

    run(main())


def test_tls_over_a_unix_socket(run, tls, tmp_path):
    async def main():
        loop, accepted = asyncio.get_running_loop(), []

        def accept():
            accepted.append(Echo())
            return accepted[-1]

        server = await loop.create_unix_server(accept, str(tmp_path / "s"), ssl=tls.server())
        _, near = await loop.create_unix_connection(
            Recording, str(tmp_path / "s"), ssl=tls.client(), server_hostname="localhost"
        )
        near.transport.write(b"through a path")
        assert await near.received(14) == b"through a path"
        near.transport.close()
        assert await near.lost is None and await accepted[0].lost is None
        server.close()

    run(main())


def test_an_accepted_socket_can_be_given_to_tls(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (one, other):
            (_, near), (_, far) = await asyncio.gather(
                loop.create_connection(Recording, sock=one.dup(), ssl=tls.client(), server_hostname="localhost"),
                loop.connect_accepted_socket(Recording, other.dup(), ssl=tls.server()),
            )
            await talk(near, far)
            await finish(near, far)

    run(main())


# -- what is logged ----------------------------------------------------------------------------------------------


def test_debug_mode_tells_of_the_handshake(run, tls, asyncio_log):
    async def main():
        near, far = await secure_pair(tls)
        await finish(near, far)

    run(main(), debug=True)
    messages = [record.message for record in asyncio_log.records]
    assert sum("starts SSL handshake" in message for message in messages) == 2
    assert sum("SSL handshake took" in message for message in messages) == 2


def test_a_certificate_that_does_not_verify_is_told_of_in_debug_mode(run, tls, asyncio_log):
    async def main():
        with pytest.raises(ssl.SSLCertVerificationError):
            await secure_pair(tls, client=ssl.create_default_context())
        await asyncio.sleep(0.02)

    run(main(), debug=True)
    messages = [record.message for record in asyncio_log.records]
    assert any("SSL handshake failed on verifying the certificate" in message for message in messages)


def test_a_transport_that_nobody_closed_warns(loop_factory, tls, asyncio_log):
    loop = loop_factory()
    near, far = loop.run_until_complete(secure_pair(tls))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        del near, far
        gc.collect()
    messages = [str(warning.message) for warning in caught]
    assert messages.count("unclosed transport <asyncio._SSLProtocolTransport object>") == 2
