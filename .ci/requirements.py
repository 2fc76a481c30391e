"""Prints the requirements of dependency groups in pyproject.toml; `pip install --group` needs pip 25.1.

    python .ci/requirements.py demo test
"""

import sys
import tomllib
from pathlib import Path

GROUPS = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["dependency-groups"]


def requirements(group):
    for item in GROUPS[group]:
        if isinstance(item, str):
            yield item
        else:
            yield from requirements(item["include-group"])


print("\n".join(dict.fromkeys(line for name in sys.argv[1:] for line in requirements(name))))
