"""What asyncio leaves open, and who decides it.

A testing loop asks its schedule whenever more than one thing may happen next: which ready callback runs, which of two
timers with the same deadline fires first, whether a packet is lost. A schedule remembers its answers, so that a run can
be repeated, and can be shrunk to the few answers that matter.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: `Schedule.uniform` chooses one of this many points, so that each of its decisions is a small number too.
_POINTS = 1 << 16


class Decision(NamedTuple):
    """One answer of a schedule: what was asked, how many answers were possible, and which one it gave."""

    kind: str
    count: int  # type: ignore[assignment]
    chosen: int


# A named tuple has no other names.
Decision.__module__ = "wakeloop.testing"


class Schedule:
    """Decides what asyncio leaves open, and remembers each decision.

    The answer 0 (for `chance` it is False, for `uniform` the lower bound) is what happens without a schedule. A
    subclass overrides `draw`.
    """

    __module__ = "wakeloop.testing"

    #: The schedule always gives the default answers, and remembers none of them.
    is_fifo = False

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        #: The answers so far, in order.
        self.decisions: list[Decision] = []

    def draw(self, kind: str, count: int, weight: float | None = None) -> int:
        """Return a number below `count`. With a `weight`, count is 2 and 1 has this probability."""
        raise NotImplementedError

    def choose(self, kind: str, count: int) -> int:
        """Choose one of `count` possibilities, which are numbered from 0. It is no decision if there is only one."""
        if count < 2:
            return 0
        return self._decide(kind, count, None)

    def chance(self, kind: str, probability: float) -> bool:
        """Decide whether something happens that has this probability. At 0 and at 1 it is no decision."""
        _check_probability(probability)
        if probability in (0, 1):
            return probability == 1
        return self._decide(kind, 2, probability) == 1

    def uniform(self, kind: str, low: float, high: float) -> float:
        """Choose a number between `low` and `high`, both included. It is no decision if they are equal."""
        if not low <= high:
            raise ValueError(f"the lower bound {low!r} must not be above the upper bound {high!r}")
        if low == high:
            return low
        return low + (high - low) * (self._decide(kind, _POINTS, None) / (_POINTS - 1))

    def _decide(self, kind: str, count: int, weight: float | None) -> int:
        chosen = self.draw(kind, count, weight)
        if not 0 <= chosen < count:
            raise ValueError(f"a schedule chose {chosen!r} of {count} possibilities ({kind})")
        self.decisions.append(Decision(kind, count, chosen))
        return chosen

    def __repr__(self) -> str:
        seed = "" if self.seed is None else f"seed={self.seed}, "
        return f"<{type(self).__name__} {seed}{len(self.decisions)} decisions>"


class Fifo(Schedule):
    """asyncio's own order: callbacks run in the order in which they became ready. It makes no decisions."""

    __module__ = "wakeloop.testing"

    is_fifo = True

    def draw(self, kind: str, count: int, weight: float | None = None) -> int:
        """Return 0."""
        return 0

    def _decide(self, kind: str, count: int, weight: float | None) -> int:
        return 0


class Seeded(Schedule):
    """Draws every decision from a seed, an int that is not negative. The same seed gives the same decisions."""

    __module__ = "wakeloop.testing"

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"a seed is an int, not {type(seed).__qualname__}")
        if seed < 0:
            raise ValueError(f"a seed must not be negative: {seed}")
        super().__init__(seed)
        # Of the methods of Random, only random() gives the same numbers in all versions of Python.
        self._random = random.Random(seed).random

    def draw(self, kind: str, count: int, weight: float | None = None) -> int:
        """Return the next number of the seed's sequence."""
        if weight is not None:
            return int(self._random() < weight)
        return int(self._random() * count)


class Replay(Schedule):
    """Repeats decisions: those of an earlier run, or some of them. Beyond their end, the answers are the defaults."""

    __module__ = "wakeloop.testing"

    def __init__(self, decisions: Iterable[Decision | int], *, seed: int | None = None) -> None:
        """Takes decisions, or only the numbers that were chosen. `seed` is the one that the decisions came from."""
        super().__init__(seed)
        self._planned: Sequence[int] = [each.chosen if isinstance(each, Decision) else each for each in decisions]

    def draw(self, kind: str, count: int, weight: float | None = None) -> int:
        """Return the planned answer. Where the run now has fewer possibilities, it is the last of them."""
        place = len(self.decisions)
        return min(self._planned[place], count - 1) if place < len(self._planned) else 0


def schedule_of(seed: int | None, schedule: Schedule | None) -> Schedule:
    """Return the schedule that the arguments `seed` and `schedule` stand for; at most one may be given."""
    if schedule is not None:
        if seed is not None:
            raise TypeError("give a seed or a schedule, not both")
        if not isinstance(schedule, Schedule):
            raise TypeError(f"a Schedule was expected, not {type(schedule).__qualname__}")
        return schedule
    return Fifo() if seed is None else Seeded(seed)


def _check_probability(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability is between 0 and 1: {probability!r}")
