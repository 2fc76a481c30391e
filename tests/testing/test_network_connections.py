"""Connections of the simulated network: flow control, and how they break."""

import asyncio
import errno
import socket

import pytest

from tests.testing.networks import connected, hosts, now

pytestmark = pytest.mark.native


# -- flow control --------------------------------------------------------------------------------


def test_a_slow_reader_pauses_the_writer():
    network = hosts()
    network.host("server").read_rate = 10_000

    async def main(it):
        it.server_writer.transport.max_size = 1000
        start = now()
        it.writer.write(bytes(400_000))
        size = it.writer.transport.get_write_buffer_size()
        assert size == 400_000 - 131072
        await it.writer.drain()
        # What is beyond the kernel's buffers and the low-water mark has to be read before.
        assert now() - start > 5
        it.writer.close()
        received = await it.server_reader.read()
        assert len(received) == 400_000
        assert now() - start == pytest.approx(40, rel=0.1)

    connected(network, main)


def test_a_reader_that_pauses_fills_the_buffers_of_both_ends():
    async def main(it):
        transport = it.server_writer.transport
        transport.pause_reading()
        it.writer.transport.set_write_buffer_limits(high=0)
        it.writer.write(bytes(1_000_000))
        await asyncio.sleep(1)
        assert it.writer.transport.get_write_buffer_size() == 1_000_000 - 20_000 - 30_000
        transport.resume_reading()
        await it.server_reader.readexactly(1_000_000)
        await it.writer.drain()
        assert it.writer.transport.get_write_buffer_size() == 0

    connected(hosts(send_buffer=20_000, receive_buffer=30_000), main)


# -- connections that end ------------------------------------------------------------------------


def test_a_reset_reaches_both_ends():
    async def main(it):
        it.connection.reset()
        for reader in it.reader, it.server_reader:
            with pytest.raises(ConnectionResetError):
                await reader.read()

    connected(hosts(), main)


def test_a_half_open_connection_is_noticed_by_the_end_that_sends():
    async def main(it):
        it.connection.half_open("server")
        with pytest.raises(ConnectionResetError):
            await it.server_reader.read()
        await asyncio.sleep(10_000)
        assert not it.reader.at_eof() and it.reader.exception() is None
        it.writer.write(b"still there?")
        with pytest.raises(ConnectionResetError):
            await it.reader.read()
        with pytest.raises(ValueError, match="'localhost' has no end of"):
            it.connection.half_open("localhost")

    connected(hosts(), main)


def test_a_stalled_connection_delivers_again_after_resume():
    async def main(it):
        it.connection.stall()
        it.writer.write(b"x")
        it.server_writer.write_eof()
        await asyncio.sleep(3)
        assert not it.reader.at_eof()
        it.connection.resume()
        assert await it.server_reader.read(1) == b"x"
        assert await it.reader.read() == b""

    connected(hosts(), main)


def test_close_with_unread_data_resets_the_connection():
    async def main(it):
        it.server_writer.transport.pause_reading()
        it.writer.write(b"nobody reads this")
        await asyncio.sleep(1)
        it.server_writer.transport.abort()
        with pytest.raises(ConnectionResetError):
            await it.reader.read()

    connected(hosts(), main)


def test_a_write_to_a_closed_peer_fails_at_the_second_try():
    async def main(it):
        it.server_writer.close()
        assert await it.reader.read() == b""
        it.writer.write(b"one")
        await asyncio.sleep(1)
        it.writer.write(b"two")
        with pytest.raises(BrokenPipeError):
            await it.writer.wait_closed()

    connected(hosts(latency=0.1), main)


def test_a_writer_gives_up_after_15_retries_and_a_reader_never():
    network = hosts()

    async def main(it):
        network.partition("client", "server")
        it.writer.write(b"x")
        waiting = asyncio.create_task(it.server_reader.read())
        with pytest.raises(TimeoutError) as caught:
            await it.reader.read()
        assert caught.value.errno == errno.ETIMEDOUT
        assert now() == pytest.approx(924.6)
        await asyncio.sleep(1_000_000)
        assert not waiting.done()
        waiting.cancel()

    connected(network, main)


def test_the_user_timeout_of_a_socket_ends_it_earlier():
    network = hosts()

    async def main(it):
        it.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
        network.partition("client", "server")
        it.writer.write(b"x")
        with pytest.raises(TimeoutError):
            await it.reader.read()
        assert now() == pytest.approx(5)

    connected(network, main)


def test_a_closed_connection_delivers_the_rest_after_a_cut():
    network = hosts(receive_buffer=1000, send_buffer=10_000)

    async def main(it):
        it.server_writer.transport.pause_reading()
        it.writer.write(bytes(5000))
        it.writer.close()
        await it.writer.wait_closed()
        network.partition("client", "server")
        # The room that the reader makes is announced in vain.
        it.server_writer.transport.resume_reading()
        await asyncio.sleep(1)
        network.heal()
        assert len(await it.server_reader.read()) == 5000

    connected(network, main)


def test_a_writer_learns_of_a_closed_peer_after_its_reset_was_lost():
    network = hosts()

    async def main(it):
        network.partition("client", "server", one_way=True)
        it.writer.close()
        await asyncio.sleep(0)
        it.server_writer.write(b"x")
        await asyncio.sleep(5)
        network.heal()
        with pytest.raises(ConnectionResetError):
            await it.server_reader.read()

    connected(network, main)


@pytest.mark.parametrize("cut", [False, True], ids=["lost by the peer", "cut"])
def test_a_writer_that_waits_for_room_notices_that_the_peer_is_gone(cut):
    network = hosts(receive_buffer=1000)

    async def main(it):
        it.server_writer.transport.pause_reading()
        it.writer.write(bytes(5000))
        await asyncio.sleep(10)
        if cut:
            network.partition("client", "server")
        else:
            it.connection.half_open("server")
        with pytest.raises(TimeoutError if cut else ConnectionResetError):
            await it.reader.read()

    connected(network, main)
