"""Checks that a commit can be released: version, changelog and tag agree, and no change of the API is unannounced.

    python -m release.check                 with the last release tag before this commit
    python -m release.check --since v0.1.0  with another one

The version of Cargo.toml, of Cargo.lock and of the newest section of CHANGELOG.md are one. If a `v` tag is at this
commit, it names that version too, the section has a date, and the project has an address that is not a placeholder. Every public name, of Python (griffe) or of the crate
(cargo-public-api), that was added, changed or removed since the last release is named in the sections since then.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .address import ROOT, Address, changed
from .version import as_python, python_version

HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """What CHANGELOG.md says of one version."""

    version: str
    date: str
    text: str


def sections(changelog: str) -> list[Section]:
    headings = list(HEADING.finditer(changelog))
    ends = [heading.start() for heading in headings[1:]] + [len(changelog)]
    return [
        Section(heading["version"], heading["date"], changelog[heading.end() : end])
        for heading, end in zip(headings, ends, strict=True)
    ]


def is_date(text: str) -> bool:
    try:
        return bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def locked_version(lock: str) -> str:
    return next(as_python(crate["version"]) for crate in tomllib.loads(lock)["package"] if crate["name"] == "wakeloop")


def problems_with_version(manifest: str, lock: str, changelog: str, tags: Iterable[str]) -> Iterator[str]:
    version = python_version(manifest)
    if locked_version(lock) != version:
        yield f"Cargo.toml has version {version}, Cargo.lock has {locked_version(lock)}: run `cargo check`"
    if not (known := sections(changelog)):
        yield "CHANGELOG.md has no section `## [VERSION] - DATE`"
        return
    newest = known[0]
    if newest.version != version:
        yield f"Cargo.toml has version {version}, the newest section of CHANGELOG.md is {newest.version}"
    if newest.date != "unreleased" and not is_date(newest.date):
        yield f"the section of {newest.version} has the date {newest.date}: write YYYY-MM-DD or `unreleased`"
    for tag in tags:
        if tag != f"v{version}":
            yield f"the tag is {tag}, the version is {version}"
        if not is_date(newest.date):
            yield f"{tag} is tagged, but CHANGELOG.md has no date for {newest.version}"


# -- the public API ------------------------------------------------------------------------------------------------


def python_api(checkout: Path) -> set[str]:
    """Returns every public name of the Python package with its signature."""
    import griffe

    package = griffe.load("wakeloop", search_paths=[checkout / "python"], allow_inspection=False)
    if not isinstance(package, griffe.Module):
        raise TypeError(f"wakeloop is a {type(package).__name__}, not a module")

    def described(owner: griffe.Module | griffe.Class, name: str, path: str) -> Iterator[str]:
        # A stub has a function of several signatures as overloads only.
        yield from (f"{path}: {overload.signature()}" for overload in owner.overloads.get(name, ()))
        match owner.members.get(name):
            case griffe.Alias(target_path=str(target)):
                module, _, original = target.rpartition(".")
                if module.partition(".")[0] == "wakeloop":
                    home = package if module == "wakeloop" else package[module.removeprefix("wakeloop.")]
                    if isinstance(home, griffe.Module | griffe.Class):
                        yield from described(home, original, path)
                else:
                    yield f"{path}: {target}"
            case griffe.Function() as function:
                yield f"{path}: {function.signature()}"
            case griffe.Class() as kind:
                yield f"{path}: class({', '.join(map(str, kind.bases))})"
                for part in {*kind.members, *kind.overloads} - {"__slots__"}:
                    if not part.startswith("_") or part.startswith("__"):
                        yield from described(kind, part, f"{path}.{part}")
            case griffe.Attribute() as attribute:
                yield f"{path}: {attribute.annotation}"

    # `open` is public too, but not imported by `*`.
    exports = [*map(str, package.exports or ()), "open"]
    return {line for name in exports for line in described(package, name, f"wakeloop.{name}")}


def rust_api(checkout: Path) -> set[str]:
    """Returns every public item of the crate, as cargo-public-api prints it."""
    features = ["--no-default-features", "--features", "async-runtimes"]
    target = ROOT / "target" / "public-api"
    done = subprocess.run(
        ["cargo", "public-api", "-sss", *features, "--target-dir", str(target)],
        cwd=checkout,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {line for line in done.stdout.splitlines() if not line.startswith("impl")}


def name_of(item: str) -> str:
    """Returns the last part of the name in a line of either API.

    It is "block_on" in `pub fn wakeloop::runtime::Runtime::block_on<F>(&self, F) -> F::Output`, and "connect" in
    `wakeloop.TcpStream.connect: connect(host: str)`.
    """
    item = item.replace("->", "")
    while (inner := re.sub(r"<[^<>]*>", "", item)) != item:
        item = inner
    words: list[str] = re.findall(r"\w+", re.split(r"\(| = |: | where ", item)[0])
    return words[-1]


def unannounced(before: set[str], now: set[str], text: str) -> list[str]:
    """Returns what differs between two versions of an API and has no word in the changelog's text."""
    words = set(re.findall(r"\w+", text))
    lines = [("removed", item) for item in before - now] + [("added", item) for item in now - before]
    return sorted(f"{how}: {item}" for how, item in lines if name_of(item) not in words)


def problems_with_api(since: str, changelog: str) -> Iterator[str]:
    text, _, _ = changelog.partition(f"## [{since.removeprefix('v')}]")
    with tempfile.TemporaryDirectory() as directory:
        checkout = Path(directory, "checkout")
        git("worktree", "add", "--quiet", "--detach", str(checkout), since)
        try:
            yield from unannounced(python_api(checkout), python_api(ROOT), text)
            if subprocess.run(["cargo", "public-api", "--version"], capture_output=True, check=False).returncode:
                print("skipped: the crate's API, for want of cargo-public-api (cargo install --locked cargo-public-api)")
            else:
                yield from unannounced(rust_api(checkout), rust_api(ROOT), text)
        finally:
            git("worktree", "remove", "--force", str(checkout))


# -- git -----------------------------------------------------------------------------------------------------------


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def release_tags() -> list[str]:
    """Returns the `v` tags of this commit, and the one that a workflow runs for."""
    found = set(git("tag", "--points-at", "HEAD", "--list", "v*").split())
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        found.add(os.environ["GITHUB_REF_NAME"])
    return sorted(found)


def last_release() -> str | None:
    merged = git("tag", "--merged", "HEAD", "--no-contains", "HEAD", "--list", "v*", "--sort=-version:refname").split()
    return merged[0] if merged else None


def problems_with_address(tags: Iterable[str]) -> Iterator[str]:
    address = Address.read((ROOT / "pyproject.toml").read_text())
    yield from (f"{path.relative_to(ROOT)} is not made of the address: say `make address`" for path in changed(address))
    for problem in address.problems():
        if tags:
            yield problem
        else:
            print(f"not a release yet: {problem}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--since", metavar="TAG", help="the release to compare the API with")
    options = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    tags = release_tags()
    manifest, lock = ((ROOT / name).read_text() for name in ("Cargo.toml", "Cargo.lock"))
    problems = list(problems_with_version(manifest, lock, changelog, tags))
    problems += problems_with_address(tags)
    since = options.since or last_release()
    if since is None:
        print("no earlier release: there is no API to compare with")
    else:
        problems += problems_with_api(since, changelog)
    print("\n".join(problems) or f"version, changelog and {' '.join(tags) or 'tag (none here)'} agree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
