"""Scripts of a simulated network: faults of single calls, and scripts that are refused."""

import asyncio
import contextlib
import errno
import socket

import pytest

from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


async def echo(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


def run(main, network=None, **options):
    """Runs `main(network)` with an echo server at 127.0.0.1, port 7."""
    network = network or Network()

    async def serve():
        server = await asyncio.start_server(echo, "127.0.0.1", 7)
        try:
            return await main(network)
        finally:
            server.close()
            # The server's ends of the connections end too.
            await asyncio.sleep(1)

    return testing.run(serve, network=network, **options)


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH])
def test_an_error_of_the_network_fails_connect_later(number):
    async def main(network):
        fault = network.fail("connect", number, port=7)
        with pytest.raises(OSError) as caught:
            await asyncio.open_connection("127.0.0.1", 7)
        assert caught.value.errno == number and "Connect call failed ('127.0.0.1', 7)" in str(caught.value)
        fault.remove()
        fault.remove()
        _, writer = await asyncio.open_connection("127.0.0.1", 7)
        writer.close()
        assert fault.count == 1

    run(main)


@pytest.mark.parametrize("number", [errno.ENETUNREACH + 1000, errno.EADDRNOTAVAIL, errno.EPERM, errno.ENOBUFS])
def test_an_error_of_the_kernel_fails_connect_at_once(number):
    async def main(network):
        if number not in errno.errorcode:
            with pytest.raises(ValueError, match="there is no errno"):
                network.fail("connect", number)
            return
        network.fail("connect", number, times=1)
        with pytest.raises(OSError) as caught:
            await asyncio.open_connection("127.0.0.1", 7)
        assert caught.value.errno == number and "Connect call failed" not in str(caught.value)

    run(main)


def test_accept_without_descriptors_is_tried_again_a_second_later(asyncio_log):
    async def main(network):
        # Before asyncio waits, it tries as often as the backlog is long, and since 3.15 once more.
        server = await asyncio.start_server(echo, "127.0.0.1", 8, backlog=1)
        network.fail("accept", errno.EMFILE, times=2)
        reader, writer = await asyncio.open_connection("127.0.0.1", 8)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        assert asyncio.get_running_loop().time() in (1, 2)
        writer.close()
        server.close()

    # What asyncio has logged is no surprise here.
    run(main, check=False)
    assert "socket.accept() out of system resource" in asyncio_log.text


@pytest.mark.parametrize("call", ["recv", "send"])
def test_an_error_of_recv_or_send_ends_the_connection(call):
    async def main(network):
        reader, writer = await asyncio.open_connection("127.0.0.1", 7)
        network.fail(call, errno.ECONNRESET, after=1, times=1)
        writer.write(b"x")
        if call == "recv":
            # The echo server's recv passes, and the client's fails.
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        else:
            assert await reader.read(1) == b""
        writer.close()

    run(main)


def test_a_fault_is_limited_to_hosts_and_ports():
    network = Network()
    for number, name in enumerate("abc", 1):
        network.host(name, f"10.0.0.{number}")

    async def main(network):
        servers = []
        for port in (80, 81):
            with network.host("c"):
                servers.append(await asyncio.start_server(echo, "c", port))
        fault = network.fail("connect", errno.ECONNREFUSED, host="a", peer="c", port=80)

        async def try_from(host, port):
            try:
                with network.host(host):
                    _, writer = await asyncio.open_connection("c", port)
            except ConnectionRefusedError:
                return False
            writer.close()
            return True

        assert [await try_from(host, port) for host in "ab" for port in (80, 81)] == [False, True, True, True]
        assert fault.count == 1
        assert repr(fault) == "<Fault connect: ECONNREFUSED, happened 1 times>"
        for server in servers:
            server.close()

    run(main, network)


def test_a_name_fails_to_resolve():
    network = Network()
    network.host("db")
    network.fail("getaddrinfo", socket.EAI_AGAIN, peer="db", times=1)

    async def main(network):
        loop = asyncio.get_running_loop()
        with pytest.raises(socket.gaierror) as caught:
            await loop.getaddrinfo("db", 80)
        assert str(caught.value) == "[Errno -3] Temporary failure in name resolution"
        assert await loop.getaddrinfo("db", 80)

    run(main, network)


def test_bind_and_listen_can_fail():
    async def main(network):
        network.fail("bind", errno.EACCES, port=443)
        with pytest.raises(PermissionError):
            await asyncio.start_server(echo, "127.0.0.1", 443)
        network.fail("listen", errno.EADDRINUSE, times=1)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match="Address already in use"):
                await asyncio.start_server(echo, sock=sock)

    run(main)


def test_faults_from_a_seed_are_the_same_each_time():
    def outcomes(seed):
        found = []

        async def main(network):
            network.fail("connect", [errno.ECONNREFUSED, errno.ETIMEDOUT], probability=0.5)
            for _ in range(10):
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", 7)
                    writer.close()
                    found.append("connected")
                except OSError as error:
                    found.append(type(error).__name__)

        run(main, seed=seed)
        return found

    assert outcomes(5) == outcomes(5)
    assert {word for seed in range(5) for word in outcomes(seed)} == {
        "connected",
        "ConnectionRefusedError",
        "TimeoutError",
    }


# -- short reads and writes ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, (1, 5)])
def test_short_reads_and_writes_change_no_byte(size):
    pieces = []

    class Protocol(asyncio.Protocol):
        def data_received(self, data):
            pieces.append(data)

    async def main(network):
        network.shorten("recv", size)
        network.shorten("send", size)
        transport, _ = await asyncio.get_running_loop().create_connection(Protocol, "127.0.0.1", 7)
        sent = bytes(range(200))
        transport.write(sent)
        transport.writelines([sent, b"end"])
        while sum(map(len, pieces)) < 403:
            await asyncio.sleep(0.001)
        assert b"".join(pieces) == sent + sent + b"end"
        assert max(map(len, pieces)) == (size if isinstance(size, int) else size[1])
        transport.close()

    run(main, seed=3)


