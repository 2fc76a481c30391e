"""Data that a protocol has received never changes, although the loop recycles memory that is no longer referenced."""

import asyncio
import functools
import random
import socket

import pytest

import wakeloop
from tests.support.sockets import tcp_pair

# Sizes around the limits of the allocator's free lists, and enough messages that the loop recycles none.
SIZES = [1, 511, 512, 1024, 1025, 32 * 1024, 48 * 1024]
COUNT = 60


class Kept:
    """Keeps some of the data it gets, in one way or another, and drops the rest."""

    def __init__(self):
        self.count, self.kept = 0, []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def take(self, data):
        number, self.count = self.count, self.count + 1
        assert data == message(number, len(data)) and hash(data) == hash(bytes(bytearray(data)))
        if number % 4 == 1:
            self.kept.append((number, data))
        elif number % 4 == 2:
            self.kept.append((number, memoryview(data)))
        elif number % 4 == 3:
            self.kept.append((number, [data, data][:1]))

    def connection_lost(self, error):
        self.lost.set_result(error)

    def check(self, size):
        for number, data in self.kept:
            data = data[0] if isinstance(data, list) else data
            assert bytes(data) == message(number, size)
            assert not isinstance(data, bytes) or {message(number, size): number}[data] == number


class KeptStream(Kept, asyncio.Protocol):
    def data_received(self, data):
        self.take(data)


class KeptDatagrams(Kept, asyncio.DatagramProtocol):
    def datagram_received(self, data, sender):
        self.take(data)


def message(number, size):
    return random.Random(number).randbytes(min(size, 64)).ljust(size, bytes([number]))


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.control
@pytest.mark.parametrize("size", SIZES)
def test_kept_messages_of_a_stream_do_not_change(run, size):
    async def main():
        with tcp_pair() as (sock, peer):
            _, protocol = await asyncio.get_running_loop().create_connection(KeptStream, sock=sock)
            for number in range(COUNT):
                peer.sendall(message(number, size))
                await until(lambda: protocol.count > number)
            protocol.check(size)
            protocol.transport.close()
            await protocol.lost

    run(main())


@pytest.mark.control
@pytest.mark.parametrize(("size", "burst"), [*((size, 1) for size in SIZES), (512, 5), (1024, 5), (4096, 5)])
def test_kept_datagrams_do_not_change(run, size, burst):
    async def main():
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(KeptDatagrams, local_addr=("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for start in range(0, COUNT, burst):
                for number in range(start, start + burst):
                    sock.sendto(message(number, size), transport.get_extra_info("sockname"))
                await until(lambda: protocol.count == start + burst)
        protocol.check(size)
        transport.close()
        await protocol.lost

    run(main())


async def by_sock(sock):
    return functools.partial(asyncio.get_running_loop().sock_recv, sock), sock.close


async def by_reader(sock):
    reader, writer = await wakeloop.open_connection(sock=sock)
    return reader.readexactly, writer.close


@pytest.mark.control
@pytest.mark.parametrize("opened", [by_sock, by_reader])
@pytest.mark.parametrize("size", [*SIZES, 999, 1000, 4096, 4097])
def test_bytes_returned_by_reads_do_not_change_while_referenced(run, opened, size):
    async def main():
        with tcp_pair() as (sock, peer), tcp_pair() as (other, other_peer):
            peers = [peer, other_peer]
            reads, closes = zip(*[await opened(sock), await opened(other)])
            kept, seen = [], [None, None]
            # More than the loop remembers.
            for number in range(4 * COUNT):
                expected, place = message(number % 256, size), number % 2
                read = asyncio.ensure_future(reads[place](size))
                await asyncio.sleep(0)
                peers[place].sendall(expected)
                data = await read
                while len(data) < size:
                    data += await reads[place](size - len(data))
                assert data == expected and hash(data) == hash(bytes(bytearray(expected)))
                before, seen[place] = seen[place], (data, expected)
                assert before is None or before[0] == before[1]
                if number % 5 == 0:
                    kept.append((data if number % 2 else memoryview(data), expected))
                del data, before
            assert all(bytes(data) == expected for data, expected in kept)
            for close in closes:
                close()
            await asyncio.sleep(0)

    run(main())


@pytest.mark.control
def test_a_received_message_can_be_sent_later_unchanged(run):
    async def main():
        class Late(KeptStream):
            def take(self, data):
                self.count += 1
                loop.call_soon(self.transport.write, data)

        loop = asyncio.get_running_loop()
        with tcp_pair() as (sock, peer):
            peer.setblocking(False)
            _, protocol = await loop.create_connection(Late, sock=sock)
            for number in range(COUNT):
                await loop.sock_sendall(peer, message(number, 1024))
                assert await loop.sock_recv(peer, 2048) == message(number, 1024)
            protocol.transport.close()
            await protocol.lost

    run(main())


@pytest.mark.control
def test_messages_of_many_lengths_come_as_they_were_sent(run):
    async def main():
        class Record(KeptStream):
            def take(self, data):
                self.count += 1
                self.last = bytes(bytearray(data))

        with tcp_pair() as (sock, peer):
            _, protocol = await asyncio.get_running_loop().create_connection(Record, sock=sock)
            sizes = random.Random(7)
            for number in range(4 * COUNT):
                sent = message(number % 256, sizes.choice([700, 1024, 1024, 1040, 4096]))
                peer.sendall(sent)
                await until(lambda: protocol.count > number)
                assert protocol.last == sent
            protocol.transport.close()
            await protocol.lost

    run(main())
