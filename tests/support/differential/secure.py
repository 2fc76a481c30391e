"""Scenarios for a TLS connection. The peer is Python's SSLSocket."""

import asyncio
import functools
import os
import socket
import ssl

from .streams import StreamScenario, TcpScenario
from .writing import SMALL


@functools.cache
def contexts(tls):
    """The contexts of the server and of the client. To make them takes longer than the rest of a scenario."""
    return tls.server(), tls.client()


class SecureScenario(TcpScenario):
    ACTIONS = {
        **{name: often for name, often in StreamScenario.ACTIONS.items() if name != "writelines"},
        "peer_says_goodbye": 4, "peer_sends_nonsense": 1,
    }  # fmt: skip

    def __init__(self, seed, loop, tls):
        super().__init__(seed, loop)
        self.server, self.client = contexts(tls)

    async def begin(self):
        sock, plain = self.pair()
        for one in sock, plain:
            one.setblocking(False)
        connecting = self.loop.create_task(self.connect(sock))
        self.peer = self.wrapped(plain)
        if self.random.random() < 0.1:
            await self.settle()
            self.act((self.random.choice(["peer_closes", "peer_resets", "peer_ends", "peer_sends_nonsense"]),))
        try:
            while not connecting.done() and self.shakes_hands():
                await asyncio.sleep(0.0005)
        except (OSError, ValueError):
            pass
        self.transport, _ = await connecting

    def shakes_hands(self):
        """Returns False once the handshake is done."""
        try:
            self.peer.do_handshake()
        except ssl.SSLWantReadError:
            return True
        return False

    async def finish(self):
        if not self.transport.is_closing():
            for _ in range(3):
                self.act(("peer_receives",))
                await self.settle()
            self.record("state", *self.state())

    def act(self, action):
        # asyncio's transport drops its protocol in a second `close`, and then most of its methods fail.
        if action[0] != "close" or not self.transport.is_closing():
            super().act(action)

    # Writes are small: asyncio encrypts everything at once and does not pause; ours keeps what the socket does not take, and pauses.
    def choose_write(self):
        return self.random.choice([*SMALL, 0, 60_000]), self.random.choice([bytes, bytearray, memoryview])

    # Never 0: asyncio's SSLProtocol treats that limit as never reached.
    def choose_set_limits(self):
        return self.random.choice([None, 1, 100, 100_000]), self.random.choice([None, None, 1, 100, 200_000])

    def choose_extra(self):
        return (self.random.choice(["ssl_object", "peercert", "cipher", "compression", "sslcontext", "sockname"]),)

    # -- the peer ----------------------------------------------------------------------------------------------------

    def peer_sends(self, size):
        try:
            return self.peer.send(bytes(size)) == size
        except (OSError, ValueError):
            return "error"

    def peer_receives(self):
        try:
            while self.peer.recv(1 << 16):
                pass
            return "end"
        except ssl.SSLWantReadError:
            return None
        except (OSError, ValueError) as error:
            return getattr(error, "reason", "error")

    def peer_ends(self):
        # Shut down below TLS, without a close_notify: SSLSocket's own method would continue in plain text.
        try:
            socket.socket.shutdown(self.peer, socket.SHUT_WR)
        except OSError as error:
            return type(error).__name__

    def peer_says_goodbye(self):
        try:
            self.peer.unwrap()
        except (OSError, ValueError):
            pass

    def peer_sends_nonsense(self):
        if self.peer.fileno() >= 0:
            os.write(self.peer.fileno(), b"nonsense")


class SecureServer(SecureScenario):
    async def connect(self, sock):
        return await self.loop.connect_accepted_socket(
            self.new_protocol, sock, ssl=self.server, ssl_handshake_timeout=10, ssl_shutdown_timeout=60
        )

    def wrapped(self, plain):
        return self.client.wrap_socket(
            plain, server_hostname="localhost", do_handshake_on_connect=False, suppress_ragged_eofs=False
        )


class SecureClient(SecureScenario):
    async def connect(self, sock):
        return await self.loop.create_connection(
            self.new_protocol,
            sock=sock,
            ssl=self.client,
            server_hostname="localhost",
            ssl_handshake_timeout=10,
            ssl_shutdown_timeout=60,
        )

    def wrapped(self, plain):
        return self.server.wrap_socket(
            plain, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
