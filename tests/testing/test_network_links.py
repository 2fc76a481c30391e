"""Links of the simulated network: latency, bandwidth, loss, and cuts."""

import asyncio
import os

import pytest

from tests.testing.networks import connected, hosts, now
from wakeloop.testing.network import Host, Link, Network

pytestmark = pytest.mark.native


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


def test_a_network_that_is_used_again_has_forgotten_the_traffic_of_its_earlier_run():
    network = hosts(bandwidth=1000)

    async def main(it):
        it.writer.write(bytes(2000))
        await it.server_reader.readexactly(2000)
        return now()

    first = connected(network, main)
    assert first > 2
    assert connected(network, main) == first


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


@pytest.mark.parametrize("data", [b"", b"the rest"], ids=["alone", "behind data"])
def test_the_end_of_a_stream_that_is_on_its_way_in_a_cut_is_sent_again(data):
    network = hosts(latency=1.0)

    async def main(it):
        start = now()
        it.writer.write(data)
        it.writer.write_eof()
        await asyncio.sleep(0.5)
        network.partition("server")
        await asyncio.sleep(0.1)
        network.heal("server")
        assert await it.server_reader.read() == data
        assert now() - start == pytest.approx(2.2)

    connected(network, main)


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


def test_a_segment_lost_on_its_way_is_sent_before_an_end_that_was_lost_earlier():
    network = hosts(latency=1.0)
    link = network.link("client", "server")

    async def main(it):
        it.writer.write(b"one")
        await asyncio.sleep(0.1)
        link.change(loss=1.0)
        it.writer.write_eof()
        link.change(loss=0.0)
        # Now the end waits to be sent again, and `one` is lost before it arrives.
        link.cut()
        await asyncio.sleep(1)
        link.heal()
        assert await it.server_reader.read() == b"one"

    connected(network, main)


def test_a_connection_ends_behind_a_segment_that_was_lost():
    network = hosts(latency=1.0)
    link = network.link("client", "server")

    async def main(it):
        link.change(loss=1.0)
        it.writer.write(b"lost at first")
        link.change(loss=0.0)
        it.writer.close()
        assert await it.server_reader.read() == b"lost at first"

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
