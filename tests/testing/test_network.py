"""The simulated network: hosts, routes, ports, links, and what breaks connections."""

import asyncio
import errno
import gc
import os
import socket

import pytest

from wakeloop import testing
from wakeloop.testing.network import Host, Link, Network

pytestmark = pytest.mark.native


def now():
    return asyncio.get_running_loop().time()


def hosts(**options):
    """A network with the hosts `client` and `server`."""
    network = Network(**options)
    network.host("client", "10.0.0.1")
    network.host("server", "10.0.0.2")
    return network


class Connected:
    """A connection between two hosts, as streams on both sides."""

    def __init__(self, network, client="client", server="server"):
        self.network, self.client, self.host = network, network.host(client), network.host(server)

    async def __aenter__(self):
        made = asyncio.get_running_loop().create_future()
        with self.host:
            self.listener = await asyncio.start_server(lambda *streams: made.set_result(streams), "", 80)
        with self.client:
            self.reader, self.writer = await asyncio.open_connection(self.host.addresses[0], 80)
        self.server_reader, self.server_writer = await made
        [self.connection] = self.network.connections()
        return self

    async def __aexit__(self, *_):
        self.listener.close()
        for writer in self.writer, self.server_writer:
            if not writer.is_closing():
                writer.transport.abort()
        await asyncio.sleep(0)


def connected(network, main, **options):
    """Runs `main(connection)` on a testing loop."""

    async def run():
        async with Connected(network) as connection:
            return await main(connection)

    return testing.run(run, network=network, **options)


# -- links ---------------------------------------------------------------------------------------


def test_latency_is_the_time_from_one_host_to_the_other():
    async def main(it):
        assert now() == pytest.approx(0.3)  # three packets of the handshake
        it.writer.write(b"ping")
        assert await it.server_reader.read(4) == b"ping"
        assert now() == pytest.approx(0.4)

    connected(hosts(latency=0.1), main)


def test_bandwidth_is_shared_by_what_is_sent_in_one_direction():
    async def main(it):
        start = now()
        it.writer.write(bytes(500_000))
        it.server_writer.write(bytes(100_000))
        await it.server_reader.readexactly(500_000)
        # The headers of the segments take some of it.
        assert 5 < now() - start < 5.2

    connected(hosts(bandwidth=100_000), main)


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_jitter_change_no_byte_of_a_stream(seed):
    async def main(it):
        sent = os.urandom(200_000)
        it.writer.write(sent)
        it.writer.write_eof()
        assert await it.server_reader.read() == sent
        it.server_writer.write(sent[:1000])
        assert await it.reader.readexactly(1000) == sent[:1000]
        assert now() > 0.2

    connected(hosts(latency=(0.01, 0.2), loss=0.1), main, seed=seed)


def test_a_link_has_conditions_of_its_own_in_each_direction():
    network = hosts()
    network.link("client", "server", latency=0.5, one_way=True)

    async def main(it):
        start = now()
        it.writer.write(b"x")
        await it.server_reader.read(1)
        assert now() - start == 0.5
        it.server_writer.write(b"x")
        await it.reader.read(1)
        assert now() - start == 0.5

    connected(network, main)


def test_data_that_was_sent_during_a_cut_arrives_when_it_is_sent_again():
    network = hosts()

    async def main(it):
        network.partition("client", "server")
        it.writer.write(b"late")
        asyncio.get_running_loop().call_later(1, network.heal)
        assert await it.server_reader.read(4) == b"late"
        assert now() == pytest.approx(0.2 + 0.4 + 0.8)

    connected(network, main)


def test_a_packet_on_its_way_is_lost_in_a_cut():
    network = hosts(latency=1.0)

    async def main(it):
        start = now()
        it.writer.write(b"one")
        it.writer.write(b"two")
        await asyncio.sleep(0.5)
        network.partition("server")
        await asyncio.sleep(0.1)
        network.heal("server")
        assert await it.server_reader.readexactly(6) == b"onetwo"
        assert now() - start == pytest.approx(2.2)

    connected(network, main)


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


def test_in_a_one_way_partition_data_arrives_and_its_sender_gives_up():
    network = hosts()

    async def main(it):
        network.partition("server", "client", one_way=True)
        it.writer.write(b"order")
        assert await it.server_reader.read(100) == b"order"
        assert now() == 0
        with pytest.raises(TimeoutError):
            await it.reader.read()
        assert now() == pytest.approx(924.6)

    connected(network, main)


