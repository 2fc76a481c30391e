"""Scenarios of writes in quick succession on several transports of a loop: what arrives, and when protocols are called.

Writes come in steps of the scenario, in callbacks, and in the protocol's methods.

What a program observes is a function of the seed, on any machine:

- A kernel's buffer never fills halfway: its level depends on how the data was split into system calls. Either all that a
  connection has written fits into its buffers, or one long write fills them for sure, until the peer has read everything.
- Whoever sends or receives waits until the data has arrived (`arrival`).
- While the peer reads everything, `resume_writing` is called when the write buffer is empty, or while it is not for
  sure: how much the socket takes at once depends on how fast the peer reads.
"""

import asyncio
import itertools
import socket
import ssl
import tempfile
import time
import zlib

from . import arrival
from .peer import POLLS, SocketPeer
from .scenario import Scenario
from .secure import SecureServer
from .writing import Calls

SIZES = [1, 2, 10, 100, 1000, 3000]
KINDS = [bytes, bytes, bytearray, memoryview]
#: Up to this size, everything fits into the smallest buffers. Each write counts as so many bytes more.
FITS, OVERHEAD = 24_000, 1500
#: Longer than the largest buffers by more than any limit of a write buffer.
LONG = 1_000_000
#: A low-water mark of at least so many bytes is reached while the buffer is not empty: no send takes as many.
NEVER_SENT_AT_ONCE = 300_000
#: How much the peer may read of a long write, so that the transport's buffer stays above its low-water mark.
READ_OF_LONG = 100_000
#: Since 3.12 asyncio keeps a view of what it could not send, and sends what the buffer holds by then. Ours has a copy.
TRANSPORT = asyncio.selector_events._SelectorSocketTransport
COPIES = not hasattr(TRANSPORT, "_write_sendmsg")
#: In 3.12 and early 3.13 releases asyncio's writelines does not call pause_writing.
WRITELINES_PAUSES = COPIES or "_maybe_pause_protocol" in TRANSPORT.writelines.__code__.co_names
#: The longest datagram.
LONGEST = 65_507
#: Much less than the buffers: the kernel waits 0.2 seconds before it sends a rest of a file that fills no segment.
SEGMENT = 1400


class Flow(Calls, asyncio.Protocol):
    def __init__(self, scenario, name):
        super().__init__(scenario, name)
        #: The bytes that fill the kernel's buffers. `full` after a long write, until the peer has read everything.
        self.pending, self.full, self.read = 0, False, 0
        self.sock, self.peer, self.transport, self.received, self.resumed = None, None, None, 0, None
        #: How much was written, and how much of it the peer has received.
        self.offered, self.count = 0, 0
        self.checksum, self.ended = 0, None
        self.sends_file, self.lost = False, False
        #: Data was written after the peer has closed, which answers with a reset.
        self.is_refused = False
        #: Nothing can be written after `write_eof`.
        self.has_eof = False
        #: How much arrives is not guaranteed: the connection was aborted or reset while data was in the buffers.
        self.cut = False

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, error):
        self.lost, self.cut = True, self.cut or (self.full and error is not None)
        self.act("connection_lost", self.scenario.describe(error))
        self.wake()

    def pause_writing(self):
        self.resumed = self.resumed or asyncio.get_running_loop().create_future()
        self.act("pause_writing")

    def resume_writing(self):
        self.wake()
        self.act("resume_writing")

    def wake(self):
        if self.resumed is not None and not self.resumed.done():
            self.resumed.set_result(None)
        self.resumed = None

    def data_received(self, data):
        self.received += len(data)
        self.scenario.act_inside(f"received {self.name}")

    def eof_received(self):
        self.act("eof_received")
        return self.scenario.stays_half_open

    def act(self, call, *what):
        self.scenario.called(f"{call} {self.name}", self.received, *what)


def tcp_pair():
    with socket.socket() as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    # Without Nagle's algorithm, so that everything sent arrives at once.
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock, peer