def test_the_sizes_of_short_reads_are_those_of_the_seed():
    def sizes(seed):
        found = []

        async def main(network):
            network.shorten("recv", (1, 50))
            reader, writer = await asyncio.open_connection("127.0.0.1", 7)
            writer.write(bytes(300))
            while sum(found) < 300:
                found.append(len(await reader.read(1000)))
            writer.close()

        run(main, seed=seed)
        return found

    assert sizes(3) == sizes(3)
    assert sizes(3) != sizes(4)


# -- scripts that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"latency": -1}, "latency must be finite and not negative: -1"),
        ({"latency": float("inf")}, "latency must be finite"),
        ({"latency": (2, 1)}, "latency: the lowest, 2.0, is above the highest, 1.0"),
        ({"latency": (1, 2, 3)}, "latency must be a number, or a pair"),
        ({"bandwidth": 0}, "bandwidth must be finite and positive: 0"),
        ({"loss": 1.1}, "loss is a probability, between 0 and 1: 1.1"),
        ({"reorder": -0.1}, "reorder must be finite and not negative"),
        ({"duplicate": float("nan")}, "duplicate must be finite"),
        ({"lookup_delay": -1}, "lookup_delay must be"),
        ({"send_buffer": 0}, "send_buffer must be at least 1"),
    ],
)
def test_impossible_conditions_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Network(**options)


def test_conditions_of_a_wrong_type_are_refused():
    with pytest.raises(TypeError, match="latency must be a number, not str"):
        Network(latency="1")
    with pytest.raises(TypeError, match="receive_buffer must be an int, not float"):
        Network(receive_buffer=1.5)
    network = Network()
    with pytest.raises(TypeError, match="a link has no 'speed', but latency, bandwidth"):
        network.link("localhost", "localhost", speed=1)


def test_a_link_with_one_impossible_condition_is_not_changed_at_all():
    network = Network(latency=1)
    with pytest.raises(ValueError, match="loss is a probability"):
        network.link("localhost", "localhost", latency=2, loss=2)
    assert network.direction(network.localhost, network.localhost).delay == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("localhost", "10.0.0.1"), "there is already a host 'localhost'"),
        (("a", "127.0.0.1"), "127.0.0.1 cannot be the address of a host"),
        (("a", "224.0.0.1"), "224.0.0.1 cannot be the address of a host"),
        (("a", "10.0.0.1", "10.0.0.1"), "an address of 'a' is given twice"),
        (("a", "192.0.2.1"), "192.0.2.1 is already an address of 'localhost'"),
        (("a", "10.0.0.300"), "does not appear to be an IPv4 or IPv6"),
        (("10.0.0.1",), "a name must not be an address"),
        (("two words",), "a name must not be empty, nor have spaces"),
    ],
)
def test_impossible_hosts_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Network().host(*arguments)


def test_unknown_hosts_are_refused():
    network = Network()
    for script in (
        lambda: network.link("localhost", "nobody"),
        lambda: network.partition("nobody"),
        lambda: network.heal("nobody"),
        lambda: network.fail("recv", errno.EPIPE, host="nobody"),
        lambda: network.connections("nobody"),
    ):
        with pytest.raises(ValueError, match="there is no host 'nobody'; there are localhost"):
            script()
    with pytest.raises(ValueError, match="is on another network"):
        network.partition(Network().localhost)
    with pytest.raises(ValueError, match="'nobody' is neither a host nor an address"):
        network.name("name", "nobody")
    with pytest.raises(ValueError, match="a host cannot be on both sides of a partition: localhost"):
        network.partition("localhost", ["localhost"])
    with pytest.raises(ValueError, match="a partition needs a host"):
        network.partition()
    with pytest.raises(TypeError, match="a host or its name was expected, not int"):
        network.connections(3)
    with pytest.raises(ValueError, match="read_rate must be finite and positive"):
        network.localhost.read_rate = 0


@pytest.mark.parametrize(
    ("call", "error", "options", "words"),
    [
        ("read", errno.EPIPE, {}, "there is no call 'read' to fail; there are bind, listen"),
        ("recv", 12345, {}, "there is no errno 12345"),
        ("recv", [], {}, "a fault needs at least one error"),
        ("getaddrinfo", errno.EPIPE, {}, r"getaddrinfo fails with one of socket.EAI_\*"),
        ("recv", errno.EPIPE, {"probability": 2}, "probability is a probability"),
        ("recv", errno.EPIPE, {"times": 0}, "times must be at least 1"),
        ("recv", errno.EPIPE, {"after": -1}, "after must be at least 0"),
        ("recv", errno.EPIPE, {"port": 70_000}, "port must be at most 65535"),
    ],
)
def test_impossible_faults_are_refused(call, error, options, words):
    with pytest.raises(ValueError, match=words):
        Network().fail(call, error, **options)


def test_impossible_sizes_are_refused():
    network = Network()
    with pytest.raises(ValueError, match="size must be at least 1: 0"):
        network.shorten("recv", 0)
    with pytest.raises(ValueError, match="size: the lowest, 5, is above the highest, 2"):
        network.shorten("send", (5, 2))
    with pytest.raises(ValueError, match="there is no call 'connect' to fail; there are recv, send"):
        network.shorten("connect")
    with pytest.raises(TypeError, match="an error is a number such as errno.ECONNRESET, not 'EPIPE'"):
        network.fail("recv", ["EPIPE"])