def test_groups_of_a_partition_are_cut_from_each_other_alone():
    network = Network()
    a, b, c, d = (network.host(name) for name in "abcd")
    network.partition([a, "b"], ["c"])
    assert {link.hosts for link in network._links.values() if "cut" in repr(link)} == {(a, c), (b, c)}
    network.heal("a")
    assert {link.hosts for link in network._links.values() if "cut" in repr(link)} == {(b, c)}
    assert isinstance(a, Host) and isinstance(network.link("a", "d"), Link) and d.name == "d"


def test_a_full_backlog_delays_the_next_connection():
    async def main():
        network = asyncio.get_running_loop().network
        with network.host("server"):
            listener = socket.socket()
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            server = await loop.create_server(asyncio.Protocol, sock=listener, backlog=1, start_serving=False)
            listener.listen(1)
            port = listener.getsockname()[1]
        address = network.host("server").addresses[0]
        connections = [asyncio.create_task(asyncio.open_connection(address, port)) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert [one.done() for one in connections] == [True, True, False]
        await server.start_serving()
        await connections[2]
        assert now() == 1.0
        for one in connections:
            one.result()[1].close()
        server.close()

    testing.run(main, network=hosts())


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


# -- where packets go ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "number", "seconds"),
    [
        ("10.0.0.2", errno.ECONNREFUSED, 0.2),
        ("10.0.0.77", errno.EHOSTUNREACH, 3.0),
        ("10.0.1.1", errno.ENETUNREACH, 0.0),
        ("fd00::1", errno.ENETUNREACH, 0.0),
        ("127.0.0.1", errno.ECONNREFUSED, 0.2),
        ("0.0.0.0", errno.ECONNREFUSED, 0.2),
    ],
)
def test_connect_fails_as_on_linux_in_a_subnet_without_a_gateway(address, number, seconds):
    network = Network(latency=0.1)
    network.host("client", "10.0.0.1/24", gateway=False)
    network.host("server", "10.0.0.2/24", gateway=False)

    async def main():
        with network.host("client"), pytest.raises(OSError) as caught:
            await asyncio.open_connection(address, 9)
        assert caught.value.errno == number
        text = os.strerror(number) if number == errno.ENETUNREACH else f"Connect call failed ('{address}', 9)"
        assert str(caught.value) == f"[Errno {number}] {text}"
        assert now() == pytest.approx(seconds)

    testing.run(main, network=network)


def test_connecting_through_a_gateway_to_nobody_times_out():
    async def main():
        with pytest.raises(TimeoutError) as caught:
            await asyncio.open_connection("203.0.113.9", 9)
        assert str(caught.value) == "[Errno 110] Connect call failed ('203.0.113.9', 9)"
        assert now() == 127

    testing.run(main, network=Network())


def test_a_host_without_a_way_back_does_not_answer():
    network = Network()
    network.host("inside", "10.0.0.1/24", gateway=False)

    async def main():
        with network.host("inside"):
            server = await asyncio.start_server(lambda *_: None, "10.0.0.1", 80)
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("10.0.0.1", 80)
        server.close()

    testing.run(main, network=network)


def test_code_runs_on_the_host_that_was_entered_and_takes_it_along():
    network = hosts()
    peers = []

    async def main():
        async def handle(reader, writer):
            peers.append(writer.get_extra_info("peername")[0])
            # A handler runs on its server's host.
            reader, other = await asyncio.open_connection("localhost", 81)
            peers.append(await reader.read())
            writer.close()
            other.close()

        def greet(reader, writer):
            writer.write(b"from the same host")
            writer.close()

        async def serve():
            return await asyncio.start_server(handle, None, 80), await asyncio.start_server(greet, "127.0.0.1", 81)

        servers = await network.host("server").create_task(serve())

        async def ask(host):
            reader, writer = await asyncio.open_connection("server", 80)
            await reader.read()
            writer.close()

        await network.host("client").run(ask("client"))
        await ask("localhost")
        for server in servers:
            server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 81)

    testing.run(main, network=network)
    assert peers == ["10.0.0.1", b"from the same host", "192.0.2.1", b"from the same host"]


def test_a_host_is_left_by_the_code_that_entered_it():
    network = hosts()
    with pytest.raises(RuntimeError, match="is left by code that has not entered it last"):
        network.host("client").__exit__(None, None, None)


