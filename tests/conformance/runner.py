"""Runs modules of `test.test_asyncio`, each in a worker process, and collects one Result per test.

A test that exceeds its time limit, or ends the process, fails alone: the worker is killed, the test is recorded as
`timeout` or `crash`, and a new worker continues with the remaining tests.
"""

import collections
import concurrent.futures
import ctypes
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")

#: If the workers of a module died this often, its remaining tests count as not run.
MOST_DEATHS = 25

#: How the worker's Python is started: (environment, options). asyncio's baseline uses the same mode.
MODES = {
    "normal": ({}, ()),
    "debug": ({"PYTHONASYNCIODEBUG": "1"}, ()),
    "dev": ({}, ("-X", "dev")),
}

#: Called in a worker before its program: the kernel kills it when the runner ends for any reason.
DIE_WITH_PARENT = (
    functools.partial(ctypes.CDLL(None).prctl, 1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if sys.platform == "linux"
    else None
)

#: The time that a worker may take to import and to load.
START_LIMIT = 120

#: The runner polls its workers many times a second. After a gap of this many seconds, the whole machine must have
#: stood still.
STOOD_STILL = 5


@dataclasses.dataclass
class Result:
    outcome: str  # pass, fail, error, skip, timeout, crash
    detail: str = ""
    seconds: float = 0.0
    flaky: bool = False
    loops: dict = dataclasses.field(default_factory=dict)  # type name -> how many it made

    @property
    def good(self):
        return self.outcome in ("pass", "skip")


@dataclasses.dataclass
class Launch:
    """How a worker process is started."""

    arguments: list
    directory: str
    environment: dict
    input: bytes = b""


@dataclasses.dataclass
class ModuleRun:
    results: dict = dataclasses.field(default_factory=dict)
    loops: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    seconds: float = 0.0

    def to_json(self):
        results = {name: dataclasses.asdict(result) for name, result in self.results.items()}
        return {"results": results, "loops": dict(self.loops), "seconds": self.seconds}

    @classmethod
    def from_json(cls, data):
        results = {name: Result(**fields) for name, fields in data["results"].items()}
        return cls(results, collections.Counter(data["loops"]), data["seconds"])


def plain_environment():
    """Returns this process's environment, without variables that change how asyncio behaves."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE")}


class Worker:
    """One worker process. `follow` yields its report lines until it has finished, died, or reached a time limit."""

    def __init__(self, directory, launch_with, limit_of):
        """`launch_with` makes the Launch of a worker that writes its report to the named file."""
        self._report = tempfile.NamedTemporaryFile(dir=directory, suffix=".jsonl")
        self._errors = tempfile.TemporaryFile(dir=directory)
        self._limit_of = limit_of
        self.timed_out = False
        launch = launch_with(self._report.name)
        self._process = subprocess.Popen(
            launch.arguments,
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            cwd=launch.directory,
            env=launch.environment,
            start_new_session=True,
            preexec_fn=DIE_WITH_PARENT,
        )
        self._process.stdin.write(launch.input)
        self._process.stdin.close()

    def follow(self):
        deadline, rest, ended = time.monotonic() + START_LIMIT, b"", False
        looked = time.monotonic()
        while True:
            chunk = self._report.read()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in map(json.loads, lines):
                if "start" in line:
                    deadline = time.monotonic() + self._limit_of(line["start"])
                elif "end" in line:
                    deadline = time.monotonic() + START_LIMIT
                yield line
                if "done" in line:
                    # What a test left behind at interpreter exit must not delay the run.
                    deadline = min(deadline, time.monotonic() + 20)
            if ended and not chunk:
                return
            ended = self._process.poll() is not None
            before, looked = looked, time.monotonic()
            if looked - before > STOOD_STILL:
                # While the machine was suspended, or busy with others, no worker ran either.
                deadline += looked - before
            if not ended and looked > deadline:
                self.timed_out = True
                self.end()
            if not chunk:
                time.sleep(0.02)

    def end(self):
        """Ends the worker and its children. faulthandler writes where it was."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGABRT)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()

    def close(self):
        self.end()
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace")[-1500:]
        self._errors.close()
        self._report.close()
        code = self._process.returncode
        return f"{'no answer' if self.timed_out else f'exit code {code}'}\n{tail}"


class Suite:
    """The tests on one loop: `run_module` runs them, `rerun` runs those that failed again, `retries` times at most."""

    def __init__(self, loop, *, limit_of, mode="normal", skip_classes=(), retries=0, say=print):
        self.loop = loop
        self._mode = mode
        self._limit_of = limit_of
        self._skip_classes = skip_classes
        self._retries = retries
        #: The names of the tests that were run again, once for each time.
        self.retried = []
        self._say = say

    def launch(self, directory, module, only, without, report):
        """Starts the worker that runs the tests of `module`: `only` these, if given, and `without` those that have
        run.
        """
        instructions = {
            "loop": self.loop,
            "module": module,
            "only": only,
            "without": without,
            "skip_classes": self._skip_classes,
            "report": report,
        }
        variables, options = MODES[self._mode]
        arguments = [sys.executable, "-X", "faulthandler", *options, WORKER]
        return Launch(arguments, directory, plain_environment() | variables, json.dumps(instructions).encode())

    def run_module(self, module, only=None):
        run, started, deaths = ModuleRun(), time.monotonic(), 0
        with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as directory:
            while deaths < MOST_DEATHS:
                launch = functools.partial(self.launch, directory, module, only, list(run.results))
                worker = Worker(directory, launch, self._limit_of)
                running, done = None, False
                try:
                    for line in worker.follow():
                        if "start" in line:
                            running = line["start"]
                        elif "end" in line:
                            running = None
                            run.results[line["end"]] = Result(
                                line["outcome"], line["detail"], line["seconds"], loops=line["loops"]
                            )
                            run.loops.update(line["loops"])
                        else:
                            done = True
                finally:
                    last_words = worker.close()
                if done:
                    break
                deaths += 1
                culprit = running or f"{module} (outside of any test)"
                run.results[culprit] = Result("timeout" if worker.timed_out else "crash", last_words)
                if running is None:
                    break
        run.seconds = time.monotonic() - started
        return run

    def rerun(self, module, run, names):
        """Runs each failed test of `names` again, alone. One success makes it flaky, which counts as passed."""
        for name in names:
            for retry in range(self._retries):
                self._say(f"  {module}: runs {name} again, retry {retry + 1} of {self._retries}")
                self.retried.append(name)
                again = self.run_module(module, only=[name]).results.get(name)
                if again is not None and again.good:
                    again.flaky = True
                    again.detail = run.results[name].detail
                    run.results[name] = again
                    break

    def run(self, modules, jobs, *, exempt=lambda name: False):
        """Runs `modules`, several at once, then the failures again, when the machine is quiet. Returns {module:
        ModuleRun}.
        """
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            runs = dict(zip(modules, pool.map(self.run_and_say, modules)))
        for module, run in runs.items():
            failed = [name for name, result in run.results.items() if not result.good and not exempt(name)]
            if self._retries and len(failed) > 60:
                self._say(f"  {module}: {len(failed)} failures, too many to be flaky; not run again")
                continue
            self.rerun(module, run, [name for name in failed if " " not in name])
        return runs

    def run_and_say(self, module):
        run = self.run_module(module)
        counts = collections.Counter(result.outcome for result in run.results.values())
        summary = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        self._say(f"  {self.loop:<9} {module:<26} {run.seconds:6.1f} s  {summary}")
        return run
