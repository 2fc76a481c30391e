"""Reads libraries/*.toml: one library each, its version, its tests, and what is left out and why."""

import dataclasses
import hashlib
import pathlib
import tomllib

from ..conformance.comparison import exemptions

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Library:
    name: str
    version: str
    # What to install besides the library itself. Extras of the library are in brackets.
    extras: list = dataclasses.field(default_factory=list)
    requirements: list = dataclasses.field(default_factory=list)
    # The parts of the source distribution that the tests need: all but the library's own code, which is installed. If
    # this is empty, the tests are installed with the library, or are ours in own/NAME.
    keep: list = dataclasses.field(default_factory=list)
    # The arguments for pytest, and the environment.
    arguments: list = dataclasses.field(default_factory=list)
    environment: dict = dataclasses.field(default_factory=dict)
    # Loggers that the library's own test runner silences.
    silenced: list = dataclasses.field(default_factory=list)
    # The server that the tests need: a name in services.py.
    service: str = ""
    # The number of seconds after which a test counts as hung.
    limit: int = 60
    deselect: list = dataclasses.field(default_factory=list)
    exceptions: list = dataclasses.field(default_factory=list)
    digest: str = ""

    @property
    def own(self):
        """The directory of our own tests for this library, if there is one."""
        directory = HERE / "own" / self.name
        return directory if directory.is_dir() else None

    @property
    def tests_digest(self):
        """Returns a digest that changes with the tests, or with the way in which they are reported."""
        paths = [*sorted((HERE / "hook").glob("*.py")), *(sorted(self.own.rglob("*.py")) if self.own else [])]
        texts = [path.read_bytes() for path in paths]
        return hashlib.sha256(b"\0".join([self.digest.encode(), *texts])).hexdigest()[:16]

    @property
    def to_install(self):
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return [f"{self.name}{extras}=={self.version}", *self.requirements]


def read(path):
    text = path.read_bytes()
    fields = tomllib.loads(text.decode())
    fields["deselect"] = [entry["test"] for entry in fields.pop("deselect", ()) if entry["reason"]]
    fields["exceptions"] = exemptions(fields.pop("exception", ()))
    return Library(name=path.stem, digest=hashlib.sha256(text).hexdigest()[:16], **fields)


def read_all():
    return {path.stem: read(path) for path in sorted((HERE / "libraries").glob("*.toml"))}
