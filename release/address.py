"""The project's address, and the copies of it.

    python -m release.address                                             says which copies are not made of the address
    python -m release.address --write                                     writes them
    python -m release.address --write --repository URL --documentation URL   changes the address first

`pyproject.toml` has it: `Repository` and `Documentation` of `[project.urls]`. The copies are the other addresses there,
`repository` and `homepage` of Cargo.toml, and links in files that have to name the address. A test compares them. The
site reads pyproject.toml itself, and the links of README.md become absolute in a distribution (`index_readme.py`).

There is no address yet: its host ends with `.invalid`, which leads nowhere (RFC 2606). `release.check` refuses a tag
until there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Address:
    repository: str
    documentation: str

    @classmethod
    def read(cls, pyproject: str) -> Address:
        urls = tomllib.loads(pyproject)["project"]["urls"]
        return cls(urls["Repository"], urls["Documentation"])

    def problems(self) -> Iterator[str]:
        """Why nothing can be released with this address."""
        for name, url in (("repository", self.repository), ("documentation", self.documentation)):
            parts = urlsplit(url)
            host = parts.hostname or ""
            if parts.scheme != "https" or "." not in host or url.endswith("/"):
                yield f"the address of the {name} is {url}: write https://HOST/PATH, without a slash at the end"
            elif host.rpartition(".")[2] in ("invalid", "example", "test") or host.startswith("example."):
                yield f"the address of the {name} is {url}, which is a placeholder: say `make address` with a real one"

    def file(self, path: str, ref: str = "main", kind: str = "blob") -> str:
        """The address of a file of the repository."""
        return f"{self.repository}/{kind}/{ref}/{path}"


@dataclass(frozen=True)
class Copy:
    """A place that has an address which is made of the project's: the text before it, and the text behind it."""

    file: str
    before: str
    after: str
    #: The text between them: `{0.repository}` and `{0.documentation}` are the address's.
    url: str

    def of(self, address: Address, text: str) -> str:
        """The file's text with the address. Raises ValueError if it has no such place."""
        place = re.compile(f"({re.escape(self.before)})[^\\s\"<>()]*({re.escape(self.after)})")
        url = self.url.format(address)
        text, count = place.subn(lambda found: f"{found[1]}{url}{found[2]}", text)
        if count != 1:
            raise ValueError(f"{self.file} has {count} places for {url}, not one")
        return text


COPIES = (
    Copy("pyproject.toml", 'Repository = "', '"', "{0.repository}"),
    Copy("pyproject.toml", 'Documentation = "', '"', "{0.documentation}"),
    Copy("pyproject.toml", 'Changelog = "', '"', "{0.repository}/blob/main/CHANGELOG.md"),
    Copy("pyproject.toml", 'Issues = "', '"', "{0.repository}/issues"),
    Copy("pyproject.toml", 'Security = "', '"', "{0.repository}/security/policy"),
    Copy("Cargo.toml", 'repository = "', '"', "{0.repository}"),
    Copy("Cargo.toml", 'homepage = "', '"', "{0.documentation}"),
    Copy("SECURITY.md", "[report]: ", "\n", "{0.repository}/security/advisories/new"),
    Copy("CODE_OF_CONDUCT.md", "[report]: ", "\n", "{0.repository}/security/advisories/new"),
    Copy(".github/ISSUE_TEMPLATE/config.yml", "url: ", "\n", "{0.repository}/security/advisories/new"),
)


def changed(address: Address, root: Path = ROOT) -> dict[Path, str]:
    """The files whose copies are not made of this address, and what they would be."""
    texts: dict[Path, str] = {}
    for copy in COPIES:
        path = root / copy.file
        texts[path] = copy.of(address, texts.get(path) or path.read_text())
    return {path: text for path, text in texts.items() if text != path.read_text()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.address", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the copies")
    parser.add_argument("--repository", metavar="URL", help="the new address of the repository")
    parser.add_argument("--documentation", metavar="URL", help="the new address of the site")
    options = parser.parse_args()
    now = Address.read((ROOT / "pyproject.toml").read_text())
    address = Address(options.repository or now.repository, options.documentation or now.documentation)
    wrong = changed(address)
    for path, text in wrong.items():
        if options.write:
            path.write_text(text)
        print(f"{path.relative_to(ROOT)}: {'written' if options.write else 'not made of the address'}")
    print("\n".join(address.problems()) or f"the address is {address.repository}")
    return 1 if wrong and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
