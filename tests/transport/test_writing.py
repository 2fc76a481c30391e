"""Writing to transports: types, order, buffering, flow control."""

import asyncio
import fractions
import contextlib
import hashlib
import inspect
import logging
import math
import os
import re
import socket
import sys
import time

import pytest

from tests.support.protocol import Buffered, Recording, close, pair
from tests.support.sockets import socketpair, tcp_pair


def test_two_writes_arrive_in_order_and_before_anything_later(run):
    async def main():
        near, far = await pair()
        for number in range(2000):
            near.transport.write(b"head%d," % number)
            near.transport.write(b"body%d;" % number)
            if number % 7 == 0:
                await asyncio.sleep(0)
        expected = b"".join(b"head%d,body%d;" % (number, number) for number in range(2000))
        assert await far.received(len(expected)) == expected
        await close(near, far)

    run(main())


def test_sizes_around_every_threshold_keep_their_order(run):
    """Some writes are held, others not. They must not overtake each other."""

    async def main():
        near, far = await pair()
        expected = bytearray()
        for size in (1, 65535, 3, 65536, 5, 65537, 7, 131072, 1, 1, 262145, 2, 16384, 4, 4096, 100_000, 9):
            for data in (os.urandom(size), bytearray(os.urandom(size)), memoryview(os.urandom(size))):
                expected += data
                near.transport.write(data)
        assert await far.received(len(expected)) == expected
        await close(near, far)

    run(main())


def test_a_lower_limit_pauses_the_protocol_at_once(run):
    size = 8 << 20

    async def main():
        near, far = await pair()
        far.transport.pause_reading()
        near.transport.set_write_buffer_limits(high=size)
        near.transport.write(bytes(size))
        assert near.transport.get_write_buffer_size() > 0 and "pause_writing" not in near.calls
        near.transport.set_write_buffer_limits(high=1)
        assert near.calls[-1] == "pause_writing"
        far.transport.resume_reading()
        await far.received(size)
        while near.transport.get_write_buffer_size():
            await asyncio.sleep(0)
        assert near.calls[-1] == "resume_writing"
        await close(near, far)

    run(main())


def test_a_mutable_buffer_may_be_changed_after_a_write_that_was_sent(run):
    async def main():
        near, far = await pair()
        for size in (10, 5000):
            buffer = bytearray(b"a" * size)
            near.transport.write(buffer)
            near.transport.writelines([buffer, memoryview(buffer)])
            buffer[:] = b"b" * size
        expected = b"a" * 30 + b"a" * 15_000
        assert await far.received(len(expected)) == expected
        await close(near, far)

    run(main())


@pytest.mark.native
def test_a_mutable_buffer_may_be_changed_after_any_write(run):
    """Since 3.12 asyncio keeps a view of what it could not send, and sends what the buffer holds by then."""

    async def main():
        for size in (70_000, 4 << 20):
            near, far = await pair()
            buffer = bytearray(b"a" * size)
            near.transport.write(buffer)
            near.transport.write(memoryview(buffer))
            near.transport.writelines([buffer, b"-", buffer])
            buffer[:] = b"b" * size
            del buffer[:]
            assert await far.received(4 * size + 1) == b"a" * 3 * size + b"-" + b"a" * size
            await close(near, far)

    run(main())


def test_every_kind_of_bytes_can_be_written(run):
    import array

    async def main():
        near, far = await pair()
        text = b"0123456789"
        near.transport.write(text)
        near.transport.write(bytearray(text))
        near.transport.write(memoryview(text))
        near.transport.write(memoryview(text)[2:5])
        near.transport.write(memoryview(array.array("I", [1, 2, 3])))
        near.transport.writelines([text, bytearray(text), memoryview(text)])
        near.transport.writelines(iter([b"from", b"an", b"iterator"]))
        near.transport.writelines([])
        if sys.version_info >= (3, 12):
            near.transport.writelines(None)
        near.transport.write(b"")
        expected = text * 3 + b"234" + array.array("I", [1, 2, 3]).tobytes() + text * 3 + b"fromaniterator"
        assert await far.received(len(expected)) == expected
        await close(near, far)

    run(main())


