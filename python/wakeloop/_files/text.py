"""`TextFile`: text on top of a `File`, by an `io.TextIOWrapper`.

The wrapper decodes, encodes, translates line ends and knows positions. It runs on the loop's thread, within a turn of
the file, and never waits: where data is missing, its buffer raises `Missing`. Then the data is awaited, the wrapper
goes back to where it was, and the operation is done again. So an operation is done in one piece, or has done nothing
and may be cancelled.

To go back, the wrapper seeks to a mark, which is a position that its `tell` has returned, and reads the text once more
that was taken since. Both need no more than the buffer keeps.
"""

from __future__ import annotations

import contextlib
import functools
import io
import operator
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from .. import _core
from .text_buffer import Missing, TextBuffer

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T", str, list[str])

#: How many bytes the wrapper reads at a time, and how many characters an iteration reads ahead.
_CHUNK = 8192
#: When so much was read since the mark, it is moved.
_KEPT = 64 * 1024
#: A position of io is a number with fields of bits: an offset in the file (64), the state of the decoder there (32),
#: how many bytes to decode from there (32), how many characters to skip then (32), and whether the file ends there.
_OFFSET, _START, _FIELD = 2**64 - 1, 2**96 - 1, 2**32 - 1
_FED, _SKIPPED, _ENDED = 96, 128, 160


