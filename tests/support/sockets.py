"""Plain sockets for the other side of a transport, and for sock_*."""

import contextlib
import socket


@contextlib.contextmanager
def socketpair(kind=socket.SOCK_STREAM):
    """Two connected, non-blocking Unix sockets."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


@contextlib.contextmanager
def tcp_pair():
    """Two connected, non-blocking TCP sockets over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        yield one, other


@contextlib.contextmanager
def listener(backlog=100):
    """A non-blocking TCP listener on a free loopback port."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as sock:
        sock.setblocking(False)
        yield sock
