"""Breaks the runtime's core in every way that edits.toml knows: the loom models named there have to find it.

    python -m tests.loom_edits                              the whole tree first, as it is; then edit after edit
    python -m tests.loom_edits --only '*pause*'             edits whose title matches (may be repeated)
    python -m tests.loom_edits --only 'close*' --every-model --limit 3600    which of all models find these?
    python -m tests.loom_edits --write                      the tables of src/runtime/MODELS.md, and nothing else

The edits are made in a copy of the source. A model has a process of its own, as one that fails may abort. What does not
compile has not been found, it is a mistake in the data; what does not end in time neither, unless the data says so.
Exit code 1: an edit that a model named for it does not find, a model that fails as it is, or a mistake in the data.
"""

import argparse
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .edits import PAGE, ROOT, Edit, Mistake, read, with_tables

#: What cargo needs of the tree.
PARTS = ["Cargo.toml", "Cargo.lock", "build.rs", "src", "examples"]
#: A build after each edit: what has changed is compiled, and no more than that optimised anew.
PROFILE = {
    "CARGO_INCREMENTAL": "1",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}
BUILD_LIMIT = 1800
BASELINE_LIMIT = 1800
#: What loom says of a model that goes on and on.
NO_END = "Model exceeded maximum number of branches"


def say(line: str) -> None:
    print(line, flush=True)


class Tree:
    """A copy of the source, with at most one edit in it."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.directory = directory
        # Backtraces of a model that fails take longer than the model.
        self.environment = os.environ | PROFILE | {
            "RUSTFLAGS": "--cfg wakeloop_loom",
            "RUST_BACKTRACE": "0",
            "CARGO_TARGET_DIR": str(target),
        }
        for part in PARTS:
            # With the time of the copy: by that cargo sees that a file is not the one of its last build.
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, directory / part, copy_function=shutil.copyfile)
            elif (ROOT / part).exists():
                shutil.copyfile(ROOT / part, directory / part)

    def build(self) -> tuple[Path, bool]:
        """The tests' executable, and whether anything had to be compiled for it."""
        command = ["cargo", "test", "--release", "--no-default-features", "--lib", "--no-run", "--message-format=json"]
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=BUILD_LIMIT
        )
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0:
            errors = [m["message"]["rendered"] for m in messages if m.get("message", {}).get("level") == "error"]
            raise Mistake("does not compile\n" + ("".join(errors) or done.stderr))
        built = [m for m in messages if m["reason"] == "compiler-artifact" and m.get("executable")]
        if len(built) != 1:
            raise Mistake(f"cargo built {len(built)} executables instead of one")
        return Path(built[0]["executable"]), not built[0]["fresh"]

    def build_with(self, edit: Edit) -> Path:
        path = self.directory / edit.file
        path.write_text(edit.apply(path.read_text()))
        executable, compiled = self.build()
        if not compiled:
            raise Mistake("cargo saw no change to compile")
        return executable

    def undo(self, edit: Edit) -> None:
        shutil.copyfile(ROOT / edit.file, self.directory / edit.file)

    def run(self, executable: Path, arguments: list[str], limit: float) -> tuple[int | None, str]:
        """Exit code and output; no exit code if it did not end in time."""
        command = [str(executable), *arguments]
        try:
            done = subprocess.run(
                command, cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=max(limit, 1), text=True, errors="replace",
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout


def full_names(listing: str) -> dict[str, str]:
    """Models by their last name, which MODELS.md calls them by."""
    paths = [line.removesuffix(": test") for line in listing.splitlines() if "model::" in line]
    names = {path.rpartition("::")[2]: path for path in paths}
    if len(names) != len(paths):
        raise Mistake("two models have the same name")
    return names


def outcome(code: int | None, output: str) -> str:
    if code is None:
        return "no end in time"
    if code == 0:
        return "passed" if "1 passed" in output else "not run"
    return "no end of branches" if NO_END in output else "failed"


def try_edit(tree: Tree, edit: Edit, names: dict[str, str], every_model: bool, limit: float) -> dict[str, str]:
    """What became of each model. The time limit is for all of them together."""
    try:
        executable = tree.build_with(edit)
        end = time.monotonic() + limit
        outcomes = {}
        for name in names if every_model else edit.models:
            if name not in names:
                raise Mistake(f"there is no model {name}")
            outcomes[name] = outcome(*tree.run(executable, ["--exact", names[name]], end - time.monotonic()))
        return outcomes
    finally:
        tree.undo(edit)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.loom_edits", description="Do the models find it?")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="edits whose title matches; repeatable")
    parser.add_argument("--every-model", action="store_true", help="run all models, and show which find the edit")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for the models of one edit (600)")
    parser.add_argument("--target", type=Path, default=ROOT / "target/loom-edits", help="where cargo builds")
    parser.add_argument("--no-baseline", action="store_true", help="leave out the run without an edit")
    parser.add_argument("--write", action="store_true", help=f"write the tables of {PAGE.name}, and run nothing")
    return parser.parse_args()


def judge(edit: Edit, outcomes: dict[str, str]) -> tuple[bool, str]:
    """Whether the edit was found by all who should, and what to say of it."""
    accepted = {"failed", "no end in time", "no end of branches"} if edit.hangs else {"failed"}
    found = ", ".join(name for name, what in outcomes.items() if what in accepted)
    missed = ", ".join(f"{name} {outcomes[name]}" for name in edit.models if outcomes[name] not in accepted)
    if missed:
        return False, f"SURVIVED: {missed}; found by {found or 'none'}"
    return True, f"found by {found}"


def run(edits: list[Edit], options: argparse.Namespace, directory: Path) -> int:
    start = time.monotonic()
    tree = Tree(directory, options.target.absolute())
    executable, _ = tree.build()
    names = full_names(tree.run(executable, ["--list"], 60)[1])
    if not options.no_baseline:
        code, output = tree.run(executable, ["model"], BASELINE_LIMIT)
        if code != 0:
            say(f"{output}\nmodels fail, or do not end, without an edit")
            return 1
        say(f"without an edit: {len(names)} models pass ({time.monotonic() - start:.0f} s)")
    survived, mistakes = 0, 0
    for number, edit in enumerate(edits, 1):
        begun = time.monotonic()
        try:
            found, verdict = judge(edit, try_edit(tree, edit, names, options.every_model, options.limit))
            survived += not found
        except (Mistake, subprocess.TimeoutExpired) as error:
            verdict = f"MISTAKE: {error}"
            mistakes += 1
        say(f"[{number}/{len(edits)}] {edit.title}: {verdict} ({time.monotonic() - begun:.0f} s)")
    counts = f"{len(edits) - survived - mistakes} found, {survived} survived, {mistakes} mistakes in the data"
    say(f"{len(edits)} edits: {counts} ({time.monotonic() - start:.0f} s)")
    return 1 if survived or mistakes else 0


def main() -> int:
    # Ended from outside, it ends what it started, and leaves no copy.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    edits = read()
    if options.write:
        PAGE.write_text(with_tables(PAGE.read_text(), edits))
        return 0
    patterns = options.only or ["*"]
    chosen = [edit for edit in edits if any(fnmatch.fnmatchcase(edit.title, pattern) for pattern in patterns)]
    with tempfile.TemporaryDirectory(prefix="loom-edits-") as directory:
        try:
            return run(chosen, options, Path(directory))
        except (Mistake, subprocess.TimeoutExpired) as error:
            say(f"without an edit: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
