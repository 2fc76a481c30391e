"""`wakeloop.UdpSocket`: datagrams sent and received by the runtime."""

import asyncio
import gc
import os
import random
import socket

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_datagrams_of_every_size_arrive_whole(run):
    async def main():
        async with await wakeloop.UdpSocket.bind("127.0.0.1", 0) as one:
            async with await wakeloop.UdpSocket.connect("127.0.0.1", one.port) as other:
                assert other.get_extra_info("peername") == ("127.0.0.1", one.port)
                for size in (0, 1, 1000, 65_507):
                    data = os.urandom(size)
                    await other.send(data)
                    received, sender = await one.recv_from()
                    assert received == data and sender == other.get_extra_info("sockname")
                    await one.send_to(memoryview(data), sender)
                    assert await other.recv() == data
                with pytest.raises(OSError):
                    await other.send(bytes(65_508))

    run(main())


def test_datagrams_and_receivers_wait_for_each_other(run):
    async def main():
        async with await wakeloop.UdpSocket.bind("127.0.0.1", 0) as server:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                for number in range(50):
                    peer.sendto(b"%d" % number, ("127.0.0.1", server.port))
                assert [await server.recv() for _ in range(50)] == [b"%d" % number for number in range(50)]
                waiting = asyncio.ensure_future(server.recv())
                await asyncio.sleep(0.001)
                assert not waiting.done()
                peer.sendto(b"late", ("127.0.0.1", server.port))
                assert await waiting == b"late"

    run(main())


def test_a_name_is_looked_up_for_the_family_of_the_socket(run):
    async def main():
        async with await wakeloop.UdpSocket.bind("127.0.0.1", 0) as one:
            for _ in range(3):
                await one.send_to(b"to localhost", ("localhost", one.port))
                assert await one.recv() == b"to localhost"

    run(main())


def test_a_cancelled_receive_loses_no_datagram(run):
    async def main():
        async with await wakeloop.UdpSocket.bind("127.0.0.1", 0) as server:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                for number in range(500):
                    task = asyncio.ensure_future(server.recv())
                    for _ in range(random.randrange(2)):
                        await asyncio.sleep(0)
                    peer.sendto(b"%d" % number, ("127.0.0.1", server.port))
                    for _ in range(random.randrange(3)):
                        await asyncio.sleep(0)
                    task.cancel()
                    try:
                        data = await task
                    except asyncio.CancelledError:
                        data = await asyncio.wait_for(server.recv(), 10)
                    assert data == b"%d" % number

    run(main())


def test_sending_to_a_closed_port_raises_connection_refused_error(run):
    async def main():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
            nobody.bind(("127.0.0.1", 0))
            port = nobody.getsockname()[1]
        async with await wakeloop.UdpSocket.connect("127.0.0.1", port) as client:
            with pytest.raises(ConnectionRefusedError):
                await client.send(b"anybody?")
                await client.recv()

    run(main())


def test_a_closed_socket_refuses_everything_but_close(run):
    async def main():
        server = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        waiting = asyncio.ensure_future(server.recv())
        await asyncio.sleep(0.001)
        server.close()
        server.close()
        with pytest.raises(ConnectionAbortedError):
            await waiting
        for call in (server.recv, server.recv_from, lambda: server.send(b"x")):
            with pytest.raises(OSError):
                call()
        assert server.is_closing() and server.fileno() == -1 and "closed" in repr(server)

    run(main())


def test_wrong_arguments_are_refused_at_once(run):
    async def main():
        async with await wakeloop.UdpSocket.bind("127.0.0.1", 0) as server:
            for call in [
                lambda: server.send("text"),
                lambda: server.send_to(b"x", "127.0.0.1"),
                lambda: server.send_to(b"x", ("127.0.0.1", "80")),
                lambda: server.send_to(b"x"),
            ]:
                with pytest.raises((TypeError, ValueError)):
                    call()
            with pytest.raises(OSError):
                await server.send(b"nobody to send to")

    run(main())


@pytest.mark.parametrize("port", [-1, 65_536, 10**30])
def test_a_port_out_of_range_raises_what_asyncio_raises(run, port):
    async def main():
        with pytest.raises(OverflowError, match=r"^bind\(\): port must be 0-65535\.$"):
            wakeloop.UdpSocket.bind("127.0.0.1", port)
        with pytest.raises(OverflowError, match=r"^connect\(\): port must be 0-65535\.$"):
            wakeloop.UdpSocket.connect("127.0.0.1", port)
        async with wakeloop.UdpSocket.bind("127.0.0.1", 0) as one:
            for address in [("127.0.0.1", port), ("::1", port, 0, 0), ("localhost", port, 0, 0)]:
                with pytest.raises(OverflowError, match=r"^sendto\(\): port must be 0-65535\.$"):
                    one.send_to(b"", address)

    run(main())


def test_a_socket_that_is_dropped_open_is_closed_with_a_warning(run):
    async def main():
        server = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        with pytest.warns(ResourceWarning, match="unclosed <wakeloop.UdpSocket"):
            del server
            gc.collect()

    run(main())
