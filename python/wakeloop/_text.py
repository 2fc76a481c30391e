"""`TextFile`: text on top of a `File`, by the rules of `io.TextIOWrapper`.

A chunk of bytes is decoded as a whole, by the decoders that `io` uses, and reads take characters from decoded chunks.
Nothing is taken before all of a read is there, so a read that is cancelled loses nothing. Each chunk remembers the
state of the decoder before it and the bytes that were decoded, from which `tell` finds the position of a character.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import operator
import struct
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from . import _core

#: How many bytes are decoded at a time, as in io.
_CHUNK = 8192
#: The fields of a `_Place`, packed as io packs them into the number that `tell` returns.
_COOKIE = struct.Struct("<qiiib")


class _Chunk(NamedTuple):
    text: str
    #: How many bytes it was decoded from.
    size: int
    #: The decoder's flags before it, and the bytes that the decoder had to decode then.
    flags: int
    data: bytes


class TextFile:
    """A text file that tasks read and write. Made by wakeloop.open.

    The methods do what those of io.TextIOWrapper do, and raise what they raise. Several tasks may use a file: operations
    are done one after the other, in the order in which they were awaited. A read that is cancelled moves nothing and
    loses nothing. A write that is cancelled has not begun, or will be done as a whole. Not thread-safe: for use in the
    thread of one event loop.
    """

    __module__ = "wakeloop"

    def __init__(
        self,
        buffer: _core.File,
        encoding: str,
        errors: str = "strict",
        newline: str | None = None,
        line_buffering: bool = False,
        mode: str = "r",
        position: int = 0,
    ) -> None:
        self._file = buffer
        self._encoding, self._errors, self._mode = encoding, errors, mode
        self._line_buffering = line_buffering
        self._universal = not newline
        self._translates = newline is None
        self._line_end = newline
        # POSIX: a line ends with "\n".
        self._written_end = newline if newline not in (None, "") else "\n"
        # One operation at a time. The fast path of `__anext__` looks whether it is locked.
        self._lock = asyncio.Lock()
        self._seekable = buffer.seekable()
        self._decoder: Any = self._make_decoder() if buffer.readable() else None
        self._encoder: Any = codecs.getincrementalencoder(encoding)(errors) if buffer.writable() else None
        if position:
            self._set_encoder(position)
        # The text of the first chunk, and up to where it was taken.
        self._text, self._used = "", 0
        self._first: _Chunk | None = None
        self._chunks: deque[_Chunk] = deque()
        # Bytes to a character, for a first guess of `tell`.
        self._ratio = 0.0
        # What ends a line, if that is one character.
        self._simple_end = {None: "\n", "\n": "\n", "\r": "\r"}.get(newline, "")

    def _make_decoder(self) -> Any:
        decoder: Any = codecs.getincrementaldecoder(self._encoding)(self._errors)
        return io.IncrementalNewlineDecoder(decoder, self._translates) if self._universal else decoder

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def buffer(self) -> _core.File:
        """The binary file. Reading from it skips what was decoded already."""
        return self._file

    @property
    def encoding(self) -> str:
        """The name of the encoding."""
        return self._encoding

    @property
    def errors(self) -> str:
        """How errors of the encoding are handled."""
        return self._errors

    @property
    def newlines(self) -> str | tuple[str, ...] | None:
        """The line ends that were found so far, if they are not fixed."""
        found: str | tuple[str, ...] | None = getattr(self._decoder, "newlines", None)
        return found

    @property
    def line_buffering(self) -> bool:
        """Whether a write of a line end flushes."""
        return self._line_buffering

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    @property
    def name(self) -> Any:
        """The path or descriptor that was opened."""
        return self._file.name

    @property
    def mode(self) -> str:
        """The mode that it was opened with."""
        return self._mode

    def fileno(self) -> int:
        """The descriptor. Raises ValueError if the file is closed."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether the file is a terminal. Raises ValueError if the file is closed."""
        return self._file.isatty()

    def readable(self) -> bool:
        """Whether it can be read. Raises ValueError if the file is closed."""
        return self._file.readable()

    def writable(self) -> bool:
        """Whether it can be written. Raises ValueError if the file is closed."""
        return self._file.writable()

    def seekable(self) -> bool:
        """Whether it has a position that can be moved. Raises ValueError if the file is closed."""
        return self._file.seekable()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'wakeloop.TextFile' object")

    def __repr__(self) -> str:
        closed = " closed" if self.closed else ""
        return (
            f"<wakeloop.TextFile{closed} name={self.name!r} mode={self._mode!r} encoding={self._encoding!r}>"
        )

    # -- reading ------------------------------------------------------------------------------------------------

    async def read(self, size: int | None = -1, /) -> str:
        """Read size characters; fewer only at the end of the file. All up to the end if size is negative or None."""
        wanted = _optional_size(size)
        async with self._lock:
            self._check("read")
            if wanted < 0:
                data = await self._file.read()
                rest: str = self._decoder.decode(data, final=True)
                text = self._taken(self._available()) + rest
                self._forget()
                return text
            available = self._available()
            while available < wanted and (decoded := await self._decode_more()) is not None:
                available += len(decoded)
            return self._taken(min(wanted, available))

    async def readline(self, size: int = -1, /) -> str:
        """Read a line with its end, or its first size characters. An empty string means the end of the file."""
        limit = operator.index(size)
        async with self._lock:
            self._check("read")
            return await self._line(limit)

    async def readlines(self, hint: int | None = -1, /) -> list[str]:
        """Read all lines, or lines of more than hint characters together."""
        most = _optional_size(hint)
        async with self._lock:
            self._check("read")
            lines: list[str] = []
            length = 0
            try:
                while line := await self._line(-1):
                    lines.append(line)
                    length += len(line)
                    if 0 < most < length:
                        break
            except asyncio.CancelledError:
                self._give_back("".join(lines))
                raise
            return lines

    def __aiter__(self) -> TextFile:
        return self

    async def __anext__(self) -> str:
        lock = self._lock
        # The tasks that wait for the lock come first, even if it is free already.
        if (simple := self._simple_end) and not (lock.locked() or lock._waiters or self._file.closed):
            start = self._used
            if end := self._text.find(simple, start) + 1:
                self._used = end
                return self._text[start:end]
        async with self._lock:
            self._check("read")
            if line := await self._line(-1):
                return line
        raise StopAsyncIteration

    def _check(self, what: str) -> None:
        if self._file.closed:
            raise ValueError("I/O operation on closed file.")
        if what == "read" and self._decoder is None:
            raise io.UnsupportedOperation("not readable")
        if what == "write" and self._encoder is None:
            raise io.UnsupportedOperation("not writable")

    async def _decode_more(self) -> str | None:
        """Decodes the next chunk. Returns None at the end of the file."""
        decoder = self._decoder
        data = await self._file.read1(_CHUNK)
        held, flags = decoder.getstate() if self._seekable else (b"", 0)
        try:
            text: str = decoder.decode(data, not data)
        except UnicodeError:
            if data and self._seekable:
                # As in io, the next read goes on behind what cannot be decoded.
                decoder.setstate((b"", flags))
                self._add(_Chunk("", len(data), flags, b""))
            raise
        if text:
            self._ratio = len(data) / len(text)
            _core._spend_items(text.count("\n"))
        self._add(_Chunk(text, len(data), flags, held + data))
        return text if text or data else None

    def _add(self, chunk: _Chunk) -> None:
        if self._used == len(self._text) and not self._chunks:
            self._first, self._text, self._used = chunk, chunk.text, 0
        else:
            self._chunks.append(chunk)

    def _available(self) -> int:
        return len(self._text) - self._used + sum(len(chunk.text) for chunk in self._chunks)

    def _taken(self, count: int) -> str:
        """Takes characters that are there."""
        end = self._used + count
        if end < len(self._text) or (end == len(self._text) and not self._chunks):
            text = self._text[self._used : end]
            self._used = end
            return text
        pieces = [self._text[self._used :]]
        count -= len(pieces[0])
        self._used = len(self._text)
        while count > 0:
            self._first = self._chunks.popleft()
            self._text, self._used = self._first.text, min(count, len(self._first.text))
            pieces.append(self._text[: self._used])
            count -= self._used
        # At the end of the file there is an empty chunk, which has the state of the decoder there.
        while self._used == len(self._text) and self._chunks:
            self._first = self._chunks.popleft()
            self._text, self._used = self._first.text, 0
        return "".join(pieces)

    def _give_back(self, text: str) -> None:
        """Undoes reads. Where the text begins in bytes is no longer known, and `tell` has to refuse."""
        if not text:
            return
        rest = text + self._taken(self._available())
        self._first, self._text, self._used = None, rest, 0

    def _forget(self) -> None:
        self._first, self._text, self._used = None, "", 0
        self._chunks.clear()

    async def _line(self, limit: int) -> str:
        """Takes a line, of at most `limit` characters if that is not negative."""
        length = 0
        if self._used < len(self._text):
            if end := self._line_length(self._text, self._used, False):
                return self._taken(end if limit < 0 else min(end, limit))
            length = len(self._text) - self._used
        ended = self._text[-1:] == "\r" and length > 0
        looked_at = 0
        while limit < 0 or length < limit:
            if looked_at == len(self._chunks):
                before = self._used < len(self._text)
                if await self._decode_more() is None:
                    # As in io: the position is that of the binary file from here on.
                    line = self._taken(self._available())
                    self._forget()
                    return line
                if not before and not self._chunks:
                    # It became the first one.
                    text = self._text
                else:
                    text = self._chunks[looked_at].text
                    looked_at += 1
            else:
                text = self._chunks[looked_at].text
                looked_at += 1
            if end := self._line_length(text, 0, ended):
                length += end
                break
            length += len(text)
            ended = text[-1:] == "\r" if text else ended
        return self._taken(length if limit < 0 else min(length, limit))

    def _line_length(self, text: str, start: int, after_return: bool) -> int:
        """The length of the line that begins or goes on at `start`; 0 if it does not end in this text."""
        if simple := self._simple_end:
            end = text.find(simple, start) + 1
        elif self._line_end == "":
            # The decoder does not split "\r\n".
            feed, back = text.find("\n", start), text.find("\r", start)
            if back < 0 or 0 <= feed < back:
                end = feed + 1
            else:
                end = back + (2 if feed == back + 1 else 1)
        elif after_return and text.startswith("\n", start):
            end = start + 1
        else:
            end = found + 2 if (found := text.find("\r\n", start)) >= 0 else 0
        return end - start if end else 0

    # -- writing ------------------------------------------------------------------------------------------------

    async def write(self, text: str, /) -> int:
        """Write text. Returns the number of characters."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        async with self._lock:
            await self._write((text,))
        return len(text)

    async def writelines(self, lines: Iterable[str], /) -> None:
        """Write strings, one after the other."""
        pieces = list(lines)
        for piece in pieces:
            if not isinstance(piece, str):
                raise TypeError(f"write() argument must be str, not {type(piece).__name__}")
        async with self._lock:
            await self._write(pieces)

    async def _write(self, pieces: Iterable[str]) -> None:
        self._check("write")
        ends_line = self._line_buffering and any("\n" in piece or "\r" in piece for piece in pieces)
        if (end := self._written_end) != "\n":
            pieces = [piece.replace("\n", end) for piece in pieces]
        state = self._encoder.getstate()
        try:
            data = b"".join(map(self._encoder.encode, pieces))
        except BaseException:
            self._encoder.setstate(state)
            raise
        # Even if this is cancelled, the data will be written, and the position will be behind it.
        self._forget()
        if self._decoder is not None:
            self._decoder.reset()
        await self._file.write(data)
        if ends_line:
            await self._file.flush()

    async def flush(self) -> None:
        """Give to the system what was written."""
        async with self._lock:
            self._check("")
            await self._file.flush()

    async def fsync(self) -> None:
        """Flush, and wait until the disk has all data."""
        async with self._lock:
            self._check("")
            await self._file.fsync()

    async def close(self) -> None:
        """Flush and close, after the operations that were awaited before. Closing twice is fine."""
        async with self._lock:
            await self._file.close()

    async def __aenter__(self) -> TextFile:
        if self._file.closed:
            raise ValueError("I/O operation on closed file.")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- the position -------------------------------------------------------------------------------------------

    async def truncate(self, size: int | None = None, /) -> int:
        """Make the file size bytes long, by default up to the position, which does not move. Returns the size."""
        async with self._lock:
            self._check("")
            if size is None:
                place = _Place.unpacked(await self._tell())
                size = place.start + place.feed
            return await self._file.truncate(size)

    async def tell(self) -> int:
        """The position, as a number that seek takes. Not always a number of bytes."""
        async with self._lock:
            self._check("")
            return await self._tell()

    async def seek(self, cookie: int, whence: int = 0, /) -> int:
        """Move the position to what tell returned, to the beginning (0), or to the end (0, whence=2)."""
        cookie, whence = operator.index(cookie), operator.index(whence)
        async with self._lock:
            self._check("")
            if not self._seekable:
                raise io.UnsupportedOperation("underlying stream is not seekable")
            if whence == 1:
                if cookie != 0:
                    raise io.UnsupportedOperation("can't do nonzero cur-relative seeks")
                cookie = await self._tell()
            elif whence == 2:
                if cookie != 0:
                    raise io.UnsupportedOperation("can't do nonzero end-relative seeks")
                return await self._seek_end()
            elif whence != 0:
                raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
            if cookie < 0:
                raise ValueError(f"negative seek position {cookie!r}")
            await self._seek(cookie)
            return cookie

    async def _seek_end(self) -> int:
        position = await self._file._end()
        await self._file.seek(position)
        self._forget()
        if self._decoder is not None:
            self._decoder.reset()
        self._set_encoder(position)
        return position

    async def _seek(self, cookie: int) -> None:
        place = _Place.unpacked(cookie)
        # Only this may have to wait. It moves nothing, so a cancelled seek moves nothing.
        data = await self._file.pread(place.feed, place.start) if place.skip else b""
        await self._file.flush()
        await self._file.seek(place.start + len(data))
        self._forget()
        if self._decoder is not None:
            if place.start == 0 and place.flags == 0 and not place.skip:
                self._decoder.reset()
            else:
                self._decoder.setstate((b"", place.flags))
            self._first = _Chunk("", 0, place.flags, b"")
            if place.skip:
                text = self._decoder.decode(data, bool(place.ended))
                if len(text) < place.skip:
                    raise OSError("can't restore logical file position")
                self._first = _Chunk(text, len(data), place.flags, data)
                self._text, self._used = text, place.skip
        self._set_encoder(cookie)

    def _set_encoder(self, position: int) -> None:
        """An encoding with a mark at the beginning writes it at the beginning only."""
        if self._encoder is not None:
            if position:
                self._encoder.setstate(0)
            else:
                self._encoder.reset()

    async def _tell(self) -> int:
        if not self._seekable:
            raise io.UnsupportedOperation("underlying stream is not seekable")
        position = await self._file.tell()
        decoder = self._decoder
        if decoder is None or (self._first is None and not self._text):
            return position
        if self._first is None:
            raise OSError("can't reconstruct logical file position")
        # Where the first chunk begins.
        position -= sum(chunk.size for chunk in self._chunks) + len(self._first.data)
        flags, data = self._first.flags, self._first.data
        if not self._used:
            return _Place(position, flags).packed()
        state = decoder.getstate()
        try:
            return self._place_of(decoder, position, flags, data, self._used).packed()
        finally:
            decoder.setstate(state)

    def _place_of(self, decoder: Any, position: int, flags: int, data: bytes, skip: int) -> _Place:
        """The nearest safe place before the character, from which decoding gives it."""
        # A guess of how many bytes the characters have; then fewer and fewer, until decoding them gives no more.
        size, step = min(int(self._ratio * skip), len(data)), 1
        while size > 0:
            decoder.setstate((b"", flags))
            count = len(decoder.decode(data[:size]))
            if count <= skip:
                held, new_flags = decoder.getstate()
                if not held:
                    flags = new_flags
                    skip -= count
                    break
                size -= len(held)
                step = 1
            else:
                size -= step
                step *= 2
        else:
            size = 0
            decoder.setstate((b"", flags))
        start = position + size
        if skip == 0:
            return _Place(start, flags)
        # One byte after the other, remembering the last place where the decoder held nothing.
        fed = taken = 0
        safe = _Place(start, flags)
        for index in range(size, len(data)):
            fed += 1
            taken += len(decoder.decode(data[index : index + 1]))
            held, new_flags = decoder.getstate()
            if not held and taken <= skip:
                safe = _Place(safe.start + fed, new_flags)
                skip -= taken
                fed = taken = 0
            if taken >= skip:
                break
        else:
            taken += len(decoder.decode(b"", final=True))
            safe = safe._replace(ended=1)
            if taken < skip:
                raise OSError("can't reconstruct logical file position")
        return safe._replace(feed=fed, skip=skip)


def _optional_size(size: int | None) -> int:
    if size is None:
        return -1
    if not hasattr(size, "__index__"):
        raise TypeError(f"argument should be integer or None, not '{type(size).__name__}'")
    return operator.index(size)


class _Place(NamedTuple):
    """A position: from `start`, with these flags, decode `feed` bytes, and skip so many characters."""

    start: int
    flags: int = 0
    feed: int = 0
    skip: int = 0
    ended: int = 0

    def packed(self) -> int:
        try:
            return int.from_bytes(_COOKIE.pack(*self), "little")
        except struct.error:
            # The flags of some decoders, such as that of iso2022_kr, can be larger.
            raise OverflowError("signed integer is greater than maximum") from None

    @classmethod
    def unpacked(cls, cookie: int) -> _Place:
        return cls(*_COOKIE.unpack(cookie.to_bytes(_COOKIE.size, "little")))
