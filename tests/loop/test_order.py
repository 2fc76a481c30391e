"""The order of callbacks where asyncio guarantees one in practice: programs may depend on it."""

import asyncio
import contextlib
import os
import socket
import tempfile

import pytest

from tests.support.protocol import Recording, close


class Logging(asyncio.Protocol):
    """Records its callbacks. Each of them schedules a callback, which is recorded too."""

    def __init__(self, log):
        self.log = log
        self.lost = asyncio.get_running_loop().create_future()

    def note(self, name):
        self.log.append(name)
        asyncio.get_running_loop().call_soon(self.log.append, f"after {name}")

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.note("data")

    def eof_received(self):
        self.note("eof")

    def connection_lost(self, exc):
        self.log.append("lost")
        self.lost.set_result(None)


def test_callbacks_scheduled_in_data_received_run_before_eof_received(run):
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(10):
            log = []
            ours, peer = socket.socketpair()
            with peer:
                peer.sendall(b"all there is")
                peer.shutdown(socket.SHUT_WR)
                _, protocol = await loop.create_connection(lambda log=log: Logging(log), sock=ours)
                await asyncio.wait_for(protocol.lost, 10)
            assert log == ["data", "after data", "eof", "after eof", "lost"]

    run(main())


def test_a_protocol_set_by_a_task_waiting_for_data_gets_eof_received(run):
    """For example, a connection is upgraded at the peer's request, and the peer has closed by then."""

    class Asked(asyncio.Protocol):
        def __init__(self):
            self.data, self.ended = asyncio.get_running_loop().create_future(), False

        def data_received(self, data):
            self.data.set_result(data)

        def eof_received(self):
            self.ended = True

    async def main():
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        with peer:
            transport, asked = await loop.create_connection(Asked, sock=ours)
            peer.sendall(b"upgrade")
            peer.shutdown(socket.SHUT_WR)
            await asked.data  # wait_for takes one more turn before 3.12
            log = []
            protocol = Logging(log)
            transport.set_protocol(protocol)
            await asyncio.wait_for(protocol.lost, 10)
            assert (asked.ended, log) == (False, ["eof", "after eof", "lost"])

    run(main())


def test_a_reader_with_data_is_not_at_eof_before_the_next_iteration(run):
    async def main():
        ours, peer = socket.socketpair()
        with peer:
            reader, writer = await asyncio.open_connection(sock=ours)

            async def read():
                return await reader.read(100), reader.at_eof()

            reading = asyncio.ensure_future(read())
            await asyncio.sleep(0.01)
            peer.sendall(b"last words")
            peer.shutdown(socket.SHUT_WR)
            assert await asyncio.wait_for(reading, 10) == (b"last words", False)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
            await writer.wait_closed()

    run(main())


def test_a_timer_due_with_the_data_runs_before_callbacks_scheduled_in_data_received(run):
    async def main():
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        with peer:
            log = []
            transport, protocol = await loop.create_connection(lambda: Logging(log), sock=ours)
            near, far = socket.socketpair()
            other, written = await loop.create_connection(Recording, sock=near)

            def act():
                loop.call_later(0, log.append, "timer")
                peer.sendall(b"data")
                # The next iteration polls for data, because an answer may have arrived for what was written.
                other.write(b"x")
                loop.call_soon(loop.call_soon, log.append, "scheduled")

            for _ in range(10):
                await asyncio.sleep(0.01)
                log.clear()
                loop.call_soon(act)
                await asyncio.sleep(0.01)
                assert log == ["data", "timer", "scheduled", "after data"]
            transport.close()
            await protocol.lost
            await close(written)
            far.close()

    run(main())


