"""What libraries/*.toml says: one library each, its version, its tests, and what of them is left out and why."""

import dataclasses
import hashlib
import pathlib
import tomllib

from ..conformance.comparison import excuses

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Library:
    name: str
    version: str
    # What to install beside the library itself; extras of the library in brackets.
    extras: list = dataclasses.field(default_factory=list)
    requirements: list = dataclasses.field(default_factory=list)
    # What of the source distribution the tests need: all but the library's own code, which is installed.
    # Empty: what is run is installed with the library, or is our own in own/NAME, there being no other tests.
    keep: list = dataclasses.field(default_factory=list)
    # pytest's arguments, and the environment.
    arguments: list = dataclasses.field(default_factory=list)
    environment: dict = dataclasses.field(default_factory=dict)
    # Loggers that the library's own test runner silences.
    silenced: list = dataclasses.field(default_factory=list)
    # The server that the tests need: a name of services.py.
    service: str = ""
    # The seconds after which a test counts as hung.
    limit: int = 60
    deselect: list = dataclasses.field(default_factory=list)
    exceptions: list = dataclasses.field(default_factory=list)
    digest: str = ""

    @property
    def own(self):
        """The directory of our own tests of this library, where it has any."""
        directory = HERE / "own" / self.name
        return directory if directory.is_dir() else None

    @property
    def tests_digest(self):
        """Another one when the tests are others, or are reported in another way."""
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
    fields["exceptions"] = excuses(fields.pop("exception", ()))
    return Library(name=path.stem, digest=hashlib.sha256(text).hexdigest()[:16], **fields)


def read_all():
    return {path.stem: read(path) for path in sorted((HERE / "libraries").glob("*.toml"))}
