"""The descriptor to which Python writes signal numbers (`signal.set_wakeup_fd`). A process has only one.

asyncio sets it for a loop with signal handlers, and unsets it with the last handler, even if other code had set it
before or has set it since. wakeloop restores it instead.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


class Loan:
    """One loop's use of the wakeup descriptor. In other threads than the main one, its methods raise ValueError."""

    def __init__(self) -> None:
        self._fd = -1
        # The descriptor that was set before, and its file: by the end of the loan the number may belong to another
        # file.
        self._owner: tuple[int, object] = (-1, None)

    def begin(self, fd: int) -> None:
        """Lets Python write signal numbers to ``fd``, which must stay open until the loan has ended."""
        previous = signal.set_wakeup_fd(fd)
        if previous != fd:
            self._owner = (previous, _file(previous))
        self._fd = fd

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Unsets the descriptor for the block, and then restores what was set since, or else before."""
        current = signal.set_wakeup_fd(-1)
        fd, file = self._owner if current in (-1, self._fd) else (current, _file(current))
        self._fd, self._owner = -1, (-1, None)
        try:
            yield
        finally:
            if fd >= 0 and file is not None and file == _file(fd):
                signal.set_wakeup_fd(fd)


def _file(fd: int) -> object:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
