"""Searches for an order in which a program fails, and shrinks what it finds.

A run is determined by the answers of its schedule, which are small numbers. A run that fails is shrunk on these numbers
alone: each answer that can be 0, which is what asyncio does, becomes 0. Every shorter list is run again; what is
reported has been seen to fail.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ._observed import Main, ObservedLoop, checked, words
from ._schedule import Decision, Replay, Schedule, Seeded
from ._steps import Step

#: Decisions about order; the answer is how many others a callback has overtaken.
_ORDER = frozenset({"ready", "timer", "event", "completion"})
#: With more possibilities than this, a systematic search tries only some of them.
_FEW = 8


@dataclasses.dataclass(frozen=True)
class Reordering:
    """A decision that differs from what asyncio does."""

    __module__ = "wakeloop.testing"

    decision: Decision
    #: The number of the step that follows the decision, or in which it is made.
    step: int
    #: What asyncio would have run instead of this step; empty if the decision is not about order.
    instead_of: str

    def remark(self) -> str:
        """Return it in a few words."""
        kind, count, chosen = self.decision
        if self.instead_of:
            return f"asyncio runs {self.instead_of} first"
        return kind if count == 2 else f"{kind} {chosen}/{count - 1}"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that failed, shrunk."""

    __module__ = "wakeloop.testing"

    #: The seed with which it was found: `testing.run(main, seed=...)` runs it as it was before it was shrunk.
    seed: int
    #: What the shrunk run raised.
    error: BaseException
    #: The decisions of the shrunk run, up to the last one that differs from asyncio's.
    decisions: tuple[Decision, ...]
    #: The steps of the shrunk run.
    steps: tuple[Step, ...]
    #: How many decisions differed from asyncio's before it was shrunk.
    found_with: int
    #: How many runs shrinking took.
    shrink_runs: int
    #: Whether every run with fewer reorderings has been tried, and passed.
    is_fewest: bool
    #: The decisions of the shrunk run that differ from what asyncio does.
    moved: tuple[Reordering, ...]

    @property
    def reorderings(self) -> int:
        """How many decisions of the shrunk run differ from what asyncio does."""
        return len(self.moved)

    def schedule(self) -> Replay:
        """Return a new schedule for `testing.run`, which repeats the shrunk run."""
        return Replay(self.decisions, seed=self.seed)

    def report(self, steps: int = 50) -> str:
        """Return the failure as text: what it raised, how to run it again, and the last steps with the reorderings."""
        again = f"seed {self.seed}: wakeloop.testing.run(main, seed={self.seed})"
        return "\n".join([*words(self.error), again, self._story(steps)])

    def _story(self, steps: int = 50) -> str:
        lines = [self._shrunk(), f"{'step':>8} {'time':>12}"]
        first = max(1, (self.steps[-1].number if self.steps else 0) - steps + 1)
        skipped = 0
        for step in self.steps:
            remarks = [reordering.remark() for reordering in self.moved if reordering.step == step.number]
            if step.number < first and not remarks:
                skipped += 1
                continue
            if skipped:
                lines.append(f"{'...':>8} {_count(skipped, 'step')}")
                skipped = 0
            lines.append(f"{'*' if remarks else ' '} {step}{'   <- ' + ', '.join(remarks) if remarks else ''}")
        return "\n".join(lines)

    def _shrunk(self) -> str:
        if self.reorderings == 0:
            return "It fails without any reordering."
        text = f"{_count(self.reorderings, 'reordering')}, shrunk from {self.found_with} in {self.shrink_runs} runs"
        return f"{text}; no run with fewer fails." if self.is_fewest else f"{text}."

    def __str__(self) -> str:
        return self.report()


