"""The peer of a scenario when it is a plain socket."""

import socket
import struct
import time

from .writing import SMALL

#: A busy loop polls at least this often, in seconds. asyncio polls in every iteration, and sees at once what a peer in the
#: same process has sent.
POLLS = 0.00015


class SocketPeer:
    """Mixin for scenarios whose peer is the non-blocking socket `self.peer`."""

    def peer_sends(self, data):
        """Sends the data, or as many zeros as a number says."""
        data = bytes(data)
        try:
            return self.peer.send(data) == len(data)
        except OSError as error:
            return type(error).__name__
        finally:
            time.sleep(POLLS)

    def choose_peer_sends(self):
        return (self.random.choice(SMALL),)

    def peer_receives(self):
        """Reads what is there, and returns only how the stream ended: how much arrived depends on the kernel's buffers."""
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