def test_a_port_is_used_once_per_host_and_address():
    network = hosts()

    async def main():
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(asyncio.Protocol, "127.0.0.1", 80)]
        with pytest.raises(OSError) as caught:
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 80)
        assert caught.value.errno == errno.EADDRINUSE
        assert "error while attempting to bind on address ('127.0.0.1', 80): " in str(caught.value)
        with pytest.raises(OSError, match="address already in use"):
            await loop.create_server(asyncio.Protocol, "0.0.0.0", 80)
        servers.append(await loop.create_server(asyncio.Protocol, "192.0.2.1", 80))
        with network.host("server"):
            servers.append(await loop.create_server(asyncio.Protocol, None, 80))
            with pytest.raises(OSError, match="could not bind on any address|cannot assign requested address"):
                await loop.create_server(asyncio.Protocol, "10.0.0.1", 81)
        for server in servers:
            server.close()
        servers.append(await loop.create_server(asyncio.Protocol, "127.0.0.1", 80))
        servers[-1].close()

    testing.run(main, network=network)


def test_servers_that_reuse_a_port_share_its_connections():
    counts = [0, 0]

    async def main():
        def serve(number):
            def handle(reader, writer):
                counts[number] += 1
                writer.close()

            return asyncio.start_server(handle, "127.0.0.1", 80, reuse_port=True)

        servers = [await serve(0), await serve(1)]
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", 80)
            await reader.read()
            writer.close()
        for server in servers:
            server.close()

    testing.run(main, network=Network(), seed=1)
    assert sum(counts) == 20 and min(counts) > 2


def test_ephemeral_ports_are_taken_and_given_back():
    async def main():
        loop = asyncio.get_running_loop()
        ports = set()
        for _ in range(3):
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            ports.add(server.sockets[0].getsockname()[1])
            server.close()
        assert len(ports) == 3 and min(ports) >= 32768
        assert loop.network.sockets() == []

    testing.run(main, network=Network())


# -- names ---------------------------------------------------------------------------------------


def test_names_are_those_of_the_network():
    network = hosts(lookup_delay=0.25)
    network.name("db.example", "server", "10.0.0.1")

    async def main():
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo("db.example", "http", type=socket.SOCK_STREAM)
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        assert found == [(*kind, ("10.0.0.2", 80)), (*kind, ("10.0.0.1", 80))]
        assert now() == 0.25
        assert [info[4][0] for info in await loop.getaddrinfo("LOCALHOST.", 1, type=socket.SOCK_STREAM)] == [
            "::1",
            "127.0.0.1",
        ]
        with pytest.raises(socket.gaierror) as caught:
            await loop.getaddrinfo("example.com", 80)
        assert str(caught.value) == "[Errno -2] Name or service not known"
        with pytest.raises(socket.gaierror) as caught:
            await loop.getaddrinfo("db.example", 80, family=socket.AF_INET6)
        assert caught.value.errno == socket.EAI_NODATA
        assert await loop.getnameinfo(("10.0.0.2", 80)) == ("server", "http")
        assert await loop.getnameinfo(("10.0.0.2", 80), socket.NI_NUMERICHOST) == ("10.0.0.2", "http")
        assert await loop.getnameinfo(("127.0.0.1", 9)) == ("localhost", "discard")

    testing.run(main, network=network)


def test_happy_eyeballs_falls_back_from_an_address_that_does_not_answer():
    network = Network(latency=0.01)
    network.host("server", "2001:db8::5", "10.0.0.5")

    async def main():
        with network.host("server"):
            server = await asyncio.start_server(lambda _, writer: writer.close(), "10.0.0.5", 80)
            # Nobody refuses connections to the other address: it is behind a firewall.
        network._owners.pop(network.host("server").interfaces[0].ip)
        reader, writer = await asyncio.open_connection("server", 80, happy_eyeballs_delay=0.25)
        assert writer.get_extra_info("peername") == ("10.0.0.5", 80)
        assert now() == pytest.approx(0.27)
        writer.close()
        server.close()

    testing.run(main, network=network)


def test_local_addr_chooses_the_source():
    network = Network()
    network.host("client", "10.0.0.1", "10.0.0.7")

    async def main():
        peers = []

        def handle(reader, writer):
            peers.append(writer.get_extra_info("peername"))
            writer.close()

        server = await asyncio.start_server(handle, "192.0.2.1", 80)
        with network.host("client"):
            reader, writer = await asyncio.open_connection("192.0.2.1", 80, local_addr=("10.0.0.7", 4000))
            await reader.read()
            writer.close()
            with pytest.raises(OSError, match="error while attempting to bind on address"):
                await asyncio.open_connection("192.0.2.1", 80, local_addr=("10.0.0.9", 4000))
        server.close()
        assert peers == [("10.0.0.7", 4000)]

    testing.run(main, network=network)


