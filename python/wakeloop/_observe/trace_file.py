"""Writes a trace to a file, as safely as it can be done, and without waiting for a reader.

- A regular file is replaced at once, and only if everything could be written.
- In a sticky directory that others may write to, such as `/tmp`, an entry counts only if it belongs to this user or to
  the directory's owner. This is the rule of Linux's `fs.protected_symlinks`, `fs.protected_regular` and
  `fs.protected_fifos`, which a system may have switched off. So symbolic links are followed here, not by the kernel.
- A terminal, and a named pipe that somebody reads, are written to. `/dev/stdout` and the like are the descriptors of
  this process.
- Directories, sockets, block devices, and named pipes that nobody reads are refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: As many symbolic links as Linux follows.
_MOST_LINKS = 40
#: A directory on the way needs no right to be listed.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STICKY, _SHARED = stat.S_ISVTX, stat.S_IWGRP | stat.S_IWOTH


def check(path: str) -> None:
    """Raise the OSError that `write` would raise now, as far as that is known without writing."""
    with _errors_of(path), _find(path) as place:
        place.check()


def write(path: str, produce: Callable[[int], None]) -> None:
    """Open the file, and call `produce` with the descriptor. Raises OSError as `check` and `produce` do."""
    with _errors_of(path), _find(path) as place:
        place.check()
        if place.is_regular:
            _replace(place, produce)
            return
        with open(place.open_to_write(), "wb", buffering=0) as file:
            produce(file.fileno())


@dataclass
class _Place:
    """A name in an open folder. It is no symbolic link."""

    folder: int
    name: str
    #: None if there is nothing of this name.
    status: os.stat_result | None
    #: The descriptor of this process for which the name stands.
    descriptor: int | None = None

    @property
    def is_regular(self) -> bool:
        return self.descriptor is None and (self.status is None or stat.S_ISREG(self.status.st_mode))

    def check(self) -> None:
        if self.descriptor is not None:
            os.fstat(self.descriptor)
            return
        mode = self.status.st_mode if self.status is not None else 0
        if stat.S_ISDIR(mode):
            raise _error(errno.EISDIR)
        if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
            raise _error(errno.ENXIO)
        if self.status is not None:
            _check_owner(self.folder, self.status)
            self._check_access(self.name, os.W_OK)
        if self.is_regular:
            self._check_access(".", os.W_OK | os.X_OK)

    def _check_access(self, name: str, access: int) -> None:
        if not os.access(name, access, dir_fd=self.folder, effective_ids=os.access in os.supports_effective_ids):
            raise _error(errno.EACCES)

    def open_to_write(self) -> int:
        if self.descriptor is not None:
            # Opened by its name, a file would be overwritten from its beginning, and a socket could not be opened.
            return os.dup(self.descriptor)
        try:
            # Without O_NONBLOCK, opening a named pipe waits for a reader.
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(self.name, flags, dir_fd=self.folder)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise OSError(errno.ENXIO, "Nobody reads this named pipe") from None
            raise


def _replace(place: _Place, produce: Callable[[int], None]) -> None:
    temporary = f".wakeloop-{os.getpid()}-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=place.folder)
    try:
        with open(descriptor, "wb", buffering=0):
            produce(descriptor)
        os.replace(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=place.folder)
        raise


@contextlib.contextmanager
def _find(path: str) -> Iterator[_Place]:
    """Opens the folder in which the file lies, or would lie. The name there is no symbolic link any more."""
    rest = list(reversed(os.path.abspath(path).split("/")))
    where, folder, links = "/", os.open("/", _FOLDER), 0
    try:
        while True:
            name = rest.pop()
            while rest and rest[-1] in ("", "."):
                rest.pop()
            if name in ("", ".") and rest:
                continue
            name = name or "."
            if not rest and name.isdecimal() and _has_own_descriptors(where):
                yield _Place(folder, name, None, int(name))
                return
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                if rest:
                    raise
                yield _Place(folder, name, None)
                return
            if stat.S_ISLNK(status.st_mode):
                _check_owner(folder, status)
                links += 1
                if links > _MOST_LINKS:
                    raise _error(errno.ELOOP)
                target = os.readlink(name, dir_fd=folder)
                rest += reversed(target.split("/"))
                following = "/" if target.startswith("/") else "."
            elif rest:
                following = name
            else:
                yield _Place(folder, name, status)
                return
            if following != ".":
                opened = os.open(following, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder, where = opened, os.path.normpath(os.path.join(where, following))
    finally:
        os.close(folder)


def _has_own_descriptors(folder: str) -> bool:
    # The number there may be another than os.getpid(), in a container.
    return folder.startswith("/proc/") and folder == f"/proc/{os.readlink('/proc/self')}/fd"


def _check_owner(folder: int, status: os.stat_result) -> None:
    """Refuses another user's entry in a directory that everybody may write to."""
    holder = os.fstat(folder)
    shared = holder.st_mode & _STICKY and holder.st_mode & _SHARED
    if shared and status.st_uid not in (os.geteuid(), holder.st_uid):
        raise _error(errno.EACCES)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextlib.contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """An error says the path that the program has given."""
    try:
        yield
    except OSError as error:
        error.filename = path
        # The temporary file is none of the program's.
        del error.filename2
        raise
