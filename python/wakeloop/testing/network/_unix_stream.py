"""The endpoint of a Unix stream socket. It has a path, and no network between its two ends.

The socket file is real, so that all that programs do with the path works: they test for it, unlink it, change its mode.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from typing import Any

from ._host import Address, Host, error
from ._link import Direction
from ._stream import State, StreamEndpoint

#: Linux's buffer of a Unix socket, in bytes (net.core.wmem_default).
_BUFFER = 212992
#: The longest path, in bytes (sun_path).
_LONGEST = 107


class UnixEndpoint(StreamEndpoint):
    """A stream socket of the family AF_UNIX, as in net/unix/af_unix.c."""

    _fails_before_end = True

    def __init__(self, network: Any, host: Host, family: int, proto: int = 0) -> None:
        super().__init__(network, host, family, proto)
        self.send_capacity = _BUFFER
        #: What the program gave to bind(): a path, or an abstract name.
        self.path: Any = ""
        self._key: Any = None

    def sockname(self) -> Any:
        """What getsockname() returns."""
        return self.path

    def bind(self, name: Any) -> None:
        """Make the socket's file."""
        path = name or self._free_name()
        key = _parse(path)
        if self._key is not None:
            raise error(errno.EINVAL)
        if isinstance(key, str):
            try:
                mask = os.umask(0)
                os.umask(mask)
                os.mknod(key, stat.S_IFSOCK | (0o777 & ~mask))
            except FileExistsError:
                raise error(errno.EADDRINUSE) from None
            status = os.stat(key)
            self._key = status.st_dev, status.st_ino
        else:
            if key in self.network.paths:
                raise error(errno.EADDRINUSE)
            self._key = key
        self.path = path if not isinstance(path, bytes) or path[:1] == b"\0" else os.fsdecode(path)
        self.network.paths[self._key] = self

    def take_name(self, path: Any) -> None:
        """Take the name of a real socket, whose file is there."""
        if path:
            key = _parse(path)
            if isinstance(key, str):
                status = os.stat(key)
                self._key = status.st_dev, status.st_ino
            else:
                self._key = key
            self.path = path
            self.network.paths[self._key] = self

    def _free_name(self) -> bytes:
        """An abstract name that nobody has, as Linux chooses one for an empty name."""
        number = 0
        while (name := b"\0%05x" % number) in self.network.paths:
            number += 1
        return name

    def listen(self, backlog: int) -> None:
        """Accept connections."""
        if self._key is None:
            raise error(errno.EINVAL)
        self._backlog = max(backlog, 0)
        self.state = State.LISTENING
        self.changed()

    def connect(self, name: Any, failure: int = 0) -> None:
        """Connect at once, or fail."""
        _parse(name)
        self._check_connects()
        listener = find_unix_listener(self.network, name)
        if listener is None or not listener.is_listening or listener._is_shut[0] or listener.host is not self.host:
            raise error(errno.ECONNREFUSED)
        if len(listener._queue) > listener._backlog:
            raise error(errno.EAGAIN)
        child = listener.make_child(self, None, None)  # type: ignore[arg-type]
        assert isinstance(child, UnixEndpoint)
        child.path = listener.path
        child._peer_name = self.path
        self._peer_name = listener.path
        self.peer, self.state = child, State.CONNECTED
        listener._queue.append(child)
        listener.changed()
        self.network.note_connection(self, child)

    def _directions(self, client: StreamEndpoint) -> tuple[Direction, Direction]:
        return Direction(self.network), Direction(self.network)

    def name_of(self, address: Address, port: int) -> Any:
        """The name of an unnamed socket."""
        return ""

    @property
    def window(self) -> int:
        """All that was sent is in the peer's queue. It counts as the sender's: see `_room`."""
        return sys.maxsize

    def _room(self) -> int:
        waiting = 0 if self.peer is None else len(self.peer._buffer)
        return self.send_capacity - waiting

    def _after_read(self, size: int) -> None:
        super()._after_read(size)
        if self.peer is not None:
            self.peer.changed()

    def send(self, data: memoryview, name: Any = None) -> int:
        """Send data, and return how many bytes the buffer took."""
        peer = self.peer
        if name is not None:
            raise error(errno.EISCONN if self.state is State.CONNECTED else errno.EOPNOTSUPP)
        if self.state in (State.NEW, State.LISTENING):
            raise error(errno.ENOTCONN)
        if peer is None or peer.is_orphan or peer.state is not State.CONNECTED or peer._is_shut[0]:
            raise error(errno.EPIPE)
        return super().send(data, name)

    def check_target(self, name: Any) -> None:
        """Refuse what is no address to send to."""
        if name != "":
            _parse(name)

    def shutdown(self, how: int) -> None:
        """Close one direction, or both. Linux accepts it without a connection too."""
        if self.state is State.CONNECTED:
            super().shutdown(how)
            return
        if how != socket.SHUT_WR:
            self._is_shut[0] = True
        if how != socket.SHUT_RD:
            self._is_shut[1] = True
        self.changed()

    def ready(self) -> tuple[bool, bool]:
        """Whether a poll reports the socket as readable, and as writable."""
        if self.state is State.LISTENING:
            return bool(self._queue) or self._is_shut[0], all(self._is_shut)
        return super().ready()

    def receive_from(self, size: int, peek: bool = False) -> tuple[bytes, Any]:
        """The next data, b"" at the end of the stream; OSError if there is none yet."""
        if self.state in (State.NEW, State.LISTENING):
            raise error(errno.EINVAL)
        return super().receive_from(size, peek)

    def close(self) -> None:
        """Close both directions; unread data becomes an error of the peer."""
        self.forget_descriptor()
        if self.network.paths.get(self._key) is self:
            del self.network.paths[self._key]
        if self.state is State.LISTENING:
            self._stop_listening()
        peer = self.peer
        if self.state is State.CONNECTED and peer is not None and peer.state is State.CONNECTED:
            peer._has_end = True
            peer._is_shut = [True, True]
            if self._buffer:
                peer.failure = errno.ECONNRESET
            peer.changed()
        self._end()

    def reset(self) -> None:
        """End the connection; the peer gets an error."""
        if self.peer is not None:
            self.peer.fail(errno.ECONNRESET)
        self._end()

    def __repr__(self) -> str:
        state = self.state.name.lower()
        return f"<Unix socket of {self.host.name} at {self.path or self._peer_name!r}, {state}>"


def find_unix_listener(network: Any, name: Any) -> UnixEndpoint | None:
    """The socket that was bound to a path or an abstract name; OSError if there is no such file."""
    key = _parse(name)
    if isinstance(key, str):
        try:
            status = os.stat(key)
        except OSError as failure:
            # Without the name of the file, as connect() raises it.
            raise error(failure.errno or errno.ENOENT) from None
        return network.paths.get((status.st_dev, status.st_ino))  # type: ignore[no-any-return]
    return network.paths.get(key)  # type: ignore[no-any-return]


def _parse(name: Any) -> str | bytes:
    """A path as text, or an abstract name as bytes."""
    if isinstance(name, str):
        encoded = os.fsencode(name)
    elif isinstance(name, (bytes, bytearray, memoryview)):
        encoded = bytes(name)
    else:
        raise TypeError(f"a bytes-like object is required, not '{type(name).__name__}'")
    if len(encoded) > _LONGEST:
        raise OSError("AF_UNIX path too long")
    if encoded[:1] == b"\0":
        return encoded
    if not encoded:
        raise error(errno.EINVAL)
    return os.fsdecode(encoded)
