"""Runs one library's suite on asyncio and on the loop under test, and compares the results."""

import contextlib
import dataclasses
import fnmatch
import json
import os
import pathlib
import sysconfig
import tempfile
import time

from ..conformance import comparison, runner
from . import services
from .environment import Environment

ASYNCIO = "asyncio.unix_events._UnixSelectorEventLoop"

#: If more tests than this differ, they are not flaky, and are not run again one by one.
MOST_RERUNS = 60

#: How often a test that differs is run again, alone.
RETRIES = 2


class LibrarySuite(runner.Suite):
    """One library's tests on one loop. Each worker process runs pytest."""

    def __init__(self, loop, library, made, directory, service, *, patterns, limit_of, say):
        super().__init__(loop, limit_of=limit_of, say=say)
        self._library = library
        self._made = made
        self._directory = directory
        self._service_arguments, self._service_variables = service
        self._patterns = patterns

    def launch(self, directory, module, only, without, report):
        instructions = {"report": report, "only": only, "without": without, "patterns": self._patterns}
        instructions |= {"deselect": self._library.deselect, "silenced": self._library.silenced}
        path = os.path.join(directory, "instructions.json")
        with open(path, "w") as file:
            json.dump(instructions, file)
        variables = self._made.variables(runner.plain_environment())
        variables |= self._library.environment | self._service_variables
        variables |= {"WAKELOOP_SUITE": path, "WAKELOOP_SUITE_LOOP": self.loop, "TMPDIR": str(self._directory)}
        # The library's own options ask for plug-ins that are not about the loop: xdist, coverage.
        command = [self._made.python, "-X", "faulthandler", "-m", "pytest", "-o", "addopts=", "-q", "--tb=short"]
        command += ["-p", "suites_report", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command += [*self._library.arguments, *self._service_arguments]
        return runner.Launch(list(map(str, command)), str(self._made.tests), variables)


@dataclasses.dataclass
class Verdict:
    """The result for one library. Without a comparison there is no baseline."""

    run: runner.ModuleRun
    baseline: runner.ModuleRun | None = None
    found: comparison.Comparison | None = None
    flaky: list = dataclasses.field(default_factory=list)
    #: The names of the tests that were run again, once for each time.
    retried: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def good(self, own_name):
        made = self.run.loops.get(own_name, 0) > 0
        if self.found is None:
            return made and all(result.good for result in self.run.results.values())
        return made and not self.found.regressions


def failed(run):
    return [name for name, result in run.results.items() if not result.good]


def differing(baseline, run):
    """Returns the tests that passed in `baseline` and not in `run`, and those that failed only in `run`."""
    passed = [name for name, result in baseline.results.items() if result.outcome == "pass"]
    worse = [name for name in passed if name not in run.results or run.results[name].outcome != "pass"]
    return worse + [name for name in failed(run) if name not in baseline.results]


class Judge:
    """Runs libraries, one at a time."""

    def __init__(self, loop, own_name, cache, *, patterns=None, cached=False, say=print, environment=Environment):
        self._environment = environment
        self._loop = loop
        self._own_name = own_name
        self._cache = cache
        self._patterns = patterns
        self._cached = cached
        self._say = say

    def judge(self, library):
        started = time.monotonic()
        made = self._environment(library, self._cache)
        made.make(self._say)
        with contextlib.ExitStack() as stack:
            # A short path, for Unix sockets inside it; readable for servers that run as another user.
            directory = tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True)
            directory = pathlib.Path(stack.enter_context(directory))
            directory.chmod(0o755)
            service = stack.enter_context(services.SERVICES[library.service](directory, made))

            def suite(loop, limit_of):
                return LibrarySuite(
                    loop, library, made, directory, service, patterns=self._patterns, limit_of=limit_of, say=self._say
                )

            if self._loop == "asyncio":
                verdict = Verdict(suite("asyncio", lambda name: library.limit).run_and_say(library.name))
            else:
                verdict = self._compared(library, suite)
        verdict.seconds = time.monotonic() - started
        return verdict

    def _compared(self, library, suite):
        on_asyncio = suite("asyncio", lambda name: library.limit)
        baseline = self._baseline(library, on_asyncio)
        usual = {name: result.seconds for name, result in baseline.results.items()}
        ours = suite(self._loop, lambda name: library.limit + 5 * usual.get(name, 0))
        run = ours.run_and_say(library.name)
        covered = [name for name in differing(baseline, run) if any(e.covers(name) for e in library.exceptions)]
        doubtful = [name for name in differing(baseline, run) if name not in covered]
        if len(doubtful) <= MOST_RERUNS:
            for name in doubtful:
                self._again(library.name, name, baseline, run, on_asyncio, ours)
        found = comparison.compare({library.name: baseline}, {library.name: run}, library.exceptions, self._own_name)
        flaky = [name for name in doubtful if name not in found.regressions]
        return Verdict(run, baseline, found, flaky, ours.retried + on_asyncio.retried)

    def _again(self, module, name, baseline, run, on_asyncio, ours):
        """Runs a differing test alone. One success out of two clears it, and so does a failure on asyncio."""
        for retry in range(RETRIES):
            self._say(f"  {module}: runs {name} again, retry {retry + 1} of {RETRIES}")
            ours.retried.append(name)
            again = ours.run_module(module, only=[name]).results.get(name)
            if again is not None and again.outcome == "pass":
                again.flaky, again.detail = True, run.results[name].detail if name in run.results else "did not run"
                run.results[name] = again
                return
        self._say(f"  {module}: runs {name} again on asyncio")
        on_asyncio.retried.append(name)
        alone = on_asyncio.run_module(module, only=[name]).results.get(name)
        if alone is not None and not alone.good:
            baseline.results[name] = alone
            run.results.setdefault(name, alone)

    def _baseline(self, library, suite):
        path = self._cache / f"{library.name}-{sysconfig.get_python_version()}-{library.tests_digest}.json"
        if self._cached and path.exists():
            run = runner.ModuleRun.from_json(json.loads(path.read_text()))
            for name in [name for name in run.results if not self._wanted(name)]:
                del run.results[name]
            return run
        run = suite.run_and_say(library.name)
        if not self._patterns:
            path.write_text(json.dumps(run.to_json()))
        return run

    def _wanted(self, name):
        return not self._patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns)
