"""Scenarios for StreamReader and StreamWriter: asyncio's, or on our loop also wakeloop's."""

import asyncio
import functools
import re
import socket
import zlib

import wakeloop

from .peer import SocketPeer
from .scenario import Raised, Scenario
from .tasks import Tasks
from .writing import SMALL, Writing

#: More than a Unix socket buffers.
BIG = 300_000
LIMITS = [1, 10, 100, 5000, 65_536]
COUNTS = [0, 1, 2, 10, 1000, 5000, 20_000]
SEPARATORS = [b"\n", b"ab", b"aba", b"", (b"ab", b"\n"), "text", None]


class ConversationScenario(Tasks, Writing, SocketPeer, Scenario):
    CALLS = ["read", "read", "drained", "closed"]
    ACTIONS = {
        "read": 14, "readexactly": 10, "readline": 10, "readuntil": 10, "iterate": 6, "read_wrongly": 2, "cancel": 6,
        "cancel_last": 4, "at_eof": 3, "exception": 2, "feed_data": 2, "feed_eof": 1, "set_exception": 1, "shown": 2,
        "write": 14, "writelines": 4, "write_wrongly": 2, "drain": 10, "write_eof": 2, "can_write_eof": 1, "close": 3,
        "abort": 1, "is_closing": 1, "wait_closed": 4, "extra": 1, "set_limits": 4, "pause_reading": 2,
        "resume_reading": 2, "peer_sends": 40, "peer_receives": 8, "peer_ends": 3, "peer_closes": 2, "peer_resets": 1,
    }  # fmt: skip

    def __init__(self, seed, loop, ours=False):
        super().__init__(seed, loop)
        self.streams = wakeloop if ours and isinstance(loop, wakeloop.EventLoop) else asyncio
        self.tasks, self.server = [], None

    async def begin(self):
        limit = self.random.choice(LIMITS)
        kind = self.random.choice(["pair", "pair", "connected", "served", "served by a task", "failing"])
        self.record("kind", kind, limit)
        if kind == "pair":
            sock, self.peer = socket.socketpair()
            self.reader, self.writer = await self.streams.open_connection(sock=sock, limit=limit)
        elif kind == "connected":
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.reader, self.writer = await self.streams.open_connection(*listener.getsockname(), limit=limit)
                self.peer, _ = listener.accept()
        else:
            made = self.loop.create_future()
            called = getattr(self, f"call_{kind.replace(' ', '_')}")
            self.server = await self.streams.start_server(
                functools.partial(called, made), "127.0.0.1", 0, limit=limit
            )
            self.peer = socket.create_connection(self.server.sockets[0].getsockname())
            self.reader, self.writer = await made
        self.peer.setblocking(False)
        if self.peer.family == socket.AF_INET:
            self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.transport = self.writer.transport

    def call_served(self, made, reader, writer):
        made.set_result((reader, writer))

    async def call_served_by_a_task(self, made, reader, writer):
        made.set_result((reader, writer))
        await asyncio.sleep(100)

    async def call_failing(self, made, reader, writer):
        made.set_result((reader, writer))
        raise Raised

    def cleaned(self, text):
        text = re.sub(r"<StreamWriter.*", "<StreamWriter>", super().cleaned(text))
        return re.sub(r" created at [^ >]*", "", text)

    def state(self):
        return *super().state(), sum(not task.done() for task in self.tasks), self.reader.at_eof()

    def leave(self):
        for task in self.tasks:
            task.cancel()
        super().leave()
        if self.server is not None:
            self.server.close()

    def end(self):
        super().end()
        self.tasks.clear()
        self.reader = self.writer = self.server = None

    # -- the reader --------------------------------------------------------------------------------------------------

    def reads(self, name, seconds, method, *arguments):
        async def read():
            async with asyncio.timeout(seconds):
                data = await method(*arguments)
            assert type(data) is bytes
            self.act_inside("read")
            return len(data), zlib.crc32(data)

        self.spawn(name, read)

    def choose_seconds(self):
        return self.random.choice([None, None, None, 100, 0])

    def read(self, seconds, count):
        self.reads("read", seconds, self.reader.read, count)

    def choose_read(self):
        return self.choose_seconds(), self.random.choice([-1, *COUNTS])

    def readexactly(self, seconds, count):
        self.reads("readexactly", seconds, self.reader.readexactly, count)

    choose_readexactly = choose_read

    def readline(self, seconds):
        self.reads("readline", seconds, self.reader.readline)

    def choose_readline(self):
        return (self.choose_seconds(),)

    def readuntil(self, seconds, separator):
        self.reads("readuntil", seconds, self.reader.readuntil, separator)

    def choose_readuntil(self):
        return self.choose_seconds(), self.random.choice(SEPARATORS)

    def iterate(self, seconds):
        self.reads("iterate", seconds, self.reader.__anext__)

    choose_iterate = choose_readline

    def read_wrongly(self, name, count):
        self.reads(name, None, getattr(self.reader, name), count)

    def choose_read_wrongly(self):
        return self.random.choice(["read", "readexactly"]), self.random.choice(["text", None, 1.5, 1 << 70])

    def at_eof(self):
        return self.reader.at_eof()

    def exception(self):
        return self.describe(self.reader.exception())

    def feed_data(self, data):
        self.reader.feed_data(data)

    def choose_feed_data(self):
        return (self.random.choice([b"", b"ab\n", bytearray(b"ba"), b"a" * 500]),)

    def feed_eof(self):
        self.reader.feed_eof()

    def set_exception(self):
        self.reader.set_exception(Raised("set"))

    def shown(self):
        return self.cleaned(repr(self.reader))

    # -- the writer --------------------------------------------------------------------------------------------------

    def write(self, size, kind):
        # Write little to a closed peer: how much of it the kernel takes depends on when the reset arrives.
        self.writer.write(kind(bytes(min(size, 5000) if self.peer.fileno() < 0 else size)))

    def choose_write(self):
        return self.random.choice([0, *SMALL, *SMALL, BIG]), self.random.choice([bytes, bytearray, memoryview])

    def writelines(self, sizes):
        # Since 3.12 asyncio's writelines fails on a lost connection, and never removes an empty buffer.
        if not self.transport.is_closing():
            self.writer.writelines([bytes(size) for size in sizes])

    def write_wrongly(self, data):
        self.writer.write(data)

    def write_eof(self):
        self.writer.write_eof()

    def can_write_eof(self):
        return self.writer.can_write_eof()

    def waits(self, name, seconds, method, call):
        async def waited():
            async with asyncio.timeout(seconds):
                await method()
            self.act_inside(call)

        self.spawn(name, waited)

    def drain(self, seconds):
        self.waits("drain", seconds, self.writer.drain, "drained")

    choose_drain = choose_readline

    def close(self):
        self.writer.close()

    def is_closing(self):
        return self.writer.is_closing()

    def wait_closed(self, seconds):
        self.waits("wait_closed", seconds, self.writer.wait_closed, "closed")

    choose_wait_closed = choose_readline

    def extra(self, name):
        return type(self.writer.get_extra_info(name, "none")).__name__

    def choose_peer_sends(self):
        return (bytes(self.random.choices(b"ab\n", [10, 10, self.random.choice([0, 1, 5])], k=self.random.choice(SMALL))),)