@dataclasses.dataclass(frozen=True)
class Exploration:
    """What `explore` has found."""

    __module__ = "wakeloop.testing"

    #: How many runs there were, without those of shrinking.
    runs: int
    #: How many different sequences of steps they had.
    orders: int
    #: The first run's seed; each following run had the next number.
    seed: int
    #: The failure, or None if every run passed.
    failure: Failure | None

    def report(self) -> str:
        """Return the result as text."""
        counts = self._counts()
        return f"{counts}: no failure." if self.failure is None else f"{counts}\n{self.failure.report()}"

    def _counts(self) -> str:
        return f"{_count(self.runs, 'run')}, {_count(self.orders, 'order')}"

    def check(self) -> None:
        """Raise the error of the failure, with the report as a note. Return if every run passed."""
        if self.failure is not None:
            error = self.failure.error
            error.add_note(f"{self._counts()}\n{self.failure._story()}")
            raise error

    def __str__(self) -> str:
        return self.report()


def explore(main: Main, runs: int = 1000, seed: int = 0, *, shrink_runs: int = 500, **options: Any) -> Exploration:
    """Run a program in many orders until it fails, and shrink the failure to the fewest reorderings.

    `main` is a coroutine function without arguments, which makes everything it uses anew. It fails if it raises, or if
    `run` raises: after a deadlock or too many steps, or if something is left behind. Run number n has the seed
    `seed + n`. `shrink_runs` limits the runs that shrinking may take. `options` are those of `run`, with 100,000 for
    `max_steps` if it is not given; `network` may be a function that makes one, because each run needs its own.

    Returns an `Exploration`; its `check()` raises the error that was found.
    """
    main = checked(main, "explore", options)
    if runs < 1:
        raise ValueError(f"explore() needs at least one run: {runs}")
    if taken := {"seed", "schedule"} & options.keys():
        raise TypeError(f"explore() chooses the schedules itself: no {', '.join(sorted(taken))}")
    orders: set[bytes] = set()
    for number in range(seed, seed + runs):
        trial = _try(main, Seeded(number), options)
        orders.add(trial.order())
        if trial.error is not None:
            failure = _Shrinker(main, options, trial, shrink_runs).shrink(number)
            return Exploration(number - seed + 1, len(orders), seed, failure)
    return Exploration(runs, len(orders), seed, None)


# -- one run ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Trial:
    """One run: what it raised, and what its schedule decided."""

    error: BaseException | None
    decisions: tuple[Decision, ...]
    moved: tuple[Reordering, ...]
    steps: tuple[Step, ...]

    def order(self) -> bytes:
        """A digest of the steps."""
        return hashlib.blake2b("\n".join(map(str, self.steps)).encode(), digest_size=16).digest()

    def cost(self) -> tuple[int, int, int]:
        """What shrinking makes less: first the reorderings, then how late the last one is, then how far they go."""
        kept = _trimmed(self.decisions)
        return len(self.moved), len(kept), sum(decision.chosen for decision in kept)

    def fails_like(self, other: _Trial) -> bool:
        return self.error is not None and other.error is not None and _origin(self.error) == _origin(other.error)


def _try(main: Main, schedule: Schedule, options: dict[str, Any]) -> _Trial:
    loop = ObservedLoop(schedule=schedule, **options)
    moved: list[Reordering] = []
    decide = schedule._decide

    def noted(kind: str, count: int, weight: float | None) -> int:
        about_order = kind in _ORDER
        # A decision about order is about the step that follows; any other one is a part of the present step.
        step = loop.steps.total + about_order
        instead_of = loop.first_ready() if about_order else ""
        if chosen := decide(kind, count, weight):
            moved.append(Reordering(schedule.decisions[-1], step, instead_of))
        return chosen

    schedule._decide = noted  # type: ignore[method-assign]
    error: BaseException | None = None
    try:
        loop.run_program(main)
    except (Exception, asyncio.CancelledError) as raised:
        error = raised
    finally:
        del schedule._decide
    last = loop.program_steps or 0
    steps = tuple(step for step in loop.steps if step.number <= last)
    return _Trial(error, tuple(schedule.decisions), tuple(moved), steps)


def _origin(error: BaseException) -> object:
    """What two runs that fail in the same way have in common: the type of the exception, and the line that raised it."""
    if isinstance(error, BaseExceptionGroup):
        return type(error), frozenset(map(_origin, error.exceptions))
    frames = traceback.extract_tb(error.__traceback__)
    return (type(error), frames[-1].filename, frames[-1].lineno) if frames else type(error)


