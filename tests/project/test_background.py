"""The suite itself, as a shell's background job and in a session without a terminal: it restores the signal
dispositions that it needs, and what a failing test started ends with it.
"""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.native

ROOT = pathlib.Path(__file__).parents[2]


def as_in_the_background():
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def run_suite(directory, code):
    """Runs tests of this code under tests/conftest.py, with the signals ignored that `nohup … &` ignores."""
    (directory / "test_sample.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", directory, directory]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        start_new_session=True,
        preexec_fn=as_in_the_background,
    )


def test_interrupts_reach_the_tests_and_their_children(tmp_path):
    done = run_suite(
        tmp_path,
        """
        import os, signal, subprocess, sys

        import pytest

        @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM])
        def test_a_child_ends_by_a_signal(number):
            child = subprocess.Popen(["sleep", "100"])
            child.send_signal(number)
            assert child.wait(10) == -number

        def test_a_child_sees_an_interrupt():
            code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10)
            assert "KeyboardInterrupt" in done.stderr

        def test_an_interrupt_is_raised():
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
        """,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def has_ended(pid):
    """Returns whether the process is gone, or is only there for init to reap."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize(
    "ending",
    ["assert False", "raise KeyError", "signal.pause()", "pass"],
    ids=["assertion", "error", "timeout", "forgotten"],
)
def test_what_a_failing_test_started_ends_with_it(tmp_path, ending):
    done = run_suite(
        tmp_path,
        f"""
        import pathlib, signal, subprocess

        import pytest

        @pytest.mark.timeout(2)
        @pytest.mark.filterwarnings("ignore::ResourceWarning")
        def test_that_fails():
            orphan = subprocess.check_output("setsid sleep 100 > /dev/null 2>&1 & echo $!", shell=True, text=True)
            child = subprocess.Popen(["sleep", "100"])
            pathlib.Path("{tmp_path}", "pids").write_text(f"{{orphan}} {{child.pid}}")
            {ending}
        """,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    assert all(has_ended(pid) for pid in pids), (pids, done.stdout)
