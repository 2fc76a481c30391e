"""How a TLS connection ends: the same on every engine and on asyncio."""

import asyncio
import gc
import logging
import select
import ssl
import sys
import threading
import warnings
import weakref
from functools import partial

import pytest

from tests.support.protocol import Recording
from tests.support.tls_pair import Viewed, Wire, finish, over_wire, secure_pair, talk


@pytest.fixture(autouse=True)
def with_every_engine(tls_engine):
    """Every test here runs with both of wakeloop's engines, and on asyncio."""


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


def test_start_tls_after_the_peers_eof_fails_at_once(run, tls):
    """STARTTLS with a peer that has closed: nobody waits for the handshake timeout."""

    async def main():
        outcome = asyncio.get_running_loop().create_future()

        async def serve(reader, writer):
            await reader.read()
            try:
                await writer.start_tls(tls.server(), ssl_handshake_timeout=60)
            except ConnectionResetError as error:
                outcome.set_result(error)
            except BaseException as error:
                outcome.set_exception(error)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write_eof()
        assert isinstance(await asyncio.wait_for(outcome, 20), ConnectionResetError)
        writer.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)

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


def test_a_close_with_data_that_a_paused_buffered_protocol_has_not_taken_is_an_error(run, tls):
    class Pausing(Viewed):
        def buffer_updated(self, count):
            super().buffer_updated(count)
            self.transport.pause_reading()

    async def main():
        near, far = await secure_pair(tls, near=partial(Pausing, 1000))
        far.transport.write(bytes(5000))
        while not near.data:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        near.transport.close()
        error = await near.lost
        assert isinstance(error, ssl.SSLError)
        assert error.args[0] == ssl.SSL_ERROR_SSL
        assert (error.library, error.reason) == ("SSL", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY")
        assert not near.ended and len(near.data) == 1000
        await far.lost

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


@pytest.mark.native
def test_writes_to_a_tls_transport_that_was_closed_twice_are_silent(run, tls):
    """asyncio's raise AttributeError."""

    async def main():
        near, far = await secure_pair(tls)
        near.transport.close()
        near.transport.close()
        near.transport.write(b"x")
        near.transport.writelines([b"x"])
        await asyncio.gather(near.lost, far.lost)
        assert far.data == b""

    run(main())


@pytest.mark.parametrize("ends", [["abort"], ["close"], ["close", "close"], ["abort", "close"]], ids=" and ".join)
def test_data_of_a_wrong_type_is_refused_by_a_tls_transport_that_has_ended(run, tls, ends):
    async def main():
        near, far = await secure_pair(tls)
        for end in ends:
            getattr(near.transport, end)()
        for data in ("text", None, [b"x"]):
            with pytest.raises(TypeError) as caught:
                near.transport.write(data)
            assert str(caught.value) == f"data: expecting a bytes-like instance, got {type(data).__name__}"
        near.transport.write(b"")
        await asyncio.gather(near.lost, far.lost)

    run(main())


def test_data_written_before_abort_is_sent_over_tls(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        near.transport.write(b"last words")
        near.transport.abort()
        await asyncio.gather(near.lost, far.lost)
        assert far.data == b"last words"

    run(main())


@pytest.mark.parametrize("pieces", [[1000], [100] * 10, [1 << 20] * 8], ids=["one", "small ones", "more than fits"])
def test_data_written_before_close_is_sent_while_reading_is_paused(run, tls, pieces):
    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        before = len(far.data)
        far.transport.pause_reading()
        near.transport.pause_reading()
        for number, size in enumerate(pieces):
            near.transport.write(bytes([number]) * size)
        near.transport.close()
        await asyncio.sleep(0)
        far.transport.resume_reading()
        await asyncio.gather(near.lost, far.lost)
        assert far.data[before:] == b"".join(bytes([number]) * size for number, size in enumerate(pieces))

    run(main())


@pytest.mark.parametrize("method", ["close", "abort"])
def test_data_written_before_the_tcp_eof_is_sent_over_tls(run, tls, method):
    """A server may end its clients' connections like this."""

    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        before = len(far.data)
        near.transport.write(b"last words")
        getattr(near.transport._ssl_protocol._transport, method)()
        await asyncio.gather(near.lost, far.lost)
        assert bytes(far.data[before:]) == b"last words"

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
    with pytest.warns(ResourceWarning) as warned:
        del near, far, transports
        gc.collect()
    warned.clear()  # They name the transport as their source.
    gc.collect()
    assert kept() is None


# -- what is logged ----------------------------------------------------------------------------------------------


def test_debug_mode_logs_the_handshake(run, tls, asyncio_log):
    async def main():
        near, far = await secure_pair(tls)
        await finish(near, far)

    run(main(), debug=True)
    messages = [record.message for record in asyncio_log.records]
    assert sum("starts SSL handshake" in message for message in messages) == 2
    assert sum("SSL handshake took" in message for message in messages) == 2


def test_debug_mode_logs_a_certificate_that_does_not_verify(run, tls, asyncio_log):
    async def main():
        with pytest.raises(ssl.SSLCertVerificationError):
            await secure_pair(tls, client=ssl.create_default_context())
        await asyncio.sleep(0.02)

    run(main(), debug=True)
    messages = [record.message for record in asyncio_log.records]
    assert any("SSL handshake failed on verifying the certificate" in message for message in messages)


def test_debug_mode_shows_what_broke_a_connection(run, tls, asyncio_log):
    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        far.transport.get_extra_info("socket")._sock.send(b"\x17\x03\x03\x00\x05wrong")
        assert isinstance(await near.lost, ssl.SSLError)
        far.transport.abort()
        await far.lost

    run(main(), debug=True)
    (record,) = [record for record in asyncio_log.records if "Fatal error on SSL protocol" in record.message]
    assert record.exc_info[0] is ssl.SSLError


def test_what_a_protocol_has_written_before_it_raises_is_sent_before_the_error_is_reported(run, tls):
    class Raising(Recording):
        def data_received(self, data):
            super().data_received(data)
            self.transport.write(b"head")
            if b"last" in data:
                raise ZeroDivisionError
            self.transport.write(b"body")

    async def main():
        near, far = await secure_pair(tls, far=Raising)
        # A head is held for the body that came after each of those before it.
        for number in range(1, 5):
            near.transport.write(b"question")
            assert await near.received(8 * number) == b"headbody" * number
        sock, reports = near.transport.get_extra_info("socket"), []

        def report(loop, context):
            reports.append((context["message"], bool(select.select([sock], [], [], 0)[0])))

        asyncio.get_running_loop().set_exception_handler(report)
        near.transport.write(b"last question")
        assert isinstance(await far.lost, ZeroDivisionError)
        await near.lost
        assert near.data == b"headbody" * 4 + b"head"
        assert reports == [("Fatal error on SSL protocol", True)]

    run(main())


def test_an_unclosed_tls_transport_warns(loop_factory, tls, asyncio_log):
    loop = loop_factory()
    near, far = loop.run_until_complete(secure_pair(tls))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        del near, far
        gc.collect()
    messages = [str(warning.message) for warning in caught]
    assert messages.count("unclosed transport <asyncio._SSLProtocolTransport object>") == 2
