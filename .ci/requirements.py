"""Prints the requirements of the extras named, from pyproject.toml, without building the package.

    python .ci/requirements.py demo test
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for name in sys.argv[1:]:
    print("\n".join(line for line in extras[name] if not line.startswith("wakeloop[")))
