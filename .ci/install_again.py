"""Installs wakeloop from the environment that it was built into in another one of the same Python, without a build.

    .venv/bin/python .ci/install_again.py .venv/guides
"""

import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

there = Path(sysconfig.get_path("platlib", vars={"platbase": sys.argv[1], "base": sys.argv[1]}))
for file in metadata.files("wakeloop"):
    if "__pycache__" not in file.parts:
        (there / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.locate(), there / file)
