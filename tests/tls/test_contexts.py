"""TLS features that the context configures: the same on every engine and on asyncio."""

import asyncio
import ssl
import sys

import pytest

from tests.support.certificate import Certificate
from tests.support.tls_pair import finish, secure_pair, talk


@pytest.fixture(autouse=True)
def with_every_engine(tls_engine):
    """Every test here runs with both of wakeloop's engines, and on asyncio."""


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
        # A session can be reused only if its connection ended cleanly.
        near.transport.close()
        await asyncio.gather(near.lost, far.lost)
        near, far = await secure_pair(tls, client=client, server=server)
        assert near.transport.get_extra_info("ssl_object").session_reused
        await talk(near, far)
        await finish(near, far)

    run(main())


@pytest.mark.parametrize("name", ["do_handshake", "read", "write", "unwrap"])
def test_a_method_in_place_of_the_sslobjects_is_called(run, tls, monkeypatch, name):
    method, seen = getattr(ssl.SSLObject, name), []

    def replacement(self, *args):
        seen.append(self.server_side)
        return method(self, *args)

    async def main():
        monkeypatch.setattr(ssl.SSLObject, name, replacement)
        near, far = await secure_pair(tls)
        await talk(near, far)
        near.transport.close()
        await near.lost
        await far.lost
        assert set(seen) == {True, False}

    run(main())