# -- the loop ------------------------------------------------------------------------------------


def test_a_read_that_nothing_can_end_is_a_deadlock():
    async def main(it):
        await it.reader.read()

    with pytest.raises(testing.Deadlock):
        connected(hosts(), main)


def test_the_same_seed_gives_the_same_steps():
    def steps(seed):
        network = hosts(latency=(0.001, 0.1), loss=0.05)
        loop = testing.EventLoop(seed=seed, network=network)

        async def main():
            async def handle(reader, writer):
                while line := await reader.readline():
                    writer.write(line * 3)
                writer.close()

            with network.host("server"):
                server = await asyncio.start_server(handle, "server", 80)

            async def ask(number):
                reader, writer = await asyncio.open_connection("server", 80)
                for _ in range(5):
                    writer.write(b"%d\n" % number)
                    await reader.readexactly(6)
                writer.close()
                await writer.wait_closed()

            await asyncio.gather(*(network.host("client").create_task(ask(number)) for number in range(5)))
            # The handlers see that their clients have gone.
            await asyncio.sleep(10)
            server.close()
            await server.wait_closed()

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())
        return str(loop.steps)

    found = [steps(seed) for seed in (1, 1, 2, 3)]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_network_belongs_to_one_open_loop_at_a_time():
    network = hosts()
    first = testing.EventLoop(network=network)
    try:
        with pytest.raises(RuntimeError, match="belongs to"):
            testing.EventLoop(network=network)
    finally:
        first.close()

    async def main(it):
        assert it.connection.client == ("10.0.0.1", 32768)

    for _ in range(2):
        # Nothing of the earlier run is left.
        connected(network, main)
    with pytest.raises(RuntimeError, match="the network belongs to no loop"):
        Network().now()
    with pytest.raises(TypeError, match="a Network was expected, not str"):
        testing.EventLoop(network="network")


def test_sockets_that_are_open_are_listed():
    async def main(it):
        network = it.network
        assert len(network.sockets()) == 4  # one listener for each family
        assert repr(network.sockets()[-1]) == (
            "<TCP socket of server at ('10.0.0.2', 80) to ('10.0.0.1', 32768), connected>"
        )
        assert repr(it.connection) == "<Connection ('10.0.0.1', 32768) to ('10.0.0.2', 80), open>"
        assert network.connections("client", "server") == [it.connection] and network.connections("localhost") == []
        assert "read=polling" in repr(it.writer.transport)

    connected(hosts(), main)


# -- the program's own sockets -------------------------------------------------------------------


def test_a_socket_that_the_program_has_made_joins_the_network():
    network = hosts()

    async def main(it):
        loop = asyncio.get_running_loop()
        with network.host("client"), socket.socket() as sock:
            sock.setblocking(False)
            made = loop.create_future()
            with network.host("server"):
                server = await asyncio.start_server(lambda *streams: made.set_result(streams), "server", 81)
            await loop.sock_connect(sock, ("10.0.0.2", 81))
            assert sock.getpeername() == ("10.0.0.2", 81) and sock.getsockname()[0] == "10.0.0.1"
            assert isinstance(sock, socket.socket)
            reader, writer = await made
            await loop.sock_sendall(sock, b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.write(b"and goodbye")
            room = bytearray(20)
            assert await loop.sock_recv_into(sock, room) == 11 and room[:11] == b"and goodbye"
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        # Closing it closes the connection, not only the descriptor.
        assert await reader.read() == b""
        writer.close()
        server.close()

    connected(network, main)


def test_a_transport_takes_a_socket_that_the_program_has_connected():
    async def main():
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 80)
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", 80))
        reader, writer = await asyncio.open_connection(sock=sock)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        assert sock.fileno() == -1
        server.close()

    testing.run(main, network=Network())


