"""Code that runs in the middle of our calls: destructors, callbacks, other threads, signal handlers.

Whatever it does there, even to the object that called it, ends as in asyncio: nothing is lost, reported twice or left
half done, and no descriptor gets a second owner.
"""

import asyncio
import os
import socket
import sys
import threading
import time

import pytest

from tests.loop.test_scheduling import run_once


class Recorder:
    """A protocol of any kind that records its calls."""

    def __init__(self):
        self.calls = []

    def connection_made(self, transport):
        self.transport = transport
        self.calls.append("made")

    def connection_lost(self, error):
        self.calls.append("lost")

    def data_received(self, data):
        self.calls.append(data)

    def datagram_received(self, data, address):
        self.calls.append(data)

    def eof_received(self):
        self.calls.append("eof")


def run_until_called(loop, protocol, what):
    async def wait():
        async with asyncio.timeout(10):
            while what not in protocol.calls:
                await asyncio.sleep(0.001)

    loop.run_until_complete(wait())


class Interrupted(Recorder):
    def connection_made(self, transport):
        super().connection_made(transport)
        raise KeyboardInterrupt


def interrupted(loop, connecting):
    task = loop.create_task(connecting)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    return loop.run_until_complete(asyncio.wait_for(task, 10))


def test_a_datagram_endpoint_survives_an_interrupted_connection_made(loop):
    protocol = Interrupted()
    transport, _ = interrupted(loop, loop.create_datagram_endpoint(lambda: protocol, local_addr=("127.0.0.1", 0)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"data", transport.get_extra_info("sockname"))
        run_until_called(loop, protocol, b"data")
    transport.close()
    run_until_called(loop, protocol, "lost")
    assert protocol.calls == ["made", b"data", "lost"]


def test_a_pipe_transport_survives_an_interrupted_connection_made(loop):
    protocol = Interrupted()
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as writer:
        interrupted(loop, loop.connect_read_pipe(lambda: protocol, open(reading, "rb", buffering=0)))
        writer.write(b"data")
        run_until_called(loop, protocol, b"data")
    run_until_called(loop, protocol, "lost")
    assert protocol.calls == ["made", b"data", "eof", "lost"]


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_datagram_endpoint_ends_although_its_protocol_fails_on_an_error(run, end):
    class Failing(Recorder):
        def error_received(self, error):
            raise ZeroDivisionError

    async def main():
        loop, protocol = asyncio.get_running_loop(), Failing()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
            nobody.bind(("127.0.0.1", 0))
            address = nobody.getsockname()
        transport, _ = await loop.create_datagram_endpoint(lambda: protocol, remote_addr=address)
        for call in [lambda: transport.sendto(b"data")] * 4 + [getattr(transport, end)]:
            try:
                call()
            except ZeroDivisionError:
                pass
            # The refusal of what was sent arrives.
            time.sleep(0.002)
        assert transport.is_closing()
        while "lost" not in protocol.calls:
            await asyncio.sleep(0.001)
        assert protocol.calls == ["made", "lost"]

    run(main())


def test_methods_added_to_a_buffered_protocol_later_are_called(run):
    there, sizes = False, []

    class Late(asyncio.BufferedProtocol):
        def __getattribute__(self, name):
            if name in ("get_buffer", "buffer_updated") and not there:
                raise AttributeError(name)
            return super().__getattribute__(name)

        def get_buffer(self, size_hint):
            return bytearray(10)

        def buffer_updated(self, size):
            sizes.append(size)

    async def main():
        nonlocal there
        near, far = socket.socketpair()
        with far:
            transport, _ = await asyncio.get_running_loop().create_connection(Late, sock=near)
            there = True
            far.send(b"data")
            while not sizes:
                await asyncio.sleep(0.001)
            assert sizes == [4]
            transport.close()
            await asyncio.sleep(0)

    run(main())


def test_the_socket_of_an_accepted_connection_is_made_once_for_all_threads(run):
    async def main():
        accepted, connections, sockets = [], 20, []

        class Echo(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                accepted.append(transport)

            def data_received(self, data):
                self.transport.write(data)

        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
        interval = sys.getswitchinterval()
        for number in range(connections):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            while len(accepted) <= number:
                await asyncio.sleep(0)
            barrier = threading.Barrier(3)

            def ask(transport=accepted[-1], barrier=barrier):
                barrier.wait()
                sockets.append(transport.get_extra_info("socket").fileno())

            threads = [threading.Thread(target=ask) for _ in range(3)]
            try:
                sys.setswitchinterval(1e-6)
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            finally:
                sys.setswitchinterval(interval)
            # A second owner of the descriptor would have closed it by now.
            writer.write(b"data")
            assert await asyncio.wait_for(reader.read(4), 5) == b"data"
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        assert -1 not in sockets

    run(main())


def test_a_loop_can_be_closed_while_another_thread_steps_it(loop_factory):
    loop, entered = loop_factory(), threading.Event()

    def turn():
        entered.set()
        try:
            loop._run_once()
        except (OSError, RuntimeError, ValueError, AttributeError):
            # What asyncio raises depends on the point in the iteration.
            pass

    loop.call_later(0.5, int)
    thread = threading.Thread(target=turn)
    thread.start()
    assert entered.wait(10)
    time.sleep(0.05)
    loop.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.native
def test_two_threads_cannot_wait_in_one_loop_at_a_time(loop):
    entered, release = threading.Event(), []

    def turn():
        entered.set()
        loop._run_once()

    timer = loop.call_later(10, release.append, 1)
    thread = threading.Thread(target=turn)
    thread.start()
    assert entered.wait(10)
    time.sleep(0.05)
    for wait in (loop._run_once, loop.run_forever):
        with pytest.raises(RuntimeError, match="another thread is waiting"):
            wait()
    loop.call_soon_threadsafe(int)
    thread.join(10)
    timer.cancel()
    assert not thread.is_alive()
    run_once(loop)
