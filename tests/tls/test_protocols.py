"""What protocols may do over TLS, and where TLS may begin: the same on every engine and on asyncio."""

import asyncio
import contextvars
import os
import ssl
import sys

import pytest

from tests.support.nesting import make_nestable, run_nested
from tests.support.protocol import Buffered, Recording
from tests.support.sockets import tcp_pair
from tests.support.tls_pair import Echo, Viewed, finish, secure_pair, talk


@pytest.fixture(autouse=True)
def with_every_engine(tls_engine):
    """Every test here runs with both of wakeloop's engines, and on asyncio."""


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


@pytest.mark.native
def test_a_buffered_protocol_is_asked_for_a_buffer_only_when_there_is_data(run, tls):
    """asyncio asks also when the handshake and the stream end."""

    async def main():
        near, far = await secure_pair(tls, near=lambda: Viewed(1000))
        assert near.hints == []
        for size in (10, 100):
            far.transport.write(bytes(size))
            while len(near.data) < size:
                await asyncio.sleep(0.001)
            assert near.hints == [size] and len(near.data) == size
            near.hints.clear()
            near.data.clear()
        far.transport.close()
        await asyncio.gather(near.lost, far.lost)
        assert near.ended and near.hints == []

    run(main())


def test_a_buffer_that_cannot_be_written_to_ends_the_connection(run, tls, asyncio_log):
    class Constant(Viewed):
        constant = False

        def get_buffer(self, sizehint):
            return b"constant" if self.constant else super().get_buffer(sizehint)

    async def main():
        near, far = await secure_pair(tls, near=Constant)
        near.constant = True
        far.transport.write(b"x")
        error = await near.lost
        words = "read() argument 2 must be read-write bytes-like object, not bytes"
        assert isinstance(error, TypeError) and str(error) == words
        await far.lost

    run(main())


def test_data_written_before_a_nested_run_is_sent_in_it(loop, tls):
    class Asking(Recording):
        def data_received(self, data):
            super().data_received(data)
            self.transport.write(b"question")
            seen.append(run_nested(loop, asyncio.wait_for(far.received(8), 5)))
            self.transport.write(b"thanks")

    seen, far = [], None

    async def main():
        nonlocal far
        near, far = await secure_pair(tls, near=Asking)
        far.transport.write(b"go")
        assert await far.received(14) == b"questionthanks" and seen == [b"question"]
        await finish(near, far)

    make_nestable(loop)
    loop.run_until_complete(main())


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
            if loop_name != "asyncio":  # which reports eof before all the data
                assert not near.ended
            near.transport.resume_reading()
        assert near.data == message
        near.transport.resume_reading()
        assert await asyncio.gather(near.lost, far.lost) == [None, None]
        assert near.ended

    run(main())


def test_data_beyond_the_buffer_of_a_failing_protocol_is_delivered_before_connection_lost(run, tls, asyncio_log):
    """asyncio schedules the next read before it calls buffer_updated()."""

    class Failing(Viewed):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.calls.append(nbytes)
            if len(self.calls) == 1:
                raise KeyError("failed")

        def connection_lost(self, exc):
            self.calls.append("connection_lost")
            super().connection_lost(exc)

    async def main():
        near, far = await secure_pair(tls, near=lambda: Failing(1000))
        near.calls = []
        message = os.urandom(1600)
        far.transport.write(message)
        assert isinstance(await near.lost, KeyError)
        assert near.calls == [1000, 600, "connection_lost"]
        assert near.data == message
        await far.lost

    run(main())


def test_each_full_buffer_of_a_tls_connection_takes_a_turn_of_the_loop(run, tls):
    """asyncio schedules the next read before it calls buffer_updated()."""

    class Noting(Viewed):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.calls.append(nbytes)
            asyncio.get_running_loop().call_soon(self.calls.append, "next turn")

    async def main():
        near, far = await secure_pair(tls, near=lambda: Noting(1000))
        near.calls = []
        far.transport.write(os.urandom(3500))
        while len(near.calls) < 8:
            await asyncio.sleep(0)
        near.transport.close()
        far.transport.close()
        await asyncio.gather(near.lost, far.lost)
        assert near.calls == [1000, 1000, "next turn", 1000, "next turn", 500, "next turn", "next turn"]

    run(main())