def test_a_listener_that_the_program_has_bound_joins_the_network():
    async def main():
        listener = socket.create_server(("127.0.0.1", 0))
        server = await asyncio.start_server(lambda _, writer: writer.close(), sock=listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await reader.read() == b""
        writer.close()
        server.close()
        await server.wait_closed()
        assert listener.fileno() == -1

    testing.run(main, network=Network())


def test_sock_accept_gives_connections_of_the_network():
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            accepting = asyncio.create_task(loop.sock_accept(listener))
            await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            conn, address = await accepting
            assert address == writer.get_extra_info("sockname")
            with conn:
                assert conn.gettimeout() == 0
                await loop.sock_sendall(conn, b"x")
                assert await reader.read(1) == b"x"
            writer.close()

    testing.run(main, network=Network())


def test_a_socket_that_is_dropped_closes_its_connection():
    async def main():
        loop = asyncio.get_running_loop()
        made = loop.create_future()
        server = await asyncio.start_server(lambda *streams: made.set_result(streams), "127.0.0.1", 80)
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", 80))
        reader, writer = await made
        with pytest.warns(ResourceWarning, match="unclosed"):
            del sock
            gc.collect()
        assert await reader.read() == b""
        writer.close()
        server.close()

    testing.run(main, network=Network())


def test_a_pair_of_real_sockets_stays_real():
    async def main():
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        with one, other:
            for sock in one, other:
                sock.setblocking(False)
            await loop.sock_sendall(one, b"x")
            assert await loop.sock_recv(other, 1) == b"x"
            assert loop.network.sockets() == []

    testing.run(main, network=Network())


def test_a_socket_of_another_class_is_refused():
    class Mine(socket.socket):
        pass

    async def main():
        with Mine() as sock:
            sock.setblocking(False)
            with pytest.raises(TypeError, match="Mine cannot be moved to the simulated network"):
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", 1))

    testing.run(main, network=Network())


def test_a_call_that_would_block_forever_is_refused():
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 80)
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", 80))
            sock.setblocking(True)
            with pytest.raises(RuntimeError, match=r"recv\(\) would block the thread"):
                sock.recv(1)
        server.close()

    testing.run(main, network=Network())


# -- what else a loop can do ---------------------------------------------------------------------


def test_sendfile_sends_a_file_over_the_network(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(300_000))

    async def main(it):
        with open(path, "rb") as file:
            sent = asyncio.create_task(asyncio.get_running_loop().sendfile(it.writer.transport, file, 10, 250_000))
            assert await it.server_reader.readexactly(250_000) == path.read_bytes()[10:250_010]
            assert await sent == 250_000

    connected(hosts(), main)


def test_unix_sockets_have_real_files(tmp_path):
    path = str(tmp_path / "socket")

    async def main():
        def handle(reader, writer):
            assert writer.get_extra_info("sockname") == path
            writer.write(b"x" * 1_000_000)
            writer.close()

        server = await asyncio.start_unix_server(handle, path)
        assert os.path.exists(path)
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(path)
            assert writer.get_extra_info("peername") == path
            assert len(await reader.read()) == 1_000_000
            writer.close()
        # A second server takes the path over, as on a real system.
        second = await asyncio.start_unix_server(handle, path)
        server.close()
        second.close()
        os.unlink(path) if os.path.exists(path) else None
        with pytest.raises(FileNotFoundError):
            await asyncio.open_unix_connection(path)

    testing.run(main, network=Network())


def test_a_network_without_ipv6_has_no_sockets_of_it():
    async def main():
        loop = asyncio.get_running_loop()
        assert [info[0] for info in await loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)] == [socket.AF_INET]
        with pytest.raises(OSError) as caught:
            await asyncio.open_connection("::1", 80)
        assert caught.value.errno == errno.EAFNOSUPPORT

    testing.run(main, network=Network(ipv6=False))


# -- what the hunt has found here ----------------------------------------------------------------


def test_a_segment_lost_on_its_way_is_sent_before_one_that_was_lost_earlier():
    network = hosts(latency=1.0)
    link = network.link("client", "server")

    async def main(it):
        it.writer.write(b"one")
        await asyncio.sleep(0.1)
        link.change(loss=1.0)
        it.writer.write(b"two")
        link.change(loss=0.0)
        # Now `two` waits to be sent again, and `one` is lost before it arrives.
        link.cut()
        await asyncio.sleep(1)
        link.heal()
        it.writer.write(b"three")
        assert await it.server_reader.readexactly(11) == b"onetwothree"

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


def test_a_timer_that_runs_early_by_a_rounding_error_runs_once():
    async def main(it):
        loop = asyncio.get_running_loop()
        for _ in range(100):
            it.writer.write(b"x")
            # Until the acknowledgement is there, but for the last digit of a float.
            await asyncio.sleep(0.02)
        await it.server_reader.readexactly(100)
        # One for each byte, and one for the end of the handshake.
        assert sum("_acknowledgement_arrives" in step.what for step in loop.steps) == 101

    connected(hosts(latency=0.01), main)
