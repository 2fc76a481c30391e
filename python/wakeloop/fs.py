"""The file system, without blocking the loop: functions of ``os``, ``os.path``, ``shutil`` and ``pathlib`` on the
runtime's blocking pool.

Each function has the parameters, the results and the exceptions of the one that it runs. All are awaitable, from any
asyncio loop. A call that is cancelled before a thread has begun it does nothing; one that has begun runs to its end.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import glob as _glob
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, AnyStr, Generic, ParamSpec, TypeVar, overload

from ._core import File, spawn_blocking
from ._files import Mode, Opening, Style, make_or_undo, open
from ._text import TextFile

if TYPE_CHECKING:
    from _typeshed import OpenBinaryMode, OpenTextMode, ReadableBuffer, StrPath

__all__ = [
    "NamedTemporaryFile",
    "TemporaryDirectory",
    "TemporaryFile",
    "access",
    "chmod",
    "chown",
    "copy",
    "copy2",
    "copyfile",
    "copytree",
    "disk_usage",
    "exists",
    "getsize",
    "glob",
    "isdir",
    "isfile",
    "islink",
    "ismount",
    "lexists",
    "link",
    "listdir",
    "lstat",
    "makedirs",
    "mkdir",
    "move",
    "open",
    "read_bytes",
    "read_text",
    "readlink",
    "realpath",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "rmtree",
    "samefile",
    "scandir",
    "stat",
    "statvfs",
    "symlink",
    "touch",
    "truncate",
    "unlink",
    "utime",
    "walk",
    "write_bytes",
    "write_text",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_F = TypeVar("_F", bound=File | TextFile)


def _pooled(function: Callable[_P, _T], name: str) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """The function of this name, on the blocking pool."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _T]:
        return spawn_blocking(function, *args, **kwargs)

    call.__module__ = __name__
    call.__doc__ = f"What ``{name}`` does. Awaitable."
    return call


stat = _pooled(os.stat, "os.stat")
lstat = _pooled(os.lstat, "os.lstat")
statvfs = _pooled(os.statvfs, "os.statvfs")
access = _pooled(os.access, "os.access")
rename = _pooled(os.rename, "os.rename")
renames = _pooled(os.renames, "os.renames")
replace = _pooled(os.replace, "os.replace")
remove = _pooled(os.remove, "os.remove")
unlink = _pooled(os.unlink, "os.unlink")
mkdir = _pooled(os.mkdir, "os.mkdir")
makedirs = _pooled(os.makedirs, "os.makedirs")
rmdir = _pooled(os.rmdir, "os.rmdir")
removedirs = _pooled(os.removedirs, "os.removedirs")
link = _pooled(os.link, "os.link")
symlink = _pooled(os.symlink, "os.symlink")
chmod = _pooled(os.chmod, "os.chmod")
chown = _pooled(os.chown, "os.chown")
utime = _pooled(os.utime, "os.utime")
truncate = _pooled(os.truncate, "os.truncate")

exists = _pooled(os.path.exists, "os.path.exists")
lexists = _pooled(os.path.lexists, "os.path.lexists")
isfile = _pooled(os.path.isfile, "os.path.isfile")
isdir = _pooled(os.path.isdir, "os.path.isdir")
islink = _pooled(os.path.islink, "os.path.islink")
ismount = _pooled(os.path.ismount, "os.path.ismount")
samefile = _pooled(os.path.samefile, "os.path.samefile")
getsize = _pooled(os.path.getsize, "os.path.getsize")

copytree = _pooled(shutil.copytree, "shutil.copytree")
rmtree: Callable[..., Coroutine[Any, Any, None]] = _pooled(shutil.rmtree, "shutil.rmtree")
move = _pooled(shutil.move, "shutil.move")
disk_usage = _pooled(shutil.disk_usage, "shutil.disk_usage")


@overload
def listdir(path: StrPath | None = None) -> Coroutine[Any, Any, list[str]]: ...
@overload
def listdir(path: bytes) -> Coroutine[Any, Any, list[bytes]]: ...
@overload
def listdir(path: int) -> Coroutine[Any, Any, list[str]]: ...
def listdir(path: Any = None) -> Coroutine[Any, Any, Any]:
    """What ``os.listdir`` does. Awaitable."""
    return spawn_blocking(os.listdir, path)


