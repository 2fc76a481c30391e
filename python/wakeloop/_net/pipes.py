"""What a pipe transport is made of."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from typing import Any

from .._loop import LoopState



def pipe_details(
    loop: LoopState, pipe: Any, extra: Mapping[str, Any] | None, refusal: str
) -> tuple[Any, dict[str, Any], bool]:
    """Returns (owner of the descriptor, values for get_extra_info(), whether the close of the other end is noticed).

    Raises ValueError with the text `refusal` if the object is no pipe.
    """
    details = dict(extra or ())
    details["pipe"] = pipe
    fd = pipe.fileno()
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
        raise ValueError(refusal)
    os.set_blocking(fd, False)
    notices_close = stat.S_ISSOCK(mode) or (stat.S_ISFIFO(mode) and not sys.platform.startswith("aix"))
    if loop._source_of(fd) is not None or loop._watch_of(fd)[0]:
        pipe = _Duplicate(pipe)
    return pipe, details, notices_close


class _Duplicate:
    """A duplicated descriptor, for the second transport of a pipe: most often of a terminal, for reading and writing.

    The loop's table has one place per descriptor.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._fd = pipe, os.dup(pipe.fileno())

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self.__del__()
        self._pipe.close()

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
