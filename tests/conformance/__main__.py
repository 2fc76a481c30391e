"""Runs CPython's own asyncio tests on the loop under test.

    python -m tests.conformance                          everything, compared with asyncio's own results
    python -m tests.conformance --quick                  the part that `make test` runs
    python -m tests.conformance --module test_events     one module (may be repeated)
    python -m tests.conformance --mode debug             with PYTHONASYNCIODEBUG=1; `--mode dev` is `-X dev`
    python -m tests.conformance --mode normal --mode dev one after the other, with a line for each at the end
    python -m tests.conformance --loop asyncio           asyncio alone, for the record
    python -m tests.conformance --loop package:Class     any other loop

The tests are those of the interpreter that runs this. asyncio's results are the baseline. They are kept for a week in
the virtual environment, for one build of the interpreter. A test that passes there and not here is a regression, unless
exceptions.toml lists it with a reason. A failed test is run again only with `--retries`, and the last lines count that.
The exit code is 1 if there is an unlisted regression, or if tests never used the loop.
"""

import argparse
import collections
import hashlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import platform
import sys
import time

from ..support import signals
from . import comparison, runner

#: Tests of other platforms' loops, which never make a Unix loop.
FOREIGN = {"test_proactor_events", "test_windows_events", "test_windows_utils"}

#: Classes that repeat another class's tests with a selector or task implementation that our loop does not use.
REPETITIONS = (
    "PollEventLoopTests",
    "SelectEventLoopTests",
    "ProactorStartTLSTests",
    "CTaskSubclass_PyFuture_Tests",
    "CTask_CFuture_SubclassTests",
    "CTask_PyFuture_Tests",
    "PyTask_CFutureSubclass_Tests",
    "PyTask_CFuture_Tests",
    "PyTask_PyFuture_SubclassTests",
    "SubprocessFastWatcherTests",
    "SubprocessSafeWatcherTests",
    "SubprocessMultiLoopWatcherTests",
)

#: Tests of asyncio's streams, run again with wakeloop's streams in their place.
NATIVE_STREAMS = "test_streams+native"

BASELINE_LIMIT = 120

#: After so many seconds, asyncio's results are not used again.
BASELINE_EXPIRES = 7 * 24 * 3600

#: How often a test that failed on asyncio is run again. Without its result, ours would be compared with nothing.
BASELINE_RETRIES = 2


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="CPython's asyncio tests on our loop.")
    parser.add_argument("--loop", default="wakeloop", help="wakeloop, asyncio, uvloop or package.module:Class")
    parser.add_argument("--module", action="append", dest="modules", metavar="test_NAME")
    parser.add_argument("--compare", action=argparse.BooleanOptionalAction, help="compare with asyncio (default: yes)")
    parser.add_argument("--quick", action="store_true", help="leave out the classes that repeat others' tests")
    parser.add_argument(
        "--mode",
        choices=runner.MODES,
        action="append",
        dest="modes",
        help="asyncio's debug mode, or Python's (-X dev); may be repeated (default: normal)",
    )
    parser.add_argument("--fresh", action="store_true", help="run asyncio's baseline again")
    cache = pathlib.Path(sys.prefix, "conformance")
    parser.add_argument("--cache", type=pathlib.Path, default=cache, metavar="FOLDER", help="where asyncio's results are")
    parser.add_argument("--retries", type=int, default=0, help="how often to run a failed test again (default: never)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", metavar="FILE", help="write all the results to FILE")
    parser.add_argument("--summary", metavar="FILE", help="add a line for each mode to FILE")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of every failure in full")
    options = parser.parse_args()
    options.modes = list(dict.fromkeys(options.modes or ["normal"]))
    if options.json and len(options.modes) > 1:
        parser.error("--json takes the results of one mode")
    if options.compare is None:
        options.compare = options.loop != "asyncio"
    return options


def available_modules():
    import test.test_asyncio as package

    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    found = sorted(name for name in names if name.startswith("test_") and name not in FOREIGN)
    return [*found, NATIVE_STREAMS]


def build_of_interpreter():
    """What is another after the interpreter, or its tests, were built or installed again."""
    import test.test_asyncio as package

    executable = os.path.realpath(sys.executable)
    times = [os.stat(path).st_mtime_ns for path in (executable, *package.__path__)]
    return sys.version, platform.python_build(), executable, *times


class Baseline:
    """asyncio's own results, from the cache or from a run."""

    def __init__(self, cache, skip_classes, mode):
        key = repr((build_of_interpreter(), sorted(skip_classes), mode))
        self._directory = cache / hashlib.sha256(key.encode()).hexdigest()[:16]
        self._directory.mkdir(parents=True, exist_ok=True)
        remove_expired(cache)
        self._suite = runner.Suite(
            "asyncio",
            limit_of=lambda name: BASELINE_LIMIT,
            mode=mode,
            skip_classes=skip_classes,
            retries=BASELINE_RETRIES,
        )

    @property
    def retried(self):
        return self._suite.retried

    def runs(self, modules, jobs, fresh):
        missing = [module for module in modules if fresh or not self._path(module).exists()]
        for module, run in self._suite.run(missing, jobs).items():
            self._path(module).write_text(json.dumps(run.to_json()))
        return {module: self._read(module) for module in modules}

    def _path(self, module):
        return self._directory / f"{module}.json"

    def _read(self, module):
        return runner.ModuleRun.from_json(json.loads(self._path(module).read_text()))


def remove_expired(cache):
    """Removes results that are too old, those of other interpreters too."""
    for file in cache.glob("*/*.json"):
        if not 0 <= time.time() - file.stat().st_mtime < BASELINE_EXPIRES:
            file.unlink()


