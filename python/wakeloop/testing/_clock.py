"""The clock of a testing loop.

The loop's time is a number that stands still while callbacks run. It moves in one of three ways: the loop jumps to the
next deadline, a test advances it, or it flows with real time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

from .. import _core

Mode = Literal["auto", "frozen", "real"]

#: `time.monotonic` belongs to the program, and to the tools that replace it.
_monotonic = _core._monotonic


class Clock:
    """The time of a testing loop, in seconds. It starts at 0, or in the mode "real" at the monotonic clock's time.

    - "auto": when nothing is ready and nothing real is awaited, time jumps to the next deadline.
    - "frozen": only `advance` moves it.
    - "real": it flows, `rate` times as fast as real time.
    """

    __module__ = "wakeloop.testing"

    def __init__(self, mode: Mode = "auto", *, rate: float = 1.0) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"a clock is 'auto', 'frozen' or 'real', not {mode!r}")
        self._mode: Mode = mode
        #: The mode to which `resume` returns.
        self._moving: Mode = "auto" if mode == "frozen" else mode
        self._rate = _checked_rate(rate)
        #: The real time since which the clock flows; None while it stands still.
        self._since: float | None = _monotonic() if mode == "real" else None
        #: The clock's time at `_since`, or while it stands still.
        self._base = self._since or 0.0
        #: Whether the loop of the clock runs.
        self._is_running: Callable[[], bool] = lambda: False
        #: Wakes the loop of the clock.
        self._wake: Callable[[], object] = lambda: None

    @property
    def mode(self) -> Mode:
        """How the clock moves at present: "auto", "frozen" or "real"."""
        return self._mode

    @property
    def rate(self) -> float:
        """How many of the clock's seconds pass in a real one, while it flows. Positive and finite."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        rate = _checked_rate(rate)
        flowing = self._since is not None
        self._stand()
        self._rate = rate
        if flowing:
            self._flow()

    def time(self) -> float:
        """Return the time in seconds."""
        if self._since is None:
            return self._base
        now = _monotonic()
        if self._base == self._since and self._rate == 1.0:
            return now
        return self._base + (now - self._since) * self._rate

    def advance(self, seconds: float) -> None:
        """Move the clock forward. The timers that become due are ready at once, ordered by their deadlines.

        While the loop runs, the clock has to be frozen, or a RuntimeError is raised: a clock that moves by itself
        would run away under the test. ValueError for a negative or infinite number.
        """
        if not isinstance(seconds, (int, float)):
            raise TypeError(f"a number of seconds was expected, not {type(seconds).__qualname__}")
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"a clock cannot be advanced by {seconds!r} seconds: they must be finite and not negative")
        if self._mode != "frozen" and self._is_running():
            raise RuntimeError(
                f"the clock cannot be advanced while its loop runs, because it moves by itself (mode {self._mode!r}); "
                "call freeze() first"
            )
        self._base += seconds
        self._wake()

    def freeze(self) -> None:
        """Stop the clock: from now on only `advance` moves it."""
        self._stand()
        self._mode = "frozen"

    def resume(self) -> None:
        """Let a frozen clock move again, as it did before: "auto" if it was made frozen."""
        if self._mode != "frozen":
            return
        self._mode = self._moving
        if self._mode == "real":
            self._flow()
        self._wake()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._mode} at {self.time():.6f}>"

    # -- for the loop ------------------------------------------------------------------------------

    def _flow(self) -> None:
        """Let the clock flow with real time."""
        if self._since is None:
            self._since = _monotonic()

    def _stand(self, deadline: float | None = None) -> None:
        """Stop the flow. The time is then not later than `deadline`, unless that is past."""
        if self._since is None:
            return
        now = self.time()
        if deadline is not None:
            now = max(self._base, min(now, deadline))
        self._base, self._since = now, None

    def _pass(self, seconds: float, deadline: float | None) -> None:
        """Let so many seconds pass, but none after a deadline."""
        later = self._base + seconds
        self._jump(later if deadline is None else min(later, deadline))

    def _jump(self, deadline: float) -> None:
        self._base = max(self._base, deadline)


def _checked_rate(rate: float) -> float:
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"the rate of a clock is a positive number, not {rate!r}")
    return float(rate)
