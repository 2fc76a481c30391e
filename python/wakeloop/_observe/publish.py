"""Publishes this process's figures on a shared page, which `python -m wakeloop top` reads.

The page is an anonymous file of Linux (`memfd_create`) that nobody can shorten. Its descriptor stays open, so that a
reader finds it in `/proc/PID/fd`, to which the system admits only the same user. It goes away with the process.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Any

from .. import _core
from . import registry

#: The process that has made a page.
_owner = 0


def publish() -> None:
    """Publish the figures of this process's loops, those made later included, for `python -m wakeloop top`.

    The figures are on a page of memory that other processes of the same user can read. Nothing else happens: no thread
    is started, and nothing is sent. The environment variable `WAKELOOP_PUBLISH=1` has the same effect. A forked child
    has a page of its own, with the loops that it makes. If it runs a loop of its parent's, it has to call this again.

    At most 16 loops are published at a time. Any thread may call this, more than once too. Raises OSError if the
    system cannot make the page, and NotImplementedError on other systems than Linux.
    """
    if sys.platform != "linux":
        raise NotImplementedError("wakeloop.publish() needs Linux")
    _make_page()
    registry.publishes_new = True
    for name, loop in registry.open_loops().items():
        _add(loop, name)


def publish_new(loop: Any) -> None:
    """Publish a loop that was just made. A page that cannot be made is not the program's failure."""
    if sys.platform == "linux":
        try:
            _make_page()
        except OSError:
            return
        names = {id(each): name for name, each in registry.open_loops().items()}
        _add(loop, names.get(id(loop), "loop"))


def _add(loop: Any, name: str) -> None:
    loop._publish(name.encode(errors="replace"))


def _make_page() -> None:
    global _owner
    if sys.platform != "linux" or _owner == os.getpid():
        return
    # It is imported when somebody publishes.
    from . import page

    fd = os.memfd_create(page.FILE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, page.SIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        os.pwrite(fd, page.header(os.getpid(), _core.__version__), 0)
        _core._map_page(fd)
    except BaseException:
        os.close(fd)
        raise
    _owner = os.getpid()
