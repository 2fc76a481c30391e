"""When a write leaves: alone at once, together where the next one is due.

Where a test looks at the peer's socket, it does so within the step that writes. So it needs no clock, and what it sees
does not depend on other threads.
"""

import array
import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import termios
import threading

import pytest

from tests.support.protocol import Recording, close
from tests.support.sockets import socketpair, tcp_pair
from tests.support.tls_pair import secure_pair

PAIRS = {"tcp": tcp_pair, "unix": socketpair}


def arrived(peer):
    """Returns the data that has arrived, without waiting."""
    received = bytearray()
    with contextlib.suppress(BlockingIOError):
        while data := peer.recv(100_000):
            received += data
    return bytes(received)


async def open_transport(sock, protocol=Recording):
    return await asyncio.get_running_loop().create_connection(protocol, sock=sock)


async def step(callback):
    """Calls a function in a callback of its own."""
    done = asyncio.get_running_loop().create_future()

    def call():
        try:
            done.set_result(callback())
        except BaseException as error:
            done.set_exception(error)

    asyncio.get_running_loop().call_soon(call)
    return await done


async def serve(transport, peer, times=100, pieces=(b"head", b"body")):
    """Writes responses of several pieces, each in a step of its own."""
    for _ in range(times):

        def respond():
            for piece in pieces:
                transport.write(piece)

        await step(respond)
        assert arrived(peer) == b"".join(pieces)


@pytest.fixture(params=PAIRS)
def connected(request):
    return PAIRS[request.param]


def test_on_a_new_connection_every_write_has_left_when_it_returns(run, connected):
    async def main():
        for _ in range(100):
            with connected() as (sock, peer):
                transport, protocol = await open_transport(sock)
                for data in (b"1", b"2", b"3" * 1000, bytearray(b"4"), memoryview(b"5")):
                    transport.write(data)
                    assert arrived(peer) == bytes(data)
                transport.writelines([b"6", b"7"])
                assert arrived(peer) == b"67"
                await close(protocol)

    run(main())


@pytest.mark.parametrize("size", [4_096, 16_384])
def test_on_a_new_connection_many_big_writes_have_left_when_they_return(run, connected, size):
    """Also in the second step that writes."""

    def burst(transport, peer):
        for _ in range(100):
            transport.write(bytes(size))
            assert len(arrived(peer)) == size

    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock)
            for _ in range(2):
                await step(lambda: burst(transport, peer))
            await close(protocol)

    run(main())


def test_a_write_in_data_received_has_left_when_it_returns(run, connected):
    seen = []

    class Answering(Recording):
        def data_received(self, data):
            for piece in (b"one", b"two"):
                self.transport.write(piece)
                seen.append(arrived(peer))
            super().data_received(data)

    async def main():
        transport, protocol = await open_transport(sock, Answering)
        peer.send(b"question")
        await protocol.received(8)
        await close(protocol)

    with connected() as (sock, peer):
        run(main())
        assert seen == [b"one", b"two"]


@pytest.mark.native
def test_head_and_body_leave_together_once_that_is_a_habit(run, connected):
    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)

            def respond():
                transport.write(b"head")
                before = arrived(peer)
                transport.write(b"body")
                return before, arrived(peer)

            assert await step(respond) == (b"", b"headbody")
            await close(protocol)

    run(main())


def test_after_a_change_of_habit_only_the_first_write_may_wait_for_the_end_of_its_step(run, connected):
    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)

            await step(lambda: transport.write(b"first"))
            assert arrived(peer) == b"first"

            def write():
                transport.write(b"x")
                return arrived(peer)

            for _ in range(10):
                assert await step(write) == b"x"
            await close(protocol)

    run(main())


def test_only_a_head_may_come_with_its_first_event(run, connected):
    """A stream of events on a connection that has served a hundred responses of head and body."""

    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)

            def stream():
                transport.write(b"head")
                transport.write(b"event 0")
                assert arrived(peer).endswith(b"event 0")
                for number in range(1, 6):
                    transport.write(b"event %d" % number)
                    assert arrived(peer) == b"event %d" % number

            await step(stream)
            await close(protocol)

    run(main())


def test_events_without_a_request_are_a_habit_of_their_own(run, connected):
    """Responses follow a request; what is pushed later does not."""

    class Responding(Recording):
        def data_received(self, data):
            self.transport.write(b"head")
            self.transport.write(b"body")
            super().data_received(data)

    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock, Responding)
            for number in range(100):
                peer.send(b"?")
                await protocol.received(number + 1)
                assert arrived(peer) == b"headbody"

            def push():
                transport.write(b"event")
                return arrived(peer)

            for _ in range(5):
                assert await step(push) == b"event"
            await close(protocol)

    run(main())


def test_drain_sends(run, loop_name):
    """Of both kinds of streams, and on a connection whose writes come in pairs."""

    async def main():
        import wakeloop

        for module in [asyncio] if loop_name == "asyncio" else [asyncio, wakeloop]:
            with tcp_pair() as (sock, peer):
                _, writer = await module.open_connection(sock=sock)
                for _ in range(100):
                    writer.write(b"head")
                    writer.write(b"body")
                    await writer.drain()
                    await asyncio.sleep(0)
                    assert arrived(peer) == b"headbody"
                for _ in range(3):
                    writer.write(b"progress")
                    await writer.drain()
                    assert arrived(peer) == b"progress"
                    await asyncio.sleep(0)
                writer.close()
                await writer.wait_closed()

    run(main())