def readlink(path: AnyStr | os.PathLike[AnyStr], *, dir_fd: int | None = None) -> Coroutine[Any, Any, AnyStr]:
    """What ``os.readlink`` does. Awaitable."""
    return spawn_blocking(os.readlink, path, dir_fd=dir_fd)


def realpath(
    filename: AnyStr | os.PathLike[AnyStr], *, strict: bool = False
) -> Coroutine[Any, Any, AnyStr]:
    """What ``os.path.realpath`` does. Awaitable."""
    function: Callable[..., AnyStr] = os.path.realpath
    return spawn_blocking(function, filename, strict=strict)


def copyfile(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> Coroutine[Any, Any, StrPath]:
    """What ``shutil.copyfile`` does. Awaitable."""
    return spawn_blocking(shutil.copyfile, src, dst, follow_symlinks=follow_symlinks)


def copy(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> Coroutine[Any, Any, StrPath]:
    """What ``shutil.copy`` does. Awaitable."""
    return spawn_blocking(shutil.copy, src, dst, follow_symlinks=follow_symlinks)


def copy2(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> Coroutine[Any, Any, StrPath]:
    """What ``shutil.copy2`` does. Awaitable."""
    return spawn_blocking(shutil.copy2, src, dst, follow_symlinks=follow_symlinks)


def scandir(path: StrPath = ".") -> Coroutine[Any, Any, list[os.DirEntry[str]]]:
    """The entries of a directory, as a list of ``os.DirEntry``. Awaitable.

    On most file systems is_file, is_dir and is_symlink of an entry need no system call, except for is_file and is_dir
    of a symbolic link. The stat of an entry blocks: await stat(entry) instead.
    """

    def entries() -> list[os.DirEntry[str]]:
        with os.scandir(path) as found:
            return list(found)

    return spawn_blocking(entries)


async def walk(
    top: StrPath,
    topdown: bool = True,
    onerror: Callable[[OSError], object] | None = None,
    followlinks: bool = False,
) -> AsyncIterator[tuple[str, list[str], list[str]]]:
    """Iterate over a tree of directories as ``os.walk`` does. The directories to go into may be changed as there."""
    steps = os.walk(top, topdown, onerror, followlinks)
    while (step := await spawn_blocking(next, steps, None)) is not None:
        yield step


def glob(
    pathname: AnyStr,
    *,
    root_dir: AnyStr | os.PathLike[AnyStr] | None = None,
    dir_fd: int | None = None,
    recursive: bool = False,
    include_hidden: bool = False,
) -> Coroutine[Any, Any, list[AnyStr]]:
    """What ``glob.glob`` does. Awaitable."""
    return spawn_blocking(
        _glob.glob,
        pathname,
        root_dir=root_dir,
        dir_fd=dir_fd,
        recursive=recursive,
        include_hidden=include_hidden,
    )


def touch(path: StrPath, mode: int = 0o666, exist_ok: bool = True) -> Coroutine[Any, Any, None]:
    """What ``pathlib.Path.touch`` does. Awaitable."""
    return spawn_blocking(Path(path).touch, mode, exist_ok)


def read_bytes(path: StrPath) -> Coroutine[Any, Any, bytes]:
    """The content of a file. Awaitable."""
    return spawn_blocking(Path(path).read_bytes)


def read_text(
    path: StrPath, encoding: str | None = None, errors: str | None = None, newline: str | None = None
) -> Coroutine[Any, Any, str]:
    """The content of a file, as text. Awaitable."""
    encoding = io.text_encoding(encoding)

    def read() -> str:
        with builtins.open(Path(path), encoding=encoding, errors=errors, newline=newline) as file:
            return file.read()

    return spawn_blocking(read)


def write_bytes(path: StrPath, data: ReadableBuffer) -> Coroutine[Any, Any, int]:
    """Replace the content of a file, or create it. Awaitable; gives the number of bytes."""
    return spawn_blocking(Path(path).write_bytes, data)


def write_text(
    path: StrPath,
    data: str,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Coroutine[Any, Any, int]:
    """Replace the content of a file by text, or create it. Awaitable; gives the number of characters."""
    encoding = io.text_encoding(encoding)
    return spawn_blocking(Path(path).write_text, data, encoding, errors, newline)


# -- temporary files ------------------------------------------------------------------------------------------------


async def _removed_by(remove: Callable[[], object]) -> None:
    """Removes something on the blocking pool, even if the task is cancelled before a thread has begun it."""
    await asyncio.shield(spawn_blocking(remove))


@overload
def TemporaryFile(
    mode: OpenBinaryMode = "w+b",
    buffering: int = -1,
    encoding: None = None,
    newline: None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    *,
    errors: None = None,
) -> Opening[File]: ...
@overload
def TemporaryFile(
    mode: OpenTextMode,
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    *,
    errors: str | None = None,
) -> Opening[TextFile]: ...
def TemporaryFile(
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    *,
    errors: str | None = None,
) -> Opening[Any]:
    """A file without a name, as ``tempfile.TemporaryFile`` makes it. Used as wakeloop.open."""
    checked = Mode(mode)
    if not checked.is_binary:
        encoding = io.text_encoding(encoding)
    style = Style(checked, buffering, encoding, errors, newline)

    def make() -> io.FileIO:
        raw: Any = tempfile.TemporaryFile(checked.raw + "b", 0, None, None, suffix, prefix, dir)
        # Where the system has no files without a name, it is behind a wrapper.
        file: io.FileIO = getattr(raw, "file", raw)
        return file

    return Opening(style, make)


class _Named(Opening[_F], Generic[_F]):
    """A temporary file with a name, which is removed at the end of the block.

    Only the file itself closes its descriptor: an operation may be under way when a cancelled block ends.
    """

    __slots__ = ("_remove",)

    def __init__(self, style: Style, make: Callable[[], tuple[int, str]], delete: bool) -> None:
        self._remove: Callable[[], object] | None = None

        def open_raw() -> io.FileIO:
            descriptor, path = make()
            raw = io.FileIO(descriptor, style.mode.raw)
            raw.name = path
            if delete:
                # It is called once: here, or when nobody refers to the file any more, or when the interpreter exits.
                self._remove = weakref.finalize(raw, os.unlink, path)
            return raw

        super().__init__(style, open_raw)

    def _discard(self, raw: io.FileIO) -> None:
        super()._discard(raw)
        if self._remove is not None:
            self._remove()

    def __await__(self) -> Generator[Any, None, _F]:
        raise TypeError("a temporary file with a name is made by 'async with', which removes it")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, traceback)
        finally:
            remove, self._remove = self._remove, None
            if remove is not None:
                await _removed_by(remove)


@overload
def NamedTemporaryFile(
    mode: OpenBinaryMode = "w+b",
    buffering: int = -1,
    encoding: None = None,
    newline: None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    delete: bool = True,
    *,
    errors: None = None,
) -> Opening[File]: ...
@overload
def NamedTemporaryFile(
    mode: OpenTextMode,
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    delete: bool = True,
    *,
    errors: str | None = None,
) -> Opening[TextFile]: ...
def NamedTemporaryFile(
    mode: str = "w+b",
    buffering: int = -1,
    encoding: str | None = None,
    newline: str | None = None,
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    delete: bool = True,
    *,
    errors: str | None = None,
) -> Opening[Any]:
    """A file with a name, as ``tempfile.NamedTemporaryFile`` makes it. For 'async with', at whose end it is closed,
    and removed unless delete is false. Its path is the file's name."""
    checked = Mode(mode)
    if not checked.is_binary:
        encoding = io.text_encoding(encoding)
    style = Style(checked, buffering, encoding, errors, newline)

    return _Named[Any](style, functools.partial(tempfile.mkstemp, suffix, prefix, dir), delete)


@contextlib.asynccontextmanager
async def TemporaryDirectory(
    suffix: str | None = None,
    prefix: str | None = None,
    dir: StrPath | None = None,
    ignore_cleanup_errors: bool = False,
) -> AsyncIterator[str]:
    """A directory that is removed, with its content, at the end of the 'async with', which gives its path."""
    def make() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(suffix, prefix, dir, ignore_cleanup_errors)

    made = await make_or_undo(make, tempfile.TemporaryDirectory.cleanup)
    try:
        yield made.name
    finally:
        await _removed_by(made.cleanup)
