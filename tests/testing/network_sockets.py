"""Plain sockets of a simulated network, for tests whose peers are plain sockets.

Without latency the simulated kernel delivers at once, so a program may use the sockets as it uses those of the loopback.
"""

import asyncio
import contextlib
import socket
from unittest import mock

from tests.support.differential import conversations, datagrams, peer, servers, sockets, streams
from wakeloop.testing.network._socket import Calls, SimulatedSocket

MODULES = (conversations, datagrams, peer, servers, sockets, streams)


class _SocketType(type):
    def __instancecheck__(cls, it):
        return isinstance(it, Calls)

    def __call__(cls, family=socket.AF_INET, type=socket.SOCK_STREAM, proto=0):
        return SimulatedSocket(asyncio.get_running_loop().network, family, type, proto)


class _Socket(metaclass=_SocketType):
    pass


class Sockets:
    """The socket module, with sockets of the running loop's network."""

    socket = _Socket

    def __getattr__(self, name):
        return getattr(socket, name)

    @staticmethod
    def socketpair():
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
        listener = _Socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        return listener

    @staticmethod
    def create_connection(address):
        sock = _Socket()
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(address)
        return sock


@contextlib.contextmanager
def simulated_sockets():
    """Gives the scenarios of `tests.support.differential` simulated sockets."""
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "socket", Sockets()))
        # A peer in the same process need not wait for the loop's poll.
        stack.enter_context(mock.patch.object(peer, "time", mock.Mock()))
        # As those of real sockets.
        stack.enter_context(mock.patch.object(servers.ServerScenario, "warns", lambda _, text: "unclosed" not in text))
        # It keeps the number of a closed descriptor in use; simulated ones are not used again.
        stack.enter_context(mock.patch.object(sockets.SockScenario, "close", lambda scenario: scenario.sock.close()))
        yield
