"""Scenarios for a UDP transport."""

import asyncio
import socket

from .scenario import Raised, Scenario
from .writing import Calls


class Datagrams(Calls, asyncio.DatagramProtocol):
    def datagram_received(self, data, sender):
        self.scenario.called("received", len(data), self.scenario.cleaned(sender))
        if self.name == "failing":
            raise Raised

    def error_received(self, error):
        self.scenario.called("error_received", self.name, self.scenario.describe(error))


class DatagramScenario(Scenario):
    CALLS = ["received", "received", "error_received", "connection_lost"]
    ACTIONS = {
        "sendto": 30, "send_wrongly": 3, "close": 3, "abort": 2, "is_closing": 2, "limits": 2, "set_limits": 3, "extra": 2,
        "peer_sends": 20, "peer_receives": 12, "peer_closes": 2,
    }  # fmt: skip

    def is_reading(self):
        """Not recorded: asyncio's datagram transport in early 3.11 releases has no is_reading."""

    async def begin(self):
        self.peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.peer.bind(("127.0.0.1", 0))
        self.peer.setblocking(False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            closed.bind(("127.0.0.1", 0))
            self.addresses = {"none": None, "peer": self.peer.getsockname(), "nobody": closed.getsockname()}
        self.addresses |= {"port 0": ("127.0.0.1", 0), "text": "text"}
        name = self.random.choice(["plain", "plain", "failing"])
        where = "remote_addr" if self.random.random() < 0.4 else "local_addr"
        address = self.addresses["peer"] if where == "remote_addr" else ("127.0.0.1", 0)
        self.transport, _ = await self.loop.create_datagram_endpoint(
            lambda: Datagrams(self, name), **{where: address}
        )
        self.address = self.transport.get_extra_info("sockname")

    # -- the transport -----------------------------------------------------------------------------------------------

    def sendto(self, size, where, kind):
        # asyncio's sendto raises AttributeError once the connection is lost.
        if not self.transport.is_closing():
            self.transport.sendto(kind(bytes(size)), self.addresses[where])

    def choose_sendto(self):
        where = self.random.choice(["none", "none", "peer", "peer", "peer", *self.addresses])
        return self.random.choice([0, 1, 100, 2000, 65_000, 70_000]), where, self.random.choice([bytes, bytearray, memoryview])

    def send_wrongly(self, data):
        if not self.transport.is_closing():
            self.transport.sendto(data, self.addresses["peer"])

    def choose_send_wrongly(self):
        return (self.random.choice(["text", None, 3]),)

    # -- the peer ----------------------------------------------------------------------------------------------------

    def peer_sends(self, size):
        try:
            return self.peer.sendto(bytes(size), self.address) == size
        except OSError as error:
            return type(error).__name__

    def choose_peer_sends(self):
        return (self.random.choice([0, 1, 100, 5000]),)

    def peer_receives(self):
        sizes = []
        try:
            while True:
                sizes.append(len(self.peer.recv(1 << 17)))
        except BlockingIOError:
            return sizes
        except OSError as error:
            return type(error).__name__

    def peer_closes(self):
        self.peer.close()
