"""Scenarios for one end of a pipe, or a socket used as one."""

import asyncio
import os
import re
import socket

from .scenario import Raised, Scenario
from .writing import SMALL, Calls, Writing

#: Several times the capacity of a pipe.
BIG = 200_000


class End(Calls, asyncio.Protocol):
    def connection_made(self, transport):
        self.scenario.begins(transport)
        super().connection_made(transport)

    def data_received(self, data):
        self.scenario.called_with_data(len(data))

    def eof_received(self):
        self.scenario.called("eof_received", self.name)
        return self.name == "half open"


class FailingAtFirst(End):
    def connection_made(self, transport):
        super().connection_made(transport)
        raise Raised


class FailingAtLast(End):
    def connection_lost(self, error):
        super().connection_lost(error)
        raise Raised


PROTOCOLS = {"plain": End, "half open": End, "failing at first": FailingAtFirst, "failing at last": FailingAtLast}


class Peer:
    """The other end: a file descriptor, of a pipe or a socket."""

    def __init__(self, fd):
        self.fd = fd
        os.set_blocking(fd, False)

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class PipeScenario(Scenario):
    async def begin(self):
        if self.random.random() < 0.4:
            ours, peer = socket.socketpair()
            self.peer = Peer(peer.detach())
        else:
            reading, writing = os.pipe()
            ours, peer = (reading, writing) if self.READS else (writing, reading)
            self.peer, ours = Peer(peer), open(ours, "rb" if self.READS else "wb", 0)
        if self.random.random() < 0.3:
            self.planned["connection_made"] = self.choose_first()
        await self.connect(ours)

    def new_protocol(self, name=None):
        name = name or self.random.choice(["plain", *PROTOCOLS])
        self.protocol = PROTOCOLS[name](self, name)
        return self.protocol

    def begins(self, transport):
        self.transport = transport

    def choose_first(self):
        return self.choose_some(1)

    def set_protocol(self, name):
        self.transport.set_protocol(self.new_protocol(name))

    def choose_set_protocol(self):
        return (self.random.choice(list(PROTOCOLS)),)

    def shown(self):
        # asyncio's repr says twice that a closed pipe is closed. Ours polls an aborted one until the end of the iteration.
        return re.sub(r"fd=\d+( closed)?", "fd", re.sub(r"^<\S+", "<", repr(self.transport))).replace("polling", "idle")

    def choose_extra(self):
        return (self.random.choice(["pipe", "nothing"]),)

    def peer_closes(self):
        self.peer.close()

    def peer_ends(self):
        sock = None
        try:
            sock = socket.socket(fileno=self.peer.fd)
            sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            return type(error).__name__
        finally:
            if sock is not None:
                sock.detach()


class ReadPipeScenario(PipeScenario):
    READS = True
    CALLS = ["received", "received", "received", "eof_received", "connection_lost"]
    ACTIONS = {
        "close": 2, "is_closing": 1, "is_reading": 2, "pause_reading": 6, "resume_reading": 7, "set_protocol": 4,
        "same_protocol": 1, "extra": 1, "shown": 1, "peer_sends": 20, "peer_closes": 3, "peer_ends": 1,
    }  # fmt: skip

    async def connect(self, ours):
        return await self.loop.connect_read_pipe(self.new_protocol, ours)

    def state(self):
        return self.transport.is_closing(), self.transport.is_reading()

    def leave(self):
        self.transport.close()

    def peer_sends(self, size):
        try:
            return os.write(self.peer.fd, bytes(size)) == size
        except OSError as error:
            return type(error).__name__

    def choose_peer_sends(self):
        return (self.random.choice([*SMALL, 60_000]),)


class WritePipeScenario(Writing, PipeScenario):
    READS = False
    CALLS = ["pause_writing", "resume_writing", "connection_lost"]
    ACTIONS = {
        "write": 20, "write_wrongly": 2, "writelines": 2, "write_eof": 2, "can_write_eof": 1, "close": 2, "abort": 2,
        "is_closing": 1, "limits": 1, "set_limits": 4, "set_protocol": 3, "same_protocol": 1, "extra": 1, "shown": 1,
        "peer_receives": 12, "peer_sends": 1, "peer_closes": 2, "peer_ends": 1,
    }  # fmt: skip

    async def connect(self, ours):
        return await self.loop.connect_write_pipe(self.new_protocol, ours)

    def begins(self, transport):
        super().begins(transport)
        transport.set_write_buffer_limits(65536, 0)

    # After a close in resume_writing asyncio ends the transport twice, the second time without a protocol.
    def handler_called(self, loop, context):
        if isinstance(context.get("exception"), AttributeError) and type(loop).__module__.startswith("asyncio."):
            self.comparable = False
        super().handler_called(loop, context)

    # asyncio's transport goes on watching a pipe that ends in connection_made, and fails.
    def choose_first(self):
        return [("write", *self.choose_write())]

    # asyncio's transport calls resume_writing only when all is written, whatever the lower limit is.
    def choose_set_limits(self):
        return self.random.choice([None, 0, 1, 100, 100_000]), 0

    def state(self):
        return self.transport.is_closing(), self.transport.get_write_buffer_size()

    def leave(self):
        self.abort()

    def choose_write(self):
        kind = self.random.choice([bytes, bytes, bytearray, memoryview])
        return self.random.choice([*SMALL, 0, 60_000, BIG]), kind

    def abort(self):
        # Once the end is scheduled, abort() of asyncio's transport schedules connection_lost again, which fails.
        if not self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()

    def peer_receives(self):
        try:
            while os.read(self.peer.fd, 1 << 20):
                pass
            return "end"
        except OSError as error:
            return type(error).__name__

    def peer_sends(self):
        try:
            os.write(self.peer.fd, b"x")
        except OSError as error:
            return type(error).__name__
