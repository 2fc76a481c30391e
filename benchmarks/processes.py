"""Child processes of a measurement. They run on one core, exchange JSON lines, and are always reaped."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

PR_SET_PDEATHSIG = 1


class ChildError(RuntimeError):
    """The child process failed, ended or did not answer in time."""


def die_with_parent() -> None:
    """Called in the child: the kernel kills it when the parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def pin(cpu: int) -> None:
    """Keeps this process on one core; -1 means any."""
    if cpu >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


def cores() -> tuple[int, int]:
    """The core for servers and the core for the load; (-1, -1) where there are not two to choose from."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (usable[0], usable[1]) if len(usable) > 1 else (-1, -1)


class Child:
    """A process, by default a Python one, that reads and writes one JSON object per line."""

    def __init__(self, *arguments: str, directory: str | None = None, program: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=directory
        )
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
        except BrokenPipeError:
            raise ChildError(self._ended()) from None

    def receive(self, timeout: float) -> dict[str, Any]:
        """The next line; ChildError if it says ``fail``, if none comes in time or the process ended."""
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise ChildError(f"no answer within {timeout:.0f} s")
            data = os.read(descriptor, 65536)
            if not data:
                raise ChildError(self._ended())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "fail" in answer:
            raise ChildError(answer["fail"])
        return answer

    def ask(self, value: Any, timeout: float) -> dict[str, Any]:
        self.send(value)
        return self.receive(timeout)

    def end(self, number: int, timeout: float) -> None:
        """Ends the process by a signal that it can handle. Raises ChildError if it does not end in time."""
        self._process.send_signal(number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ChildError(f"it still runs {timeout:.0f} s after signal {number}") from None

    def close(self) -> None:
        """Kills the process if it still runs, and reaps it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _ended(self) -> str:
        code = self._process.wait(timeout=5)
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
