"""Native datagram transports: batches, errors, flow control, and the sock_* calls with addresses."""

import asyncio
import contextvars
import gc
import socket
import sys
import warnings

import pytest

from tests.transport.test_udp import Recorder, close, endpoint


def plain(family=socket.AF_INET, address=("127.0.0.1", 0)):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind(address)
    return sock


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.native
def test_a_burst_of_datagrams_is_delivered_in_a_few_iterations(run):
    async def main():
        loop = asyncio.get_running_loop()
        transport, protocol = await endpoint()
        with plain() as sock:
            before = loop.metrics().polls
            for number in range(64):
                sock.sendto(b"%d" % number, transport.get_extra_info("sockname"))
            await protocol.until(64)
            # One receive per poll: one datagram first, then batches.
            assert loop.metrics().polls - before <= 4
            name = sock.getsockname()
        assert protocol.received == [(b"%d" % number, name) for number in range(64)]
        await close(protocol)

    run(main())


def test_a_socket_that_is_never_empty_holds_up_nothing_else(run):
    class Circle(asyncio.DatagramProtocol):
        received = 0

        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, addr):
            self.received += 1
            self.transport.sendto(data, addr)

    async def main():
        loop = asyncio.get_running_loop()
        transport, circle = await loop.create_datagram_endpoint(Circle, ("127.0.0.1", 0))
        name = transport.get_extra_info("sockname")
        for number in range(16):
            transport.sendto(b"%d" % number, name)
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            for number in range(20):
                far.send(b"%d" % number)
                assert await loop.sock_recv(near, 100) == b"%d" % number
                await asyncio.sleep(0)
                await asyncio.sleep(0.001)
        metrics = getattr(loop, "metrics", None)
        if metrics is not None:
            before, received = metrics(), circle.received
            while circle.received < received + 20_000:
                await asyncio.sleep(0.001)
            after = metrics()
            # While several datagrams wait, the poller need not report each of them.
            assert after.polls - before.polls < after.turns - before.turns
        transport.abort()

    run(main())


def test_a_burst_that_is_sent_arrives_whole_and_in_order(run):
    async def main():
        near, client = await endpoint()
        far, server = await endpoint()
        sent = [b"%d" % number * (number + 1) for number in range(200)]
        for data in sent:
            near.sendto(data, far.get_extra_info("sockname"))
        assert near.get_write_buffer_size() == 0
        await server.until(200)
        assert [data for data, _ in server.received] == sent
        await close(client, server)

    run(main())


def test_datagrams_from_many_peers_keep_their_addresses(run):
    async def main():
        transport, protocol = await endpoint()
        peers = [plain() for _ in range(40)]
        try:
            for _ in range(3):
                for number, peer in enumerate(peers):
                    peer.sendto(b"%d" % number, transport.get_extra_info("sockname"))
            await protocol.until(120)
            names = [peer.getsockname() for peer in peers]
            assert all(names[int(data)] == address for data, address in protocol.received)
            for data, address in protocol.received[:40]:
                transport.sendto(data, address)
            loop = asyncio.get_running_loop()
            for number, peer in enumerate(peers):
                assert await loop.sock_recv(peer, 10) == b"%d" % number
        finally:
            for peer in peers:
                peer.close()
        await close(protocol)

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of the loopback")
def test_every_number_of_an_ipv4_address_is_shown_as_by_the_socket(run):
    async def main():
        transport, protocol = await endpoint()
        for number in range(1, 255):
            with plain(address=(f"127.{number}.{255 - number}.{number}", 0)) as peer:
                peer.sendto(b"", transport.get_extra_info("sockname"))
                await protocol.until(number)
                assert protocol.received[-1] == (b"", peer.getsockname())
        await close(protocol)

    run(main())


def test_one_bad_datagram_of_many_does_not_affect_the_others(run):
    async def main():
        near, client = await endpoint()
        far, server = await endpoint()
        address = far.get_extra_info("sockname")
        for data in (b"one", b"two", bytes(70_000), b"three", bytes(70_000), b"four"):
            near.sendto(data, address)
        await server.until(4)
        assert [data for data, _ in server.received] == [b"one", b"two", b"three", b"four"]
        assert len(client.errors) == 2 and all(isinstance(error, OSError) for error in client.errors)
        assert server.errors == [] and not near.is_closing()
        await close(client, server)

    run(main())


