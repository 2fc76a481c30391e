"""The file system, without blocking the loop: functions of ``os``, ``os.path``, ``shutil`` and ``pathlib`` on the
runtime's blocking pool.

Each function has the parameters, the results and the exceptions of the one that it runs. All are awaitable, from any
asyncio loop. A call that is cancelled before a thread has begun it does nothing; one that has begun runs to its end. If
it changes something, the task waits for that; copytree and move stop before the next file.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import glob as _glob
import io
import os
import pathlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, AnyStr, Generic, ParamSpec, TypeVar, overload

from ._core import File, spawn_blocking
from ._files import Mode, Opening, Style, make_or_undo, open, run_whole
from ._files.text import TextFile

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
    "copymode",
    "copystat",
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
    "mkdtemp",
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


def _asking(function: Callable[_P, _T], name: str) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """The function of this name, which changes nothing, on the blocking pool."""

    @functools.wraps(function)
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await spawn_blocking(function, *args, **kwargs)

    call.__module__ = __name__
    # functools.wraps copies none of a function of C, which has none.
    call.__annotations__ = getattr(function, "__annotations__", {})
    call.__doc__ = f"What ``{name}`` does. Awaitable."
    return call


def _changing(function: Callable[_P, _T], name: str) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """The function of this name, which changes something, on the blocking pool."""

    @functools.wraps(function)
    async def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await run_whole(functools.partial(function, *args, **kwargs))

    call.__module__ = __name__
    call.__annotations__ = getattr(function, "__annotations__", {})
    call.__doc__ = f"What ``{name}`` does. Awaitable."
    return call


stat = _asking(os.stat, "os.stat")
lstat = _asking(os.lstat, "os.lstat")
statvfs = _asking(os.statvfs, "os.statvfs")
access = _asking(os.access, "os.access")
rename = _changing(os.rename, "os.rename")
renames = _changing(os.renames, "os.renames")
replace = _changing(os.replace, "os.replace")
remove = _changing(os.remove, "os.remove")
unlink = _changing(os.unlink, "os.unlink")
mkdir = _changing(os.mkdir, "os.mkdir")
makedirs = _changing(os.makedirs, "os.makedirs")
rmdir = _changing(os.rmdir, "os.rmdir")
removedirs = _changing(os.removedirs, "os.removedirs")
link = _changing(os.link, "os.link")
symlink = _changing(os.symlink, "os.symlink")
chmod = _changing(os.chmod, "os.chmod")
chown = _changing(os.chown, "os.chown")
utime = _changing(os.utime, "os.utime")
truncate = _changing(os.truncate, "os.truncate")

exists = _asking(os.path.exists, "os.path.exists")
lexists = _asking(os.path.lexists, "os.path.lexists")
isfile = _asking(os.path.isfile, "os.path.isfile")
isdir = _asking(os.path.isdir, "os.path.isdir")
islink = _asking(os.path.islink, "os.path.islink")
ismount = _asking(os.path.ismount, "os.path.ismount")
samefile = _asking(os.path.samefile, "os.path.samefile")
getsize = _asking(os.path.getsize, "os.path.getsize")

rmtree: Callable[..., Coroutine[Any, Any, None]] = _changing(shutil.rmtree, "shutil.rmtree")
copymode = _changing(shutil.copymode, "shutil.copymode")
copystat = _changing(shutil.copystat, "shutil.copystat")
disk_usage = _asking(shutil.disk_usage, "shutil.disk_usage")


@overload
async def listdir(path: StrPath | None = None) -> list[str]: ...
@overload
async def listdir(path: bytes) -> list[bytes]: ...
@overload
async def listdir(path: int) -> list[str]: ...
async def listdir(path: Any = None) -> Any:
    """What ``os.listdir`` does. Awaitable."""
    return await spawn_blocking(os.listdir, path)


async def readlink(path: AnyStr | os.PathLike[AnyStr], *, dir_fd: int | None = None) -> AnyStr:
    """What ``os.readlink`` does. Awaitable."""
    return await spawn_blocking(os.readlink, path, dir_fd=dir_fd)


async def realpath(filename: AnyStr | os.PathLike[AnyStr], *, strict: bool = False) -> AnyStr:
    """What ``os.path.realpath`` does. Awaitable."""
    function: Callable[..., AnyStr] = os.path.realpath
    return await spawn_blocking(function, filename, strict=strict)


async def copyfile(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> StrPath:
    """What ``shutil.copyfile`` does. Awaitable."""
    return await run_whole(lambda: shutil.copyfile(src, dst, follow_symlinks=follow_symlinks))


async def copy(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> StrPath:
    """What ``shutil.copy`` does. Awaitable."""
    return await run_whole(lambda: shutil.copy(src, dst, follow_symlinks=follow_symlinks))


async def copy2(src: StrPath, dst: StrPath, *, follow_symlinks: bool = True) -> StrPath:
    """What ``shutil.copy2`` does. Awaitable."""
    return await run_whole(lambda: shutil.copy2(src, dst, follow_symlinks=follow_symlinks))


class _Stopped(Exception):
    """Ends the copying of a tree. ``shutil`` collects an OSError, but lets this pass."""


async def _copying(
    copy_function: Callable[[str, str], object], run: Callable[[Callable[[str, str], object]], _T]
) -> _T:
    """Runs what copies files by `copy_function`. A task that is cancelled stops it before the next file."""
    stop = threading.Event()

    def copy_next(src: str, dst: str) -> object:
        if stop.is_set():
            raise _Stopped
        return copy_function(src, dst)

    return await run_whole(lambda: run(copy_next), stop.set)


async def copytree(
    src: StrPath,
    dst: StrPath,
    symlinks: bool = False,
    ignore: Callable[[str, list[str]], Iterable[str]] | None = None,
    copy_function: Callable[[str, str], object] = shutil.copy2,
    ignore_dangling_symlinks: bool = False,
    dirs_exist_ok: bool = False,
) -> StrPath:
    """What ``shutil.copytree`` does. Awaitable."""
    ignored: Any = ignore
    return await _copying(
        copy_function,
        lambda copy_next: shutil.copytree(
            src, dst, symlinks, ignored, copy_next, ignore_dangling_symlinks, dirs_exist_ok
        ),
    )


async def move(
    src: StrPath, dst: StrPath, copy_function: Callable[[str, str], object] = shutil.copy2
) -> StrPath:
    """What ``shutil.move`` does. Awaitable."""
    return await _copying(copy_function, lambda copy_next: shutil.move(src, dst, copy_next))


async def scandir(path: StrPath = ".") -> list[os.DirEntry[str]]:
    """The entries of a directory, as a list of ``os.DirEntry``. Awaitable.

    On most file systems is_file, is_dir and is_symlink of an entry need no system call, except for is_file and is_dir
    of a symbolic link. The stat of an entry blocks: await stat(entry) instead.
    """

    def entries() -> list[os.DirEntry[str]]:
        with os.scandir(path) as found:
            return list(found)

    return await spawn_blocking(entries)


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


async def glob(
    pathname: AnyStr,
    *,
    root_dir: AnyStr | os.PathLike[AnyStr] | None = None,
    dir_fd: int | None = None,
    recursive: bool = False,
    include_hidden: bool = False,
) -> list[AnyStr]:
    """What ``glob.glob`` does. Awaitable."""
    return await spawn_blocking(
        _glob.glob,
        pathname,
        root_dir=root_dir,
        dir_fd=dir_fd,
        recursive=recursive,
        include_hidden=include_hidden,
    )


async def touch(path: StrPath, mode: int = 0o666, exist_ok: bool = True) -> None:
    """What ``pathlib.Path.touch`` does. Awaitable."""
    await run_whole(lambda: pathlib.Path(path).touch(mode, exist_ok))


async def read_bytes(path: StrPath) -> bytes:
    """The content of a file. Awaitable."""
    return await spawn_blocking(pathlib.Path(path).read_bytes)


async def read_text(
    path: StrPath, encoding: str | None = None, errors: str | None = None, newline: str | None = None
) -> str:
    """The content of a file, as text. Awaitable."""
    encoding = io.text_encoding(encoding)

    def read() -> str:
        with builtins.open(pathlib.Path(path), encoding=encoding, errors=errors, newline=newline) as file:
            return file.read()

    return await spawn_blocking(read)


async def write_bytes(path: StrPath, data: ReadableBuffer) -> int:
    """Replace the content of a file, or create it. Awaitable; gives the number of bytes."""
    return await run_whole(lambda: pathlib.Path(path).write_bytes(data))


async def write_text(
    path: StrPath,
    data: str,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> int:
    """Replace the content of a file by text, or create it. Awaitable; gives the number of characters."""
    encoding = io.text_encoding(encoding)
    return await run_whole(lambda: pathlib.Path(path).write_text(data, encoding, errors, newline))


# -- temporary files ------------------------------------------------------------------------------------------------


async def mkdtemp(suffix: Any = None, prefix: Any = None, dir: Any = None) -> Any:
    """What ``tempfile.mkdtemp`` does. Awaitable. If it is cancelled, there is no directory."""
    return await make_or_undo(lambda: tempfile.mkdtemp(suffix, prefix, dir), os.rmdir)


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

    __slots__ = ("_removals",)

    def __init__(self, style: Style, make: Callable[[], tuple[int, str]], delete: bool) -> None:
        #: What removes the file of each name. It is called once: here, or when nobody refers to the file any more, or
        #: when the interpreter exits.
        self._removals: dict[str, Callable[[], object]] = {}

        def open_raw() -> io.FileIO:
            descriptor, path = make()
            raw = io.FileIO(descriptor, style.mode.raw)
            raw.name = path
            if delete:
                self._removals[path] = weakref.finalize(raw, os.unlink, path)
            return raw

        super().__init__(style, open_raw)

    def _discard(self, raw: io.FileIO) -> None:
        super()._discard(raw)
        if (remove := self._removals.pop(raw.name, None)) is not None:
            remove()

    def __await__(self) -> Generator[Any, None, _F]:
        self._begun = True
        raise TypeError("a temporary file with a name is made by 'async with', which removes it")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        file = self._left()
        try:
            await file.close()
        finally:
            if (remove := self._removals.pop(file.name, None)) is not None:
                await run_whole(remove, always=True)


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
        await run_whole(made.cleanup, always=True)
