"""The other end of a life's connection, where that is a plain socket."""

import socket
import struct

from .writing import SMALL


class SocketPeer:
    """For a life whose peer is the socket `self.peer`, which does not block."""

    def peer_sends(self, data):
        """The data, or so many zeros."""
        data = bytes(data)
        try:
            return self.peer.send(data) == len(data)
        except OSError as error:
            return type(error).__name__

    def choose_peer_sends(self):
        return (self.random.choice(SMALL),)

    def peer_receives(self):
        """How much there is depends on what the kernel took at once; that it ends does not."""
        try:
            while self.peer.recv(1 << 20):
                pass
            return "end"
        except BlockingIOError:
            return None
        except OSError as error:
            return type(error).__name__

    def peer_ends(self):
        try:
            self.peer.shutdown(socket.SHUT_WR)
        except OSError as error:
            return type(error).__name__

    def peer_closes(self):
        self.peer.close()

    def peer_resets(self):
        if self.peer.fileno() >= 0 and self.peer.type == socket.SOCK_STREAM:
            self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()
