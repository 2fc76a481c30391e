"""`wakeloop.open`: opens files on the runtime's blocking pool."""

from __future__ import annotations

import asyncio
import contextlib
import io
import operator
import os
import stat
import threading
import warnings
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from .. import _core
from .text import TextFile

if TYPE_CHECKING:
    from _typeshed import FileDescriptorOrPath, OpenBinaryMode, OpenTextMode, WriteableBuffer

_T = TypeVar("_T")
_F = TypeVar("_F", bound=_core.File | TextFile)


#: The default size of the buffer.
_BUFFER_SIZE = 128 * 1024


class Mode:
    """A mode string, checked as io checks it."""

    def __init__(self, mode: str) -> None:
        if not isinstance(mode, str):
            kind = "None" if mode is None else type(mode).__name__
            raise TypeError(f"open() argument 'mode' must be str, not {kind}")
        modes = set(mode)
        if modes - set("axrwb+t") or len(mode) > len(modes):
            raise ValueError(f"invalid mode: {mode!r}")
        self.text = mode
        self.is_binary = "b" in modes
        if self.is_binary and "t" in modes:
            raise ValueError("can't have text and binary mode at once")
        kind = modes & set("xrwa")
        if len(kind) > 1:
            raise ValueError("must have exactly one of create/read/write/append mode")
        if not kind:
            raise ValueError("Must have exactly one of create/read/write/append mode and at most one plus")
        self.updates = "+" in modes
        #: The mode of the io.FileIO.
        self.raw = kind.pop() + ("+" if self.updates else "")


class Style:
    """What is to be made of a raw file."""

    def __init__(
        self, mode: Mode, buffering: int, encoding: str | None, errors: str | None, newline: str | None
    ) -> None:
        self.mode, self.buffering = mode, operator.index(buffering)
        if not -(2**31) <= self.buffering < 2**31:
            raise OverflowError("Python int too large to convert to C int")
        if mode.is_binary:
            for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
                if value is not None:
                    raise ValueError(f"binary mode doesn't take an {name} argument".replace("an new", "a new"))
            if buffering == 1:
                warnings.warn(
                    "line buffering (buffering=1) isn't supported in binary mode, "
                    "the default buffer size will be used",
                    RuntimeWarning,
                    stacklevel=3,
                )
        else:
            if buffering == 0:
                raise ValueError("can't have unbuffered text I/O")
            for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
                if not isinstance(value, str | None):
                    kind = type(value).__name__
                    raise TypeError(f"open() argument {name!r} must be str or None, not {kind}")
            # It checks the values, and finds the default encoding.
            with io.TextIOWrapper(io.BytesIO(), encoding, errors, newline) as sample:
                self.encoding, self.newline = sample.encoding, newline
                self.errors = "strict" if sample.errors is None else sample.errors

    def wrap(self, raw: io.FileIO) -> Callable[[], _core.File | TextFile]:
        """Runs on a thread that may block. Returns what makes the file on the loop's thread."""
        info, is_seekable = os.fstat(raw.fileno()), raw.seekable()
        is_terminal = self.buffering < 0 and raw.isatty()
        capacity = self.buffering
        if capacity < 0 or (capacity == 1):
            # As io since Python 3.14: a larger buffer needs fewer trips to the pool.
            capacity = max(getattr(info, "st_blksize", 0), _BUFFER_SIZE)
        if self.mode.updates and capacity and not is_seekable:
            raise io.UnsupportedOperation("File or stream is not seekable.")
        # Some of the kernel's files are of this type, and are pipes all the same.
        regular = stat.S_ISREG(info.st_mode) and is_seekable
        line_buffering = self.buffering == 1 or is_terminal
        position = raw.tell() if is_seekable else 0
        # A regular file without a size may be one of the kernel's, which gives what there is at the time.
        is_stream = not regular or not (info.st_size or raw.writable())

        def make() -> _core.File | TextFile:
            file = _core._open_file(raw, regular, capacity)
            if self.mode.is_binary:
                return file
            return TextFile(
                file, self.encoding, self.errors, self.newline, line_buffering, self.mode.text, position, is_stream
            )

        return make


class Opening(Generic[_F]):
    """Opens a file: awaited, or given to 'async with', which closes the file at the end of the block.

    Each await and each block opens a file of its own, also if several tasks share this object.
    """

    __module__ = "wakeloop"
    __slots__ = ("_begun", "_entered", "_open", "_style")

    def __init__(self, style: Style, open_raw: Callable[[], io.FileIO]) -> None:
        self._begun = False
        self._style, self._open = style, open_raw
        #: The files of the blocks that were entered, and the tasks that did that.
        self._entered: list[tuple[asyncio.Task[Any] | None, _F]] = []

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # As a coroutine does. If open() has refused its arguments, there is no `_begun`.
        if not getattr(self, "_begun", True):
            warn("coroutine 'open' was never awaited", RuntimeWarning, stacklevel=2, source=self)

    def __await__(self) -> Generator[Any, None, _F]:
        self._begun = True
        return self._opened().__await__()

    async def __aenter__(self) -> _F:
        self._begun = True
        file = await self._opened()
        self._entered.append((asyncio.current_task(), file))
        return file

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._left().close()

    def _left(self) -> _F:
        """The file of the innermost block of this task, or of another task: some are left elsewhere."""
        if not self._entered:
            raise RuntimeError("open() has opened nothing")
        task = asyncio.current_task()
        own = [place for place, (owner, _) in enumerate(self._entered) if owner is task]
        return self._entered.pop(own[-1] if own else -1)[1]

    async def _opened(self) -> _F:
        def make() -> tuple[io.FileIO, Callable[[], _core.File | TextFile]]:
            raw = self._open()
            try:
                return raw, self._style.wrap(raw)
            except BaseException:
                self._discard(raw)
                raise

        _, finish = await make_or_undo(make, lambda made: self._discard(made[0]))
        return cast("_F", finish())

    def _discard(self, raw: io.FileIO) -> None:
        raw.close()


