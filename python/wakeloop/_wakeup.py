"""The descriptor that Python writes signal numbers to (`signal.set_wakeup_fd`). A process has one.

asyncio sets it for a loop with signal handlers, and unsets it with the last of them, also if other code had set it before
or has set it since. Our loop gives it back.
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
        # The descriptor of before, and the open file behind it: the number may be reused for another file.
        self._owner: tuple[int, object] = (-1, None)

    def begin(self, fd: int) -> None:
        """Has signals written to ``fd``, which stays open until the loan has ended."""
        previous = signal.set_wakeup_fd(fd)
        if previous != fd:
            self._owner = (previous, _file(previous))
        self._fd = fd

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Unsets the descriptor for the block. Afterwards the code that set it after us has it, or the one before us."""
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