def test_data_leaves_in_the_order_of_the_writes_of_all_transports(run, connected):
    """On connections whose writes come in pairs, too: at most one transport holds a write."""

    async def main():
        with connected() as (one, peer), connected() as (two, other):
            first, near = await open_transport(one)
            second, far = await open_transport(two)
            await serve(first, peer)
            await serve(second, other)

            def both():
                first.write(b"1")
                second.write(b"2")
                return arrived(peer)

            assert await step(both) == b"1"
            assert arrived(other) == b"2"
            await close(near, far)

    run(main())


@pytest.mark.parametrize("way", ["a pipe", "sock_sendall"])
def test_data_leaves_before_what_the_loop_sends_by_other_means(run, connected, way):
    """Also the first write after a change of habit, which may wait for the end of its step."""

    async def open_pipe(loop, near):
        pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, near)
        return pipe

    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with connected() as (sock, peer), near, far:
            near.setblocking(False)
            transport, protocol = await open_transport(sock)
            pipe = await open_pipe(loop, near) if way == "a pipe" else None
            await serve(transport, peer)

            async def send():
                transport.write(b"first")
                if pipe is not None:
                    pipe.write(b"second")
                else:
                    await loop.sock_sendall(near, b"second")
                return arrived(peer)

            assert await loop.create_task(send()) == b"first"
            if pipe is not None:
                pipe.close()
            await close(protocol)

    run(main())


@pytest.mark.parametrize("habit", [0, 10])
def test_datagrams_of_several_transports_arrive_in_the_order_in_which_they_were_sent(run, habit):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            peer.setblocking(False)
            transports = []
            for _ in range(2):
                address = peer.getsockname()
                transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
                transports.append(transport)
            expected = []

            def alternate():
                for number in range(4):
                    for name, transport in zip("tu", transports):
                        expected.append(f"{name}{number}".encode())
                        transport.sendto(expected[-1])

            def burst():
                for name, transport in zip("tu", transports):
                    for number in range(4):
                        expected.append(f"{name}{number}".encode())
                        transport.sendto(expected[-1])

            for _ in range(habit):
                await step(burst)
            await step(alternate)
            await step(alternate)
            received = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    received.append(peer.recv(10))
            assert received == expected
            for transport in transports:
                transport.close()

    run(main())


def test_every_datagram_has_left_when_sendto_returns(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            peer.setblocking(False)
            address = peer.getsockname()
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
            for number in range(10):
                transport.sendto(b"%d" % number)
                assert peer.recv(10) == b"%d" % number
            transport.close()

    run(main())


@pytest.mark.parametrize("wait", ["thread", "process"])
def test_a_step_may_wait_for_somebody_who_needs_the_data(run, connected, wait):
    async def main():
        with connected() as (sock, peer):
            peer.setblocking(True)
            transport, protocol = await open_transport(sock)
            transport.write(b"data")
            if wait == "thread":
                received = []
                thread = threading.Thread(target=lambda: received.append(peer.recv(4)))
                thread.start()
                thread.join()
                assert received == [b"data"]
            else:
                code = f"import socket; assert socket.socket(fileno={peer.fileno()}).recv(4) == b'data'"
                subprocess.run([sys.executable, "-c", code], pass_fds=[peer.fileno()], check=True)
            await close(protocol)

    run(main())


ENDINGS = {
    "_exit": "os._exit(0)",
    "execv": "os.execv(sys.executable, [sys.executable, '-c', ''])",
    "abort": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "SIGKILL": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_last_words_of_a_process_arrive(loop_name, ending):
    code = f"""
import asyncio, os, resource, socket, sys
async def main():
    _, writer = await asyncio.open_connection(sock=socket.socket(fileno=int(sys.argv[1])))
    writer.write(b"last words")
    {ENDINGS[ending]}
if {loop_name == "asyncio"}:
    asyncio.run(main())
else:
    import wakeloop
    wakeloop.run(main())
"""
    one, other = socket.socketpair()
    with one, other:
        command = [sys.executable, "-c", code, str(other.fileno())]
        subprocess.run(command, pass_fds=[other.fileno()], stderr=subprocess.DEVNULL)
        other.close()
        assert one.recv(100) == b"last words"


def test_what_a_program_sends_on_the_socket_itself_comes_in_order(run):
    async def main():
        with socketpair() as (sock, peer):
            transport, protocol = await open_transport(sock)
            transport.write(b"1")
            os.write(sock.fileno(), b"2")
            transport.write(b"3")
            sock.send(b"4")
            transport.write(b"5")
            socket.send_fds(sock, [b"6"], [0])
            assert arrived(peer) == b"123456"
            await close(protocol)

    run(main())


@pytest.mark.parametrize("end", ["shutdown", "duplicate"])
def test_what_was_written_leaves_before_the_socket_is_used(run, end):
    async def main():
        with socketpair() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)
            own = transport.get_extra_info("socket")

            def use():
                transport.write(b"head")
                if end == "shutdown":
                    own.shutdown(socket.SHUT_WR)
                else:
                    with own.dup() as duplicate:
                        duplicate.send(b"body")

            await step(use)
            assert arrived(peer) == (b"head" if end == "shutdown" else b"headbody")
            await close(protocol)

    run(main())


def test_a_write_of_a_thread_while_the_loop_waits_is_sent(run):
    async def main():
        with tcp_pair() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)
            peer.setblocking(True)

            def write():
                transport.write(b"from a thread")
                return peer.recv(100)

            assert await asyncio.get_running_loop().run_in_executor(None, write) == b"from a thread"
            await close(protocol)

    run(main())