async def make_or_undo(make: Callable[[], _T], undo: Callable[[_T], object]) -> _T:
    """Makes something on the blocking pool. Undoes it if the task is cancelled, and so nobody gets it."""
    made: list[_T] = []
    is_cancelled = False

    # Whoever comes last: the thread, or the task that was cancelled.
    def discard() -> None:
        with contextlib.suppress(IndexError):
            undo(made.pop())

    def job() -> None:
        made.append(make())
        if is_cancelled:
            discard()

    try:
        await _core.spawn_blocking(job)
    except BaseException:
        is_cancelled = True
        discard()
        raise
    return made.pop()


async def run_whole(
    function: Callable[[], _T], cancel: Callable[[], object] | None = None, *, always: bool = False
) -> _T:
    """Runs a function that changes something, on the blocking pool. A task that is cancelled goes on when the function
    has ended, so that it does not meet what the task does next. `cancel` makes it end early.

    If no thread has begun the function, it does nothing, unless it is to be run `always`.
    """
    loop = asyncio.get_running_loop()
    lock = threading.Lock()
    begun = ended = False
    # The thread completes it, if the task was cancelled.
    end: asyncio.Future[None] | None = None

    def job() -> _T:
        nonlocal begun, ended
        with lock:
            if begun:
                raise asyncio.CancelledError
            begun = True
        try:
            return function()
        finally:
            with lock:
                ended = True
            if end is not None:
                with contextlib.suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(end.set_result, None)

    try:
        return await _core.spawn_blocking(job)
    except asyncio.CancelledError:
        rest: asyncio.Future[Any] | None = None
        with lock:
            # If it had not begun, the job does nothing any more.
            is_mine, begun = not begun, True
            if not is_mine and not ended:
                rest = end = loop.create_future()
        if is_mine and always:
            rest = asyncio.ensure_future(_core.spawn_blocking(function))
        if rest is not None and cancel is not None:
            cancel()
        while rest is not None and not rest.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([rest])
        if rest is not None and not rest.cancelled():
            rest.exception()
        raise


@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenTextMode = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
) -> Opening[TextFile]: ...
@overload
def open(
    file: FileDescriptorOrPath,
    mode: OpenBinaryMode,
    buffering: int = -1,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
) -> Opening[_core.File]: ...
def open(
    file: FileDescriptorOrPath,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
) -> Opening[Any]:
    """Open a file, as the built-in open does, on a thread of the blocking pool.

    Awaitable, and an asynchronous context manager; gives a File for a binary mode and a TextFile for a text mode.
    Raises what the built-in open raises: wrong arguments at once, errors of the system in the await.
    """
    if not isinstance(file, int):
        file = os.fspath(file)
    checked = Mode(mode)
    if not checked.is_binary:
        encoding = io.text_encoding(encoding)
    style = Style(checked, buffering, encoding, errors, newline)
    return Opening(style, lambda: io.FileIO(file, checked.raw, closefd, opener))


class _Source:
    """The file as `loop.sendfile` uses it, which reads it on a thread if it must.

    Such a read goes on when the sending is cancelled. The file's turn ends after it, at the position that the loop has
    set last.
    """

    def __init__(self, file: _core.File) -> None:
        self._file, self._raw, self.mode = file, file._raw, file.mode
        self._lock = threading.Lock()
        self._is_read = self._is_over = False
        self._position: int | None = None

    def fileno(self) -> int:
        return self._raw.fileno()

    def seek(self, offset: int) -> int:
        self._position = self._raw.seek(offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        with self._lock:
            if self._is_over:
                return 0
            self._is_read = True
        try:
            return self._raw.readinto(buffer)
        finally:
            with self._lock:
                self._is_read, is_late = False, self._is_over
            if is_late:
                if self._position is not None:
                    self._raw.seek(self._position)
                self._file._end_turn()

    def end(self) -> None:
        with self._lock:
            self._is_over, is_read = True, self._is_read
        if not is_read:
            self._file._end_turn()


async def send_from_file(
    file: _core.File, transport: Any, offset: int = 0, count: int | None = None, *, fallback: bool = True
) -> int:
    """`File.sendfile`."""
    await file._hold()
    source: Any = _Source(file)
    try:
        return await asyncio.get_running_loop().sendfile(transport, source, offset, count, fallback=fallback)
    finally:
        source.end()