def test_a_close_between_two_full_buffers_reads_one_more_and_loses_the_rest(run, tls):
    class Closing(Viewed):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.transport.close()

    async def main():
        near, far = await secure_pair(tls, near=lambda: Closing(1000))
        far.transport.write(os.urandom(3500))
        error = await near.lost
        assert error.reason == "APPLICATION_DATA_AFTER_CLOSE_NOTIFY" and len(near.data) == 2000
        await asyncio.gather(far.lost, return_exceptions=True)

    run(main())


@pytest.mark.parametrize(
    ("kind", "delivered"),
    [(Recording, 0), (lambda: Viewed(1000), 1000), (lambda: Viewed(100_000), 0)],
    ids=["data", "small buffer", "large buffer"],
)
def test_data_that_is_read_together_with_a_broken_record_is_lost(run, tls, kind, delivered):
    """SSLObject.read() raises before asyncio calls the protocol. Only buffers that were full have been delivered."""

    async def main():
        near, far = await secure_pair(tls, near=kind)
        message = os.urandom(1600)
        near.transport.pause_reading()
        far.transport.write(message)
        await asyncio.sleep(0.02)
        os.write(far.transport.get_extra_info("socket").fileno(), b"no TLS record at all")
        await asyncio.sleep(0.02)
        near.transport.resume_reading()
        with pytest.raises(ssl.SSLError):
            raise await near.lost
        assert near.data == message[:delivered]
        far.transport.abort()
        await far.lost

    run(main())


def test_set_protocol_between_two_tls_messages_works(run, tls):
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
    """The connections share the loop's buffers."""

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


def test_a_mutable_buffer_is_sent_over_tls_as_it_was_when_written(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        data = bytearray(b"as it was")
        near.transport.write(data)
        data[:] = b"different"
        assert await far.received(9) == b"as it was"
        await finish(near, far)

    run(main())


def test_writing_a_wrong_type_over_tls_raises_asyncios_error(run, tls):
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


def test_write_buffer_limits_and_sizes_of_tls_are_asyncios(run, tls):
    async def main():
        near, far = await secure_pair(tls)
        transport = near.transport
        assert transport.get_write_buffer_limits() == (128 * 1024, 512 * 1024)
        transport.set_write_buffer_limits(high=1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        with pytest.raises(ValueError, match="must be >= low"):
            transport.set_write_buffer_limits(high=1, low=2)
        transport.set_write_buffer_limits(high=1000.5)
        assert transport.get_write_buffer_limits() == (250.0, 1000.5)
        transport.write(b"x" * 100)
        assert transport.get_write_buffer_size() == 0
        await far.received(100)
        await finish(near, far)

    run(main())


class Keeping(Recording):
    """Keeps the data as it was given."""

    def __init__(self):
        super().__init__()
        self.given = []

    def data_received(self, data):
        self.given.append(data)
        super().data_received(data)


@pytest.mark.parametrize("size", [32_000, 32_768, 60_000, 103_000, 104_000, 106_496, 122_880, 200_000, 600_000])
def test_a_large_message_is_given_as_bytes_that_nothing_changes_afterwards(run, tls, size):
    async def main():
        near, far = await secure_pair(tls, far=Keeping)
        messages = [os.urandom(size) for _ in range(3)]
        for number, message in enumerate(messages, start=1):
            near.transport.write(message)
            await far.received(number * size)
        assert {type(data) for data in far.given} == {bytes}
        assert b"".join(far.given) == b"".join(messages)
        await finish(near, far)

    run(main())


@pytest.mark.parametrize("size", [50_000, 100_000])
def test_a_large_message_and_the_end_behind_it_come_in_this_order(run, tls, size):
    async def main():
        near, far = await secure_pair(tls, far=Keeping)
        message = os.urandom(size)
        near.transport.write(message)
        near.transport.close()
        await far.ended
        assert b"".join(far.given) == message
        assert far.calls[-1] == "eof_received"
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


def test_closing_a_tls_connection_flushes_a_large_write_buffer(run, tls):
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


def test_data_received_with_the_last_plain_line_belongs_to_tls(run, tls, loop_name):
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


def test_start_tls_refuses_a_wrong_context_or_transport(run, tls):
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


def test_connect_accepted_socket_works_with_tls(run, tls):
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
