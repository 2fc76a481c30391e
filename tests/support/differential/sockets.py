"""Scenarios for a socket used with the loop's `sock_*` methods."""

import asyncio
import os
import re
import socket

from .peer import SocketPeer
from .scenario import Scenario
from .tasks import Tasks
from .writing import SMALL

#: More than a Unix socket buffers, and less than twice that.
BIG = 300_000
SIZES = [0, 1, 10, 1000, 70_000]
WRONG = ["text", None, -1, 1.5, 1 << 70, b"bytes", []]
BUFFERS = {
    "bytearray": bytearray,
    "memoryview": lambda size: memoryview(bytearray(size)),
    "bytes": bytes,
    "every second": lambda size: memoryview(bytearray(2 * size))[::2],
}
METHODS = {"recv": 1, "recv_into": 1, "recvfrom": 1, "recvfrom_into": 2, "sendall": 1, "sendto": 2, "accept": 0, "connect": 1}


class SockScenario(Tasks, SocketPeer, Scenario):
    CALLS = ["reader", "writer"]
    ACTIONS = {
        "recv": 20, "recv_into": 10, "recvfrom": 6, "recvfrom_into": 6, "sendall": 20, "sendto": 6, "accept": 3,
        "connect": 3, "wrongly": 4, "cancel": 8, "cancel_last": 4, "add_reader": 4, "add_writer": 4,
        "remove_reader": 2, "remove_writer": 2, "close": 2, "shut_down": 2, "peer_sends": 24,
        "peer_receives": 10, "peer_ends": 2, "peer_closes": 2, "peer_resets": 1,
    }  # fmt: skip

    def __init__(self, seed, loop):
        super().__init__(seed, loop)
        self.tasks, self.others = [], [open(os.devnull, "rb")]

    # -- the socket and its peer -------------------------------------------------------------------------------------

    async def begin(self):
        kind = self.random.choice(["unix", "unix", "tcp", "udp", "udp_connected", "listener", "unix_listener"])
        self.record("kind", kind)
        self.sock, self.peer = getattr(self, f"make_{kind}")()
        # Outside debug mode asyncio would block on a blocking socket.
        self.sock.setblocking(self.loop.get_debug() and self.random.random() < 0.1)
        self.peer.setblocking(False)

    def make_unix(self):
        return socket.socketpair()

    def make_tcp(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peer = socket.create_connection(listener.getsockname())
            sock, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, peer

    def make_udp(self):
        sock, peer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for one in sock, peer:
            one.bind(("127.0.0.1", 0))
        peer.connect(sock.getsockname())
        return sock, peer

    def make_udp_connected(self):
        sock, peer = self.make_udp()
        sock.connect(peer.getsockname())
        return sock, peer

    def make_listener(self):
        return socket.create_server(("127.0.0.1", 0)), socket.socket()

    def make_unix_listener(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("")
        sock.listen()
        return sock, socket.socket(socket.AF_UNIX)

    def state(self):
        return (sum(not task.done() for task in self.tasks),)

    def leave(self):
        for task in self.tasks:
            task.cancel()
        if self.transport is not None:
            self.transport.abort()

    def end(self):
        for one in self.sock, self.peer, *self.others:
            one.close()
        self.tasks.clear()
        self.transport = self.protocol = None
        self.planned.clear()

    def handler_called(self, loop, context):
        # asyncio fails to remove one of two watchers of a closed socket.
        if not isinstance(context.get("exception"), PermissionError):
            super().handler_called(loop, context)

    def cleaned(self, text):
        return re.sub(r"(<socket\.socket).*>", r"\1>", re.sub(r"raddr=b'[^']*'", "raddr", super().cleaned(text)))

    # -- calls that wait ---------------------------------------------------------------------------------------------

    def call(self, name, seconds, *arguments):
        """Calls `sock_{name}` with a timeout: None, 0, or more than it needs."""

        async def called():
            async with asyncio.timeout(seconds):
                return self.shown(await getattr(self.loop, f"sock_{name}")(self.sock, *arguments))

        self.spawn(name, called)

    def shown(self, result):
        """Describes a result: data by its length."""
        if isinstance(result, tuple):
            return self.shown(result[0]), self.cleaned(result[1])
        if isinstance(result, socket.socket):
            self.others.append(result)
            return type(result).__name__, result.gettimeout()
        return (type(result).__name__, len(result)) if isinstance(result, bytes) else self.cleaned(result)

    def choose_seconds(self):
        return self.random.choice([None, None, None, 100, 0])

    def choose_size(self):
        return self.random.choice(SIZES)

    def recv(self, seconds, size):
        self.call("recv", seconds, size)

    def choose_recv(self):
        return self.choose_seconds(), self.choose_size()

    def recvfrom(self, seconds, size):
        self.call("recvfrom", seconds, size)

    choose_recvfrom = choose_recv

    def recv_into(self, seconds, size, kind):
        self.call("recv_into", seconds, BUFFERS[kind](size))

    def choose_recv_into(self):
        return *self.choose_recv(), self.random.choice(["bytearray", "memoryview", *BUFFERS])

    def recvfrom_into(self, seconds, size, kind, count):
        self.call("recvfrom_into", seconds, BUFFERS[kind](size), count)

    def choose_recvfrom_into(self):
        return *self.choose_recv_into(), self.random.choice([0, 0, 1, 1000])

    def sendall(self, seconds, size, kind):
        self.call("sendall", seconds, BUFFERS[kind](size))

    def choose_sendall(self):
        return self.choose_seconds(), self.random.choice([0, *SMALL, BIG]), self.random.choice(list(BUFFERS))

    def sendto(self, seconds, size, kind, where):
        address = {"peer": self.peer_address(), "text": "text", "none": None, "pair": ("127.0.0.1", 0)}[where]
        self.call("sendto", seconds, BUFFERS[kind](size), address)

    def choose_sendto(self):
        return *self.choose_sendall(), self.random.choice(["peer", "peer", "peer", "text", "none", "pair"])

    def peer_address(self):
        return self.peer.getsockname() if self.peer.fileno() >= 0 else "gone"

    def accept(self, seconds):
        self.call("accept", seconds)

    def choose_accept(self):
        return (self.choose_seconds(),)

    def connect(self, seconds, where):
        """Another socket to ours, if it listens, or to nowhere."""
        address = {"ours": self.sock.getsockname() if self.sock.fileno() >= 0 else "gone", "none": None, "one": ("127.0.0.1",)}
        other = socket.socket(self.peer.family, self.peer.type)
        other.setblocking(False)
        self.others.append(other)

        async def connected():
            async with asyncio.timeout(seconds):
                return await self.loop.sock_connect(other, address[where])

        self.spawn("connect", connected)

    def choose_connect(self):
        return self.choose_seconds(), self.random.choice(["ours", "ours", "ours", "none", "one"])

    def wrongly(self, name, arguments):
        self.call(name, None, *arguments)

    def choose_wrongly(self):
        name = self.random.choice(list(METHODS))
        arguments = self.random.choices(WRONG, k=METHODS[name])
        # A thread would resolve the name, and its answer may come in any iteration.
        return name, [None if name == "connect" and one == "text" else one for one in arguments]

    # -- the socket --------------------------------------------------------------------------------------------------

    def close(self):
        number = self.sock.fileno()
        self.sock.close()
        if number >= 0:
            # Keep the number in use: asyncio would take a new socket with this number for the old one.
            os.dup2(self.others[0].fileno(), number)
            self.others.append(open(number, "rb", 0))

    def shut_down(self, how):
        # A datagram socket is then readable without end, but has nothing to receive: asyncio tries in each iteration, so it
        # notices when the socket is closed.
        if self.sock.type != socket.SOCK_DGRAM:
            self.sock.shutdown(how)

    def choose_shut_down(self):
        return (self.random.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]),)

    # Never with a closed socket: asyncio finds its earlier registration and reports nothing.
    def add_reader(self):
        if self.sock.fileno() >= 0:
            self.loop.add_reader(self.sock, self.ready, "reader")

    def add_writer(self):
        if self.sock.fileno() >= 0:
            self.loop.add_writer(self.sock, self.ready, "writer")

    # Only when no call waits: asyncio would remove the call's watcher too, and the call would wait forever.
    def remove_reader(self):
        if all(task.done() for task in self.tasks):
            return self.loop.remove_reader(self.sock)

    def remove_writer(self):
        if all(task.done() for task in self.tasks):
            return self.loop.remove_writer(self.sock)

    def ready(self, name):
        """Removes itself, because how often a watcher is called depends on timing."""
        removed = getattr(self.loop, f"remove_{name}")(self.sock)
        self.called(name, removed)