class WritesScenario(SocketPeer, Scenario):
    """Connections `0`, `1` and so on."""

    CALLS = [
        f"{call} {name}" for name in range(3) for call in ("received", "received", "pause_writing", "resume_writing")
    ]
    ACTIONS = {
        "burst": 30, "habit": 10, "hold": 10, "write": 10, "writelines": 6, "long_write": 3, "size": 3, "measure": 5,
        "write_eof": 1, "close": 1, "abort": 1, "pause_reading": 2, "resume_reading": 3, "set_limits": 3, "drain": 3,
        "sendfile": 2, "alternate": 6,
        "peer_sends": 10, "peer_reads_some": 5, "peer_reads_all": 6, "peer_ends": 1, "peer_closes": 1, "peer_resets": 1,
    }  # fmt: skip
    #: How a stream ends after all that was sent before.
    ENDS = [None, "end"]
    #: Actions that must not change what the peer gets of a held write.
    AFTER_HELD = [
        "abort", "close", "write_eof", "size", "measure", "set_limits", "drain", "sendfile", "pause_reading", "writelines",
        "alternate", "long_write",
    ]  # fmt: skip
    #: Actions that must not come after a write of the same step: a held write may have left only on one of the loops.
    BEFORE_WRITES = ["peer_sends", "peer_reads_some"]
    #: Actions that end a connection from outside. The loop sees that before anything else happens.
    ALONE = ["peer_reads_all", "peer_ends", "peer_closes", "peer_resets"]

    def __init__(self, seed, loop, **options):
        super().__init__(seed, loop, **options)
        self.connections, self.tasks, self.draining = [], [], False
        self.serial, self.stays_half_open = itertools.count(), self.random.random() < 0.3

    # -- the connections ---------------------------------------------------------------------------------------------

    async def begin(self):
        for name in range(self.random.randrange(1, 4)):
            sock, peer = self.random.choice([socket.socketpair, tcp_pair])()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.random.choice([16_384, 65_536]))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.random.choice([16_384, 65_536]))
            for one in sock, peer:
                one.setblocking(False)
            protocol = Flow(self, name)
            await self.loop.connect_accepted_socket(lambda protocol=protocol: protocol, sock)
            protocol.sock, protocol.peer = sock, peer
            self.connections.append(protocol)

    def at(self, number):
        return self.connections[number % len(self.connections)]

    def choose(self, depth=0):
        name, *arguments = super().choose(depth)
        needs_number = name not in ("plan", "call_soon", "fail")
        return name, *([self.random.randrange(3)] if needs_number else []), *arguments

    def choose_some(self, depth):
        actions = [self.choose(depth) for _ in range(self.random.randrange(1, 5))]
        actions = [action for action in actions if action[0] not in self.ALONE]
        # While callbacks schedule callbacks, ours polls its sockets one or more iterations later than asyncio.
        actions = [action for action in actions if action[0] not in ("call_soon", "habit", "hold")]
        return sorted(actions, key=lambda action: action[0] not in self.BEFORE_WRITES)

    def state(self):
        return [(one.transport.is_closing(), one.received) for one in self.connections]

    def act(self, action):
        # Once a connection is lost after close(), most methods of asyncio's transport fail.
        name, number = action[0], action[1] if len(action) > 1 else None
        if type(number) is int and self.at(number).lost and not name.startswith("peer_"):
            self.record(name, number, "lost")
        else:
            super().act(action)

    # asyncio completes the waiter of a sendfile twice if the connection is closed or cancelled meanwhile, and ends the
    # transport twice after an abort in resume_writing.
    def handler_called(self, loop, context):
        error = context.get("exception")
        is_asyncio = type(loop).__module__.startswith("asyncio.")
        if is_asyncio and isinstance(error, (asyncio.InvalidStateError, AttributeError)):
            self.comparable = False
        super().handler_called(loop, context)

    def leave(self):
        for one in self.connections:
            if not one.lost:
                one.transport.abort()
        for task in self.tasks:
            task.cancel()

    def end(self):
        for one in self.connections:
            if one.peer is not None:
                one.peer.close()
        self.connections.clear()
        super().end()

    async def finish(self):
        if self.random.random() < 0.5:
            for number, one in enumerate(self.connections):
                self.act((self.random.choice(["close", "write_eof", "size"]), number))
        for number in range(len(self.connections)):
            await self.settle()
            self.act(("peer_reads_all", number))
        await self.settle()
        self.record("totals", [self.arrived(one) for one in self.connections])

    async def settle(self):
        await asyncio.sleep(0)
        for one in self.connections:
            if one.is_refused:
                arrival.await_reset(one.sock)
        await super().settle()
        for one in self.connections:
            if self.draining is one:
                await self.read_all(one)
        self.draining = False

    async def read_all(self, one):
        low, high = one.transport.get_write_buffer_limits()
        if low < NEVER_SENT_AT_ONCE and not one.lost:
            one.transport.set_write_buffer_limits(high, 0)
        quiet, deadline = 0, time.monotonic() + arrival.PATIENCE
        while quiet < 3 and one.ended is None and one.count <= one.offered:
            before = one.count
            while one.ended is None and self.receive(one, 1 << 20):
                pass
            for _ in range(3):
                await asyncio.sleep(0)
            if one.count > before:
                quiet, deadline = 0, time.monotonic() + arrival.PATIENCE
            elif time.monotonic() > deadline:
                self.record("nothing more comes", one.name)
                break
            else:
                if not one.lost and not one.sends_file and not one.transport.get_write_buffer_size():
                    arrival.await_some_data(one.sock, one.peer)
                    quiet += 1
                await asyncio.sleep(0.0005)
        one.pending, one.full, one.read = 0, False, 0
        self.record("read", one.name, self.arrived(one))

    def arrived(self, one):
        cut = one.cut or one.ended not in self.ENDS
        return "cut" if cut else (one.ended, one.count, one.checksum)

    def receive(self, one, size):
        """Receives for the peer. Returns how much; it is 0 if there is nothing, or the stream has ended."""
        if not one.full:
            arrival.await_data(one.sock, one.peer)
        try:
            data = one.peer.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        except OSError as error:
            one.ended = type(error).__name__
            return 0
        if not data:
            one.ended = "end"
        one.count += len(data)
        one.checksum = zlib.crc32(data, one.checksum)
        return len(data)

    # -- writes ------------------------------------------------------------------------------------------------------

    def data(self, one, size):
        """New data, which may be longer: either it fits into the kernel's buffers, or it fills them."""
        if one.peer.fileno() < 0:
            # How much of a long write to a closed peer the kernel takes depends on when the reset arrives.
            size = min(size, SIZES[-1])
            one.is_refused = one.is_refused or size > 0
        elif not one.full or self.draining is one:
            one.pending += size + OVERHEAD
            if one.pending > FITS or self.draining is one:
                one.full, size = True, size + LONG
        one.offered += size
        start = b"%d " % next(self.serial)
        return (start + bytes(size))[:size]

    def takes_data(self, one):
        """Since 3.12 asyncio's transport fails to send what `resume_writing` writes after `close` has emptied its buffer."""
        is_emptied = self.draining is one and one.transport.get_write_buffer_limits()[0] < NEVER_SENT_AT_ONCE
        return not (is_emptied and one.transport.is_closing())

    def put(self, one, size, kind):
        if not self.takes_data(one):
            return
        data = kind(bytearray(self.data(one, size)) if kind is memoryview else self.data(one, size))
        one.transport.write(data)
        if kind is not bytes and (COPIES or not one.full):
            data[:] = b"x" * len(data)

    def write(self, number, size, kind):
        self.put(self.at(number), size, kind)

    def choose_write(self):
        return self.random.choice([*SIZES, 0]), self.random.choice(KINDS)

    def burst(self, number, pieces):
        for size, kind in pieces:
            self.put(self.at(number), size, kind)

    def choose_burst(self):
        return ([self.choose_write() for _ in range(self.random.choice([2, 2, 2, 3, 5]))],)

    def habit(self, number, pieces, times):
        """Bursts in callbacks of their own, so that the next one is expected to have as many writes."""
        self.burst(number, pieces)
        if times > 1:
            self.loop.call_soon(self.act, ("habit", number, pieces, times - 1))

    def choose_habit(self):
        return [(self.random.choice(SIZES[:4]), bytes) for _ in range(self.random.choice([2, 2, 3, 5]))], 2

    def hold(self, number, pieces, times, action):
        """Bursts, and then a write that has a partner due, followed by something else."""
        if times > 0:
            self.burst(number, pieces)
            self.loop.call_soon(self.act, ("hold", number, pieces, times - 1, action))
        else:
            self.burst(number, pieces[:1])
            self.act((action[0], number, *action[1:]))

    def choose_hold(self):
        name = self.random.choice([name for name in self.AFTER_HELD if name in self.ACTIONS])
        return *self.choose_habit(), (name, *getattr(self, f"choose_{name}", lambda: ())())

    def alternate(self, number, order, size):
        for offset in order:
            self.put(self.at(number + offset), size, bytes)

    def choose_alternate(self):
        return [self.random.randrange(2) for _ in range(self.random.randrange(2, 6))], self.random.choice(SIZES[:4])

    def long_write(self, number, size, kind):
        one = self.at(number)
        if not one.full:
            one.pending = FITS
        self.put(one, size, kind)

    def choose_long_write(self):
        return self.random.randrange(1, 450_000), self.random.choice(KINDS)

    def writelines(self, number, sizes):
        one = self.at(number)
        # Since 3.12 asyncio's writelines fails on a lost connection, and never removes an empty buffer.
        if not one.transport.is_closing():
            pieces = [self.data(one, size) for size in sizes]
            if one.full and not WRITELINES_PAUSES:
                one.transport.write(b"".join(pieces))
            else:
                one.transport.writelines(pieces)

    def choose_writelines(self):
        return ([self.random.choice(SIZES) for _ in range(self.random.randrange(4))],)

    # -- flow control ------------------------------------------------------------------------------------------------

    def size(self, number):
        one = self.at(number)
        is_pending = one.transport.get_write_buffer_size() > 0
        return is_pending if self.draining is not one else "unknown"

    def measure(self, number, size, kind):
        """Returns how much the write buffer has grown in a write, if it was not empty."""
        one = self.at(number)
        before = one.transport.get_write_buffer_size()
        self.put(one, size, kind)
        after = one.transport.get_write_buffer_size()
        # Not while the peer reads: how much is left is not the same.
        if self.draining is not one:
            return after - before if before else after > 0

    def choose_measure(self):
        return self.choose_write()

    def set_limits(self, number, high, low):
        # Not while the peer reads: how much is left is not the same.
        if self.draining is not self.at(number):
            self.at(number).transport.set_write_buffer_limits(high, low)

    def choose_set_limits(self):
        high = self.random.choice([None, 0, 1, 100, 100_000, 400_000, 10_000_000])
        # A long write stays above the low-water mark until the peer reads all of it.
        lows = {400_000: [NEVER_SENT_AT_ONCE], 10_000_000: [0, 1, 100]}
        return high, self.random.choice(lows.get(high, [None, None, 0, 1, 100]))

    def drain(self, number):
        self.start("drained", number, self.drained(self.at(number)))

    async def drained(self, one):
        if one.transport.is_closing():
            await asyncio.sleep(0)
        if one.resumed is not None:
            await asyncio.shield(one.resumed)
        # While the peer reads, the connection may end in the same iteration, or in a later one.
        return "at once" if self.draining is not one else None

    def sendfile(self, number, size):
        one = self.at(number)
        # A second file is refused, and in asyncio it disturbs the first one.
        if not one.transport.is_closing() and not one.sends_file and not one.has_eof:
            one.sends_file = True
            # Never a file that fits: asyncio finds its end only when the socket is as empty as the poller wants it.
            one.pending = FITS
            self.start("file sent", number, self.file_sent(one, self.data(one, size)))

    def choose_sendfile(self):
        return (self.random.choice([*SIZES, 300_000]),)

    async def file_sent(self, one, data):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            try:
                return await self.loop.sendfile(one.transport, file)
            finally:
                one.sends_file = False

    def start(self, what, number, coroutine):
        async def record():
            try:
                result = await coroutine
            except Exception as error:
                result = self.describe(error)
            if result is not None:
                self.record(what, number, result)

        self.tasks.append(self.loop.create_task(record()))

    # -- ends --------------------------------------------------------------------------------------------------------

    def write_eof(self, number):
        self.at(number).has_eof = True
        # With a file before it, asyncio notices some iterations later or earlier that nothing more can be sent.
        if not self.at(number).sends_file:
            self.at(number).transport.write_eof()

    def close(self, number):
        self.at(number).transport.close()

    def abort(self, number):
        one = self.at(number)
        one.cut = one.cut or one.full
        one.transport.abort()

    def pause_reading(self, number):
        self.at(number).transport.pause_reading()

    def resume_reading(self, number):
        self.at(number).transport.resume_reading()

    # -- the peers ---------------------------------------------------------------------------------------------------

    def peer_sends(self, number, size):
        one = self.at(number)
        self.peer = one.peer
        sent = super().peer_sends(size)
        arrival.await_data(one.peer, one.sock)
        # A busy loop polls at least this often.
        time.sleep(POLLS)
        return sent

    def peer_reads_some(self, number, size):
        one = self.at(number)
        if one.full:
            one.read += size
            if one.read > READ_OF_LONG:
                return "enough"
        count = self.receive(one, size)
        return one.full or count

    def choose_peer_reads_some(self):
        return (self.random.choice([1, 10, 1000, 4096, 50_000]),)

    def peer_reads_all(self, number):
        self.draining = self.at(number)

    def peer_ends(self, number):
        self.peer = self.at(number).peer
        ended = super().peer_ends()
        arrival.await_end(self.at(number).sock)
        return ended

    def peer_closes(self, number):
        one = self.at(number)
        if one.full and arrival.is_tcp(one.peer):
            # The end is a reset for sure if there is unread data.
            arrival.until(lambda: arrival.is_readable(one.peer))
        one.peer.close()
        arrival.await_end(one.sock)

    def peer_resets(self, number):
        self.peer = self.at(number).peer
        super().peer_resets()
        arrival.await_reset(self.at(number).sock)


