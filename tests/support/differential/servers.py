"""Scenarios for a server. Its clients are plain sockets."""

import asyncio
import itertools
import re
import socket
import struct

from .scenario import Raised, Scenario
from .tasks import Tasks
from .writing import SMALL


class Serving(asyncio.Protocol):
    """One connection. The program may act on it, or on the server, inside its callbacks."""

    def __init__(self, scenario, number):
        self.scenario, self.number = scenario, number

    def connection_made(self, transport):
        self.scenario.transports.append(transport)
        self.scenario.called("connection_made", self.number)

    def data_received(self, data):
        self.scenario.called("data_received", self.number, len(data))

    def eof_received(self):
        self.scenario.called("eof_received", self.number)
        return self.number % 3 == 0

    def connection_lost(self, error):
        self.scenario.called("connection_lost", self.number, self.scenario.describe(error))


class ServerScenario(Tasks, Scenario):
    CALLS = ["factory", "factory", "connection_made", "data_received", "eof_received", "connection_lost"]
    ACTIONS = {
        "connect": 30, "client_sends": 12, "client_receives": 6, "client_ends": 3, "client_closes": 6, "client_resets": 3,
        "close": 3, "close_clients": 2, "abort_clients": 2, "wait_closed": 3, "serve_forever": 3, "enter": 2,
        "start_serving": 2, "cancel": 3, "is_serving": 1, "shown": 1, "close_beneath": 1, "transport_closes": 3,
        "transport_aborts": 2, "transport_writes": 6,
    }  # fmt: skip

    def __init__(self, seed, loop):
        super().__init__(seed, loop)
        self.clients, self.transports, self.tasks, self.made = [], [], [], 0
        #: The last step in which a client acted.
        self.moved = None

    async def begin(self):
        if self.random.random() < 0.3:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind("")
        else:
            self.listener = socket.socket(socket.AF_INET)
            self.listener.bind(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        serving = self.random.random() < 0.8
        create = self.loop.create_unix_server if self.listener.family == socket.AF_UNIX else self.loop.create_server
        self.server = await create(self.new_protocol, sock=self.listener, start_serving=serving)
        assert self.server.get_loop() is self.loop
        self.notice_late_attach(self.server)

    def notice_late_attach(self, server):
        """Ends the comparison if the server is closed after it has accepted a connection, before it has the transport.

        asyncio then calls the factory and loses the connection to an AssertionError (gh-109564).
        """
        attach = server._attach

        def attach_or_notice(*transport):
            self.comparable = self.comparable and server._sockets is not None
            attach(*transport)

        server._attach = attach_or_notice

    def new_protocol(self):
        self.made += 1
        number = self.made
        try:
            self.called("factory", number)
        except Raised:
            # asyncio leaves the client waiting until the next garbage collection.
            self.clients[-1].close()
            raise
        return Serving(self, number)

    # asyncio does not close the socket of a connection whose factory fails.
    def warns(self, message):
        return not message.startswith("unclosed <socket")

    def plan(self, call, actions):
        # asyncio's transport fails if the server is closed before the transport is created.
        ends = ("close", "enter", "cancel")
        super().plan(call, [one for one in actions if call != "factory" or one[0] not in ends])

    def record(self, *what):
        super().record(*what)
        if what[:2] == ("called", "connection_lost"):
            ends = itertools.takewhile(lambda one: one[:3] == self.seen[-1][:3], reversed(self.seen))
            last = sorted(ends, key=lambda one: one[3])
            self.seen[-len(last) :] = last

    def cleaned(self, text):
        return re.sub(r"laddr=(b'[^']*'|address)", "laddr", super().cleaned(text))

    def state(self):
        return self.server.is_serving(), len(self.server.sockets)

    def leave(self):
        for client in self.clients:
            client.close()
        for transport in self.transports:
            transport.abort()
        for task in self.tasks:
            task.cancel()
        try:
            self.server.close()
        except ValueError:
            pass  # the listener was closed beneath it

    def end(self):
        for client in self.clients:
            client.close()
        self.listener.close()
        self.transports.clear()
        self.tasks.clear()
        self.planned.clear()
        self.server = None

    # -- the server --------------------------------------------------------------------------------------------------

    def close(self):
        self.server.close()

    # New in Python 3.13. The server keeps its transports in a set, so the order in which they end is not fixed.
    def close_clients(self):
        self.planned.pop("connection_lost", None)
        getattr(self.server, "close_clients", lambda: None)()

    def abort_clients(self):
        self.planned.pop("connection_lost", None)
        getattr(self.server, "abort_clients", lambda: None)()

    def is_serving(self):
        return self.server.is_serving(), len(self.server.sockets)

    def shown(self):
        return self.cleaned(repr(self.server))

    def close_beneath(self):
        self.listener.close()

    def wait_closed(self):
        self.spawn("wait_closed", self.server.wait_closed)

    def serve_forever(self):
        self.spawn("serve_forever", self.server.serve_forever)

    def start_serving(self):
        self.spawn("start_serving", self.server.start_serving)

    def enter(self, seconds):
        async def inside():
            async with self.server as server:
                assert server is self.server
                await asyncio.sleep(seconds)

        self.spawn("async with", inside)

    def choose_enter(self):
        return (self.random.choice([0, 0, 100]),)

    # -- its connections ---------------------------------------------------------------------------------------------

    def transport_closes(self, number):
        if self.transports:
            self.transports[number % len(self.transports)].close()

    choose_transport_closes = Tasks.choose_cancel

    def transport_aborts(self, number):
        if self.transports:
            self.transports[number % len(self.transports)].abort()

    choose_transport_aborts = Tasks.choose_cancel

    def transport_writes(self, number, size):
        if self.transports:
            self.transports[number % len(self.transports)].write(bytes(size))

    def choose_transport_writes(self):
        return self.random.randrange(10), self.random.choice(SMALL)

    # -- the clients -------------------------------------------------------------------------------------------------

    # At most one client acts in a step: asyncio calls the factory one iteration after accepting, ours at once.
    def choose_some(self, depth):
        actions = super().choose_some(depth)
        moves = [one for one in actions if self.is_move(one)]
        return moves[:1] or actions

    def is_move(self, action):
        return action[0] == "connect" or action[0].startswith("client_")

    def act(self, action):
        # Events of several sockets come in the poller's order, and asyncio accepts all waiting connections before it
        # creates their transports.
        if self.is_move(action):
            if self.moved == self.step:
                return
            self.moved = self.step
        super().act(action)

    def connect(self):
        client = socket.socket(self.listener.family)
        self.clients.append(client)
        client.setblocking(False)
        try:
            client.connect(self.address)
        except OSError as error:
            return type(error).__name__

    def client(self, number):
        return self.clients[number % len(self.clients)] if self.clients else socket.socket()

    def client_sends(self, number, size):
        try:
            return self.client(number).send(bytes(size))
        except OSError as error:
            return type(error).__name__

    choose_client_sends = choose_transport_writes

    def client_receives(self, number):
        count = 0
        client = self.client(number)
        try:
            while data := client.recv(1 << 16):
                count += len(data)
            return count, "end"
        except OSError as error:
            return count, type(error).__name__

    choose_client_receives = Tasks.choose_cancel

    def client_ends(self, number):
        try:
            self.client(number).shutdown(socket.SHUT_WR)
        except OSError as error:
            return type(error).__name__

    choose_client_ends = Tasks.choose_cancel

    def client_closes(self, number):
        self.client(number).close()

    choose_client_closes = Tasks.choose_cancel

    def client_resets(self, number):
        client = self.client(number)
        if client.fileno() >= 0 and client.family == socket.AF_INET:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    choose_client_resets = Tasks.choose_cancel
