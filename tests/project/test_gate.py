"""`make test` and `make nightly`: what they read of the runners, what they do when a part fails, and where else their
parts are named.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gate import __main__ as gate
from tests.gate import nightly
from tests.gate.closing import closing, last_line

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PARTS = [part for stage in gate.STAGES for lane in stage for part in lane]

CARGO = """
running 12 tests
......i.....
test result: ok. 11 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.12s

test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.00s
"""

PYTEST = """
tests/test_x.py .s.F                                                     [100%]
=========================== short test summary info ============================
SKIPPED [2] tests/test_x.py:31: no valgrind
SKIPPED [1] tests/project/test_guides.py:43: Skipped: needs grpc, redis: make every-guide
FAILED tests/test_x.py::test_bad - assert 1 == 2, 5 passed in 0.10s of them
ERROR tests/test_x.py::test_worse
\x1b[31m= \x1b[1m1 failed\x1b[0m, 4210 passed, 3 skipped, 5 deselected, 2 xfailed, 1 error in 412.21s (0:06:52) =\x1b[0m
"""

CONFORMANCE = """
retries on asyncio, for the baseline: 2 (test_a, test_a)
loops made: 12 wakeloop.EventLoop
retries: 1; passed only when run again: test_b
  accepted: test_c: asyncio's own class
regressions against asyncio: 0
1498 passed, 0 failed, 31 skipped
"""


def test_cargos_summaries_are_added_up():
    found = closing(CARGO)
    assert (found.tests, found.skipped, found.retries) == (16, 1, 0)
    assert found.why() == "1: ignored in Rust"
    assert [line[:20] for line in found.lines] == ["test result: ok. 11 ", "test result: FAILED."]


def test_pytests_last_line_and_its_reasons_are_read():
    found = closing(PYTEST)
    assert (found.tests, found.skipped, found.retries) == (4214, 3, 0)
    assert found.why() == "3: 2 no valgrind, 1 needs grpc, redis: make every…"
    (line,) = found.lines
    assert line == "= 1 failed, 4210 passed, 3 skipped, 5 deselected, 2 xfailed, 1 error in 412.21s (0:06:52) ="


@pytest.mark.parametrize(
    ("line", "tests"),
    [("12 passed, 1 skipped in 0.52s", 12), ("=== no tests ran in 0.01s ===", 0), ("5 passed in the end", None)],
)
def test_quiet_and_empty_runs_of_pytest_are_read_too(line, tests):
    assert closing(line).tests == tests


def test_retries_are_counted_asyncios_own_too():
    found = closing(CONFORMANCE)
    assert (found.tests, found.skipped, found.retries) == (1498, 31, 3)
    assert found.lines == [line for line in CONFORMANCE.splitlines() if line[:1] in "r1" and line]


def test_steps_that_cannot_run_here_are_counted_as_skipped():
    missing_miri = "skipped: no miri (rustup +nightly component add miri rust-src)"
    found = closing(f"{missing_miri}\n/usr/bin/python3 carries no test.test_asyncio: nothing to compare with\n")
    assert (found.tests, found.skipped) == (None, 2)
    assert found.why() == "2: 1 no miri (rustup +nightly comp…, 1 carries no test.test_asyncio"


def test_many_reasons_are_cut_short():
    lines = [f"SKIPPED [{number}] tests/test_x.py:1: a reason of some length {number}" for number in (9, 8, 7, 6, 5)]
    found = closing("\n".join([*lines, "== 35 skipped in 1.00s =="]))
    assert found.why() == "35: 9 a reason of some length 9, 8 a reason of some length 8, 18 others"


def test_the_last_line_is_not_makes():
    assert last_line("nothing grows\nmake[1]: Leaving directory\nmake: *** [soak] Error 1\n\n") == "nothing grows"


# -- runs, with shell commands for parts -----------------------------------------------------------------------------


class Commands:
    """Stands for the Makefile: the targets are shell scripts."""

    def __init__(self, folder):
        self._folder = folder

    def __setitem__(self, target, script):
        (self._folder / "scripts" / target).write_text(script)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """`make[target] = script` defines what `make target` does."""
    (tmp_path / "scripts").mkdir()
    program(tmp_path, "make", f'for part; do case $part in -*) ;; *) . "{tmp_path}/scripts/$part";; esac; done')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gate, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(nightly, "RECORDS", tmp_path / "records")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Commands(tmp_path)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def program(folder, name, script):
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def run_gate(monkeypatch, capsys, stages, needed=(), tests=()):
    monkeypatch.setattr(gate, "STAGES", stages)
    monkeypatch.setattr(gate, "NEEDED", set(needed))
    monkeypatch.setattr(gate, "TESTS", set(tests))
    monkeypatch.setattr(sys, "argv", ["gate"])
    code = gate.main()
    return code, capsys.readouterr().out


def results(out):
    """The first two columns of the table, which is the last thing but one."""
    rows = out.rpartition("\npart ")[2].partition("\n\n")[0].splitlines()[1:]
    return dict(re.split(" {2,}", row)[:2] for row in rows)


def test_all_parts_run_even_if_one_fails_and_then_the_gate_fails(make, monkeypatch, capsys):
    make["one"] = "echo 'FAILED something'; exit 1"
    make["two"] = "echo '=== 3 passed in 0.10s ==='"
    code, out = run_gate(monkeypatch, capsys, ((("one",),), (("two",),)), tests={"two"})
    assert code == 1
    assert results(out) == {"one": "FAILED", "two": "ok", "left behind": "ok"}
    assert "\n== closing lines\n=== 3 passed in 0.10s ===\n\npart " in out
    assert re.search(r"\nmake test FAILED after \d+ s: one\n$", out)


def test_nothing_runs_after_a_build_that_failed_but_what_runs_beside_it(make, monkeypatch, capsys):
    make["build"] = "exit 1"
    make["lint"] = "echo lint says this"
    make["tests"] = "echo tests say this"
    code, out = run_gate(monkeypatch, capsys, ((("build",), ("lint",)), (("tests",),)), needed={"build"})
    assert code == 1
    assert results(out) == {"build": "FAILED", "lint": "ok", "tests": "not run", "left behind": "ok"}
    assert "\n== make lint\nlint says this\n" in out and "tests say this" not in out


def test_a_part_that_ran_no_tests_fails(make, monkeypatch, capsys):
    make["tests"] = "echo nothing to see"
    code, out = run_gate(monkeypatch, capsys, ((("tests",),),), tests={"tests"})
    assert code == 1 and re.search(r"^tests +no tests ", out, re.MULTILINE)


def test_lanes_of_a_stage_run_beside_each_other(make, monkeypatch, capsys, tmp_path):
    make["one"] = f'touch "{tmp_path}/one"; while ! [ -e "{tmp_path}/two" ]; do sleep 0.05; done; echo one met two'
    make["two"] = f'touch "{tmp_path}/two"; while ! [ -e "{tmp_path}/one" ]; do sleep 0.05; done; echo two met one'
    code, out = run_gate(monkeypatch, capsys, ((("one",), ("two",)),))
    assert code == 0 and "one met two" in out and "two met one" in out


def test_a_part_that_takes_too_long_is_ended_and_there_is_a_table(make, monkeypatch, capsys, tmp_path):
    make["one"] = f'sleep 1000 & echo $! > "{tmp_path}/pid"; echo begun; wait'
    make["two"] = "exit 0"
    monkeypatch.setattr(gate, "LIMIT", 2)
    code, out = run_gate(monkeypatch, capsys, ((("one",),), (("two",),)))
    assert code == 1 and "\nbegun\n" in out
    assert results(out) == {"one": "ENDED", "two": "not run", "left behind": "ok"}
    child = Path("/proc", (tmp_path / "pid").read_text().strip())
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text():
        time.sleep(0.05)


def test_a_process_that_a_part_leaves_does_not_hold_the_gate(make, monkeypatch, capsys, tmp_path):
    pid = tmp_path / "pid"
    make["one"] = f"setsid sh -c 'echo $$ > {pid}; exec sleep 1000' & while ! [ -s {pid} ]; do sleep 0.05; done"
    try:
        code, out = run_gate(monkeypatch, capsys, ((("one",),),))
        assert code == 0
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_files_that_are_left_in_the_temporary_folder_or_the_home_fail_the_gate(make, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".dask").mkdir()
    make["one"] = 'mkdir "$TMPDIR/pytest-of-root" "$HOME/.ipython"; touch "$TMPDIR/wakeloop-1"'
    code, out = run_gate(monkeypatch, capsys, ((("one",),),))
    assert code == 1
    assert re.search(r"^left behind +FAILED +wakeloop-1 in TMPDIR, ~/\.ipython$", out, re.MULTILINE)


# -- the long parts --------------------------------------------------------------------------------------------------


@pytest.fixture
def run_nightly(make, monkeypatch, capsys):
    def run(*arguments, commit="abc", known=("loom", "miri")):
        monkeypatch.setattr(nightly, "PARTS", {part: (part,) for part in known})
        monkeypatch.setattr(nightly, "commit", lambda: commit)
        monkeypatch.setattr(sys, "argv", ["nightly", *arguments])
        return nightly.main(), capsys.readouterr().out

    return run


def test_a_part_runs_once_on_a_commit_unless_it_is_asked_for(make, run_nightly):
    make["loom"] = "echo 'test result: ok. 41 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out'"
    make["miri"] = "echo 'skipped: no miri'"
    code, out = run_nightly()
    assert code == 0
    assert re.search(r"^loom  ok       \S+ \S+  abc +0  test result: ok. 41 passed", out, re.MULTILINE)
    assert re.search(r"^miri  skipped  ", out, re.MULTILINE)
    make["loom"] = "echo loom runs again; exit 3"
    assert "loom has run on abc\n" in run_nightly()[1]
    code, out = run_nightly("loom")
    assert code == 1 and re.search(r"^loom  FAILED  .* loom runs again$", out, re.MULTILINE)
    assert "\n== loom\n" in run_nightly(commit="def")[1]


def test_a_tree_with_changes_does_not_count_as_a_commit(make, run_nightly):
    make["loom"] = make["miri"] = "echo runs"
    run_nightly(commit="abc-dirty")
    assert "has run" not in run_nightly(commit="abc-dirty")[1]


def test_the_report_has_every_part_and_runs_none(make, run_nightly):
    make["loom"] = "echo runs"
    run_nightly("loom")
    code, out = run_nightly("--report", commit="def")
    assert code == 0 and "== loom" not in out
    assert re.search(r"^loom  ok +\S+ \S+  abc +0  runs$", out, re.MULTILINE)
    assert re.search(r"^miri  never ran$", out, re.MULTILINE)


def test_an_interrupted_part_is_not_recorded(make, monkeypatch, run_nightly, tmp_path):
    make["loom"] = f"kill -TERM {os.getpid()}; sleep 1000"
    code, out = run_nightly("loom")
    assert code == 130 and "loom was interrupted" in out
    assert not (tmp_path / "records" / "loom.json").exists()


# -- one gate --------------------------------------------------------------------------------------------------------


def targets():
    return set(re.findall(r"^([a-z0-9.-]+):", MAKEFILE, re.MULTILINE))


def test_every_part_is_a_target_of_the_makefile():
    nightly_targets = {target for part in nightly.PARTS.values() for target in part if "=" not in target}
    assert (set(PARTS) | nightly_targets) - targets() == set()
    assert (gate.NEEDED | gate.TESTS) - set(PARTS) == set()
    assert len(PARTS) == len(set(PARTS))


def test_ci_runs_the_script_that_runs_make_test():
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ['cd "$(dirname "$0")/.." && exec make test "$@"']
    assert re.search(r"^test: tools .*\n\t@\$\(PYTHON\) -m tests\.gate$", MAKEFILE, re.MULTILINE)
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    job = ci.partition("\n  test:\n")[2].partition("\n  release-check:\n")[0]
    assert re.findall(r"- run: (.*)", job) == [".ci/run PYTHON=python"]
    assert int(re.search(r"timeout-minutes: (\d+)", job)[1]) * 60 > gate.LIMIT


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/development.md"])
def test_the_pages_say_that_ci_is_the_script_and_the_script_is_make_test(page):
    text = " ".join((ROOT / page).read_text().split())
    assert "CI calls `.ci/run`, which is `make test`" in text


def test_the_page_of_development_lists_the_parts_of_the_gate():
    page = (ROOT / "docs" / "development.md").read_text()
    row = re.search(r"^\| `make test` \|.*$", page, re.MULTILINE)[0]
    assert re.findall(r"`([a-z-]+)`", row.partition(": ")[2].partition(".")[0]) == PARTS


def test_the_page_of_development_and_the_scheduled_workflow_have_the_long_parts():
    page = (ROOT / "docs" / "development.md").read_text()
    paragraph = re.search(r"^The long parts are (.*?)\n\n", page, re.MULTILINE | re.DOTALL)[1]
    assert re.findall(r"`([a-z0-9-]+)`", paragraph.partition(". ")[0]) == list(nightly.PARTS)
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    block = re.search(r"^        part:\n((?:          - .*\n)+)", workflow, re.MULTILINE)[1]
    assert re.findall(r"- (\S+)", block) == list(nightly.PARTS)


# -- what is missing -------------------------------------------------------------------------------------------------


def make_tools(folder, *arguments):
    """`make tools` where only these programs and the shell's are on the path."""
    for name in ("sh", "sed", "head", "find", "cc", "awk"):
        if not (folder / name).exists():
            (folder / name).symlink_to(shutil.which(name))
    environment = {"PATH": str(folder), "HOME": str(folder)}
    line = [shutil.which("make"), "--no-print-directory", "tools", f"PYTHON={sys.executable}", *arguments]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_make_says_that_rust_is_missing(tmp_path):
    code, said = make_tools(tmp_path)
    assert code == 2 and "install cargo (1.95 or newer) first" in said


def test_make_says_that_rustups_toolchains_are_in_another_place(tmp_path):
    for name in ("cargo", "rustc"):
        program(tmp_path, name, f"echo 'error: rustup could not choose a version of {name} to run' >&2; exit 1")
    code, said = make_tools(tmp_path)
    assert code == 2 and "error: rustup could not choose a version of cargo to run" in said
    assert f"If rustup's toolchains are not in {tmp_path}/.rustup, set RUSTUP_HOME" in said


def test_make_says_that_python_is_too_old(tmp_path):
    for name in ("cargo", "rustc"):
        program(tmp_path, name, "exit 0")
    assert make_tools(tmp_path)[0] == 0
    program(tmp_path, "python", "exit 1")
    code, said = make_tools(tmp_path, f"PYTHON={tmp_path}/python")
    assert code == 2 and "is not CPython 3.11 or newer" in said