def test_sendto_with_a_too_large_datagram_reports_the_error_to_its_sender(run):
    class Overwhelming(Recorder):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            for _ in range(3):
                self.transport.sendto(bytes(70_000), address)
            self.transport.sendto(b"small", address)

    async def main():
        transport, protocol = await endpoint(Overwhelming)
        near, client = await endpoint()
        near.sendto(b"go", transport.get_extra_info("sockname"))
        await client.until(1)
        assert [data for data, _ in client.received] == [b"small"]
        assert [type(error) for error in protocol.errors] == [OSError] * 3
        await close(protocol, client)

    run(main())


@pytest.mark.parametrize("before", [[], [b"sent"]], ids=["at once", "from the queue"])
def test_sendto_inside_error_received_reports_its_own_error_before_it_returns(run, before):
    class Resending(Recorder):
        def error_received(self, exc):
            super().error_received(exc)
            if len(self.errors) < 3:
                self.transport.sendto(b"refused", ("127.0.0.1", 0))
                assert len(self.errors) == 3

    async def main():
        near, client = await endpoint(Resending)
        for data in *before, bytes(70_000):
            near.sendto(data, near.get_extra_info("sockname"))
        await client.until(len(before))
        assert len(client.errors) == 3
        await close(client)

    run(main())


def test_an_exception_in_error_received_propagates_to_the_caller(run):
    class Raising(Recorder):
        def error_received(self, exc):
            super().error_received(exc)
            raise ZeroDivisionError

    async def main():
        near, client = await endpoint(Raising)
        far, server = await endpoint()
        with pytest.raises(ZeroDivisionError):
            near.sendto(bytes(70_000), far.get_extra_info("sockname"))
        near.sendto(b"next", far.get_extra_info("sockname"))
        await server.until(1)
        await close(client, server)

    run(main())


def test_datagrams_sent_before_close_or_abort_leave(run):
    async def main():
        far, server = await endpoint()
        for end in ("close", "abort"):
            near, client = await endpoint()
            for number in range(5):
                near.sendto(b"%d" % number, far.get_extra_info("sockname"))
            getattr(near, end)()
            assert await client.lost is None
        await server.until(10)
        assert [data for data, _ in server.received] == [b"0", b"1", b"2", b"3", b"4"] * 2
        await close(server)

    run(main())


def test_a_full_datagram_socket_pauses_writing_and_keeps_the_order(run, tmp_path):
    class Sender(Recorder):
        paused = resumed = 0

        def pause_writing(self):
            self.paused += 1

        def resume_writing(self):
            self.resumed += 1

    async def main():
        loop, path = asyncio.get_running_loop(), str(tmp_path / "full")
        with plain(socket.AF_UNIX, path) as sink:
            near, client = await endpoint(Sender, local_addr=None, remote_addr=path, family=socket.AF_UNIX)
            sent = [b"%03d" % number + bytes(2000) for number in range(300)]
            for data in sent:
                near.sendto(data)
            assert near.get_write_buffer_size() > 64 * 1024
            assert client.paused == 1
            near.sendto(bytearray(b"last"))
            received = [await loop.sock_recv(sink, 4096) for _ in range(301)]
            assert received == [*sent, b"last"]
            await until(lambda: client.resumed == 1)
            assert near.get_write_buffer_size() == 0 or near.get_write_buffer_size() % 8 == 0
            await close(client)

    run(main())


def test_closing_a_datagram_transport_sends_buffered_datagrams_first(run, tmp_path):
    async def main():
        loop, path = asyncio.get_running_loop(), str(tmp_path / "late")
        with plain(socket.AF_UNIX, path) as sink:
            near, client = await endpoint(local_addr=None, remote_addr=path, family=socket.AF_UNIX)
            for number in range(100):
                near.sendto(b"%03d" % number + bytes(2000))
            near.close()
            assert near.is_closing()
            received = [(await loop.sock_recv(sink, 4096))[:3] for _ in range(100)]
            assert received == [b"%03d" % number for number in range(100)]
            assert await client.lost is None

    run(main())


