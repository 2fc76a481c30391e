"""`explore`: it finds ten bugs of known kinds, repeats each from its seed, and shrinks it."""

import asyncio
import contextlib

import pytest

from tests.testing import bugs
from wakeloop import testing

pytestmark = pytest.mark.native

EVERY_BUG = pytest.mark.parametrize("program", bugs.PROGRAMS, ids=lambda program: program.__name__)


def raised_by(function, *arguments, **options):
    with pytest.raises(Exception) as caught:
        function(*arguments, **options)
    return caught.value


@EVERY_BUG
def test_a_bug_does_not_show_in_the_order_of_asyncio(program):
    bugs.run(program, False)


@EVERY_BUG
def test_a_bug_is_found_and_repeated_from_its_seed_and_shrunk(program):
    found = bugs.explore(program, False, 1000)
    failure = found.failure
    assert failure is not None, found
    assert type(raised_by(bugs.run, program, False, seed=failure.seed)) is type(failure.error)
    again = raised_by(bugs.run, program, False, schedule=failure.schedule())
    assert type(again) is type(failure.error)
    assert 1 <= failure.reorderings <= min(failure.found_with, 4)
    # Each of the reorderings that are left is needed.
    for place, decision in enumerate(failure.decisions):
        if decision.chosen:
            fewer = [0 if number == place else each.chosen for number, each in enumerate(failure.decisions)]
            bugs.run(program, False, schedule=testing.Replay(fewer))


@EVERY_BUG
def test_a_mended_program_passes_in_every_order(program):
    found = bugs.explore(program, True, 100)
    assert found.failure is None, found
    assert found.runs == 100 and found.orders > 10


# -- the report ------------------------------------------------------------------------------------------------------


async def second_before_first():
    seen = []

    async def note(number):
        await asyncio.sleep(1)
        seen.append(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(note(1), name="first")
        group.create_task(note(2), name="second")
    assert seen == [1, 2], "the second one was faster"


def test_the_report_shows_the_steps_and_marks_the_reordering():
    report = testing.explore(second_before_first).report()
    lines = report.splitlines()
    assert "AssertionError: the second one was faster" in lines[1]
    assert any("wakeloop.testing.run(main, seed=" in line for line in lines)
    assert any(line.startswith("1 reordering, shrunk from") and "no run with fewer fails" in line for line in lines)
    [marked] = [line for line in lines if line.startswith("*")]
    assert "   <- asyncio runs " in marked
    names = [line.split()[-1 - 3 * ("<-" in line)] for line in lines if "note at test_explore.py" in line]
    assert len(names) == 4
    # The program ends there: what ends the loop is no part of it.
    assert "shutdown_asyncgens" not in report and "second_before_first at" in lines[-1]


def test_a_long_report_leaves_out_steps_and_says_how_many():
    async def main():
        for _ in range(200):
            await asyncio.sleep(0)
        await second_before_first()

    failure = testing.explore(main).failure
    short, whole = failure.report(15), failure.report(300)
    assert "... " in short
    # The error's own text has more lines where pytest shows the whole difference, as it does in CI.
    error = len(str(failure.error).splitlines())
    assert len(short.splitlines()) < 25 + error < len(whole.splitlines())


def test_check_raises_the_error_with_the_report_as_a_note():
    found = testing.explore(second_before_first)
    with pytest.raises(AssertionError, match="the second one was faster") as caught:
        found.check()
    assert any("1 reordering" in note for note in caught.value.__notes__)


def test_check_returns_if_nothing_was_found():
    found = bugs.explore(bugs.lost_update, True, 20)
    found.check()
    assert str(found).startswith("20 runs, ") and str(found).endswith(": no failure.")


def test_a_program_that_fails_in_every_order_needs_no_reordering():
    async def main():
        await asyncio.gather(asyncio.sleep(1), asyncio.sleep(1))
        raise LookupError("always")

    failure = testing.explore(main).failure
    assert failure.reorderings == 0 and failure.decisions == () and failure.is_fewest
    assert "It fails without any reordering." in failure.report()


def test_shrinking_keeps_to_the_error_that_was_found():
    async def main():
        seen = []

        async def note(number):
            await asyncio.sleep(0)
            seen.append(number)

        await asyncio.gather(*map(note, range(4)))
        if seen == [3, 2, 1, 0]:
            raise LookupError
        assert seen[0] != 1

    found = testing.explore(main, 1000)
    kinds = set()
    for seed in range(60):
        # Without the check, no run collects the garbage of this process.
        failure = testing.explore(main, 1, seed, shrink_runs=20, check=False).failure
        if failure is not None:
            kinds.add(type(failure.error))
            assert type(raised_by(testing.run, main, seed=seed)) is type(failure.error)
    assert kinds == {LookupError, AssertionError} and found.failure is not None


def test_a_limit_on_the_runs_of_shrinking_is_kept():
    failure = bugs.explore(bugs.join_never_done, False, shrink_runs=5).failure
    assert failure.shrink_runs == 5 and not failure.is_fewest
    raised_by(bugs.run, bugs.join_never_done, False, schedule=failure.schedule())


def test_a_keyboard_interrupt_ends_the_search():
    async def main():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        testing.explore(main)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("main",), {}, TypeError, "needs a coroutine function, not str"),
        ((second_before_first, 0), {}, ValueError, "at least one run"),
        ((second_before_first, 1, -1), {}, ValueError, "must not be negative"),
        ((second_before_first,), {"schedule": testing.Fifo()}, TypeError, "chooses the schedules itself: no schedule"),
        ((second_before_first,), {"speed": 1}, TypeError, "speed"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, options, error, text):
    with pytest.raises(error, match=text):
        testing.explore(*arguments, **options)


def test_a_coroutine_cannot_be_run_many_times():
    coroutine = second_before_first()
    with pytest.raises(TypeError, match="coroutine function"):
        testing.explore(coroutine)
    coroutine.close()


# -- Hypothesis ------------------------------------------------------------------------------------------------------


def test_hypothesis_draws_schedules_and_shrinks_them():
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install --group test")
    from wakeloop.testing.hypothesis import schedules

    tried = []

    @hypothesis.settings(database=None, derandomize=True, max_examples=300, deadline=None)
    @hypothesis.given(schedules())
    def check(schedule):
        tried.append(schedule)
        bugs.run(bugs.lost_update, False, schedule=schedule)

    with pytest.raises(AssertionError, match="a withdrawal is lost"):
        check()
    last = [decision.chosen for decision in tried[-1].decisions]
    assert sum(chosen > 0 for chosen in last) <= 4
    raised_by(bugs.run, bugs.lost_update, False, schedule=testing.Replay(last))


def test_hypothesis_draws_no_more_decisions_than_allowed():
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed: pip install --group test")
    from wakeloop.testing.hypothesis import schedules

    @hypothesis.settings(database=None, max_examples=20, deadline=None)
    @hypothesis.given(schedules(max_decisions=2))
    def check(schedule):
        with contextlib.suppress(AssertionError):
            testing.run(second_before_first, schedule=schedule)
        assert len(schedule.decisions) > 2
        assert not any(decision.chosen for decision in schedule.decisions[2:])

    check()
