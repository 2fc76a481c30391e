"""A testing loop with a simulated network: its steps, its deadlocks, its list of sockets, and files on the network."""

import asyncio
import io
import os

import pytest

from tests.testing.networks import connected, hosts
from wakeloop import testing
from wakeloop.testing.network import Network

pytestmark = pytest.mark.native


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


def test_sendfile_sends_a_file_over_the_network(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(300_000))

    async def main(it):
        with open(path, "rb") as file:
            sent = asyncio.create_task(asyncio.get_running_loop().sendfile(it.writer.transport, file, 10, 250_000))
            assert await it.server_reader.readexactly(250_000) == path.read_bytes()[10:250_010]
            assert await sent == 250_000

    connected(hosts(), main)


def test_sendfile_does_not_resume_a_protocol_that_was_not_paused(tmp_path):
    """asyncio's fallback for transports without a system call does, if its last write fills the buffer."""
    path = tmp_path / "file"
    path.write_bytes(bytes(491_520))

    async def main(it):
        it.writer.transport.set_write_buffer_limits(high=10_000)

        async def send():
            with open(path, "rb") as file:
                assert await asyncio.get_running_loop().sendfile(it.writer.transport, file) == 491_520
            it.writer.close()

        sending = asyncio.create_task(send())
        assert await it.server_reader.read() == bytes(491_520)
        await sending

    for seed in (None, 1, 2):
        connected(hosts(latency=0.01, send_buffer=20_000, receive_buffer=20_000), main, seed=seed)


def test_sock_sendfile_refuses_what_is_no_file_as_the_kernel_does():
    async def main(it):
        sock = it.writer.get_extra_info("socket")._sock
        with pytest.raises(asyncio.SendfileNotAvailableError, match="not a regular file"):
            await asyncio.get_running_loop().sock_sendfile(sock, io.BytesIO(b"hello"), fallback=False)

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