def test_closing_in_the_middle_of_a_burst_ends_the_delivery(run):
    class Once(Recorder):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if len(self.received) == 5:
                self.transport.close()

    async def main():
        transport, protocol = await endpoint(Once)
        with plain() as sock:
            for _ in range(30):
                sock.sendto(b"x", transport.get_extra_info("sockname"))
            assert await protocol.lost is None
        assert len(protocol.received) == 5

    run(main())


def test_reading_can_be_paused_in_the_middle_of_a_burst(run):
    class Pausing(Recorder):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if len(self.received) == 5:
                self.transport.pause_reading()

    async def main():
        transport, protocol = await endpoint(Pausing)
        with plain() as sock:
            for number in range(30):
                sock.sendto(b"%d" % number, transport.get_extra_info("sockname"))
            await asyncio.sleep(0.02)
            assert len(protocol.received) == 5 and not transport.is_reading()
            transport.resume_reading()
            await protocol.until(30)
        assert [data for data, _ in protocol.received] == [b"%d" % number for number in range(30)]
        await close(protocol)

    run(main())


def test_an_exception_in_the_middle_of_a_burst_loses_nothing_else(run):
    class Failing(Recorder):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if int(data) % 2:
                raise ZeroDivisionError

    async def main():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
        transport, protocol = await endpoint(Failing)
        with plain() as sock:
            for number in range(20):
                sock.sendto(b"%d" % number, transport.get_extra_info("sockname"))
            await protocol.until(20)
        await until(lambda: len(problems) == 10)
        assert all(isinstance(context["exception"], ZeroDivisionError) for context in problems)
        await close(protocol)

    run(main())


@pytest.mark.parametrize("interrupts", [[b"7"], [b"7", b"9"], [b"7", b"8", b"19"]], ids=len)
def test_an_interrupt_in_the_middle_of_a_burst_keeps_the_rest(loop, interrupts):
    class Interrupting(Recorder):
        def __init__(self):
            self.received, self.errors, self.news = [], [], asyncio.Event()
            self.lost = loop.create_future()

        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if data in interrupts:
                raise KeyboardInterrupt

    async def start():
        return await endpoint(Interrupting)

    transport, protocol = loop.run_until_complete(start())
    with plain() as sock:
        for number in range(20):
            sock.sendto(b"%d" % number, transport.get_extra_info("sockname"))
    for _ in interrupts:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(1))
    loop.run_until_complete(protocol.until(20))
    assert [data for data, _ in protocol.received] == [b"%d" % number for number in range(20)]
    transport.close()
    loop.run_until_complete(asyncio.wait_for(protocol.lost, 5))
    for task in asyncio.all_tasks(loop):
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))


def test_callbacks_run_in_the_context_of_the_endpoint(run):
    variable = contextvars.ContextVar("variable", default="outside")

    class Looking(Recorder):
        def datagram_received(self, data, address):
            super().datagram_received(variable.get(), address)

    async def main():
        variable.set("inside")
        transport, protocol = await endpoint(Looking)
        variable.set("later")
        with plain() as sock:
            sock.sendto(b"x", transport.get_extra_info("sockname"))
            await protocol.until(1)
        assert protocol.received[0][0] == "inside"
        await close(protocol)

    run(main())


def test_datagrams_that_waited_are_delivered_after_a_new_tasks_first_step(loop):
    seen = []

    class Ordered(Recorder):
        def datagram_received(self, data, address):
            seen.append(data)

    async def start():
        return await endpoint(Ordered)

    async def step():
        seen.append("task")
        while len(seen) < 2:
            await asyncio.sleep(0)

    transport, protocol = loop.run_until_complete(start())
    with plain() as sock:
        sock.sendto(b"datagram", transport.get_extra_info("sockname"))
    loop.run_until_complete(step())
    assert seen == ["task", b"datagram"]
    transport.close()
    loop.run_until_complete(protocol.lost)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