# -- shrinking -------------------------------------------------------------------------------------------------------


class _Shrinker:
    """Makes the answers of a failing run 0, as many as possible, and runs it again after each change."""

    def __init__(self, main: Main, options: dict[str, Any], failing: _Trial, limit: int) -> None:
        self._main, self._options, self._limit = main, options, limit
        self._first = self._best = failing
        self._runs = 0
        #: The run in asyncio's own order.
        self._fifo = failing

    def shrink(self, seed: int) -> Failure:
        self._fifo = self._run([])
        self._drop()
        is_fewest = self._try_fewer()
        self._lower()
        best, kept = self._best, _trimmed(self._best.decisions)
        error = best.error
        assert error is not None
        return Failure(
            seed=seed,
            error=error,
            decisions=kept,
            steps=best.steps,
            found_with=len(self._first.moved),
            shrink_runs=self._runs,
            is_fewest=is_fewest,
            moved=best.moved,
        )

    def _spent(self) -> bool:
        return self._runs >= self._limit

    def _run(self, answers: Iterable[int]) -> _Trial:
        """Runs with these answers. If that fails as well, and with less, it is the best run from now on."""
        self._runs += 1
        trial = _try(self._main, Replay(answers), self._options)
        if trial.fails_like(self._first) and trial.cost() < self._best.cost():
            self._best = trial
        return trial

    def _attempt(self, answers: Iterable[int]) -> bool:
        before = self._best
        return not self._spent() and self._run(answers) is self._best is not before

    def _answers(self) -> list[int]:
        return [decision.chosen for decision in self._best.decisions]

    def _drop(self) -> None:
        """Delta debugging: sets ever smaller parts of the answers to 0, the last ones first."""
        part = len(self._places())
        while part and not self._spent():
            before = self._best
            end = len(self._places())
            while end > 0:
                places, answers = self._places(), self._answers()
                end = min(end, len(places))
                for place in places[max(0, end - part) : end]:
                    answers[place] = 0
                self._attempt(answers)
                end -= part
            # One by one until nothing changes.
            part = part // 2 if part > 1 else int(self._best is not before)

    def _places(self) -> list[int]:
        return [place for place, decision in enumerate(self._best.decisions) if decision.chosen]

    def _try_fewer(self) -> bool:
        """Tries every run with fewer reorderings than the best one has. True if all of them were tried."""
        tried_all = True
        level: list[tuple[list[int], tuple[Decision, ...]]] = [([], self._fifo.decisions)]
        for _ in range(1, len(self._best.moved)):
            # A run with one reordering more differs from one of the last level, behind all its reorderings.
            following = []
            for answers, decisions in level:
                tried_all = tried_all and all(decision.count <= _FEW for decision in decisions[len(answers) :])
                for longer in _one_more(answers, decisions):
                    if self._spent():
                        return False
                    trial = self._run(longer)
                    if trial is self._best:
                        return tried_all
                    following.append((longer, trial.decisions))
            level = following
        return tried_all

    def _lower(self) -> None:
        """Makes the answers that are left as small as possible."""
        for place in self._places():
            if place >= len(self._answers()):
                break
            for chosen in range(1, self._answers()[place]):
                answers = self._answers()
                answers[place] = chosen
                if self._attempt(answers) or chosen >= _FEW:
                    break


def _one_more(answers: list[int], decisions: Sequence[Decision]) -> Iterator[list[int]]:
    """The answers with one more that is not 0, behind those that there are."""
    for place in range(len(answers), len(decisions)):
        for chosen in _some_answers(decisions[place].count):
            yield [*answers, *[0] * (place - len(answers)), chosen]


def _some_answers(count: int) -> Iterable[int]:
    return range(1, count) if count <= _FEW else (1, 2, count // 2, count - 1)


def _trimmed(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    """The decisions without the default ones at their end."""
    end = len(decisions)
    while end and not decisions[end - 1].chosen:
        end -= 1
    return decisions[:end]


# -- words -----------------------------------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
