"""A copy of the tree in which mutants are run one after another."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path("python/wakeloop")
#: A mutant's time limit: seconds for each second that its tests take unchanged, and seconds for all of them.
FACTOR, LEAST = 6, 15


def copy_tree(directory: Path) -> None:
    """Copies what git tracks or would track, and the extension."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    extensions = [str(file.relative_to(ROOT)) for file in (ROOT / PACKAGE).glob("_core*.so")]
    assert extensions, "the extension is not built: make build"
    for name in [*filter(None, listed), *extensions]:
        source, target = ROOT / name, directory / name
        if source.is_file() and not (target.exists() and source.stat().st_mtime_ns == target.stat().st_mtime_ns):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for file in (directory / "tests").rglob("test_*.py"):
        if not (ROOT / file.relative_to(directory)).exists():
            file.unlink()


def environment(directory: Path, *more: Path) -> dict[str, str]:
    paths = [directory / "python", directory / "python" / "startup" / "platlib", *more]
    left_out = ("WAKELOOP", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


OVER_TIME = "over time"


@dataclass
class Outcome:
    """`code` is pytest's exit code, or None if the time was over."""

    code: int | None
    text: str
    seconds: float

    @property
    def passes(self) -> bool:
        return self.code == 0

    @property
    def is_over_time(self) -> bool:
        return self.code is None

    @property
    def is_found(self) -> bool | None:
        """None if the time limit says nothing, because the unchanged package exceeds it as well."""
        return None if self.is_over_time and not self.text.startswith(OVER_TIME) else not self.passes

    def names(self, test: str) -> bool:
        """Whether pytest says that this test has failed, or is not there."""
        name = re.escape(test)
        return re.search(rf"^(FAILED |ERROR |ERROR: not found: \S*/){name}( - |$)", self.text, re.MULTILINE) is not None


class Tree:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        copy_tree(directory)
        # The tests are compiled once, and not for each mutant.
        options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "tests"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=directory,
            env=environment(directory),
            stdout=subprocess.DEVNULL,
        )
        self.changes = 0
        command = [sys.executable, "-m", "tests.python_mutants.server"]
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def ask(self, tests: list[str], limit: float) -> Outcome:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"tests": tests, "limit": limit}) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))

    def unchanged(self, tests: list[str], seconds: float) -> Outcome:
        return self.ask(tests, 4 * (LEAST + FACTOR * seconds))

    def run(self, module: str, changed: str, tests: list[str], seconds: float) -> Outcome:
        """Runs tests that take so many seconds unchanged on a changed module."""
        limit = LEAST + FACTOR * seconds
        while True:
            outcome = self.run_changed(module, changed, tests, limit)
            if not outcome.is_over_time:
                return outcome
            # Is the change slow, or the machine?
            unchanged = self.ask(tests, limit)
            if unchanged.code is not None and unchanged.seconds < limit / 2:
                return Outcome(None, f"{OVER_TIME}: {limit:.0f} s; unchanged {unchanged.seconds:.0f} s", limit)
            if limit > 600:
                return outcome
            limit *= 3

    def run_changed(self, module: str, changed: str, tests: list[str], limit: float) -> Outcome:
        file = self.directory / PACKAGE / module
        original, times = file.read_bytes(), file.stat()
        self.changes += 1
        file.write_text(changed)
        # Each change has a time of its own, so that no process takes the bytecode of another for its own.
        os.utime(file, (self.changes, self.changes))
        try:
            return self.ask(tests, limit)
        finally:
            file.write_bytes(original)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