class SecureWritesScenario(WritesScenario, SecureServer):
    """One connection with TLS.

    How much of a long write is in a buffer is not compared: asyncio encrypts everything at once, ours what the socket
    takes.
    """

    ACTIONS = {
        name: often
        for name, often in WritesScenario.ACTIONS.items()
        if name not in ("size", "measure", "drain", "write_eof", "sendfile", "peer_ends", "peer_closes", "peer_resets")
    }
    #: An `abort` ends the stream without a close_notify.
    ENDS = [None, "end", "SSLEOFError"]
    choose_set_limits = SecureServer.choose_set_limits

    async def begin(self):
        await SecureServer.begin(self)
        self.connections[0].sock, self.connections[0].peer = self.sock, self.peer

    def pair(self):
        self.sock, plain = self.random.choice([socket.socketpair, tcp_pair])()
        return self.sock, plain

    def new_protocol(self):
        self.connections.append(Flow(self, 0))
        return self.connections[0]

    def act(self, action):
        # asyncio's transport drops its protocol in a second `close`, and then most of its methods fail.
        if self.transport is not None and (action[0] != "close" or not self.transport.is_closing()):
            super().act(action)

    def called(self, call, *what):
        if not call.startswith(("pause_writing", "resume_writing")):
            super().called(call, *what)

    def size(self, number):
        """Not recorded."""

    def state(self):
        return self.transport.is_closing(), self.connections[0].received

    def peer_sends(self, number, size):
        sent = SecureServer.peer_sends(self, size)
        arrival.await_data(self.peer, self.sock)
        time.sleep(POLLS)
        return sent

    def peer_reads_some(self, number, size):
        # A read returns at most a record, which may hold one write or several.
        super().peer_reads_some(number, size)