@pytest.mark.parametrize("bad", ["text", None, 1, [b"x"], object(), 1.5])
def test_writing_an_object_that_is_not_bytes_like_is_a_type_error(run, bad):
    async def main():
        near, far = await pair()
        message = f"data argument must be a bytes-like object, not '{type(bad).__name__}'"
        message = f"data argument must be a bytes, bytearray, or memoryview object, not '{type(bad).__name__}'|{message}"
        with pytest.raises(TypeError, match=message):
            near.transport.write(bad)
        near.transport.write(b"still works")
        await far.received(11)
        await close(near, far)

    run(main())


@pytest.mark.parametrize("bad", [["text"], "text", b"bytes", [1.5], 1], ids=repr)
def test_writelines_says_what_is_wrong_with_an_item(run, bad):
    async def main():
        near, far = await pair()
        try:
            expected = [memoryview(item) for item in bad] if sys.version_info >= (3, 12) else b"".join(bad)
        except TypeError as error:
            expected = error
        with pytest.raises(TypeError) as raised:
            near.transport.writelines(bad)
        assert str(raised.value) == str(expected)
        near.transport.write(b"still works")
        await far.received(11)
        await close(near, far)

    run(main())


@pytest.mark.parametrize("item", [None, "", 0], ids=repr)
def test_writelines_ignores_a_false_item_where_asyncio_does(run, item):
    """Since gh-155888 asyncio asks each item whether it is empty before it looks at its type."""
    source = inspect.getsource(asyncio.selector_events._SelectorSocketTransport.writelines)

    async def main():
        near, far = await pair()
        if re.search(r"if (not )?data\b", source):
            near.transport.writelines([b"still", item, b" works"])
        else:
            with pytest.raises(TypeError):
                near.transport.writelines([b"still", item, b" works"])
            near.transport.write(b"still works")
        assert await far.received(11) == b"still works"
        await close(near, far)

    run(main())


def test_write_after_close_is_silent_and_warns_from_the_fifth_on(run, asyncio_log):
    async def main():
        near, far = await pair()
        near.transport.close()
        near.transport.write(b"ignored")
        await near.lost
        asyncio_log.clear()
        for _ in range(3):
            near.transport.write(b"ignored")
        assert asyncio_log.text == ""
        for _ in range(2):
            near.transport.write(b"ignored")
        assert [record.getMessage() for record in asyncio_log.records] == ["socket.send() raised exception."] * 2
        await far.lost
        assert far.data == b"", "what was written after close is not sent"

    run(main())


def test_a_write_to_a_connection_that_was_reset_ends_it_quietly(run):
    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(Recording, sock=sock)
            transport.pause_reading()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
            await asyncio.sleep(0.01)
            transport.write(b"into the void")
            assert isinstance(await protocol.lost, (BrokenPipeError, ConnectionResetError))
        assert problems == []

    run(main())


def test_close_flushes_pending_writes(run):
    async def main():
        near, far = await pair()
        payload = os.urandom(16 << 20)
        near.transport.write(payload)
        near.transport.close()
        await asyncio.gather(near.lost, far.lost)
        assert far.data == payload

    run(main())


def test_sixty_four_megabytes_both_ways_arrive_unchanged(run):
    block = os.urandom(1 << 20)
    expected = hashlib.sha256(block * 64).hexdigest()

    class Digesting(asyncio.Protocol):
        def __init__(self):
            self.digest, self.size = hashlib.sha256(), 0
            self.lost = asyncio.get_running_loop().create_future()
            self.whole = asyncio.get_running_loop().create_future()
            self.writable = asyncio.Event()
            self.writable.set()

        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.digest.update(data)
            self.size += len(data)
            if self.size == 64 << 20:
                self.whole.set_result(self.digest.hexdigest())

        def pause_writing(self):
            self.writable.clear()

        def resume_writing(self):
            self.writable.set()

        def connection_lost(self, exc):
            self.lost.set_result(exc)

    async def send(protocol):
        for _ in range(64):
            await protocol.writable.wait()
            protocol.transport.write(block)

    async def main():
        near, far = await pair(Digesting, Digesting)
        await asyncio.gather(send(near), send(far))
        assert await asyncio.gather(near.whole, far.whole) == [expected] * 2
        await close(near, far)

    Digesting.transport = None
    run(main())


