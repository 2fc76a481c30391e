"""Runs a command that builds distributions, while README.md has absolute links.

    python -m release.index_readme maturin build ...

README.md is the page of the package index too, where a relative link leads nowhere and a picture does not show. So the
links are made of the project's address and the tag of this version. The file is put back at the end.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .address import ROOT, Address
from .version import python_version

#: A link or picture of Markdown, or the source of one of HTML; the target is relative.
LINK = re.compile(
    r"(!?\[[^\[\]]*\]\(|\)\]\(|^\[[^\]]+\]: |(?:src|srcset|href)=\")(?![a-z]+:|#|/)([^)\s\"]+)", re.MULTILINE
)
FENCE = re.compile(r"(^```.*?^```\s*$)", re.MULTILINE | re.DOTALL)


def with_absolute_links(text: str, address: Address, ref: str, root: Path = ROOT) -> str:
    """Returns the text of README.md for the index."""

    def absolute(link: re.Match[str]) -> str:
        path, mark, anchor = link[2].partition("#")
        is_picture = link[1].startswith(("!", "src"))
        kind = "raw" if is_picture else "tree" if (root / path).is_dir() else "blob"
        return f"{link[1]}{address.file(path, ref, kind)}{mark}{anchor}"

    # Every second piece is a block of code.
    pieces = FENCE.split(text)
    pieces[::2] = [LINK.sub(absolute, piece) for piece in pieces[::2]]
    return "".join(pieces)


def main() -> int:
    readme = ROOT / "README.md"
    before = readme.read_bytes()
    address = Address.read((ROOT / "pyproject.toml").read_text())
    version = python_version((ROOT / "Cargo.toml").read_text())
    try:
        readme.write_text(with_absolute_links(before.decode(), address, f"v{version}"))
        return subprocess.run(sys.argv[1:], check=False).returncode
    finally:
        readme.write_bytes(before)


if __name__ == "__main__":
    sys.exit(main())
