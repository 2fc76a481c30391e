"""Mutation tests of the Python package, python/wakeloop without python/wakeloop/testing.

    python -m tests.python_mutants                       every mutant that has not run, of every module
    python -m tests.python_mutants --sample 25 --seed 7  of each module so many, chosen by the seed
    python -m tests.python_mutants loop.py _net/tls.py   of these modules
    python -m tests.python_mutants --survivors           those again that no test has found
    python -m tests.python_mutants --report              the score, and the survivors; nothing runs

cosmic-ray makes the mutants and keeps the results, a session for each module in target/python-mutants. So a run that
was interrupted is continued, and cosmic-ray's own tools (cr-report, cr-html) read the results. The mutants of a module
are made anew when it has changed. The first run measures which tests execute which line, and `--measure` does it again.

A mutant is found if one of its tests fails, or takes much longer than without it. A test that finds a mutant is tried
without it once, and left out if it fails even so. What is equivalent to the original is in equivalent.toml, with the
reason. Survivors are no error: the last line says how many there are.
"""

import argparse
import hashlib
import queue
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

from . import equivalents
from .coverage import Coverage, Module
from .mutations import difference, mutated, specifications
from .running import OVER_TIME, PACKAGE, ROOT, Tree, copy_tree, environment

KEPT = ROOT / "target" / "python-mutants"
COVERAGE = KEPT / "coverage.json"
#: The mutants of a module are made anew when this has changed, or the module.
MUTATIONS = Path(__file__).with_name("mutations.py")
#: The tests that are about the package.
TESTED = (
    "compat files loop observe primitives process queue streams tls transport "
    "ecosystem/test_servers.py ecosystem/test_test_tools.py project/test_public_names.py"
).split()
#: The tests of a mutant: first a few, and for what they do not find more. Each has a part of the time of all tests, and
#: a number of tests. `--quick` runs the first alone.
ROUNDS = ((1 / 1000, 12), (1 / 400, 40), (1 / 60, 300))


