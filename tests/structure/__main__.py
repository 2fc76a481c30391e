"""Checks the structure of the source: floors, cycles, `bool` fields and names of types. Checks that no test has a second chance.

    python -m tests.structure             checks src, by structure.toml, and python/wakeloop, by importlinter.toml
    python -m tests.structure --known     prints the lists of known violations that would let the tree pass

Of Rust, it checks that a room of src uses only rooms of lower floors, that the files of a room do not use each other in
a cycle, that no struct of the named rooms has more than three `bool` fields, and that at most three types have the same
name. A `mod.rs` uses the files that it
declares: a file below it that needs something of this `mod.rs` closes a cycle. import-linter checks the same of the
Python package. Of the tests, it checks that none contains a loop of attempts: attempts.py says what that is. Exit code
1: a violation that is not known, or a known one that is gone.
"""

import argparse
import sys
from pathlib import Path

from .attempts import attempts
from .package import check_package
from .rules import Rules, check, known

ROOT = Path(__file__).parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__)
    parser.add_argument("--known", action="store_true", help="print the lists of known violations instead")
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the crate's source folder")
    parser.add_argument("--python", type=Path, default=ROOT / "python", help="the folder that holds the package")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="the folder of the tests")
    parser.add_argument("--rules", type=Path, default=Path(__file__).with_name("structure.toml"))
    options = parser.parse_args()
    rules = Rules.read(options.rules)
    if options.known:
        print(known(options.src, rules))
        return 0
    problems = [*check(options.src, rules), *check_package(options.python), *attempts(options.tests, rules.attempts)]
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
