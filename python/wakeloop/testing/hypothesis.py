"""A strategy for Hypothesis: schedules whose decisions Hypothesis draws, and shrinks.

    @given(schedules())
    def test_transfer(schedule):
        testing.run(transfer, schedule=schedule)
"""

from __future__ import annotations

from typing import Any

from .._extras import needed

with needed(__name__, "hypothesis", "hypothesis"):
    from hypothesis import strategies

from ._schedule import Schedule

__all__ = ("schedules",)


class _Drawn(Schedule):
    """Draws decisions from Hypothesis: 0 first, so that it shrinks towards asyncio's own order."""

    def __init__(self, data: strategies.DataObject, limit: int) -> None:
        super().__init__()
        self._data, self._limit = data, limit
        #: What ended the drawing. Hypothesis ends an example by an exception, which a callback's handle would swallow.
        self._ended: BaseException | None = None

    def draw(self, kind: str, count: int, weight: float | None = None) -> int:
        """Return a number that Hypothesis draws; 0 beyond the limit."""
        if self._ended is not None:
            raise self._ended
        if len(self.decisions) >= self._limit:
            return 0
        try:
            return int(self._data.draw(strategies.integers(0, count - 1), label=kind))
        except BaseException as ended:
            self._ended = ended
            raise


@strategies.composite  # type: ignore[untyped-decorator, unused-ignore]
def schedules(draw: Any, *, max_decisions: int = 500) -> Schedule:
    """Return a strategy of schedules for `testing.run` and `testing.EventLoop`.

    Hypothesis draws the first `max_decisions` decisions of a run; those that follow are asyncio's. It has no weights:
    what happens with some probability, such as the loss of a packet, may happen in any example.
    """
    return _Drawn(draw(strategies.data()), max_decisions)
