"""Runs programs in another process: for interpreter exit, signals, fork and anything else that ends a process."""

import subprocess
import sys
import textwrap

from .loops import PRELUDE


class Outcome:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run_script(loop_name, body, *, before="", timeout=20, options=()):
    """Run `body`, in which `asyncio` and `new_loop` are defined, and return its Outcome.

    `before` runs before the loop's package is imported.
    """
    source = textwrap.dedent(before) + PRELUDE[loop_name] + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", *options, "-c", source], capture_output=True, text=True, timeout=timeout
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def start_script(loop_name, body):
    """Start `body` and return the Popen, for tests that send it signals."""
    source = PRELUDE[loop_name] + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-u", "-X", "faulthandler", "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