def test_a_slow_reader_pauses_the_writer_and_draining_resumes_it(run):
    async def main():
        near, far = await pair()
        far.transport.pause_reading()
        written = 0
        while "pause_writing" not in near.calls:
            near.transport.write(bytes(50_000))
            written += 50_000
            await asyncio.sleep(0)
            assert written < 64 << 20
        assert near.transport.get_write_buffer_size() > near.transport.get_write_buffer_limits()[1]
        assert "resume_writing" not in near.calls
        far.transport.resume_reading()
        await far.received(written)
        await asyncio.sleep(0.01)
        assert near.calls == ["connection_made", "pause_writing", "resume_writing"]
        assert near.transport.get_write_buffer_size() == 0
        await close(near, far)

    run(main())


def test_a_write_buffer_that_shrinks_to_the_low_mark_resumes_the_writer(run, tmp_path):
    class Writer(Recording, asyncio.DatagramProtocol):
        pass

    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.bind(str(tmp_path / "peer"))
            transport, protocol = await loop.create_datagram_endpoint(
                Writer, family=socket.AF_UNIX, remote_addr=str(tmp_path / "peer")
            )
            while not (size := transport.get_write_buffer_size()):
                transport.sendto(b"datagram")
                await asyncio.sleep(0)
            of_asyncio = type(transport).__module__ == "asyncio.selector_events"
            if of_asyncio and size > len(b"datagram") and not hasattr(transport, "_header_size"):
                transport.abort()
                pytest.skip("CPython 3.13.0 counts the header of a datagram that waits, but not of one that has left")
            transport.set_write_buffer_limits(low=2 * size, high=2 * size)
            transport.sendto(b"datagram")
            assert transport.get_write_buffer_size() == 2 * size and protocol.calls == ["connection_made"]
            transport.sendto(b"datagram")
            assert protocol.calls == ["connection_made", "pause_writing"]
            # The peer now has room for one datagram more.
            peer.recv(100)
            while transport.get_write_buffer_size() > 2 * size:
                await asyncio.sleep(0)
            assert transport.get_write_buffer_size() == 2 * size
            assert protocol.calls == ["connection_made", "pause_writing", "resume_writing"]
            await close(protocol)

    run(main())


def test_one_large_write_pauses_at_once(run):
    async def main():
        with tcp_pair() as (sock, peer):
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            transport.write(bytes(32 << 20))
            assert protocol.calls == ["connection_made", "pause_writing"], "in the call of write itself"
            transport.abort()
            await protocol.lost

    run(main())


class Size(int):
    pass