@pytest.mark.parametrize("host", ["fe80::1", "ff12::77"])
def test_the_scope_of_an_address_is_the_interface_by_which_it_is_reached(run, host):
    """Without a scope, the system sends to another interface, or refuses an address of the link. What it says of the
    loopback interface, and of one that there is not, it is asked directly too."""

    async def by_transport(sock, address):
        transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(Recorder, sock=sock)
        transport.sendto(b"scoped", address)
        while transport.get_write_buffer_size():
            await asyncio.sleep(0)
        await close(protocol)
        for error in protocol.errors:
            raise error

    async def by_loop(sock, address):
        await asyncio.get_running_loop().sock_sendto(sock, b"scoped", address)

    async def directly(sock, address):
        sock.sendto(b"scoped", address)

    async def outcome(send, scope):
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                sock.bind(("::", 0))
            except OSError:
                pytest.skip("no IPv6")
            try:
                await send(sock, (host, 9, 0, scope))
            except OSError as error:
                return error.errno

    async def main():
        for scope in (1, 99_999):
            expected = await outcome(directly, scope)
            assert [await outcome(by_loop, scope), await outcome(by_transport, scope)] == [expected] * 2

    run(main())


def test_host_names_and_wrong_addresses(run):
    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
        near, client = await endpoint()
        far, server = await endpoint()
        port = far.get_extra_info("sockname")[1]
        near.sendto(b"by number", ("127.0.0.1", port))
        near.sendto(b"by name", ("localhost", port))
        near.sendto(b"by number again", ("127.0.0.1", port))
        await server.until(3)
        assert [data for data, _ in server.received] == [b"by number", b"by name", b"by number again"]
        # An object that is no address at all ends the transport, as in asyncio.
        near.sendto(b"x", ("127.0.0.1", "port"))
        assert isinstance(await client.lost, TypeError)
        assert [type(problem) for problem in problems] == [TypeError]
        await close(server)

    run(main())


def test_a_wrong_address_is_reported_at_once_even_with_datagrams_queued(run):
    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(type(context["exception"])))
        near, client = await endpoint()
        far, server = await endpoint()
        for data in (b"first", b"second"):
            near.sendto(data, far.get_extra_info("sockname"))
        near.sendto(b"to nobody", None)
        assert (problems, near.is_closing()) == ([TypeError], True)
        assert isinstance(await client.lost, TypeError)
        await server.until(2)
        assert [data for data, _ in server.received] == [b"first", b"second"]
        await close(server)

    run(main())