def test_the_repr_of_a_transport_does_not_count_a_write_that_waits(run, connected):
    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)

            def look():
                transport.write(b"head")
                return repr(transport)

            assert "write=<idle, bufsize=0>" in await step(look)
            await close(protocol)

    run(main())


def test_the_repr_of_a_datagram_transport_does_not_count_a_datagram_that_waits(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            transport, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=peer.getsockname()
            )

            def send():
                transport.sendto(b"one")
                first = repr(transport)
                transport.sendto(b"two")
                return first, repr(transport)

            for _ in range(5):
                assert all("write=<idle, bufsize=0>" in text for text in await step(send))
            transport.close()

    run(main())


def test_buffer_size_and_limits_are_those_of_writes_that_were_sent(run, connected):
    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock)
            await serve(transport, peer)

            def write():
                transport.write(b"x")
                return transport.get_write_buffer_size(), arrived(peer)

            assert await step(write) == (0, b"x")
            await serve(transport, peer)

            def limit():
                transport.write(b"x")
                transport.set_write_buffer_limits(0)
                return arrived(peer)

            assert await step(limit) == b"x"
            await serve(transport, peer)
            assert protocol.calls == ["connection_made"]
            await close(protocol)

    run(main())


@pytest.mark.parametrize("size", [100, 5_000, 16_384, 70_000])
@pytest.mark.parametrize("count", [2, 14, 40])
def test_the_memory_of_a_connection_whose_peer_does_not_read_stays_within_its_limits(run, connected, size, count):
    """Also where the writes of a step come in a number that the connection is used to."""

    class Piece(bytes):
        alive = 0

        def __init__(self, _):
            Piece.alive += 1

        def __del__(self):
            Piece.alive -= 1

    class Pausing(Recording):
        paused = False

        def pause_writing(self):
            super().pause_writing()
            self.paused = True
            high = self.transport.get_write_buffer_limits()[1]
            assert high < self.transport.get_write_buffer_size() <= high + size

    async def main():
        with connected() as (sock, peer):
            transport, protocol = await open_transport(sock, Pausing)
            # What waits for the next write may be more than the limit while the kernel has room for it.
            limit = max(transport.get_write_buffer_limits()[1], 128 * 1024) + 2 * size

            def burst():
                for _ in range(count):
                    if not protocol.paused:
                        transport.write(Piece(bytes(size)))
                        assert Piece.alive * size <= limit

            while not protocol.paused:
                await step(burst)
            assert protocol.calls[-1] == "pause_writing"
            assert transport.get_write_buffer_size() <= limit
            transport.abort()
            await protocol.lost
        assert Piece.alive == 0

    run(main())


def test_over_tls_every_write_has_left_when_it_returns(run, tls, tls_engine):
    async def main():
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()

        class Accepting(Recording):
            def connection_made(self, transport):
                super().connection_made(transport)
                accepted.set_result(self)

        server = await loop.create_server(Accepting, "127.0.0.1", 0, ssl=tls.server())
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=tls.client(), server_hostname="localhost")
        near = await accepted
        def write(data):
            """The peer's kernel has the ciphertext when `write` returns."""
            before = unread()
            near.transport.write(data)
            return unread() - before

        def unread():
            count = array.array("i", [0])
            fcntl.ioctl(writer.get_extra_info("socket").fileno(), termios.FIONREAD, count)
            return count[0]

        writer.transport.pause_reading()
        for data in (b"1", b"2", b"3" * 1000):
            assert await step(lambda data=data: write(data)) > len(data)
        writer.transport.resume_reading()
        assert await reader.readexactly(1002) == b"12" + b"3" * 1000
        writer.close()
        server.close()
        await close(near)
        await server.wait_closed()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    run(main())


def test_over_tls_a_long_write_leaves_once_behind_the_one_that_waited_for_it(run, tls, tls_engine):
    """The first records of the long one are handed over while the transport is still among those that hold a write."""

    async def main():
        near, far = await secure_pair(tls)
        expected = b""
        for size in (1, 1, 1, 600_000):
            pieces = [b"head", os.urandom(size)]
            expected += b"".join(pieces)
            await step(lambda pieces=pieces: [near.transport.write(piece) for piece in pieces])
        assert await far.received(len(expected)) == expected
        await close(near, far)

    run(main())
