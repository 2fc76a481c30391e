"""`TextBuffer`: what the `io.TextIOWrapper` of a `TextFile` reads and writes instead of the file. It never waits."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import deque
from collections.abc import Iterator

from .. import _core


class Missing(Exception):
    """A read has to wait: for so many bytes, or for all if that is negative. With 0, the mark has to be set first."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class TextBuffer:
    """Reads what is in the page cache, and else raises `Missing`. Keeps what is written for the `TextFile`.

    It also keeps what was read since the mark, so that the wrapper may read it once more. The chunks then end where
    they have ended before: io writes and truncates behind the last chunk, and that must not move. An empty chunk is
    given once more too, because the end of the file makes the decoder give what it has kept.
    """

    def __init__(self, file: _core.File, place: int, is_stream: bool) -> None:
        self._file, self._is_stream = file, is_stream
        #: What was written, and whether a flush was asked for.
        self.written: list[bytes] = []
        self.flushes = False
        #: Does the wrapper only read what it has read before?
        self.is_replay = False
        #: How many chunks were given, and how many may be.
        self.chunks, self.most_chunks = 0, sys.maxsize
        self.restart(place)

    def restart(self, place: int, data: bytes = b"") -> None:
        """Begins at an offset of the file, from where this was read already."""
        #: Where the next chunk begins. After a write, nobody knows that yet.
        self.place, self.is_lost = place, False
        #: The data from `base` on, and what was read from the file behind it.
        self.base, self.data, self.tail = place, bytearray(data), bytearray()
        self.more: bytes | bytearray = b""
        #: Where the chunks have ended, and where they have to end once more.
        self.ends: list[int] = []
        self.again: deque[int] = deque()
        #: Does the file end behind `more`? Was the last chunk an empty one?
        self.ended = self.at_end = False
        #: Must the mark be set before the next chunk?
        self.is_unmarked = True

    def mark(self, place: int) -> None:
        """Gives up the data before an offset."""
        if place < self.base:
            # The decoder kept a part of a character from before a chunk that could not be decoded.
            self.data[:0] = self.tail[place - self.base :]
        else:
            del self.data[: place - self.base]
        # A last chunk that is empty is behind the mark, also where it has the same offset.
        is_before_end = self.at_end and place == self.place
        self.ends = [place] if is_before_end else [end for end in self.ends if end > place]
        self.base, self.is_unmarked = place, False

    def unmark(self) -> None:
        """Gives up the data before the place. The wrapper has no text left."""
        if len(self.ends) > 1 and self.ends[-2] > self.base:
            self.tail = self.data[: self.ends[-2] - self.base]
        self.at_end = False
        self.mark(self.place)
        self.is_unmarked = True
        self.forget_ends()

    def forget_ends(self) -> None:
        """Whether the file still ends where it has ended, is asked anew. What was read ahead does not matter for it."""
        self.again = deque(sorted({end for end in self.again if end > self.place}))

    def ahead(self) -> int:
        """How many bytes the file is ahead of the wrapper."""
        return self.base + len(self.data) + len(self.more) - self.place

    def forget_ahead(self) -> None:
        del self.data[self.place - self.base :]
        self.more = b""
        self.again.clear()

    @contextlib.contextmanager
    def replay(self, ended: bool) -> Iterator[None]:
        """Lets the wrapper read only what it has read before, behind which the file ends or data is missing."""
        before = self.more, self.ended
        self.is_replay, self.more, self.ended = True, b"", ended
        try:
            yield
        finally:
            self.is_replay = False
            self.more, self.ended = before
            self.forget_ends()

    @contextlib.contextmanager
    def only(self, chunks: int) -> Iterator[None]:
        """Lets the wrapper read so many chunks. Then data is missing."""
        self.most_chunks = self.chunks + chunks
        try:
            yield
        finally:
            self.most_chunks = sys.maxsize

    # -- what the wrapper uses ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return self._file.readable()

    def writable(self) -> bool:
        return self._file.writable()

    def seekable(self) -> bool:
        # The data since the mark can be read once more, also that of a pipe.
        return self._file.readable() or self._file.seekable()

    def read1(self, size: int) -> bytes:
        if self.chunks >= self.most_chunks:
            raise Missing(size)
        start = self.place - self.base
        while self.again and self.again[0] < self.place:
            self.again.popleft()
        if not self.again:
            self._need(size)
        left = len(self.data) - start
        if self.is_unmarked and left:
            # With the mark, the chunk will be as long as it would be now.
            self.again.append(self.place + min(size, left))
            raise Missing(0)
        stop = self.again.popleft() - self.base if self.again else start + size
        chunk = bytes(memoryview(self.data)[start:stop])
        self.place += len(chunk)
        self.chunks += 1
        self.ends.append(self.place)
        self.at_end = not chunk
        return chunk

    def _need(self, size: int) -> None:
        """Has data for a chunk. As in io, that is as long as it may be, and in a stream it is what there is."""
        self.data += self.more
        self.more = b""
        ahead = self.base + len(self.data) - self.place
        if not self.ended and ahead < (1 if self._is_stream or self.is_replay else size):
            found = None if self.is_replay else self._file._read_now(size - ahead)
            if found is None:
                raise Missing(size)
            self.data += found

    def read(self) -> bytes:
        if not self.ended:
            raise Missing(-1)
        ahead = self.data[self.place - self.base :]
        rest = bytes(ahead + self.more if ahead else self.more)
        tail = self.data[: self.place - self.base] or self.tail
        self.restart(self.place + len(rest))
        self.tail, self.at_end = tail, True
        return rest

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if whence == 0:
            self.place = offset
            self.again, self.ends = deque(self.ends), []
        return self.place

    def tell(self) -> int:
        return self.place

    def write(self, data: bytes) -> int:
        self.written.append(data)
        return len(data)

    def flush(self) -> None:
        self.flushes = True

    @property
    def name(self) -> object:
        return self._file.name

    def _dealloc_warn(self, source: object) -> None:
        """Warns of a wrapper that is freed before the file was closed."""
        self._file._dealloc_warn(source)

    def close(self) -> None:
        """The wrapper closes its buffer when it is freed. The file looks after itself."""
