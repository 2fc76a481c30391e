"""Asks the windows of other processes (`wakeloop.admin`) by their Unix sockets.

A process has its socket in a folder of its user, under its number. The folder is looked for in the process's own file
system, so that containers and services with a private `/tmp` are found too. A program may have chosen another folder
than its first environment says: then the kernel's list of bound sockets has it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import struct
import tempfile
from collections.abc import Iterator
from typing import Any, TypeAlias

#: How long an answer may take, in seconds, and how long it may be, in bytes.
TIMEOUT = 2.0
LONGEST = 64 << 20


class WindowError(Exception):
    """There is no window to ask, or its answer is not one of this version."""


class NoAnswer(WindowError):
    """A process has a window, but did not answer in time, or broke off."""

    def __init__(self, pid: int, reason: Exception) -> None:
        super().__init__(f"process {pid} does not answer: {reason}")


#: The paths of bound sockets that look like those of windows, by network namespaces.
_Bound: TypeAlias = dict[int, list[bytes]]


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError as error:
            if error.errno is not None or isinstance(error, TimeoutError):
                raise
            # The path is too long for an address of a socket. The one by the descriptor of its folder is short.
            folder, name = os.path.split(self._path)
            descriptor = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
            try:
                self.sock.connect(f"/proc/self/fd/{descriptor}/{name}")
            finally:
                os.close(descriptor)


def processes() -> list[int]:
    """The processes of this user that have a window."""
    user, found = os.geteuid(), []
    bound: _Bound = {}
    try:
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    if os.stat(f"/proc/{name}").st_uid == user and any(map(os.path.exists, _sockets(int(name), bound))):
                        found.append(int(name))
    except OSError:
        # Not Linux.
        with contextlib.suppress(OSError):
            names = os.listdir(os.path.join(tempfile.gettempdir(), f"wakeloop-{user}"))
            found = [int(name) for name in names if name.isdecimal()]
    return sorted(found)


def family(pid: int) -> list[int]:
    """A process and its children, and theirs: the workers of a server."""
    found = [pid]
    for each in found:
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
        except OSError:
            continue
    return found


def _sockets(pid: int, bound: _Bound) -> Iterator[str]:
    """The paths where the socket of a process may be. `bound` keeps what was read, for other processes."""
    root, folders, number, user = f"/proc/{pid}/root", [tempfile.gettempdir(), "/tmp"], str(pid), os.geteuid()
    try:
        # Its own file system, or this process's.
        os.stat(f"{root}/")
        user = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            if found := re.search(r"^NSpid:.*?(\d+)$", file.read(), re.MULTILINE):
                number = found[1]
        with open(f"/proc/{pid}/environ", "rb") as file:
            given = dict(line.partition(b"=")[::2] for line in file.read().split(b"\0"))
        folders.insert(0, os.fsdecode(given.get(b"TMPDIR", b"/tmp")))
    except OSError:
        root = ""
    for folder in dict.fromkeys(folders):
        if os.path.isabs(folder):
            yield f"{root}{folder}/wakeloop-{user}/{number}"
        elif root:
            yield f"/proc/{pid}/cwd/{folder}/wakeloop-{user}/{number}"
    ending = f"/wakeloop-{user}/{number}".encode()
    for path in _bound_near(pid, bound):
        if path.endswith(ending):
            yield root + os.fsdecode(path)


#: A line of `/proc/net/unix` about a socket that listens. Its fields: number, references, protocol, flags, type, state,
#: inode, path.
_LISTENS = re.compile(rb"^\S+: \S+ \S+ 00010000 \S+ \S+ +\S+ (/.*/wakeloop-\d+/\d+)$", re.MULTILINE)


def _bound_near(pid: int, bound: _Bound) -> list[bytes]:
    """The sockets of windows in the network namespace of a process."""
    try:
        namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
        if namespace not in bound:
            with open(f"/proc/{pid}/net/unix", "rb") as file:
                bound[namespace] = _LISTENS.findall(file.read())
        return bound[namespace]
    except OSError:
        return []


def _is_of(sock: socket.socket, pid: int) -> bool:
    """Whether a process listens at the other end of a connection. Anybody may bind a socket of this name somewhere."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    listener, *_ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(listener == pid)


def fetch(pid: int, target: str, timeout: float = TIMEOUT, longest: int = LONGEST) -> tuple[int, bytes]:
    """The status and the body of an answer of a process. Raises WindowError, NoAnswer if it has a window."""
    for path in _sockets(pid, {}):
        connection = _Connection(path, timeout)
        try:
            connection.connect()
            if not _is_of(connection.sock, pid):
                continue
            connection.request("GET", target, headers={"Connection": "close"})
            answer = connection.getresponse()
            body = answer.read(longest)
            if answer.read(1):
                raise WindowError(f"the answer of process {pid} is longer than {longest} bytes")
            return answer.status, body
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError, PermissionError):
            continue
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(pid, error) from None
        finally:
            connection.close()
    if not os.path.isdir(f"/proc/{pid}"):
        raise WindowError(f"there is no process {pid}")
    raise WindowError(f"process {pid} has no window: start it with WAKELOOP_ADMIN=1, or call wakeloop.admin()")


def ask(pid: int, target: str) -> dict[str, Any]:
    """The object that a path of a process's window answers. Raises WindowError."""
    status, body = fetch(pid, target)
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if status != 200 or not isinstance(found, dict):
        raise WindowError(f"process {pid} has an answer of another version of wakeloop")
    return found
