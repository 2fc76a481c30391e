"""Scenarios for a TCP or Unix connection."""

import asyncio
import socket

from .peer import SocketPeer
from .scenario import Scenario
from .writing import SMALL, Calls, Writing

BIG = 3_000_000


class Plain(Calls, asyncio.Protocol):
    def data_received(self, data):
        assert type(data) is bytes
        self.scenario.called_with_data(len(data))

    def eof_received(self):
        self.scenario.called("eof_received", self.name)
        return self.name == "half open"


class WithoutEnd(Calls, asyncio.Protocol):
    def data_received(self, data):
        self.scenario.called_with_data(len(data))


class Buffered(Calls, asyncio.BufferedProtocol):
    def __init__(self, scenario, name):
        super().__init__(scenario, name)
        # A size that no message fills exactly: over TLS asyncio would then see the end one iteration later.
        self.buffer = bytearray(3333)

    def get_buffer(self, size):
        return self.buffer

    def buffer_updated(self, count):
        self.scenario.called_with_data(count)

    def eof_received(self):
        self.scenario.called("eof_received", self.name)


PROTOCOLS = {"plain": Plain, "half open": Plain, "without end": WithoutEnd, "buffered": Buffered}


class StreamScenario(Writing, SocketPeer, Scenario):
    CALLS = ["received", "received", "eof_received", "pause_writing", "resume_writing", "connection_lost"]
    ACTIONS = {
        "write": 20, "writelines": 4, "write_wrongly": 2, "write_eof": 3, "can_write_eof": 1, "close": 2, "abort": 2,
        "pause_reading": 6, "resume_reading": 7, "is_reading": 2, "is_closing": 1, "limits": 1, "set_limits": 4,
        "set_protocol": 4, "same_protocol": 1, "extra": 1, "peer_sends": 14, "peer_receives": 8, "peer_ends": 2,
        "peer_closes": 2, "peer_resets": 1,
    }  # fmt: skip

    async def begin(self):
        sock, self.peer = self.pair()
        sock.setblocking(False)
        self.peer.setblocking(False)
        self.transport, _ = await self.loop.connect_accepted_socket(self.new_protocol, sock)

    def new_protocol(self, name=None):
        name = name or self.random.choice(list(PROTOCOLS))
        self.protocol = PROTOCOLS[name](self, name)
        return self.protocol

    # -- the transport -----------------------------------------------------------------------------------------------

    def choose_write(self):
        kind = self.random.choice([bytes, bytes, bytearray, memoryview])
        return self.random.choice([*SMALL, 0, BIG] if self.random.random() < 0.4 else SMALL), kind

    def writelines(self, sizes):
        # Since 3.12 asyncio's writelines fails on a lost connection, and never removes an empty buffer.
        if not self.transport.is_closing():
            super().writelines(sizes)

    def set_protocol(self, name):
        self.transport.set_protocol(self.new_protocol(name))

    def choose_set_protocol(self):
        return (self.random.choice(list(PROTOCOLS)),)


class UnixScenario(StreamScenario):
    def pair(self):
        return socket.socketpair()


class TcpScenario(StreamScenario):
    def pair(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sock = socket.create_connection(listener.getsockname())
            peer, _ = listener.accept()
        # Without Nagle's algorithm, so that everything sent arrives at once.
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        return sock, peer

    def write(self, size, kind):
        # Write little to a closed peer: how much of it the kernel takes depends on when the reset arrives.
        super().write(min(size, 5000) if self.peer.fileno() < 0 else size, kind)