def test_lowering_the_write_buffer_limits_does_not_pause_for_datagrams_the_socket_takes(run):
    async def main():
        near, client = await endpoint()
        far, server = await endpoint()
        paused = []
        client.pause_writing = lambda: paused.append(True)
        for data in (b"first", b"second"):
            near.sendto(data, far.get_extra_info("sockname"))
        near.set_write_buffer_limits(0)
        await server.until(2)
        assert paused == []
        await close(client, server)

    run(main())


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_ipv6_datagrams(run):
    async def main():
        try:
            near, client = await endpoint(local_addr=("::1", 0), family=socket.AF_INET6)
        except OSError:
            pytest.skip("no IPv6 on this machine")
        far, server = await endpoint(local_addr=("::1", 0), family=socket.AF_INET6)
        near.sendto(b"six", far.get_extra_info("sockname"))
        near.sendto(b"six", far.get_extra_info("sockname")[:2])
        await server.until(2)
        assert server.received == [(b"six", near.get_extra_info("sockname"))] * 2
        await close(client, server)

    run(main())


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
@pytest.mark.parametrize("wrong", [(0, 0x10_0000), (0, -1), (0, 0, -1), (0, 0, 2**32), (2**16,), (-1,)], ids=str)
def test_a_number_that_is_out_of_range_in_an_ipv6_address_is_refused_as_by_the_socket(run, wrong):
    async def main():
        loop, address = asyncio.get_running_loop(), ("::1", *wrong)
        try:
            sock = plain(socket.AF_INET6, ("::1", 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
        with sock:
            with pytest.raises((OverflowError, OSError)) as expected:
                sock.sendto(b"x", address)
            with pytest.raises(expected.type) as caught:
                await loop.sock_sendto(sock, b"x", address)
            assert str(caught.value) == str(expected.value)

    run(main())


def test_a_socket_pair_without_names(run):
    async def main():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        with theirs:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_datagram_endpoint(Recorder, sock=ours)
            theirs.send(b"no name")
            await protocol.until(1)
            assert protocol.received == [(b"no name", None)]
            await close(protocol)

    run(main())


def test_large_unix_datagrams_are_whole(run, tmp_path):
    async def main():
        path = str(tmp_path / "large")
        transport, protocol = await endpoint(local_addr=path, family=socket.AF_UNIX)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            for size in (1, 100_000, 150_000):
                sock.sendto(bytes(size), path)
            await protocol.until(3)
        assert [len(data) for data, _ in protocol.received] == [1, 100_000, 150_000]
        await close(protocol)

    run(main())


def test_a_broadcast_endpoint_sends_to_its_address_without_connecting(run):
    async def main():
        far, server = await endpoint()
        address = far.get_extra_info("sockname")
        near, client = await endpoint(local_addr=("127.0.0.1", 0), remote_addr=address, allow_broadcast=True)
        assert near.get_extra_info("peername") is None
        near.sendto(b"one")
        near.sendto(b"two", address)
        with pytest.raises(ValueError, match="must be None or"):
            near.sendto(b"x", ("127.0.0.1", 9))
        await server.until(2)
        await close(client, server)

    run(main())


def test_an_unclosed_datagram_transport_warns(loop_factory):
    async def main():
        return await endpoint()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        loop = loop_factory()
        transport, protocol = loop.run_until_complete(main())
        loop.close()
        sock = transport.get_extra_info("socket")
        del transport, protocol, loop
        gc.collect()
    assert any("unclosed transport" in str(warning.message) for warning in caught)
    assert sock.fileno() == -1


def test_the_transport_describes_itself(run):
    async def main():
        transport, protocol = await endpoint()
        number = transport.get_extra_info("socket").fileno()
        assert f"fd={number} read=polling write=<idle, bufsize=0>" in repr(transport)
        assert transport.get_extra_info("nothing") is None and transport.get_extra_info("nothing", 7) == 7
        assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        transport.set_write_buffer_limits(high=1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        with pytest.raises(TypeError):
            transport.sendto()
        transport.close()
        assert "closing" in repr(transport)
        await protocol.lost
        assert "closed" in repr(transport)

    run(main())


def test_awaitable_calls_give_and_take_addresses(run):
    async def main():
        loop = asyncio.get_running_loop()
        with plain() as near, plain() as far:
            assert await loop.sock_sendto(near, b"data", far.getsockname()) == 4
            assert await loop.sock_recvfrom(far, 100) == (b"data", near.getsockname())
            waiting = asyncio.ensure_future(loop.sock_recvfrom(far, 100_000))
            await asyncio.sleep(0)
            await loop.sock_sendto(near, memoryview(b"later"), far.getsockname())
            assert await waiting == (b"later", near.getsockname())
            buffer = bytearray(10)
            await loop.sock_sendto(near, b"0123456789abc", far.getsockname())
            assert await loop.sock_recvfrom_into(far, buffer) == (10, near.getsockname())
            assert buffer == b"0123456789"
            await loop.sock_sendto(near, b"xyz", ("localhost", far.getsockname()[1]))
            assert (await loop.sock_recvfrom_into(far, buffer, 2))[0] == 2
            assert buffer == b"xy23456789"
            for wrong in (-1, 11):
                with pytest.raises(ValueError):
                    await loop.sock_recvfrom_into(far, buffer, wrong)
            with pytest.raises(ValueError):
                await loop.sock_recvfrom(far, -1)
            with pytest.raises(TypeError):
                await loop.sock_sendto(near, b"x", "nowhere")

    run(main())


def test_a_wait_for_a_datagram_can_be_cancelled(run):
    async def main():
        loop = asyncio.get_running_loop()
        with plain() as near, plain() as far:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(loop.sock_recvfrom(far, 100), 0.01)
            await loop.sock_sendto(near, b"after", far.getsockname())
            assert await loop.sock_recvfrom(far, 100) == (b"after", near.getsockname())

    run(main())


def test_a_socket_of_a_subclass_sends_and_receives(run):
    class Own(socket.socket):
        pass

    async def main():
        loop = asyncio.get_running_loop()
        sock = Own(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        with plain() as near:
            await loop.sock_sendto(near, b"call", sock.getsockname())
            assert await loop.sock_recvfrom(sock, 10) == (b"call", near.getsockname())
            transport, protocol = await loop.create_datagram_endpoint(Recorder, sock=sock)
            near.sendto(b"transport", sock.getsockname())
            await protocol.until(1)
        await close(protocol)

    run(main())