def test_data_available_at_connection_made_is_received_before_callbacks_of_the_connecting_task(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peers = []

            class Greeted(Logging):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    peers.append(listener.accept()[0])
                    peers[-1].sendall(b"greeting")

            for _ in range(10):
                log = []
                address = listener.getsockname()
                transport, protocol = await loop.create_connection(lambda log=log, make=Greeted: make(log), *address)
                log.append("connected")
                loop.call_soon(log.append, "scheduled")
                await asyncio.sleep(0.01)
                assert log == ["connected", "data", "scheduled", "after data"]
                transport.close()
                await protocol.lost
            for peer in peers:
                peer.close()

    run(main())


def test_a_ready_descriptors_callback_runs_before_due_timers_and_new_callbacks(run):
    async def main():
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        with ours, peer:
            peer.sendall(b"there already")
            for add, remove in [(loop.add_reader, loop.remove_reader), (loop.add_writer, loop.remove_writer)] * 5:
                log = []

                def ready(log=log, remove=remove):
                    remove(ours)
                    log.append("ready")

                add(ours, ready)
                loop.call_later(0, log.append, "timer")
                loop.call_soon(loop.call_soon, log.append, "scheduled")
                await asyncio.sleep(0.01)
                assert log == ["ready", "timer", "scheduled"]

    run(main())


def test_a_due_timer_runs_before_callbacks_scheduled_by_an_events_callback(run):
    class Scheduling(Logging):
        def data_received(self, data):
            loop = asyncio.get_running_loop()
            loop.call_later(0, self.log.append, "timer")
            loop.call_soon(loop.call_soon, self.log.append, "scheduled by scheduled")

    async def main():
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        with peer:
            log = []
            transport, protocol = await loop.create_connection(lambda: Scheduling(log), sock=ours)
            for _ in range(10):
                await asyncio.sleep(0.01)
                log.clear()
                peer.sendall(b"data")
                await asyncio.sleep(0.01)
                assert log == ["timer", "scheduled by scheduled"]
            transport.close()
            await protocol.lost

    run(main())


def test_callbacks_scheduled_in_an_iteration_with_events_run_after_the_next_poll(run):
    async def main():
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as sockets:
            pairs = [socket.socketpair() for _ in range(3)]
            protocols = []
            log, ignored = [], []
            for near, far in pairs:
                sockets.enter_context(far)
                mine = log if near is pairs[1][0] else ignored
                _, protocol = await loop.create_connection(lambda mine=mine: Logging(mine), sock=near)
                protocols.append(protocol)
            event, signal, other = [far for _, far in pairs]

            def act():
                signal.sendall(b"x")
                protocols[2].transport.write(b"the loop has used a descriptor: it looks for news")
                loop.call_later(0, log.append, "timer")
                loop.call_soon(loop.call_soon, log.append, "scheduled by scheduled")

            def begin():
                event.sendall(b"x")
                protocols[2].transport.write(b"here too")
                loop.call_soon(act)

            for _ in range(10):
                await asyncio.sleep(0.01)
                log.clear()
                loop.call_soon(begin)
                await asyncio.sleep(0.01)
                assert log == ["data", "timer", "scheduled by scheduled", "after data"]
            for protocol in protocols:
                protocol.transport.abort()
                await protocol.lost

    run(main())


class Little(asyncio.BufferedProtocol):
    """Receives four bytes at a time."""

    def __init__(self, log):
        self.log, self.buffer = log, bytearray(4)
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.log.append(bytes(self.buffer[:nbytes]))
        asyncio.get_running_loop().call_soon(self.log.append, "scheduled")

    def connection_lost(self, exc):
        self.lost.set_result(None)


def test_callbacks_scheduled_in_data_received_run_before_the_next_data_received(run):
    async def main():
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        with peer:
            log = []
            transport, protocol = await loop.create_connection(lambda: Little(log), sock=ours)
            await asyncio.sleep(0.01)
            peer.sendall(b"onlytwofull")
            await asyncio.sleep(0.01)
            assert log == [b"only", "scheduled", b"twof", "scheduled", b"ull", "scheduled"]
            transport.close()
            await protocol.lost

    run(main())


def test_eof_after_a_pause_comes_after_callbacks_scheduled_in_data_received(run):
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(10):
            ours, peer = socket.socketpair()
            with peer:
                log = []
                transport, protocol = await loop.create_connection(lambda log=log: Logging(log), sock=ours)
                peer.sendall(b"data")
                transport.pause_reading()
                transport.resume_reading()
                peer.shutdown(socket.SHUT_WR)
                await protocol.lost
                assert log[:3] == ["data", "after data", "eof"]

    run(main())


def test_data_after_a_pause_in_connection_made_comes_one_iteration_after_resume(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as peers:

            class Pausing(Logging):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    transport.pause_reading()
                    loop.call_soon(transport.resume_reading)
                    peer = peers.enter_context(listener.accept()[0])
                    peer.sendall(b"data")

            address = listener.getsockname()
            for number in range(10):
                log = []
                if number % 2:
                    connecting = loop.create_connection(lambda log=log: Pausing(log), *address)
                else:
                    sock = socket.create_connection(address)
                    connecting = loop.create_connection(lambda log=log: Pausing(log), sock=sock)
                transport, protocol = await connecting
                log.append("connected")
                loop.call_soon(log.append, "scheduled")
                await asyncio.sleep(0.01)
                assert log == ["connected", "scheduled", "data", "after data"]
                transport.close()
                await protocol.lost

    run(main())


def test_a_reader_added_in_another_readers_callback_runs_before_due_timers(run):
    async def main():
        loop = asyncio.get_running_loop()
        first, peer = socket.socketpair()
        second, other = socket.socketpair()
        with first, peer, second, other:
            for _ in range(10):
                log = []

                def writable(log=log):
                    loop.remove_writer(second)
                    log.append("writable")

                def readable(log=log, writable=writable):
                    first.recv(10)
                    loop.remove_reader(first)
                    loop.add_writer(second, writable)
                    loop.call_later(0, log.append, "timer")
                    loop.call_soon(log.append, "scheduled")

                loop.add_reader(first, readable)
                await asyncio.sleep(0.01)
                peer.send(b"x")
                await asyncio.sleep(0.01)
                assert log == ["scheduled", "writable", "timer"]

    run(main())


def look_for_events(loop, sock):
    """asyncio polls in every iteration. A busy loop of ours does so after a descriptor was used."""
    loop.add_reader(sock, lambda: None)
    loop.remove_reader(sock)


def test_no_data_is_received_after_a_write_found_the_connection_broken(run):
    class Ending(Logging):
        def connection_lost(self, exc):
            self.log.append(type(exc))
            super().connection_lost(exc)

    async def main():
        loop = asyncio.get_running_loop()
        idle, other = socket.socketpair()
        with idle, other:
            for _ in range(10):
                log = []
                ours, peer = socket.socketpair()
                transport, protocol = await loop.create_connection(lambda log=log: Ending(log), sock=ours)
                await asyncio.sleep(0.01)

                def begin(peer=peer, transport=transport):
                    peer.sendall(b"last words")
                    peer.close()
                    look_for_events(loop, idle)
                    loop.call_soon(transport.write, b"x")

                loop.call_soon(begin)
                await asyncio.wait_for(protocol.lost, 10)
                assert log == [BrokenPipeError, "lost"]

    run(main())


def test_abort_reports_the_error_that_a_pending_write_would_have_found(run):
    async def main():
        ours, peer = socket.socketpair()
        transport, protocol = await asyncio.get_running_loop().create_connection(Recording, sock=ours)
        transport.pause_reading()
        peer.close()
        transport.write(b"x")
        transport.abort()
        assert isinstance(await asyncio.wait_for(protocol.lost, 10), BrokenPipeError)

    run(main())


@pytest.mark.parametrize("by", ["transport", "socket"])
def test_a_peer_on_the_same_loop_receives_the_file_before_sendfile_returns(run, by):
    async def main():
        loop = asyncio.get_running_loop()
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        log = []
        transport, protocol = await loop.create_connection(lambda: Logging(log), sock=peer)
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(b"content")
            sender = None
            if by == "transport":
                sender, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
            await asyncio.sleep(0.01)
            for count in (None, 7, 3) * 3:
                log.clear()
                if sender is None:
                    await loop.sock_sendfile(ours, file, 0, count)
                else:
                    await loop.sendfile(sender, file, 0, count)
                log.append("sent")
                await asyncio.sleep(0.01)
                assert log == ["data", "sent", "after data"] or log == ["data", "after data", "sent"]
        if sender is None:
            ours.close()
        else:
            sender.close()
        await asyncio.wait_for(protocol.lost, 10)
        transport.close()

    run(main())


@pytest.mark.parametrize("reason", ["timer", "descriptor"])
@pytest.mark.parametrize("kind", ["stream", "pipe", "datagrams"])
def test_a_transport_reads_one_iteration_after_resume(run, kind, reason):
    """It polls before, because a timer is due or a descriptor was used."""

    class Received(Logging, asyncio.DatagramProtocol):
        def datagram_received(self, data, address):
            self.data_received(data)

    async def main():
        loop = asyncio.get_running_loop()
        log = []
        idle, other = socket.socketpair()
        with idle, other:
            if kind == "pipe":
                reading, writing = os.pipe()
                transport, protocol = await loop.connect_read_pipe(lambda: Received(log), open(reading, "rb", 0))
                peer = open(writing, "wb", 0)
                send = peer.write
            elif kind == "stream":
                ours, peer = socket.socketpair()
                transport, protocol = await loop.create_connection(lambda: Received(log), sock=ours)
                send = peer.send
            else:
                ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                transport, protocol = await loop.create_datagram_endpoint(lambda: Received(log), sock=ours)
                send = peer.send
                if not hasattr(transport, "resume_reading"):
                    pytest.skip("asyncio's datagram transports cannot be paused")

            def begin():
                send(b"data")
                if reason == "timer":
                    loop.call_later(0, lambda: None)
                else:
                    look_for_events(loop, idle)
                loop.call_soon(act)

            def act():
                transport.pause_reading()
                transport.resume_reading()
                loop.call_soon(log.append, "scheduled")

            with peer:
                for _ in range(10):
                    await asyncio.sleep(0.01)
                    log.clear()
                    loop.call_soon(begin)
                    await asyncio.sleep(0.01)
                    assert log == ["scheduled", "data", "after data"]
                transport.close()
                await asyncio.wait_for(protocol.lost, 10)

    run(main())


def test_a_reader_added_again_in_its_own_callback_runs_in_the_next_iteration(run):
    async def main():
        loop = asyncio.get_running_loop()
        first, second = socket.socketpair()
        with first, second:
            for replaced in (False, True):
                log = []

                def turn(log=log):
                    log.append("turn")
                    if len(log) < 8:
                        loop.call_soon(turn)

                def begin(log=log, replaced=replaced, turn=turn):
                    # In the iteration whose poll reported that the descriptor is ready.
                    if not replaced:
                        loop.remove_writer(second)
                    loop.add_writer(second, ready, "again")
                    loop.call_soon(turn)

                def ready(name, log=log):
                    log.append(name)
                    loop.remove_writer(second)

                loop.add_writer(second, ready, "before")
                loop.call_soon(begin)
                await asyncio.sleep(0.01)
                assert log[:2] == ["turn", "again"], log

    run(main())
