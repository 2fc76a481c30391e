"""The descriptor that Python writes the numbers of signals to. There is one in a process, for whoever asked last.

asyncio takes it for a loop with signal handlers and sets it to none when the last of them goes, whoever had it
before or has taken it since. Here it is borrowed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


class Loan:
    """One loop's use of the wakeup descriptor. Main thread only: elsewhere its methods raise ValueError."""

    def __init__(self) -> None:
        self._fd = -1
        # Whose it was, and which open file that is: numbers come back with other files.
        self._owner: tuple[int, object] = (-1, None)

    def begin(self, fd: int) -> None:
        """Have signals written to ``fd``, which stays open until the loan has ended."""
        previous = signal.set_wakeup_fd(fd)
        if previous != fd:
            self._owner = (previous, _file(previous))
        self._fd = fd

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Nobody has it in the block, and afterwards its owner: who took it from us, or had it before us."""
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
