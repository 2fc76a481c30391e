"""Protocols that get a long message in parts: what they may do between two parts, and that memory follows the message."""

import asyncio
import resource
import tracemalloc

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED
from tests.support.sockets import socketpair

#: A part so long that more of the same message is expected.
PART = bytes(150_000)


class Parts(asyncio.Protocol):
    """Calls `meanwhile` with the first part, and notes how long each part is."""

    def __init__(self, meanwhile):
        self.lengths, self.meanwhile = [], meanwhile
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.lengths.append(len(data))
        if len(self.lengths) == 1:
            self.meanwhile(self)

    def eof_received(self):
        self.lengths.append("end")


def page_faults():
    """How many pages the process has touched for the first time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


async def receive(meanwhile, part=PART):
    """What a protocol got that calls `meanwhile` with itself and the sending socket at the first part."""
    loop = asyncio.get_running_loop()
    with socketpair() as (near, far):
        far.settimeout(10)
        _, protocol = await loop.create_connection(lambda: Parts(lambda parts: meanwhile(parts, far)), sock=near)
        far.sendall(part)
        async with asyncio.timeout(10):
            while sum(length for length in protocol.lengths if length != "end") < len(part):
                await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0.001)
        lengths = protocol.lengths.copy()
        protocol.transport.close()
        await asyncio.sleep(0)
    return lengths


@pytest.mark.native
@pytest.mark.parametrize(("part", "in_the_same_turn"), [(PART, True), (PART[:1000], False)])
def test_what_comes_while_the_protocol_has_a_long_part_is_received_in_the_same_turn(run, part, in_the_same_turn):
    async def main():
        seen = []

        class Counting(Parts):
            def data_received(self, data):
                seen.append(self.loop.metrics().polls)
                super().data_received(data)

        with socketpair() as (near, far):
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(lambda: Counting(lambda _: far.send(b"more")), sock=near)
            far.sendall(part)
            async with asyncio.timeout(10):
                while len(seen) < 2:
                    await asyncio.sleep(0.001)
            transport.close()
        assert protocol.lengths == [len(part), 4]
        assert (seen[0] == seen[1]) is in_the_same_turn

    run(main())


@pytest.mark.parametrize("part", [PART, PART[:1000]])
def test_callbacks_run_before_the_next_part(run, part):
    def meanwhile(protocol, far):
        protocol.loop.call_soon(protocol.lengths.append, 0)
        far.send(b"more")

    assert run(receive(meanwhile, part)) == [len(part), 0, 4]


def test_a_protocol_that_pauses_reading_gets_no_further_part(run):
    def meanwhile(protocol, far):
        protocol.transport.pause_reading()
        far.send(b"more")

    assert run(receive(meanwhile)) == [len(PART)]


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_protocol_that_ends_the_connection_gets_no_further_part(run, end):
    def meanwhile(protocol, far):
        getattr(protocol.transport, end)()
        far.send(b"more")

    assert run(receive(meanwhile)) == [len(PART)]


def test_the_end_of_the_stream_comes_behind_a_long_part(run):
    def meanwhile(_protocol, far):
        far.send(b"more")
        far.close()

    assert run(receive(meanwhile)) == [len(PART), 4, "end"]


def test_another_protocol_gets_the_next_part(run):
    later = []

    class Later(asyncio.Protocol):
        def data_received(self, data):
            later.append(len(data))

    def meanwhile(protocol, far):
        protocol.transport.set_protocol(Later())
        far.send(b"more")

    assert run(receive(meanwhile)) == [len(PART)]
    assert later == [4]


@pytest.mark.native
@pytest.mark.skipif(FREE_THREADED, reason="a long read is copied once on free-threaded builds of Python")
def test_reads_of_known_length_reserve_no_more_memory_than_that(run):
    mib = 1024 * 1024

    async def main():
        with socketpair() as (near, far):
            far.settimeout(10)
            reader, writer = await wakeloop.open_connection(sock=near)
            for size in range(2 * mib, 8 * mib, mib // 2):
                sending = asyncio.create_task(asyncio.to_thread(far.sendall, bytes(size)))
                tracemalloc.start()
                try:
                    data = await reader.readexactly(size)
                    _, most = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                    await sending
                assert len(data) == size
                assert most < size + mib // 4
            writer.close()
            await writer.wait_closed()

    run(main())


@pytest.mark.native
def test_the_memory_of_a_long_message_is_not_mapped_anew_for_each_part(run):
    async def main():
        with socketpair() as (near, far):
            far.settimeout(10)
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.create_connection(lambda: Parts(lambda _parts: None), sock=near)

            async def send(count):
                expected = sum(protocol.lengths) + count * len(PART)
                async with asyncio.timeout(20):
                    await asyncio.to_thread(far.sendall, PART * count)
                    while sum(protocol.lengths) < expected:
                        await asyncio.sleep(0)

            await send(10)
            before = page_faults()
            await send(200)
            transport.close()
        # 30 MB are 7,300 pages. The bytes that are sent are touched once.
        return page_faults() - before

    assert run(main()) < 9_000


@pytest.mark.native
def test_the_memory_of_a_long_read_is_not_mapped_anew_for_each_message(run):
    sizes = [20 * len(PART), 35 * len(PART), 55 * len(PART)]

    async def main():
        with socketpair() as (near, far):
            far.settimeout(10)
            reader, writer = await wakeloop.open_connection(sock=near)

            def send(size):
                # In small parts: glibc also learns from the sender's memory.
                for _ in range(size // len(PART)):
                    far.sendall(PART)

            async def faults_of(size, count):
                before = page_faults()
                async with asyncio.timeout(20):
                    for _ in range(count):
                        sending = asyncio.create_task(asyncio.to_thread(send, size))
                        assert len(await reader.readexactly(size)) == size
                        await sending
                return page_faults() - before

            faults = []
            for size in sizes:
                await faults_of(size, 2)
                faults.append(await faults_of(size, 10) / (10 * size / resource.getpagesize()))
            writer.close()
            await writer.wait_closed()
            return faults

    # By page of the messages. Where a message lies between others in the heap, some of them may move.
    assert max(run(main())) < 0.4
