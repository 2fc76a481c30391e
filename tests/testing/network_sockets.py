"""Plain sockets of a simulated network, for tests whose peers are plain sockets.

Without latency the simulated kernel delivers at once, so a program may use the sockets as it uses those of the loopback.
"""

import asyncio
import contextlib
import socket
import time
from unittest import mock

from tests.support.differential import conversations, datagrams, peer, servers, sockets, streams
from wakeloop.testing.network._socket import Calls, SimulatedSocket

MODULES = (conversations, datagrams, peer, servers, sockets, streams)


def network():
    """The network of the running loop, None if it has none."""
    return getattr(asyncio.get_running_loop(), "network", None)


class _SocketType(type):
    def __instancecheck__(cls, it):
        return isinstance(it, (Calls, socket.socket))

    def __call__(cls, family=socket.AF_INET, type=socket.SOCK_STREAM, proto=0):
        if network() is None:
            return socket.socket(family, type, proto)
        return SimulatedSocket(network(), family, type, proto)


class _Socket(metaclass=_SocketType):
    pass


class Sockets:
    """The socket module. If the running loop has a network, the sockets are on it."""

    socket = _Socket

    def __getattr__(self, name):
        return getattr(socket, name)

    @staticmethod
    def socketpair():
        if network() is None:
            return socket.socketpair()
        with _Socket(socket.AF_UNIX) as listener:
            listener.bind("")
            listener.listen(1)
            one = _Socket(socket.AF_UNIX)
            one.connect(listener.getsockname())
            other, _ = listener.accept()
        # The two ends of a pair have no names.
        for end in one, other:
            end._endpoint.path = end._endpoint._peer_name = ""
        return one, other

    @staticmethod
    def create_server(address):
        if network() is None:
            return socket.create_server(address)
        listener = _Socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        return listener

    @staticmethod
    def create_connection(address):
        if network() is None:
            return socket.create_connection(address)
        sock = _Socket()
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(address)
        return sock


class Times:
    """The time module, without waits for the poll of a loop that simulates it."""

    @staticmethod
    def sleep(seconds):
        if network() is None:
            time.sleep(seconds)


@contextlib.contextmanager
def simulated_sockets():
    """Gives the scenarios of `tests.support.differential` simulated sockets where the loop has a network."""
    close, warns = sockets.SockScenario.close, servers.ServerScenario.warns

    def close_simulated(scenario):
        # The scenario keeps the number of a closed descriptor in use. Simulated ones are not used again.
        scenario.sock.close() if isinstance(scenario.sock, Calls) else close(scenario)

    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "socket", Sockets()))
        stack.enter_context(mock.patch.object(peer, "time", Times()))
        stack.enter_context(mock.patch.object(sockets.SockScenario, "close", close_simulated))
        names = "unclosed <SimulatedSocket"
        stack.enter_context(
            mock.patch.object(
                servers.ServerScenario, "warns", lambda it, text: warns(it, text) and not text.startswith(names)
            )
        )
        yield
