"""`wakeloop.TcpListener`: connections accepted by the runtime."""

import asyncio
import gc
import random
import socket

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_connections_come_in_the_order_they_were_made(run):
    async def main():
        async with await wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            assert listener.host == "127.0.0.1" and listener.get_extra_info("sockname") == ("127.0.0.1", listener.port)
            peers = [socket.create_connection((listener.host, listener.port)) for _ in range(5)]
            for peer in peers:
                async with await listener.accept() as stream:
                    assert stream.get_extra_info("peername") == peer.getsockname()
                peer.close()

    run(main())


def test_a_cancelled_accept_loses_no_connection(run):
    async def main():
        async with await wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            accepted = 0
            for number in range(300):
                task = asyncio.ensure_future(listener.accept())
                for _ in range(random.randrange(2)):
                    await asyncio.sleep(0)
                with socket.create_connection((listener.host, listener.port)):
                    for _ in range(random.randrange(3)):
                        await asyncio.sleep(0)
                    task.cancel()
                    try:
                        stream = await task
                    except asyncio.CancelledError:
                        stream = await asyncio.wait_for(listener.accept(), 10)
                    accepted += 1
                    stream.close()
            assert accepted == 300

    run(main())


def test_several_tasks_share_the_connections(run):
    async def main():
        async with await wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            tasks = [asyncio.ensure_future(listener.accept()) for _ in range(20)]
            await asyncio.sleep(0.001)
            for task in tasks[::2]:
                task.cancel()
            peers = [socket.create_connection((listener.host, listener.port)) for _ in range(10)]
            for stream in await asyncio.gather(*tasks[1::2]):
                stream.close()
            for peer in peers:
                peer.close()

    run(main())


def test_closing_ends_iterations_and_fails_accepts(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)

        async def iterate():
            return [stream async for stream in listener]

        iterating, accepting = asyncio.create_task(iterate()), asyncio.ensure_future(listener.accept())
        await asyncio.sleep(0.001)
        listener.close()
        listener.close()
        assert await iterating == [] == await iterate()
        with pytest.raises(ConnectionAbortedError):
            await accepting
        with pytest.raises(OSError):
            listener.accept()
        assert listener.closed and listener.fileno() == -1 and "closed" in repr(listener)
        with pytest.raises(ConnectionRefusedError):
            await wakeloop.TcpStream.connect("127.0.0.1", listener.port)

    run(main())


def test_an_address_in_use_raises(run):
    async def main():
        async with await wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
            with pytest.raises(OSError, match="in use"):
                await wakeloop.TcpListener.bind("127.0.0.1", listener.port)
            with pytest.raises(OSError):
                await wakeloop.TcpListener.bind("192.0.2.1", 0)

    run(main())


def test_a_listener_that_is_dropped_open_is_closed_with_a_warning(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        with pytest.warns(ResourceWarning, match="unclosed <wakeloop.TcpListener"):
            del listener
            gc.collect()

    run(main())


@pytest.mark.parametrize("bad", [{"host": None}, {"port": -1}, {"port": 65536}, {"port": "80"}, {"limit": 0}, {"x": 1}])
def test_wrong_arguments_are_refused_at_once(run, bad):
    async def main():
        with pytest.raises((TypeError, ValueError, OverflowError)):
            wakeloop.TcpListener.bind(**{"host": "127.0.0.1", "port": 0} | bad)

    run(main())
