"""`pause_reading()` and `resume_reading()` of TCP transports."""

import asyncio
import os

from tests.support.protocol import Recording, close, pair
from tests.support.sockets import socketpair


def test_pause_reading_stops_data_and_resume_brings_all_of_it(run):
    async def main():
        near, far = await pair()
        assert near.transport.is_reading()
        near.transport.pause_reading()
        near.transport.pause_reading()
        assert not near.transport.is_reading()
        far.transport.write(b"while paused")
        await asyncio.sleep(0.02)
        assert near.data == b""
        near.transport.resume_reading()
        near.transport.resume_reading()
        await near.received(12)
        assert near.transport.is_reading()
        await close(near, far)

    run(main())


def test_a_transport_that_resumes_reading_does_not_come_before_others_that_have_data_too(run):
    """It is read in the next turn, and that turn asks which others are ready."""

    async def main():
        loop, seen = asyncio.get_running_loop(), []

        class Noting(asyncio.Protocol):
            def data_received(self, data):
                seen.append(data)

        def count_down(number):
            seen.append(number)
            loop.call_soon(*((count_down, number - 1) if number else (done.set_result, None)))

        def begin():
            paused.resume_reading()
            others_peer.send(b"other")
            count_down(2)

        with socketpair() as (near, its_peer), socketpair() as (far, others_peer):
            paused, _ = await loop.create_connection(Noting, sock=near)
            other, _ = await loop.create_connection(Noting, sock=far)
            paused.pause_reading()
            its_peer.send(b"paused")
            await asyncio.sleep(0.01)
            done = loop.create_future()
            loop.call_soon(begin)
            await done
            assert seen[:2] == [2, 1] and set(seen[2:4]) == {b"paused", b"other"} and seen[4:] == [0], seen
            paused.abort()
            other.abort()
            await asyncio.sleep(0)

    run(main())


def test_the_end_waits_while_reading_is_paused(run):
    async def main():
        near, far = await pair()
        near.transport.pause_reading()
        far.transport.write(b"data")
        far.transport.close()
        await asyncio.sleep(0.02)
        assert near.calls == ["connection_made"]
        near.transport.resume_reading()
        await near.lost
        assert near.data == b"data" and near.calls[-2:] == ["eof_received", "connection_lost"]

    run(main())


def test_reading_paused_in_connection_made_stays_paused(run):
    class Paused(Recording):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    async def main():
        near, far = await pair(near=Paused)
        far.transport.write(b"data")
        await asyncio.sleep(0.02)
        assert near.data == b""
        near.transport.resume_reading()
        await near.received(4)
        await close(near, far)

    run(main())


def test_pausing_inside_data_received_stops_the_next_delivery(run):
    class OneAtATime(Recording):
        deliveries = 0

        def data_received(self, data):
            super().data_received(data)
            self.deliveries += 1
            self.transport.pause_reading()

    async def main():
        near, far = await pair(near=OneAtATime)
        far.transport.write(os.urandom(4 << 20))
        await asyncio.sleep(0.05)
        assert near.deliveries == 1
        while len(near.data) < 4 << 20:
            before = near.deliveries
            near.transport.resume_reading()
            while near.deliveries == before:
                await asyncio.sleep(0)
            assert near.deliveries == before + 1
        await close(near, far)

    run(main())


def test_pausing_and_resuming_a_closed_transport_is_harmless(run):
    async def main():
        near, far = await pair()
        await close(near, far)
        near.transport.pause_reading()
        near.transport.resume_reading()
        assert not near.transport.is_reading()
        near.transport.write(b"")
        near.transport.write_eof() if not near.transport.is_closing() else None

    run(main())
