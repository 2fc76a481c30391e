"""Waits for what the kernel does on its own, so that a scenario does not depend on how fast that is.

A busy machine delivers TCP's segments some time after the system call that has sent them. For everything else that the
scenarios use, that call has delivered the data when it returns.
"""

import fcntl
import select
import socket
import sys
import termios
import time

#: States of TCP after the peer has ended its direction of the stream: TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
ENDED = [6, 7, 8, 9, 11]
CLOSE = 7
#: After so many seconds a fault keeps the data back, and the record shows it.
PATIENCE = 5


def until(condition):
    """Blocks the thread until the condition is met. Returns whether it was."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.00005)
    return True


def is_tcp(sock):
    return sock.fileno() >= 0 and sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM


def await_data(sender, receiver):
    """Waits until everything has arrived that a socket has sent, the end of its stream included."""
    if is_tcp(sender) and is_tcp(receiver):
        until(lambda: is_acknowledged(sender, receiver))


def await_some_data(sender, receiver):
    """Waits until there is something to receive, or everything that a socket has sent was received."""
    if is_tcp(sender) and is_tcp(receiver):
        until(lambda: is_readable(receiver) or is_acknowledged(sender, receiver))


def is_readable(sock):
    return bool(select.select([sock], [], [], 0)[0])


def is_acknowledged(sender, receiver):
    # TCP may keep an acknowledgement for 40 milliseconds; this sends it.
    receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    unacknowledged = fcntl.ioctl(sender.fileno(), termios.TIOCOUTQ, bytes(4))
    return state(sender) == CLOSE or not int.from_bytes(unacknowledged, sys.byteorder)


def await_end(sock):
    """Waits until the end of the peer's stream has arrived, or a reset."""
    if is_tcp(sock):
        until(lambda: state(sock) in ENDED)


def await_reset(sock):
    if is_tcp(sock):
        until(lambda: state(sock) == CLOSE)


def state(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
