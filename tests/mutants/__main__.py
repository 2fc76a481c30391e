"""Mutation tests of the runtime's concurrent core: loom models must catch every mutant in mutants.toml.

    python -m tests.mutants                                run all models unchanged, then every mutant
    python -m tests.mutants --only '*pause*'               only mutants whose title matches (may be repeated)
    python -m tests.mutants --only 'close*' --every-model --limit 3600    show which of all models catch these
    python -m tests.mutants --write                        write the tables of tests/models/MODELS.md and stop

The mutants are applied to a copy of the source, one at a time. Each model runs in its own process, because a failing
model may abort. A mutant that does not compile is a mistake in the data. A model that times out counts as missed,
unless the mutant says `hangs = true`.
The exit code is 1 if a mutant is missed, if a model fails on the unchanged source, or if the data has a mistake.
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

from .mutants import PAGE, ROOT, Mistake, Mutant, read, with_tables

#: The parts of the tree that cargo needs.
PARTS = ["Cargo.toml", "Cargo.lock", "build.rs", "src", "examples", "benchmarks/load", "tests/models"]
#: Makes the build after each mutant fast: incremental, without LTO.
PROFILE = {
    "CARGO_INCREMENTAL": "1",
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
}
BUILD_LIMIT = 1800
BASELINE_LIMIT = 1800
#: loom's message for a model that never ends.
NO_END = "Model exceeded maximum number of branches"


def say(line: str) -> None:
    print(line, flush=True)


class Tree:
    """A copy of the source with at most one mutant applied."""

    def __init__(self, directory: Path, target: Path) -> None:
        self.directory = directory
        # Printing a failing model's backtrace takes longer than running the model.
        self.environment = os.environ | PROFILE | {
            "RUSTFLAGS": "--cfg wakeloop_loom",
            "RUST_BACKTRACE": "0",
            "CARGO_TARGET_DIR": str(target),
        }
        for part in PARTS:
            # copyfile sets a new modification time, so that cargo notices that the file differs from its last build.
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, directory / part, copy_function=shutil.copyfile)
            elif (ROOT / part).exists():
                shutil.copyfile(ROOT / part, directory / part)

    def build(self) -> tuple[Path, bool]:
        """Returns the test executable, and whether anything had to be compiled."""
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

    def build_mutant(self, mutant: Mutant) -> Path:
        path = self.directory / mutant.file
        path.write_text(mutant.apply(path.read_text()))
        executable, compiled = self.build()
        if not compiled:
            raise Mistake("cargo found nothing to compile")
        return executable

    def undo(self, mutant: Mutant) -> None:
        shutil.copyfile(ROOT / mutant.file, self.directory / mutant.file)

    def run(self, executable: Path, arguments: list[str], limit: float) -> tuple[int | None, str]:
        """Returns exit code and output. The exit code is None if the run timed out."""
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
    """Maps each model's function name, which MODELS.md uses, to its full path."""
    paths = [line.removesuffix(": test") for line in listing.splitlines() if "model::" in line]
    names = {path.rpartition("::")[2]: path for path in paths}
    if len(names) != len(paths):
        raise Mistake("two models have the same name")
    return names


def outcome(code: int | None, output: str) -> str:
    if code is None:
        return "timed out"
    if code == 0:
        return "passed" if "1 passed" in output else "not run"
    return "too many branches" if NO_END in output else "failed"


def test_mutant(tree: Tree, mutant: Mutant, names: dict[str, str], every_model: bool, limit: float) -> dict[str, str]:
    """Returns the outcome of each model. The time limit covers all of them together."""
    try:
        executable = tree.build_mutant(mutant)
        end = time.monotonic() + limit
        outcomes = {}
        for name in names if every_model else mutant.models:
            if name not in names:
                raise Mistake(f"there is no model {name}")
            outcomes[name] = outcome(*tree.run(executable, ["--exact", names[name]], end - time.monotonic()))
        return outcomes
    finally:
        tree.undo(mutant)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Do the models catch it?")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="mutants whose title matches; repeatable")
    parser.add_argument("--every-model", action="store_true", help="run all models, and show which catch the mutant")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for the models of one mutant (600)")
    parser.add_argument("--target", type=Path, default=ROOT / "target/mutants", help="where cargo builds")
    parser.add_argument("--no-baseline", action="store_true", help="skip the run on the unchanged source")
    parser.add_argument("--write", action="store_true", help=f"write the tables of {PAGE.name}, and stop")
    return parser.parse_args()


def judge(mutant: Mutant, outcomes: dict[str, str]) -> tuple[bool, str]:
    """Returns whether every model named for the mutant caught it, and the line to print."""
    accepted = {"failed", "timed out", "too many branches"} if mutant.hangs else {"failed"}
    caught = ", ".join(name for name, what in outcomes.items() if what in accepted)
    missed = ", ".join(f"{name} {outcomes[name]}" for name in mutant.models if outcomes[name] not in accepted)
    if missed:
        return False, f"MISSED: {missed}; caught by {caught or 'none'}"
    return True, f"caught by {caught}"


def run(mutants: list[Mutant], options: argparse.Namespace, directory: Path) -> int:
    start = time.monotonic()
    tree = Tree(directory, options.target.absolute())
    executable, _ = tree.build()
    names = full_names(tree.run(executable, ["--list"], 60)[1])
    if not options.no_baseline:
        code, output = tree.run(executable, ["model"], BASELINE_LIMIT)
        if code != 0:
            say(f"{output}\nmodels fail or time out on the unchanged source")
            return 1
        say(f"unchanged source: {len(names)} models pass ({time.monotonic() - start:.0f} s)")
    missed, mistakes = 0, 0
    for number, mutant in enumerate(mutants, 1):
        begun = time.monotonic()
        try:
            caught, verdict = judge(mutant, test_mutant(tree, mutant, names, options.every_model, options.limit))
            missed += not caught
        except (Mistake, subprocess.TimeoutExpired) as error:
            verdict = f"MISTAKE: {error}"
            mistakes += 1
        say(f"[{number}/{len(mutants)}] {mutant.title}: {verdict} ({time.monotonic() - begun:.0f} s)")
    counts = f"{len(mutants) - missed - mistakes} caught, {missed} missed, {mistakes} mistakes in the data"
    say(f"{len(mutants)} mutants: {counts} ({time.monotonic() - start:.0f} s)")
    return 1 if missed or mistakes else 0


def main() -> int:
    # On SIGTERM, end the child processes and remove the copy.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    mutants = read()
    if options.write:
        PAGE.write_text(with_tables(PAGE.read_text(), mutants))
        return 0
    patterns = options.only or ["*"]
    chosen = [mutant for mutant in mutants if any(fnmatch.fnmatchcase(mutant.title, pattern) for pattern in patterns)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        try:
            return run(chosen, options, Path(directory))
        except (Mistake, subprocess.TimeoutExpired) as error:
            say(f"unchanged source: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