class Session:
    """cosmic-ray's database of one module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.source = (ROOT / PACKAGE / module).read_text()
        kept = KEPT / module
        kept.parent.mkdir(parents=True, exist_ok=True)
        self.database = WorkDB(kept.with_suffix(".sqlite"), WorkDB.Mode.create)
        digest = hashlib.sha256(MUTATIONS.read_bytes() + self.source.encode()).hexdigest()
        made_of = kept.with_suffix(".sha256")
        if not made_of.exists() or made_of.read_text() != digest:
            self.database.clear()
            made = specifications(module, self.source)
            self.database.add_work_items(WorkItem.single(uuid.uuid4().hex, mutation) for mutation in made)
            made_of.write_text(digest)
        self.items = sorted(self.database.work_items, key=lambda item: order(item.mutations[0]))
        self.results = dict(self.database.results)

    def sample(self, size: int | None, seed: int) -> list[WorkItem]:
        """So many of the mutants, chosen by the seed. A larger sample has those of a smaller one."""
        chosen = self.items.copy()
        random.Random(f"{seed} {self.module}").shuffle(chosen)
        return chosen[:size]

    def set(self, item: WorkItem, result: WorkResult) -> None:
        self.database.set_result(item.job_id, result)
        self.results[item.job_id] = result


def order(mutation: MutationSpec) -> tuple[object, ...]:
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def is_survivor(result: WorkResult | None) -> bool:
    return result is not None and result.test_outcome is TestOutcome.SURVIVED


def modules() -> list[str]:
    files = {file.relative_to(ROOT / PACKAGE) for file in (ROOT / PACKAGE).rglob("*.py")}
    return sorted(file.as_posix() for file in files if file.parts[0] != "testing")


def measure() -> None:
    """Runs all tests, and records the lines of the package that each executes, and how long it takes."""
    tree = KEPT / "measured"
    copy_tree(tree)
    startup = tree / "tests" / "python_mutants" / "startup"
    (startup / "lines").unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "wakeloop_lines"]
    command += ["--loop", "wakeloop", *(f"tests/{place}" for place in TESTED)]
    subprocess.run(command, cwd=tree, env=environment(tree, startup))
    coverage = Coverage()
    coverage.add(startup / "lines")
    coverage.write(COVERAGE)


def run(sessions: list[Session], options: argparse.Namespace) -> None:
    coverage = Coverage.read(COVERAGE)
    equivalent = equivalents.read()
    pending: queue.SimpleQueue[tuple[Session, Module, WorkItem]] = queue.SimpleQueue()
    todo = []
    for session in sessions:
        chooser = Module(coverage, session.module, session.source)
        for item in session.sample(options.sample, options.seed):
            result = session.results.get(item.job_id)
            if is_survivor(result) if options.survivors else result is None:
                todo.append((session, chooser, item))
    random.Random(options.seed).shuffle(todo)
    for entry in todo:
        pending.put(entry)
    done: queue.SimpleQueue[tuple[Session, WorkItem, WorkResult, float] | None] = queue.SimpleQueue()
    ends = time.monotonic() + options.minutes * 60
    stop = threading.Event()

    def work(number: int) -> None:
        tree = Tree(KEPT / f"tree-{number}")
        try:
            while time.monotonic() < ends and not stop.is_set():
                session, chooser, item = pending.get_nowait()
                began = time.monotonic()
                mutation = item.mutations[0]
                result = try_one(tree, session, chooser, mutation, equivalent, options.quick)
                done.put((session, item, result, time.monotonic() - began))
        except queue.Empty:
            pass
        finally:
            tree.close()
            done.put(None)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(options.jobs)]
    for worker in workers:
        worker.start()
    finished = left = 0
    try:
        while left < len(workers):
            if (entry := done.get()) is None:
                left += 1
                continue
            session, item, result, seconds = entry
            session.set(item, result)
            finished += 1
            mutation = item.mutations[0]
            outcome = result.test_outcome or result.worker_outcome
            print(
                f"{finished}/{len(todo)} {outcome.value:9} {seconds:5.1f} s {session.module}:{mutation.start_pos[0]} "
                f"{mutation.operator_name.partition('/')[2]}: {(result.diff or '')[:160]!r}",
                flush=True,
            )
    finally:
        stop.set()  # an interrupted run ends with the mutants that have begun


def try_one(
    tree: Tree,
    session: Session,
    chooser: Module,
    mutation: MutationSpec,
    equivalent: list[equivalents.Equivalent],
    quick: bool,
) -> WorkResult:
    changed = mutated(session.source, mutation)
    if changed is None:
        return WorkResult(WorkerOutcome.SKIPPED, "the same program, or none")
    was, becomes = difference(session.source, changed)
    diff = f"{was}\n{becomes}"
    if why := equivalents.reason(equivalent, session.module, mutation.definition_name or "", was, becomes):
        return WorkResult(WorkerOutcome.SKIPPED, f"equivalent: {why}", None, diff)
    while True:
        first, last = mutation.start_pos[0], mutation.end_pos[0]
        choices = [chooser.chosen(first, last, part, most) for part, most in ROUNDS[: 2 if quick else 3]]
        if not choices[-1]:
            return WorkResult(WorkerOutcome.NORMAL, "no test executes it", TestOutcome.SURVIVED, diff)
        rounds = [[test for test in tests if test not in before] for before, tests in pairwise([[], *choices])]
        try:
            found, text = is_found(tree, session.module, changed, rounds, chooser.coverage.seconds)
        except FailsAnyway as failure:
            for test in failure.tests:
                print(f"fails without a mutant, and is left out: {test}", flush=True)
                chooser.coverage.seconds.pop(test, None)
            continue
        outcome = {True: TestOutcome.KILLED, False: TestOutcome.SURVIVED, None: TestOutcome.INCOMPETENT}[found]
        return WorkResult(WorkerOutcome.NORMAL, text, outcome, diff)


class FailsAnyway(Exception):
    def __init__(self, tests: list[str]) -> None:
        self.tests = tests


#: Tests that have passed on the unchanged package, here and now. Each that finds a mutant is tried once.
PASS: set[str] = set()


def is_found(
    tree: Tree, module: str, changed: str, rounds: list[list[str]], seconds: dict[str, float]
) -> tuple[bool | None, str]:
    for part in filter(None, rounds):
        took = sum(seconds.get(test, 0) for test in part)
        outcome = tree.run(module, changed, part, took)
        if outcome.is_found is False:
            PASS.update(part)
            continue
        if outcome.is_found and not outcome.is_over_time:
            failed = [test for test in part if outcome.names(test)] or part
            if not PASS.issuperset(failed):
                unchanged = tree.unchanged(failed, took)
                if not unchanged.passes:
                    raise FailsAnyway([test for test in failed if unchanged.names(test)] or failed)
                PASS.update(failed)
        return outcome.is_found, outcome.text
    return False, "\n".join(chain.from_iterable(rounds))


def report(sessions: list[Session]) -> None:
    equivalent = equivalents.read()
    survivors = []
    total: Counter[str] = Counter()
    print(f"{'module':22} {'mutants':>7} {'run':>5} {'found':>5} {'by time':>7} {'equivalent':>10} {'survived':>8}")
    for session in sessions:
        counts: Counter[str] = Counter(mutants=len(session.items))
        for item in session.items:
            result = session.results.get(item.job_id)
            if result is None or (result.worker_outcome is WorkerOutcome.SKIPPED and not result.diff):
                counts["mutants"] -= result is not None
                continue
            was, _, becomes = (result.diff or "").partition("\n")
            counts["run"] += 1
            function = item.mutations[0].definition_name or ""
            if equivalents.reason(equivalent, session.module, function, was, becomes):
                counts["equivalent"] += 1
            elif is_survivor(result):
                counts["survived"] += 1
                survivors.append((session.module, item.mutations[0], was, becomes, result.output or ""))
            elif result.test_outcome is TestOutcome.INCOMPETENT:
                counts["unclear"] += 1  # the unchanged package was over the time too
            else:
                counts["found"] += 1
                counts["by time"] += (result.output or "").startswith(OVER_TIME)
        total += counts
        row(session.module, counts)
    row("all", total)
    for module, mutation, was, becomes, output in survivors:
        why = " (no test executes it)" if output.startswith("no test") else ""
        print(f"\n{module}:{mutation.start_pos[0]} {mutation.operator_name.partition('/')[2]}{why}")
        print(f"  - {was}\n  + {becomes}")
    score = 100 * total["found"] / max(total["found"] + total["survived"], 1)
    print(
        f"\n{total['run']} of {total['mutants']} mutants run: {total['found']} found, {total['survived']} survived, "
        f"{total['equivalent']} equivalent, {total['unclear']} unclear; score {score:.1f} %"
    )


def row(name: str, counts: Counter[str]) -> None:
    print(
        f"{name:22} {counts['mutants']:7} {counts['run']:5} {counts['found']:5} {counts['by time']:7} "
        f"{counts['equivalent']:10} {counts['survived']:8}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.python_mutants", description="Runs mutants of the package.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files of python/wakeloop (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="run at most N mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are the sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many run at once (default: 2)")
    parser.add_argument("--quick", action="store_true", help="run only the tests that are most about a mutant")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after so many minutes")
    parser.add_argument("--measure", action="store_true", help="measure again which tests execute which line")
    parser.add_argument("--survivors", action="store_true", help="run only those, again, that no test has found")
    parser.add_argument("--report", action="store_true", help="print the results, and run nothing")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(modules()):
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    KEPT.mkdir(parents=True, exist_ok=True)
    sessions = [Session(module) for module in options.modules or modules()]
    if not options.report:
        if options.measure or not COVERAGE.exists():
            measure()
        run(sessions, options)
    report(sessions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
