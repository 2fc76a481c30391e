"""Checks the wheels of a directory, and installs those that can run here into empty environments.

    python -m release.check_wheels dist --pythons 3.11 3.12 --systems x86_64-unknown-linux-gnu

Each wheel must hold the package's files and nothing else, match its record, be stripped, be no larger than LIMIT, keep
no path of the machine that built it, and need no newer system than its tag says: auditwheel checks that for glibc; for
musl it must need nothing but libc. Of a wheel for macOS, the kind of processor is checked, and nothing is run. twine checks the metadata. The smoke test (tests/smoke.py) runs for each interpreter
`python3.x` on the path.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "python" / "wakeloop"
#: What is installed beside the package.
STARTUP = ROOT / "python" / "startup"

#: What a wheel may weigh, in bytes.
LIMIT = 1_572_864

#: The platform tag that auditwheel must find for each target. For macOS it is what maturin gives.
TAGS = {"gnu": "manylinux_2_17", "musl": "musllinux_1_2", "darwin": "macosx_11_0"}

#: The number of a 64-bit Mach-O file, and those of its processors by their names in a tag.
MACH_O = 0xFEEDFACF
MACH_PROCESSORS = {"arm64": 0x0100000C, "x86_64": 0x01000007}

LICENSES = ("LICENSE", "THIRD-PARTY-LICENSES.txt")


@dataclass(frozen=True)
class Wheel:
    path: Path

    @property
    def version(self) -> str:
        return self.path.name.split("-")[1]

    @property
    def python(self) -> str:
        """The version of Python that it is for: "3.13", or "3.14t" for a free-threaded one."""
        tag = self.path.name.split("-")[3].removeprefix("cp")
        return f"{tag[0]}.{tag[1:]}"

    @property
    def platforms(self) -> list[str]:
        """Its platform tags; the older name of a manylinux tag comes first."""
        return self.path.stem.split("-")[4].split(".")

    def suits(self, python: str, system: str) -> bool:
        architecture, _, kind = system.partition("-")[0], *system.rpartition("-")[1:]
        if kind == "darwin":
            architecture = architecture.replace("aarch64", "arm64")
        return self.python == python and f"{TAGS[kind]}_{architecture}" in self.platforms

    @property
    def is_for_macos(self) -> bool:
        return self.platforms[-1].startswith("macosx")

    @property
    def architecture(self) -> str:
        """The processor in its tag, whose parts before are a name and two numbers."""
        return self.platforms[-1].split("_", 3)[3]


def expected_files(wheel: Wheel) -> tuple[set[str], str]:
    """Returns the names that it must hold besides the extension module, and what that one is called."""
    info = f"wakeloop-{wheel.version}.dist-info"
    sources = (path for pattern in ("*.py", "*.pyi", "py.typed") for path in PACKAGE.rglob(pattern))
    package = {f"wakeloop/{path.relative_to(PACKAGE)}" for path in sources}
    names = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "sboms/wakeloop.cyclonedx.json")
    metadata = {f"{info}/{name}" for name in names}
    libc = "musl" if "musllinux" in wheel.path.name else "gnu"
    system = "darwin" if wheel.is_for_macos else f"{wheel.architecture}-linux-{libc}"
    module = f"wakeloop/_core.cpython-{wheel.python.replace('.', '')}-{system}.so"
    startup = {f"wakeloop-{wheel.version}.data/{path.relative_to(STARTUP)}" for path in STARTUP.glob("platlib/*.p*")}
    return package | startup | metadata | {f"{info}/licenses/{name}" for name in LICENSES}, module


def problems_with_content(wheel: Wheel) -> Iterator[str]:
    files, module = expected_files(wheel)
    with zipfile.ZipFile(wheel.path) as archive:
        names = archive.namelist()
        content = {name: archive.read(name) for name in names}
    if len(names) != len(content):
        yield "a name is there twice"
    yield from (f"{name} is missing" for name in sorted({*files, module} - content.keys()))
    yield from (f"{name} does not belong in a wheel" for name in sorted(content.keys() - files - {module}))
    yield from problems_with_record(content, f"wakeloop-{wheel.version}.dist-info/RECORD")
    for name in sorted(content.keys() & files):
        if name.startswith("wakeloop/") and content[name] != (PACKAGE.parent / name).read_bytes():
            yield f"{name} is not the file of this checkout"
    for secret in {str(Path.home()), str(ROOT)} - {"/"}:
        yield from (f"{name} has the path {secret}" for name in sorted(content) if has_path(name, content[name], secret))


def has_path(name: str, data: bytes, path: str) -> bool:
    # The SBOM identifies the crate by the directory it was built in; see docs/releasing.md.
    return not name.endswith(".cyclonedx.json") and f"{path}/".encode() in data


def problems_with_record(content: dict[str, bytes], record: str) -> Iterator[str]:
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(content.get(record, b"").decode()))}
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if name != record and rows.get(name) != [f"sha256={digest}", str(len(data))]:
            yield f"{name} is not as RECORD has it"
    yield from (f"RECORD has {name}, the wheel has not" for name in sorted(rows.keys() - content.keys()))


def run(*command: str | Path, **options: object) -> tuple[int, str]:
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    return done.returncode, done.stdout


def problems_with_audit(wheel: Wheel) -> Iterator[str]:
    tag = wheel.platforms[-1]
    if tag.startswith("manylinux"):
        code, said = run(sys.executable, "-m", "auditwheel", "show", wheel.path)
        if code != 0 or f'"{tag}"' not in " ".join(said.split()).partition("This constrains")[0]:
            yield f"auditwheel does not find it consistent with {tag}:\n{said}"
    code, said = run(sys.executable, "-m", "twine", "check", "--strict", wheel.path)
    if code != 0:
        yield f"twine check fails:\n{said}"


def problems_with_extension(wheel: Wheel) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel.path) as archive:
        module = archive.extract(expected_files(wheel)[1], directory)
        if wheel.is_for_macos:
            yield from problems_with_mach_o(Path(module).read_bytes(), wheel.architecture)
            return
        _, sections = run("readelf", "--sections", "--wide", module)
        if ".symtab" in sections or ".debug_info" in sections:
            yield "the extension module is not stripped"
        _, symbols = run("readelf", "--dyn-syms", "--wide", module)
        _, dynamic = run("readelf", "--dynamic", "--wide", module)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        # auditwheel knows only Alpine's name of musl. This is musl's own, and its loader takes any name of libc for itself.
        if "musllinux" in wheel.path.name and needed != {"libc.so"}:
            yield f"the extension module needs {sorted(needed)}"
        exported = [row[7] for row in map(str.split, symbols.splitlines()) if row[4:5] == ["GLOBAL"] and row[6] != "UND"]
        # Python 3.15 looks for the second name first (PEP 793). The package loads `_with_gil` if WAKELOOP_GIL is 1.
        allowed = {f"{kind}_{module}" for kind in ("PyInit", "PyModExport") for module in ("_core", "_with_gil")}
        if "PyInit__core" not in exported or not set(exported) <= allowed:
            yield f"the extension module exports {exported}"


def problems_with_mach_o(data: bytes, architecture: str) -> Iterator[str]:
    if struct.unpack_from("<II", data.ljust(8)) != (MACH_O, MACH_PROCESSORS[architecture]):
        yield f"the extension module is not one of macOS on {architecture}"
    if b"PyInit__core" not in data:
        yield "the extension module does not export PyInit__core"


def problems(wheel: Wheel) -> Iterator[str]:
    size = wheel.path.stat().st_size
    if size > LIMIT:
        yield f"it has {size} bytes; the limit is {LIMIT}"
    found = list(problems_with_content(wheel))
    yield from found
    if not any("_core." in problem for problem in found):
        yield from problems_with_extension(wheel)
    yield from problems_with_audit(wheel)


def smoke_with(interpreter: str, directory: Path) -> tuple[bool, str]:
    """Installs wakeloop from the wheels of a directory into an empty environment, and runs the smoke test there.

    Nothing else can be reached: no package index, no checkout, no Rust.
    """
    with tempfile.TemporaryDirectory() as made:
        environment = Path(made, "venv")
        # Not each interpreter brings a pip that runs on it.
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--isolated", "--python", environment / "bin/python"]
        steps: list[list[str | Path]] = [
            [interpreter, "-m", "venv", "--without-pip", environment],
            [*pip, "install", "--no-index", "--find-links", directory.resolve(), "wakeloop"],
            [*pip, "check"],
            [environment / "bin/python", "-m", "tests.smoke"],
        ]
        said = ""
        for step in steps:
            code, said = run(*step, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "HOME": made})
            if code != 0:
                return False, f"{' '.join(map(str, step))} ends with code {code}:\n{said}"
    return True, said.strip()


def smoke(python: str, directory: Path) -> tuple[bool, str]:
    interpreter = shutil.which(f"python{python}")
    if interpreter is None or run(interpreter, "-c", "")[0] != 0:
        return True, f"skipped: no python{python}"
    return smoke_with(interpreter, directory)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.check_wheels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pythons", nargs="+", required=True, metavar="VERSION", help="there must be a wheel for each")
    parser.add_argument("--systems", nargs="+", required=True, metavar="TRIPLE", help="and for each of these targets")
    options = parser.parse_args()
    wheels = [Wheel(path) for path in sorted(options.directory.glob("*.whl"))]
    failed = False

    wanted = [(python, system) for system in options.systems for python in options.pythons]
    for python, system in wanted:
        if not any(wheel.suits(python, system) for wheel in wheels):
            failed = True
            print(f"there is no wheel for Python {python} on {system}")
    for wheel in wheels:
        found = list(problems(wheel))
        if not any(wheel.suits(*pair) for pair in wanted):
            found.append("nobody asked for this wheel")
        print(f"{wheel.path.stat().st_size:>9,}  {wheel.path.name}  {'' if found else 'ok'}")
        print("\n".join(f"    {problem}" for problem in found), end="\n" if found else "")
        failed |= bool(found)

    here = f"{platform.machine()}-unknown-linux-{'gnu' if platform.libc_ver()[0] == 'glibc' else 'musl'}"
    for python in options.pythons if wheels else []:
        if here in options.systems:
            passed, said = smoke(python, options.directory)
            print(f"{'' if passed else 'FAILED: '}{said}")
            failed |= not passed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