def _in_turn(
    method: Callable[Concatenate[TextFile, _P], Awaitable[_R]],
) -> Callable[Concatenate[TextFile, _P], Coroutine[Any, Any, _R]]:
    """Makes a method wait for its turn, before it touches the wrapper, and keep it until it is done."""

    @functools.wraps(method)
    async def call(self: TextFile, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        await self._file._turn()
        try:
            return await method(self, *arguments, **options)
        finally:
            self._file._end_turn()

    return call


class TextFile:
    """A text file that tasks read and write. Made by wakeloop.open.

    The methods do what those of io.TextIOWrapper do, and raise what they raise. Several tasks may use a file:
    operations are done one after the other, in the order in which they were awaited. A read that is cancelled moves
    nothing and loses nothing. A write that is cancelled has not begun, or will be done as a whole. Not thread-safe: for
    use in the thread of one event loop.
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
        is_stream: bool = True,
    ) -> None:
        self._file, self._inside, self._mode = buffer, buffer._inside(), mode
        self._buffer = TextBuffer(buffer, position, is_stream)
        # What is written goes on to the file at once, which keeps it.
        wrapped: Any = self._buffer
        self._io = io.TextIOWrapper(wrapped, encoding, errors, newline, line_buffering, write_through=True)
        # Its repr is in the warning of a file that nobody has closed.
        self._io.mode = mode  # type: ignore[misc]
        self._write_through = False
        # A read of a stream gives what there is, and must not wait for more.
        self._is_stream = is_stream
        # The mark, the number of characters that were taken since, where the buffer was then, and whether the wrapper
        # is elsewhere.
        self._mark: int | None = None
        self._taken, self._place, self._goes_back = 0, position, False
        # The lines that were read ahead, and those of them that were not taken.
        self._batch: list[str] = []
        self._lines = iter(self._batch)
        # As in io, an iteration disables tell.
        self._iterates = False
        # Could the last chunk not be decoded? The position there, if the wrapper does not know it.
        self._has_failed = False
        self._position: int | None = None

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def buffer(self) -> _core.File:
        """The binary file. Reading from it skips what was decoded already."""
        return self._file

    @property
    def encoding(self) -> str:
        """The name of the encoding."""
        return self._io.encoding

    @property
    def errors(self) -> str | None:
        """How errors of the encoding are handled."""
        return self._io.errors

    @property
    def newlines(self) -> str | tuple[str, ...] | None:
        """The line ends that were found so far, if they are not fixed."""
        return self._io.newlines

    @property
    def line_buffering(self) -> bool:
        """Whether a write of a line end flushes."""
        return self._io.line_buffering

    @property
    def write_through(self) -> bool:
        """Whether a write goes to the binary file at once. It always does."""
        return self._write_through

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._io.closed

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
        closed = " closed" if self._file.closed else ""
        return f"<wakeloop.TextFile{closed} name={self.name!r} mode={self._mode!r} encoding={self.encoding!r}>"

    # -- reading ------------------------------------------------------------------------------------------------

    @_in_turn
    async def read(self, size: int | None = -1, /) -> str:
        """Read size characters; fewer only at the end of the file. All up to the end if size is negative or None."""
        return await self._read(self._io.read, size, of_lines=False)

    @_in_turn
    async def readline(self, size: int = -1, /) -> str:
        """Read a line with its end, or its first size characters. An empty string means the end of the file."""
        return await self._read(self._io.readline, size, of_lines=size == -1)

    @_in_turn
    async def readlines(self, hint: int | None = -1, /) -> list[str]:
        """Read all lines, or lines of more than hint characters together."""
        return await self._read(self._some_lines, hint)

    def __aiter__(self) -> TextFile:
        return self

    async def __anext__(self) -> str:
        if self._file._is_free():
            for line in self._lines:
                return line
        return await self._next()

    @_in_turn
    async def _next(self) -> str:
        for line in () if self._file.closed else self._lines:
            return line
        await self._read(self._read_ahead)
        for line in self._lines:
            return line
        raise StopAsyncIteration

    def _some_lines(self, hint: int | None) -> list[str]:
        # It checks the argument.
        io.StringIO().readlines(hint)  # type: ignore[arg-type]
        most = -1 if hint is None else operator.index(hint)
        lines, length, self._iterates = [], 0, True
        while not 0 < most < length and self._iterates:
            line = self._io.readline()
            length += len(line)
            lines.append(line)
            self._iterates = bool(line)
        return lines if self._iterates else lines[:-1]

    def _read_ahead(self) -> str:
        """Reads lines. They are taken later."""
        lines, length, self._iterates = [], 0, True
        # Without a mark, what is read cannot be given up.
        most = 1 if self._buffer.at_end and self._mark is None else _CHUNK
        try:
            while length < most and (line := self._io.readline()):
                length += len(line)
                lines.append(line)
        except Exception:
            if not lines:
                raise
            # It will be raised once more behind these lines.
            self._goes_back = True
        self._iterates = bool(lines)
        self._batch, self._lines = lines, iter(lines)
        _core._spend_items(len(lines))
        return ""

    async def _read(self, operation: Callable[..., _T], *arguments: object, of_lines: bool = True) -> _T:
        """Does a read of the wrapper, and does it again when data was missing. One of whole lines needs their ends."""
        buffer = self._buffer
        if buffer.is_lost and not buffer.closed and buffer.readable():
            await self._find_place()
        buffer.ended, iterates = False, self._iterates
        while True:
            self._catch_up()
            base, chunks = buffer.base, buffer.chunks
            try:
                result = operation(*arguments)
            except Missing as missing:
                # Without a mark, nothing was read before.
                self._goes_back, size = not buffer.is_unmarked, missing.size
            except Exception:
                if buffer.chunks != chunks:
                    # As in io, what was decoded is lost.
                    self._fail()
                elif buffer.base != base:
                    # As in io, the rest of the file is lost, and the text that was decoded before is not.
                    self._mark, self._place = None, buffer.place
                raise
            except BaseException:
                self._goes_back = True
                raise
            else:
                self._place = buffer.place
                if buffer.base != base:
                    # It has read the rest of the file.
                    self._restart()
                else:
                    self._taken += len(result) if isinstance(result, str) else sum(map(len, result))
                return result
            begun = self._iterates
            try:
                if size == 0:
                    self._mark_chunk()
                else:
                    # It may be cancelled, and then it has done nothing.
                    self._iterates = iterates
                    await self._fetch(size, of_lines)
            except Exception:
                self._iterates = begun
                raise

    def _mark_chunk(self) -> None:
        """Has the wrapper read a chunk that is there, and marks its beginning."""
        buffer, behind = self._buffer, None
        if self._has_failed:
            with contextlib.suppress(OSError, OverflowError):
                behind = self._where() - buffer.place
            # A text of which all was taken would keep the wrapper from reading a chunk.
            with buffer.only(0), contextlib.suppress(Missing):
                self._io.readline()
        buffer.is_unmarked = False
        try:
            with buffer.only(1):
                self._io.readline(0)
        except Missing:
            # It is a part of a character.
            pass
        except Exception:
            self._fail()
            if behind is not None and not self._iterates:
                self._position = buffer.place + behind
            raise
        self._set_mark()

    async def _fetch(self, size: int, of_lines: bool) -> None:
        """Waits for data. The operation begins anew with it, so the more it has, the more it gets at a time."""
        buffer = self._buffer
        if size < 0:
            rest = await self._inside.read()
            buffer.more, buffer.ended = buffer.more + rest if buffer.more else rest, True
        elif not self._is_stream:
            size = max(size, len(buffer.data))
            more = await self._inside.read(size)
            buffer.more, buffer.ended = buffer.more + more, len(more) < size
        else:
            buffer.more = bytearray(buffer.more)
            while more := await self._inside.read1(size):
                buffer.more += more
                if any(end in more for end in self._line_ends) if of_lines else 16 * len(buffer.more) >= size:
                    break
            buffer.ended = not more

    @functools.cached_property
    def _line_ends(self) -> Iterable[int]:
        """The bytes of which an encoded line end has one at least."""
        try:
            return set("\r\n".encode(self.encoding)) - {0}
        except UnicodeError:
            return range(256)

    def _catch_up(self) -> None:
        """Gives up the lines that were read ahead, and takes the wrapper to the end of the text that was taken."""
        buffer = self._buffer
        if self._batch:
            left = operator.length_hint(self._lines)
            self._taken += sum(map(len, self._batch[: len(self._batch) - left]))
            self._goes_back |= left > 0
            if self._goes_back:
                self._place = buffer.base
            self._forget_lines()
        if self._goes_back and not buffer.closed and self._mark is not None:
            self._go_back(self._mark)
        elif buffer.at_end and not buffer.closed:
            if not self._may_have_text():
                self._restart()
            elif self._mark is None:
                # It cannot go back, and so it must not miss data.
                buffer.ended = True
        elif len(buffer.data) > _KEPT:
            self._set_mark()

    def _may_have_text(self) -> bool:
        """False if the wrapper has no text left. At the end of the file, an operation may leave some of it there."""
        try:
            with self._buffer.only(0):
                self._io.readline(0)
        except Missing:
            return False
        return True

    def _go_back(self, mark: int) -> None:
        buffer = self._buffer
        # The end of the file may have made a part of the text.
        with buffer.replay(ended=True):
            self._io.seek(mark)
            self._io.read(self._taken)
        if buffer.place < self._place:
            # It had read the next chunk, which may be a part of a character.
            with buffer.replay(ended=False), contextlib.suppress(Missing):
                self._io.readline(0)
        self._place, self._goes_back = buffer.place, False

    def _set_mark(self) -> None:
        # Some decoders have states that a position cannot hold. Then the mark stays where it is.
        with contextlib.suppress(OSError, OverflowError):
            mark = self._io.tell()
            self._mark, self._taken = mark & _START, mark >> _SKIPPED & _FIELD
            self._buffer.mark(mark & _OFFSET)

    def _restart(self) -> None:
        """Begins where the buffer is, and where no text is left. The mark will be there when there is more."""
        self._begin(has_failed=False)

    def _fail(self) -> None:
        """Begins behind a chunk that could not be decoded. The decoder may have kept something from before it."""
        self._begin(has_failed=True)

    def _begin(self, has_failed: bool) -> None:
        self._buffer.unmark()
        self._has_failed = has_failed
        self._mark, self._place, self._taken, self._goes_back = None, self._buffer.place, 0, False
        # In an iteration, io does not note where its chunks begin.
        self._position = self._place if has_failed and self._iterates else None

    def _end_iteration(self) -> None:
        """As in io, a flush enables tell, and the next line disables it."""
        if self._batch:
            self._catch_up()
        self._iterates = False

    def _forget_lines(self) -> None:
        self._batch = []
        self._lines = iter(self._batch)

    # -- writing ------------------------------------------------------------------------------------------------

    async def write(self, text: str, /) -> int:
        """Write text. Returns the number of characters."""
        return await self._write((text,))

    async def writelines(self, lines: Iterable[str], /) -> None:
        """Write strings, one after the other."""
        await self._write(self._checked(lines))

    def _checked(self, lines: Iterable[str]) -> Iterator[str]:
        # It checks that the file is open, and writes nothing.
        self._io.writelines(())
        yield from lines

    @_in_turn
    async def _write(self, lines: Iterable[str]) -> int:
        buffer, count = self._buffer, 0
        await self._align()
        buffer.flushes = False
        try:
            for line in lines:
                count = self._io.write(line)
                # The wrapper has given up what it had decoded, also for an empty string.
                buffer.is_lost = True
            return count
        finally:
            if buffer.written:
                data = b"".join(buffer.written)
                buffer.written.clear()
                # Even if this is cancelled, all of it will be written.
                await self._inside.write(data)
                if buffer.flushes:
                    await self._inside.flush()

    async def _align(self) -> None:
        """Moves the file to where the wrapper is."""
        buffer = self._buffer
        if buffer.closed:
            return
        if self._batch or self._goes_back:
            self._catch_up()
        if not buffer.is_lost and buffer.ahead() and buffer.writable():
            await self._inside.seek(buffer.place)
            buffer.forget_ahead()

    async def flush(self) -> None:
        """Give to the system what was written."""
        await self._flush(self._inside.flush)

    async def fsync(self) -> None:
        """Flush, and wait until the disk has all data."""
        await self._flush(self._inside.fsync)

    @_in_turn
    async def _flush(self, operation: Callable[[], Awaitable[None]]) -> None:
        self._io.flush()
        self._end_iteration()
        await operation()

    @_in_turn
    async def close(self) -> None:
        """Flush and close, after the operations that were awaited before. Closing twice is fine."""
        if not self._io.closed:
            await self._inside.close()

    async def __aenter__(self) -> TextFile:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- the position -------------------------------------------------------------------------------------------

    @_in_turn
    async def tell(self) -> int:
        """The position, as a number for `seek`."""
        return await self._tell()

    @_in_turn
    async def seek(self, cookie: int, whence: int = 0, /) -> int:
        """Move to a position that tell has returned; to where it is (0, 1); or to the end (0, 2)."""
        self._check_seekable()
        whence = operator.index(whence)
        if whence == 1 and cookie == 0:
            cookie, whence = await self._tell(), 0
        # What else has no such method, the wrapper refuses.
        target = int(cookie) if hasattr(cookie, "__int__") else -1
        data = b""
        if whence == 2 and target == 0:
            start = await self._inside._end()
        elif whence == 0 and 0 <= target < 2**168:
            # The offset has a sign.
            start = (target + 2**63) % 2**64 - 2**63
            await self._inside.flush()
            if target >> _SKIPPED:
                data = await self._inside.pread(target >> _FED & _FIELD, start)
        else:
            return self._io.seek(cookie, whence)
        # From here on it does not wait.
        await self._inside.seek(start + len(data))
        if not self._buffer.is_lost:
            # What was read ahead changes how much io reads next.
            self._catch_up()
        self._buffer.restart(start, data)
        self._restart()
        self._iterates = False
        if whence == 2:
            return self._io.seek(cookie, whence)
        self._io.seek(target & _START)
        # At the beginning of the file, io resets the decoder. That may leave a part of its state: one of ISO 2022 that
        # has met a broken escape ignores all others from then on. So the mark is set again with the first chunk, with
        # the state if a position can hold it. Where a write may follow, it must be the beginning for the encoder too.
        self._mark = target & _START
        self._buffer.is_unmarked = target == 0 and not self._file.writable()
        if target >> _SKIPPED:
            self._skip(target >> _SKIPPED & _FIELD, bool(target >> _ENDED))
        return cookie

    def _skip(self, count: int, ended: bool) -> None:
        """Takes characters. CPython's own way to do that makes a tell behind it read beyond its data, before 3.15."""
        text = ""
        with self._buffer.replay(ended), contextlib.suppress(Missing):
            text = self._io.read(count)
        if len(text) < count:
            self._goes_back = True
            raise OSError("can't restore logical file position")
        self._taken, self._place = count, self._buffer.place

    @_in_turn
    async def truncate(self, size: int | None = None, /) -> int:
        """Make the file size bytes long, by default up to where io has read, which may be behind the position."""
        self._io.flush()
        self._end_iteration()
        await self._align()
        return await self._inside.truncate(size)

    async def _tell(self) -> int:
        self._check_seekable()
        if self._iterates:
            raise OSError("telling position disabled by next() call")
        if self._buffer.is_lost:
            await self._find_place()
        self._catch_up()
        return self._where()

    def _where(self) -> int:
        return self._io.tell() if self._position is None or self._buffer.ends else self._position

    async def _find_place(self) -> None:
        """Finds out where a write has ended."""
        await self._inside.flush()
        self._buffer.restart(await self._inside.tell())
        self._restart()

    def _check_open(self) -> None:
        if self._io.closed:
            raise ValueError("I/O operation on closed file.")

    def _check_seekable(self) -> None:
        self._check_open()
        if not self._file.seekable():
            raise io.UnsupportedOperation("underlying stream is not seekable")

    # -- changes ------------------------------------------------------------------------------------------------

    @_in_turn
    async def reconfigure(
        self,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: Any = ...,
        line_buffering: bool | None = None,
        write_through: bool | None = None,
    ) -> None:
        """Flush, and change how text is encoded, decoded and written from now on."""
        options: dict[str, Any] = {"encoding": encoding, "errors": errors, "line_buffering": line_buffering}
        if newline is not ...:
            options["newline"] = newline
        self._check_open()
        await self._align()
        await self._inside.flush()
        if self._buffer.is_lost and self._file.seekable():
            await self._find_place()
        self._buffer.flushes = False
        try:
            self._io.reconfigure(**options)
        finally:
            if self._buffer.flushes:
                self._iterates = False
        self.__dict__.pop("_line_ends", None)
        if write_through is not None:
            self._write_through = bool(write_through)

    @_in_turn
    async def detach(self) -> _core.File:
        """Flush, and return the binary file. The text file cannot be used afterwards."""
        self._check_open()
        await self._align()
        await self._inside.flush()
        self._io.detach()
        return self._file