def type_name(loop):
    """Returns the name under which the worker counts loops of the class under test."""
    from .substitution import loop_class

    cls = loop_class(loop)
    return f"{cls.__module__}.{cls.__qualname__}"


def totals(results):
    """Counts passed, failed and skipped tests. An accepted exception is none of them."""
    counts = collections.Counter(result.outcome for result in results)
    return counts["pass"], sum(counts.values()) - counts["pass"] - counts["skip"], counts["skip"]


def closing_line(passed, failed, skipped):
    print(f"{passed} passed, {failed} failed, {skipped} skipped")


def print_result(name, result, verbose):
    print(f"  {name}: {result.outcome if result else 'did not run'}")
    if result:
        lines = result.detail.splitlines()
        for line in lines if verbose else lines[-4:]:
            print(f"      {line}")


def main():
    options = arguments()
    signals.restore_dispositions()
    if importlib.util.find_spec("test") is None or importlib.util.find_spec("test.test_asyncio") is None:
        print(f"{sys.executable} carries no test.test_asyncio: nothing to compare with")
        closing_line(0, 0, 0)
        return 0
    modules = options.modules or available_modules()
    if options.loop != "wakeloop" and not options.modules:
        modules.remove(NATIVE_STREAMS)
    unknown = set(modules) - set(available_modules())
    if unknown:
        print(f"no such test module: {', '.join(sorted(unknown))}")
        return 2
    lines, good = [], True
    for mode in options.modes:
        print(f"Python {sys.version.split()[0]}, {mode} mode", flush=True)
        line, as_good = run_in(mode, modules, options)
        lines.append(line)
        good = good and as_good
    if options.summary:
        with open(options.summary, "a") as file:
            file.writelines(f"{line}\n" for line in lines)
    if len(lines) > 1:
        print("\n".join(lines))
    return 0 if good else 1


def run_in(mode, modules, options):
    """Runs the modules in one mode and prints the results. Returns the summary line, and whether nothing is worse
    than on asyncio.
    """
    started = time.monotonic()
    own_name = type_name(options.loop)
    exceptions = comparison.read_exceptions()
    skip_classes = REPETITIONS if options.quick else ()

    baseline, limit_of = None, lambda name: BASELINE_LIMIT
    if options.compare:
        asyncios = Baseline(options.cache, skip_classes, mode)
        baseline = asyncios.runs(modules, options.jobs, options.fresh)
        if asyncios.retried:
            print(f"retries on asyncio, for the baseline: {len(asyncios.retried)} ({', '.join(asyncios.retried)})")
        usual = {name: result.seconds for run in baseline.values() for name, result in run.results.items()}
        limit_of = lambda name: 30 + 5 * usual.get(name, 0)  # noqa: E731

    suite = runner.Suite(options.loop, limit_of=limit_of, mode=mode, skip_classes=skip_classes, retries=options.retries)
    runs = suite.run(modules, options.jobs, exempt=lambda name: any(e.covers(name) for e in exceptions))
    loops = sum((run.loops for run in runs.values()), collections.Counter())
    results = {name: result for run in runs.values() for name, result in run.results.items()}
    passed, failed, skipped = totals(results.values())

    if options.json:
        with open(options.json, "w") as file:
            json.dump({module: run.to_json() for module, run in runs.items()}, file, indent=1)

    print("loops made: " + (", ".join(f"{number} {kind}" for kind, number in loops.most_common()) or "none"))
    good = True
    met = len([result for result in results.values() if result.outcome == "pass" and result.loops.get(own_name)])
    print(f"of the passed tests, {met} made such a loop; the rest are about asyncio's other parts, or its own classes")
    flaky = [name for name, result in results.items() if result.flaky]
    print(f"retries: {len(suite.retried)}" + (f"; passed only when run again: {', '.join(flaky)}" if flaky else ""))
    if not loops.get(own_name) and (not options.compare or any(run.loops for run in baseline.values())):
        print(f"not one loop of these tests was a {own_name}: the substitution does not work")
        good = False
    if options.compare:
        found = comparison.compare(baseline, runs, exceptions, own_name)
        for name, exemption in found.accepted.items():
            print(f"  accepted: {name}: {exemption.reason}")
        for exception in found.stale:
            print(f"  stale exception, its tests pass: {exception.test}")
        for module in found.unsubstituted:
            print(f"  {module}: asyncio made loops there, ours was never made")
        print(f"regressions against asyncio: {len(found.regressions)}")
        for name, result in found.regressions.items():
            print_result(name, result, options.verbose)
        good = good and not found.regressions and not found.unsubstituted
        # A test that fails on asyncio as well, or that is listed, is not our failure.
        exempted = len([name for name in results if not results[name].good and name not in found.regressions])
        not_run = len([result for result in found.regressions.values() if result is None or result.good])
        skipped_as_regression = len([r for r in found.regressions.values() if r is not None and r.outcome == "skip"])
        closing_line(passed, failed - exempted + not_run, skipped - skipped_as_regression)
    else:
        for name, result in results.items():
            if not result.good:
                print_result(name, result, options.verbose)
        good = good and not failed
        closing_line(passed, failed, skipped)
    worse = f"{len(found.regressions)} regressions, {len(found.accepted)} accepted" if options.compare else f"{failed} failed"
    line = f"{sys.version.split()[0]} {mode}: {passed} passed, {worse}, {len(flaky)} flaky, {time.monotonic() - started:.0f} s"
    return line, good


if __name__ == "__main__":
    sys.exit(main())