def test_the_limits_of_the_write_buffer_are_asyncios(run):
    async def main():
        near, far = await pair()
        transport = near.transport
        assert transport.get_write_buffer_limits() == (16384, 65536)
        for arguments, expected in (
            ({"high": 1000}, (250, 1000)),
            ({"high": 1000, "low": 10}, (10, 1000)),
            ({"low": 100}, (100, 400)),
            ({"high": 0}, (0, 0)),
            # A value that is not an integer is kept as it is.
            ({"high": 1.5}, (0.0, 1.5)),
            ({"high": 4.0}, (1.0, 4.0)),
            ({"low": 0.3}, (0.3, 1.2)),
            ({"high": 10**30}, (10**30 // 4, 10**30)),
            ({"high": 2**63, "low": 2**63 - 1}, (2**63 - 1, 2**63)),
            ({"low": True}, (True, 4)),
            ({"high": Size(9)}, (2, Size(9))),
            ({"high": fractions.Fraction(7, 2)}, (0, fractions.Fraction(7, 2))),
            ({}, (16384, 65536)),
        ):
            transport.set_write_buffer_limits(**arguments)
            limits = transport.get_write_buffer_limits()
            assert limits == expected and [*map(type, limits)] == [*map(type, expected)]
        with pytest.raises(ValueError, match="must be >= low"):
            transport.set_write_buffer_limits(high=1, low=2)
        for arguments, shown in (
            ({"low": -1}, "high (-4) must be >= low (-1) must be >= 0"),
            ({"high": -1}, "high (-1) must be >= low (-1) must be >= 0"),
            ({"high": 1, "low": 10**30}, f"high (1) must be >= low ({10**30}) must be >= 0"),
            ({"high": math.inf}, "high (inf) must be >= low (nan) must be >= 0"),
            ({"high": math.nan, "low": 1}, "high (nan) must be >= low (1) must be >= 0"),
        ):
            with pytest.raises(ValueError, match=re.escape(shown)):
                transport.set_write_buffer_limits(**arguments)
        assert transport.get_write_buffer_limits() == (16384, 65536)
        await close(near, far)

    run(main())


def test_a_limit_of_zero_pauses_on_anything_that_is_not_sent(run):
    async def main():
        with tcp_pair() as (sock, peer):
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=sock)
            transport.set_write_buffer_limits(high=0)
            while transport.get_write_buffer_size() == 0:
                transport.write(bytes(100_000))
                await asyncio.sleep(0)
            assert protocol.calls[-1] == "pause_writing"
            transport.abort()
            await protocol.lost

    run(main())


def test_new_write_buffer_limits_do_not_count_data_the_socket_takes(run):
    async def main():
        near, far = await pair()
        near.transport.write(b"longer than the limit")
        near.transport.set_write_buffer_limits(high=4)
        await far.received(21)
        assert near.calls == ["connection_made"]
        await close(near, far)

    run(main())


def test_get_buffer_is_not_called_for_a_full_socket(run):
    async def main():
        for _ in range(10):
            with socketpair() as (sock, peer):
                transport, protocol = await asyncio.get_running_loop().create_connection(Buffered, sock=sock)
                transport.write(bytes(1 << 20))
                await asyncio.sleep(0.01)
                assert transport.get_write_buffer_size() > 0 and protocol.hints == []
                transport.abort()
                await protocol.lost

    run(main())


def test_a_connection_interrupted_in_resume_writing_goes_on_in_the_next_run(loop):
    payload = os.urandom(2 << 20)

    class Interrupted(Recording):
        def resume_writing(self):
            super().resume_writing()
            raise KeyboardInterrupt

    with socketpair() as (sock, peer):
        received = bytearray()
        transport, protocol = loop.run_until_complete(loop.create_connection(Interrupted, sock=sock))
        transport.set_write_buffer_limits(high=1 << 20, low=1 << 20)
        transport.write(payload)
        loop.add_reader(peer, lambda: received.extend(peer.recv(1 << 16)))
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert protocol.calls == ["connection_made", "pause_writing", "resume_writing"]
        assert 0 < len(received) < len(payload)
        transport.close()
        assert loop.run_until_complete(asyncio.wait_for(protocol.lost, 5)) is None
        while data := peer.recv(1 << 16):
            received += data
        assert received == payload
        loop.remove_reader(peer)


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("closing", [False, True], ids=["open", "closing"])
def test_a_connection_that_ends_in_resume_writing_is_lost_once(run, loop_name, asyncio_log, end, closing):
    """asyncio calls the protocol once too, but its own second attempt fails."""

    class Ending(Recording):
        def resume_writing(self):
            super().resume_writing()
            getattr(self.transport, end)()

    async def main():
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        with far:
            _, protocol = await asyncio.get_running_loop().create_connection(Ending, sock=near)
            protocol.transport.write(bytes(1_000_000))
            if closing:
                protocol.transport.close()
            while not protocol.lost.done():
                with contextlib.suppress(BlockingIOError):
                    far.recv(1_000_000)
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            assert protocol.calls == ["connection_made", "pause_writing", "resume_writing", "connection_lost"]

    run(main())
    if loop_name == "wakeloop":
        assert not [record for record in asyncio_log.records if record.levelname == "ERROR"]


def test_an_interrupt_in_a_write_that_fails_leaves_the_other_connections_alone(loop, asyncio_log):
    failed = []

    class Interrupting(logging.Handler):
        def emit(self, record):
            if "Fatal write error" in record.msg % record.args:
                failed.append(record)
                if len(failed) == 1:
                    raise KeyboardInterrupt
                assert sorted([-2, 1], key=abs) == [1, -2], "calls from C fail while an exception is set"

    async def connect(sock):
        return (await asyncio.get_running_loop().create_connection(Recording, sock=sock))[1]

    def write(protocol, peer):
        peer.close()
        protocol.transport.write(b"nobody reads this")

    with socketpair() as one, socketpair() as two, socketpair() as three:
        protocols = [loop.run_until_complete(connect(near)) for near, _ in (one, two, three)]
        peers = [far for _, far in (one, two, three)]
        loop.set_debug(True)
        interrupting = Interrupting()
        logging.getLogger("asyncio").addHandler(interrupting)
        try:
            for protocol, peer in zip(protocols, peers):
                loop.call_soon(write, protocol, peer)
            with pytest.raises(KeyboardInterrupt):
                loop.run_forever()
            loop.run_until_complete(asyncio.sleep(0))
        finally:
            logging.getLogger("asyncio").removeHandler(interrupting)
        assert len(failed) == 3
        loop.run_until_complete(close(*protocols[1:]))
        assert [type(protocol.error) for protocol in protocols[1:]] == [BrokenPipeError] * 2
        loop.run_until_complete(close(protocols[0]))


def test_writing_inside_connection_made_and_the_other_callbacks_works(run):
    class Chatty(Recording):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(b"hello ")

        def data_received(self, data):
            super().data_received(data)
            self.transport.write(b"you said " + data)

        def eof_received(self):
            super().eof_received()
            self.transport.write(b" bye")

    async def main():
        near, far = await pair(far=Chatty)
        near.transport.write(b"hi")
        await near.received(len(b"hello you said hi"))
        near.transport.write_eof()
        await near.lost
        assert near.data == b"hello you said hi bye"
        await far.lost

    run(main())


def test_a_write_is_sent_before_the_loop_blocks(run):
    """Nothing written is held while the loop blocks, whatever kind of callback wrote it."""

    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(Recording, sock=sock)
            for schedule in (
                lambda: loop.call_soon(transport.write, b"soon"),
                lambda: loop.call_later(0.001, transport.write, b"late"),
                lambda: loop.call_soon_threadsafe(transport.write, b"safe"),
                lambda: transport.write(b"task"),
            ):
                schedule()
                async with asyncio.timeout(5):
                    assert len(await loop.sock_recv(peer, 100)) == 4
            transport.close()
            await protocol.lost

    run(main())


@pytest.mark.parametrize("others", [1, 50])
def test_a_write_does_not_wait_for_callbacks_of_the_same_iteration_that_take_long(run, others):
    async def main():
        loop = asyncio.get_running_loop()
        seen = []

        def look():
            with contextlib.suppress(BlockingIOError):
                seen.append(peer.recv(100))

        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(Recording, sock=sock)
            loop.call_soon(transport.write, b"answer")
            loop.call_soon(time.sleep, 0.02)
            for _ in range(others):
                loop.call_soon(look)
            await asyncio.sleep(0)
            assert seen == [b"answer"]
            transport.close()
            await protocol.lost

    run(main())


@pytest.mark.parametrize("asked", ["before", "after"])
@pytest.mark.parametrize("use", ["shutdown", "dup"])
def test_what_was_written_precedes_what_is_done_with_the_transports_socket(run, use, asked):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(Recording, sock=sock)
            view = transport.get_extra_info("socket") if asked == "before" else None
            transport.write(b"first")
            view = view or transport.get_extra_info("socket")
            if use == "shutdown":
                view.shutdown(socket.SHUT_WR)
            else:
                with view.dup() as other:
                    other.send(b", then")
                    other.shutdown(socket.SHUT_WR)
            peer.settimeout(5)
            received = bytearray()
            while data := peer.recv(100):
                received += data
            assert received == (b"first" if use == "shutdown" else b"first, then")
            transport.close()
            await protocol.lost
            assert protocol.error is None

    run(main())


def test_a_write_just_before_the_loop_stops_is_sent(loop):
    with tcp_pair() as (sock, peer):
        transport, protocol = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=sock))
        loop.call_soon(transport.write, b"before stop")
        loop.call_soon(loop.stop)
        loop.run_forever()
        peer.settimeout(5)
        assert peer.recv(100) == b"before stop"
        transport.write(b"while stopped")
        loop.run_until_complete(asyncio.sleep(0))
        assert peer.recv(100) == b"while stopped"
        transport.close()
        loop.run_until_complete(asyncio.sleep(0.01))


def test_writelines_of_many_pieces_arrives_whole(run):
    async def main():
        near, far = await pair()
        pieces = [os.urandom(number % 3000) for number in range(3000)]
        near.transport.writelines(pieces)
        expected = b"".join(pieces)
        assert await far.received(len(expected)) == expected
        await close(near, far)

    run(main())


def test_a_write_that_is_set_on_the_transport_sees_the_writes_of_asyncio(run):
    async def main():
        near, far = await pair()
        write, seen = near.transport.write, []
        near.transport.write = lambda data: (seen.append(bytes(data)), write(data))
        near.transport.write(b"a")
        near.transport.writelines([b"b", bytearray(b"c")])
        while far.data != b"abc":
            await asyncio.sleep(0.001)
        # Since Python 3.12 writelines sends the pieces itself.
        assert seen == ([b"a", b"bc"] if sys.version_info < (3, 12) else [b"a"])
        await close(near, far)

    run(main())
