"""Runs tests in a child process for each mutant, from a parent that has imported pytest already.

It reads a request of one line of JSON from its standard input, and answers with one line: the exit code, or nothing if
the time is over, and the end of what pytest printed. It adopts what the tests leave behind, and ends it.
"""

import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import time

import pytest

PR_SET_CHILD_SUBREAPER = 36
AUTOLOAD = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


class ForThisRunOnly:
    """A plugin. Some tests run pytest themselves."""

    def pytest_configure(self) -> None:
        del os.environ[AUTOLOAD]


def run(tests: list[str], limit: float, answers: int) -> tuple[int | None, str]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(answers)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            sys.dont_write_bytecode = True
            # Most plugins are not needed, and looking for them takes longer than a test.
            os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", AUTOLOAD: "1"}
            code = 3
            try:
                options = ["-x", "-q", "--tb=line", "--loop=wakeloop", "-pno:cacheprovider", "-ppytest_timeout"]
                code = int(pytest.main([*options, *tests], plugins=[ForThisRunOnly()]))
            finally:
                sys.stdout.flush()
                os._exit(code)
        watched = os.pidfd_open(child)
        is_over = bool(select.select([watched], [], [], limit)[0])
        os.close(watched)
        if not is_over:
            end(child)
        status = os.waitpid(child, 0)[1]
        end_orphans()
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - 2000))
        text = output.read().decode(errors="replace")
        return (os.waitstatus_to_exitcode(status) if is_over else None), text


def end(process: int) -> None:
    for kill in (os.kill, os.killpg):
        try:
            kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        return [int(process) for process in listed.read().split()]


def end_orphans() -> None:
    """Ends what has become a child of this process because its own parent has ended."""
    while found := children():
        for process in found:
            end(process)
        for process in found:
            os.waitpid(process, 0)


def main() -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        code, text = run(request["tests"], request["limit"], answers)
        answer = {"code": code, "text": text, "seconds": time.monotonic() - began}
        os.write(answers, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