class Sending(Calls, asyncio.DatagramProtocol):
    def __init__(self, scenario, name):
        super().__init__(scenario, name)
        #: How many datagrams the peer has sent, and how many of them have come.
        self.sent, self.received = 0, 0

    def connection_lost(self, error):
        self.scenario.called(f"connection_lost {self.name}", self.scenario.describe(error))

    def datagram_received(self, data, sender):
        self.received += 1
        self.scenario.called(f"received {self.name}", data[:10])

    def error_received(self, error):
        self.scenario.called(f"error_received {self.name}", self.scenario.describe(error))


class DatagramWritesScenario(SocketPeer, Scenario):
    """Datagrams of several transports to one socket, which sees the order in which they were sent."""

    CALLS = ["received 0", "received 1", "received 2", "error_received 0"]
    ACTIONS = {
        "burst": 20, "alternate": 20, "habit": 10, "send": 10, "size": 3, "set_limits": 3, "close": 1, "abort": 1,
        "peer_sends": 20,
    }  # fmt: skip

    def __init__(self, seed, loop):
        super().__init__(seed, loop)
        self.transports, self.protocols, self.serial = [], [], itertools.count()
        #: How many datagrams must have arrived at the peer.
        self.expected = 0

    async def begin(self):
        self.peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.peer.bind(("127.0.0.1", 0))
        self.peer.setblocking(False)
        for name in range(3):
            # The last one has no fixed address.
            where = {"remote_addr": self.peer.getsockname()} if name < 2 else {"local_addr": ("127.0.0.1", 0)}
            transport, protocol = await self.loop.create_datagram_endpoint(
                lambda name=name: Sending(self, name), **where
            )
            self.protocols.append(protocol)
            self.transports.append((transport, None if name < 2 else self.peer.getsockname()))
        self.addresses = [transport.get_extra_info("sockname") for transport, _ in self.transports]

    def choose_some(self, depth):
        actions = [self.choose(depth) for _ in range(self.random.randrange(1, 5))]
        # Ours receives several datagrams of a transport at once. So in which order those of several transports are
        # received is not the same, and what a protocol schedules runs later.
        actions = [action for action in actions if action[0] not in ("peer_sends", "close", "abort")]
        # While callbacks schedule callbacks, ours polls its sockets one or more iterations later than asyncio.
        return [action for action in actions if action[0] not in ("call_soon", "habit")]

    def state(self):
        return [transport.is_closing() for transport, _ in self.transports]

    async def settle(self):
        await super().settle()
        deadline = time.monotonic() + arrival.PATIENCE
        while not self.all_received() and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        received = []
        arrival.until(lambda: self.receives(received))
        self.expected = 0
        self.record("peer received", received)

    def all_received(self):
        pairs = zip(self.transports, self.protocols)
        return all(transport.is_closing() or one.received >= one.sent for (transport, _), one in pairs)

    def receives(self, received):
        """Receives for the peer. Returns whether all datagrams have arrived that must."""
        try:
            while True:
                data = self.peer.recv(1 << 16)
                received.append((len(data), data[:10]))
        except BlockingIOError:
            # Whether an empty datagram is sent depends on the version of asyncio.
            return sum(size > 0 for size, _ in received) >= self.expected

    def leave(self):
        for transport, _ in self.transports:
            transport.abort()

    def end(self):
        super().end()
        self.transports.clear()
        self.protocols.clear()

    def put(self, number, size, kind):
        transport, address = self.transports[number]
        # asyncio's sendto raises AttributeError once the connection is lost.
        if not transport.is_closing():
            data = kind(bytearray((b"%d " % next(self.serial) + bytes(size))[:size]))
            self.expected += 0 < size <= LONGEST
            transport.sendto(data, address)
            if kind is not bytes:
                data[:] = b"x" * size

    def send(self, number, size, kind):
        self.put(number, size, kind)

    def choose_send(self):
        return self.random.randrange(3), self.random.choice([*SIZES, 0, 3, 70_000]), self.random.choice(KINDS)

    def burst(self, number, sizes, kind):
        for size in sizes:
            self.put(number, size, kind)

    def choose_burst(self):
        sizes = [self.random.choice([*SIZES, 0]) for _ in range(self.random.choice([2, 2, 3, 5]))]
        return self.random.randrange(3), sizes, self.random.choice(KINDS)

    def habit(self, number, sizes, kind):
        for _ in range(3):
            self.loop.call_soon(self.act, ("burst", number, sizes, kind))

    choose_habit = choose_burst

    def alternate(self, pieces):
        for number, size in pieces:
            self.put(number, size, bytes)

    def choose_alternate(self):
        sizes = [3, 100, 70_000][: self.random.choice([2, 2, 3])]
        count = self.random.randrange(2, 8)
        return ([(self.random.randrange(3), self.random.choice(sizes)) for _ in range(count)],)

    def size(self, number):
        return self.transports[number][0].get_write_buffer_size()

    def choose_size(self):
        return (self.random.randrange(3),)

    def set_limits(self, number, high):
        self.transports[number][0].set_write_buffer_limits(high)

    def choose_set_limits(self):
        return self.random.randrange(3), self.random.choice([None, 0, 1, 100])

    def close(self, number):
        self.transports[number][0].close()

    def abort(self, number):
        self.transports[number][0].abort()

    choose_close = choose_abort = choose_size

    def peer_sends(self, number, count):
        for index in range(count):
            try:
                self.peer.sendto(b"%d" % index, self.addresses[number])
            except OSError as error:
                return type(error).__name__
            self.protocols[number].sent += 1

    def choose_peer_sends(self):
        return self.random.randrange(3), self.random.choice([1, 1, 2, 5])
