"""`wakeloop.TcpListener`: connections accepted by the runtime."""

import asyncio
import gc
import random
import socket

import pytest

from tests.support.script import run_script

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
            streams = await asyncio.gather(*tasks[1::2])
            accepted = {stream.get_extra_info("peername")[1] for stream in streams}
            assert accepted == {peer.getsockname()[1] for peer in peers}
            for stream in streams:
                stream.close()
            for peer in peers:
                peer.close()

    run(main())


def test_an_iteration_raises_when_descriptors_run_out(loop_name):
    outcome = run_script(
        loop_name,
        """
        import errno, os, resource, socket, wakeloop

        async def main():
            async with wakeloop.TcpListener.bind("127.0.0.1", 0) as listener:
                with socket.create_connection((listener.host, listener.port)):
                    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
                    try:
                        async for _ in listener:
                            print("accepted")
                        print("ended")
                    except OSError as error:
                        print(error.errno == errno.EMFILE)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                    async for stream in listener:
                        print("accepted")
                        stream.close()
                        break

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
    )
    assert (outcome.code, outcome.out) == (0, "True\naccepted\n"), outcome


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
        assert listener.is_closing() and listener.fileno() == -1 and "closed" in repr(listener)
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


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="a machine without IPv6")
@pytest.mark.parametrize("host", [None, ""])
def test_host_none_binds_every_interface_of_both_families(run, host):
    async def main():
        async with await wakeloop.TcpListener.bind(host, 0) as listener:
            assert listener.host == "0.0.0.0" and listener.get_extra_info("sockname") == ("0.0.0.0", listener.port)
            assert "0.0.0.0" in repr(listener)
            accepted = []
            for address in ("127.0.0.1", "::1") * 5:
                with socket.create_connection((address, listener.port)):
                    async with await listener.accept() as stream:
                        accepted.append(stream.get_extra_info("peername")[0])
            assert accepted == ["127.0.0.1", "::1"] * 5
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
                with socket.socket(family) as taken, pytest.raises(OSError, match="in use"):
                    taken.bind((address, listener.port))
            waiting = [asyncio.ensure_future(listener.accept()) for _ in range(4)]
            await asyncio.sleep(0.001)
            waiting.pop(0).cancel()
            peers = [socket.create_connection((address, listener.port)) for address in ("::1", "127.0.0.1")]
            # Two of the three tasks get one each. Which ones is not specified.
            while len(waiting) > 1:
                done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                waiting = list(left)
                for accepting in done:
                    accepting.result().close()
            [last] = waiting
            for peer in peers:
                peer.close()
        with pytest.raises(ConnectionAbortedError):
            await last
        for address in ("127.0.0.1", "::1"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, listener.port))

    run(main())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="a machine without IPv6")
def test_an_address_in_use_in_one_family_fails_bind_and_leaves_nothing_open(run):
    async def main():
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                await wakeloop.TcpListener.bind(None, port)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))

    run(main())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="a machine without IPv6")
def test_a_listener_at_an_ipv6_address_leaves_ipv4_to_others(run):
    async def main():
        async with await wakeloop.TcpListener.bind("::", 0) as six:
            async with await wakeloop.TcpListener.bind("0.0.0.0", six.port) as four:
                assert (six.host, four.host) == ("::", "0.0.0.0")

    run(main())


def test_a_listener_that_is_dropped_open_is_closed_with_a_warning(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        with pytest.warns(ResourceWarning, match="unclosed <wakeloop.TcpListener"):
            del listener
            gc.collect()

    run(main())


@pytest.mark.parametrize("bad", [{"host": 1}, {"host": b"::"}, {"port": -1}, {"port": 65536}, {"port": "80"}, {"limit": 0}, {"x": 1}])
def test_wrong_arguments_are_refused_at_once(run, bad):
    async def main():
        with pytest.raises((TypeError, ValueError, OverflowError)):
            wakeloop.TcpListener.bind(**{"host": "127.0.0.1", "port": 0} | bad)

    run(main())


@pytest.mark.parametrize("port", [-1, 65_536, 10**30])
def test_a_port_out_of_range_raises_what_asyncio_raises(run, port):
    async def main():
        with pytest.raises(OverflowError, match=r"^bind\(\): port must be 0-65535\.$"):
            wakeloop.TcpListener.bind("127.0.0.1", port)

    run(main())
