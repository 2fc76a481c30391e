"""What makes and checks releases: the build backend, the checks of wheels, versions and the public API."""

import base64
import hashlib
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess
import sys
import zipfile

import pytest

import wakeloop
from release import address, check, check_wheels, index_readme, version

pytestmark = pytest.mark.native

ROOT = pathlib.Path(__file__).parents[2]

CHANGELOG = """# Changelog

## [0.2.0] - {date}

- `TcpStream.connect` takes a family.

## [0.1.0] - 2026-11-01

- `wakeloop.run`.
"""
MANIFEST = '[package]\nname = "wakeloop"\nversion = "{version}"\n'
LOCK = '[[package]]\nname = "wakeloop"\nversion = "{version}"\n'


def version_problems(manifest="0.2.0", lock="0.2.0", date="2026-12-01", tags=()):
    return list(
        check.problems_with_version(
            MANIFEST.format(version=manifest), LOCK.format(version=lock), CHANGELOG.format(date=date), tags
        )
    )


def test_a_release_whose_version_changelog_and_tag_agree_has_no_problems():
    assert version_problems(tags=["v0.2.0"]) == []
    assert version_problems(date="unreleased") == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lock": "0.1.0"}, "Cargo.lock has 0.1.0"),
        ({"manifest": "0.3.0", "lock": "0.3.0"}, "the newest section of CHANGELOG.md is 0.2.0"),
        ({"tags": ["v0.3.0"]}, "the tag is v0.3.0, the version is 0.2.0"),
        ({"tags": ["v0.2.0"], "date": "unreleased"}, "CHANGELOG.md has no date for 0.2.0"),
        ({"date": "soon"}, "the section of 0.2.0 has the date soon"),
    ],
    ids=["lock", "changelog", "tag", "unreleased", "date"],
)
def test_a_release_whose_version_changelog_or_tag_disagree_has_a_problem(change, problem):
    (found,) = version_problems(**change)
    assert problem in found


@pytest.mark.parametrize(
    ("cargo", "python"),
    [("0.2.0", "0.2.0"), ("0.2.0-alpha.1", "0.2.0a1"), ("1.0.0-beta.12", "1.0.0b12"), ("1.0.0-rc.2", "1.0.0rc2")],
)
def test_a_pre_release_is_written_as_cargo_and_as_python_have_it(cargo, python):
    manifest, lock = MANIFEST.format(version=cargo), LOCK.format(version=cargo)
    changelog = CHANGELOG.replace("0.2.0", python).format(date="2026-12-01")
    assert list(check.problems_with_version(manifest, lock, changelog, [f"v{python}"])) == []
    (problem,) = check.problems_with_version(manifest, lock, changelog, ["v0.3.0"])
    assert problem == f"the tag is v0.3.0, the version is {python}"


def test_this_checkout_names_one_version():
    manifest, lock, changelog = ((ROOT / name).read_text() for name in ("Cargo.toml", "Cargo.lock", "CHANGELOG.md"))
    assert list(check.problems_with_version(manifest, lock, changelog, [])) == []


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("wakeloop.TcpStream.connect: connect(host: str) -> Operation[TcpStream]", "connect"),
        ("wakeloop.sleep: sleep(delay: float) -> Operation[None]", "sleep"),
        ("pub fn wakeloop::runtime::Runtime::block_on<F>(&self, F) -> <F as Future>::Output", "block_on"),
        ("pub fn wakeloop::runtime::spawn<F: core::ops::Fn() -> T>(F)", "spawn"),
        ("pub type wakeloop::runtime::sync::OwnedMutexGuard<T>::Target = T", "Target"),
        ("pub wakeloop::runtime::Metrics::busy: core::time::Duration", "busy"),
        ("pub struct wakeloop::runtime::sync::oneshot::RecvError(_)", "RecvError"),
        ("pub macro wakeloop::join!", "join"),
        ("#[non_exhaustive] pub enum wakeloop::runtime::TraceEvent", "TraceEvent"),
    ],
)
def test_the_name_of_a_public_item_is_found(item, name):
    assert check.name_of(item) == name


def test_each_change_of_the_api_must_be_named_in_the_changelog():
    before = {"wakeloop.run: run(main)", "wakeloop.old: old()", "wakeloop.sleep: sleep(delay)"}
    now = {"wakeloop.run: run(main, debug)", "wakeloop.new: new()", "wakeloop.sleep: sleep(delay)"}
    assert check.unannounced(before, now, "") == [
        "added: wakeloop.new: new()",
        "added: wakeloop.run: run(main, debug)",
        "removed: wakeloop.old: old()",
        "removed: wakeloop.run: run(main)",
    ]
    assert check.unannounced(before, now, "`run` takes `debug`; `wakeloop.new` replaces `old`.") == []


def test_the_python_api_has_every_public_name_with_its_signature(tmp_path):
    pytest.importorskip("griffe")
    package = tmp_path / "python" / "wakeloop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from ._core import Stream, sleep\nfrom .loop import run\n__all__ = ['Stream', 'run', 'sleep']\n"
        "def not_exported(): ...\n"
    )
    (package / "loop.py").write_text("def run(main, *, debug=None) -> int: ...\n")
    (package / "_core.pyi").write_text(
        "from typing import overload\n"
        "@overload\ndef sleep(delay: float) -> None: ...\n"
        "@overload\ndef sleep(delay: float, result: str) -> str: ...\n"
        "class Stream:\n    port: int\n    def read(self, n: int = -1) -> bytes: ...\n    def _hidden(self) -> None: ...\n"
    )
    assert check.python_api(tmp_path) == {
        "wakeloop.Stream: class()",
        "wakeloop.Stream.port: int",
        "wakeloop.Stream.read: read(n: int = -1) -> bytes",
        "wakeloop.run: run(main, *, debug=None) -> int",
        "wakeloop.sleep: sleep(delay: float) -> None",
        "wakeloop.sleep: sleep(delay: float, result: str) -> str",
    }


# -- the address ---------------------------------------------------------------------------------------------------


ADDRESS = address.Address("https://host.internal/people/wakeloop", "https://site.internal")


def test_every_copy_of_the_address_is_made_of_that_in_pyproject():
    now = address.Address.read((ROOT / "pyproject.toml").read_text())
    assert address.changed(now) == {}, "say make address"


def test_a_new_address_is_written_into_every_file_that_has_a_copy(tmp_path):
    for file in {copy.file for copy in address.COPIES}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    texts = address.changed(ADDRESS, tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in texts} == {copy.file for copy in address.COPIES}
    for path, text in texts.items():
        assert "https://host.internal/people/wakeloop" in text and ".invalid/" not in text
        path.write_text(text)
    assert address.changed(ADDRESS, tmp_path) == {}
    assert list(address.Address.read((tmp_path / "pyproject.toml").read_text()).problems()) == []


def test_no_other_file_names_the_placeholder():
    done = subprocess.run(["git", "grep", "-l", r"wakeloop\.invalid"], cwd=ROOT, capture_output=True, text=True)
    assert set(done.stdout.split()) <= {copy.file for copy in address.COPIES}


@pytest.mark.parametrize("tags", [[], ["v0.2.0"]], ids=["untagged", "tagged"])
def test_a_tag_is_refused_while_the_address_is_a_placeholder(tags, monkeypatch, capsys):
    placeholder = address.Address("https://wakeloop." + "invalid/repository", ADDRESS.documentation)
    monkeypatch.setattr(address.Address, "read", lambda text: placeholder)
    monkeypatch.setattr(check, "changed", lambda address: {})
    problems = list(check.problems_with_address(tags))
    said = "".join(problems) if tags else capsys.readouterr().out
    assert "which is a placeholder" in said and bool(problems) == bool(tags)


@pytest.mark.parametrize("url", ["http://example.org/a", "https://localhost/a", "https://example.org/a/", "example.org"])
def test_an_address_that_cannot_be_one_is_refused(url):
    (problem,) = address.Address(url, ADDRESS.documentation).problems()
    assert f"the address of the repository is {url}" in problem


def test_the_links_of_the_readme_are_absolute_on_the_index():
    text = (
        "[guide](docs/guides/slow.md#one) ![chart](docs/chart.svg) [![badge](docs/badge.svg)](docs/)\n"
        '<img src="docs/chart.svg"> [top](#top) [site](https://site.internal)\n'
        "```sh\n[not a link](docs/a.md)\n```\n[ref]: LICENSE\n"
    )
    there = "https://host.internal/people/wakeloop"
    assert index_readme.with_absolute_links(text, ADDRESS, "v1") == (
        f"[guide]({there}/blob/v1/docs/guides/slow.md#one) ![chart]({there}/raw/v1/docs/chart.svg)"
        f" [![badge]({there}/raw/v1/docs/badge.svg)]({there}/tree/v1/docs/)\n"
        f'<img src="{there}/raw/v1/docs/chart.svg"> [top](#top) [site](https://site.internal)\n'
        f"```sh\n[not a link](docs/a.md)\n```\n[ref]: {there}/blob/v1/LICENSE\n"
    )


def test_no_link_of_the_readme_is_relative_on_the_index():
    text = index_readme.with_absolute_links((ROOT / "README.md").read_text(), ADDRESS, "v1")
    assert re.findall(r"\]\((?!https://|#)|(?:src|href)=\"(?!https://|#)", text) == []


def test_the_readme_is_put_back_when_the_build_has_failed(tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("[licence](LICENSE)\n")
    for file in "Cargo.toml", "pyproject.toml":
        shutil.copyfile(ROOT / file, tmp_path / file)
    monkeypatch.setattr(index_readme, "ROOT", tmp_path)
    reads = "import sys; sys.exit(7 if 'https://' in open(sys.argv[1]).read() else 0)"
    monkeypatch.setattr(sys, "argv", ["", sys.executable, "-c", reads, str(tmp_path / "README.md")])
    assert index_readme.main() == 7
    assert (tmp_path / "README.md").read_text() == "[licence](LICENSE)\n"


# -- wheels --------------------------------------------------------------------------------------------------------

NAME = "wakeloop-1.2.3-cp313-cp313-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"


def make_wheel(directory, name=NAME, leave_out=(), files_instead=None):
    """Writes a wheel that holds all that it must, with an extension module of a few bytes."""
    wheel = check_wheels.Wheel(directory / name)
    files, module = check_wheels.expected_files(wheel)
    content = dict.fromkeys({*files, module} - {"wakeloop-1.2.3.dist-info/RECORD"}, b"some bytes")
    content.update((name, (check_wheels.PACKAGE.parent / name).read_bytes()) for name in files if name.startswith("wakeloop/"))
    content.update(files_instead or {})
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in content.items()
    )
    content["wakeloop-1.2.3.dist-info/RECORD"] = (record + "wakeloop-1.2.3.dist-info/RECORD,,\n").encode()
    with zipfile.ZipFile(wheel.path, "w") as archive:
        for file, data in content.items():
            if file not in leave_out:
                archive.writestr(file, data)
    return wheel


@pytest.mark.parametrize(
    ("name", "python", "system"),
    [
        (NAME, "3.13", "aarch64-unknown-linux-gnu"),
        ("wakeloop-1.2.3-cp311-cp311-musllinux_1_2_x86_64.whl", "3.11", "x86_64-unknown-linux-musl"),
        ("wakeloop-1.2.3-cp314-cp314t-musllinux_1_2_x86_64.whl", "3.14t", "x86_64-unknown-linux-musl"),
        ("wakeloop-1.2.3-cp313-cp313-macosx_11_0_arm64.whl", "3.13", "aarch64-apple-darwin"),
        ("wakeloop-1.2.3-cp311-cp311-macosx_11_0_x86_64.whl", "3.11", "x86_64-apple-darwin"),
    ],
)
def test_a_wheel_with_all_that_belongs_in_it_has_no_problems(tmp_path, name, python, system):
    wheel = make_wheel(tmp_path, name)
    assert list(check_wheels.problems_with_content(wheel)) == []
    assert wheel.suits(python, system)
    assert not wheel.suits("3.12", system)
    assert not wheel.suits(python, "x86_64-unknown-linux-gnu")


@pytest.mark.parametrize(
    "missing",
    ["wakeloop/py.typed", "wakeloop/_core.pyi", "wakeloop-1.2.3.dist-info/licenses/THIRD-PARTY-LICENSES.txt"],
)
def test_a_wheel_that_lacks_a_file_has_a_problem(tmp_path, missing):
    found = list(check_wheels.problems_with_content(make_wheel(tmp_path, leave_out=[missing])))
    assert found == [f"{missing} is missing", f"RECORD has {missing}, the wheel has not"]


@pytest.mark.parametrize(
    ("file", "data", "problem"),
    [
        ("wakeloop/_core.cpython-312-x86_64-linux-gnu.so", b"", "does not belong in a wheel"),
        ("wakeloop/loop.py", b"", "is not the file of this checkout"),
        ("wakeloop/_core.cpython-313-aarch64-linux-gnu.so", f"{ROOT}/src/lib.rs".encode(), f"has the path {ROOT}"),
    ],
    ids=["stray", "changed", "path"],
)
def test_a_wheel_with_a_wrong_file_has_a_problem(tmp_path, file, data, problem):
    found = list(check_wheels.problems_with_content(make_wheel(tmp_path, files_instead={file: data})))
    assert f"{file} {problem}" in found


def test_a_wheel_whose_record_is_wrong_has_a_problem(tmp_path):
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel.path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["wakeloop-1.2.3.dist-info/METADATA"] = b"changed after the record was written"
    found = list(check_wheels.problems_with_record(content, "wakeloop-1.2.3.dist-info/RECORD"))
    assert found == ["wakeloop-1.2.3.dist-info/METADATA is not as RECORD has it"]


@pytest.mark.parametrize(
    ("processor", "number"), [("arm64", 0x0100000C), ("x86_64", 0x01000007)], ids=["arm64", "x86_64"]
)
def test_an_extension_of_macos_is_for_the_processor_of_its_wheel(processor, number):
    module = struct.pack("<II", 0xFEEDFACF, number) + b"_PyInit__core"
    other = {"arm64": "x86_64", "x86_64": "arm64"}[processor]
    assert list(check_wheels.problems_with_mach_o(module, processor)) == []
    for wrong, architecture in (module, other), (b"\x7fELF_PyInit__core", processor), (b"", processor):
        found = list(check_wheels.problems_with_mach_o(wrong, architecture))
        assert f"the extension module is not one of macOS on {architecture}" in found


def test_a_wheel_above_the_limit_has_a_problem(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path)
    monkeypatch.setattr(check_wheels, "LIMIT", wheel.path.stat().st_size - 1)
    monkeypatch.setattr(check_wheels, "problems_with_extension", lambda wheel: [])
    monkeypatch.setattr(check_wheels, "problems_with_audit", lambda wheel: [])
    (found,) = check_wheels.problems(wheel)
    assert "the limit is" in found


def test_the_package_has_the_version_of_the_checkout():
    assert wakeloop.__version__ == version.python_version((ROOT / "Cargo.toml").read_text())


def test_the_smoke_test_passes():
    done = subprocess.run([sys.executable, "-m", "tests.smoke"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "works on Python" in done.stdout


# -- the build backend ---------------------------------------------------------------------------------------------


def import_backend(path, interpreter=sys.executable):
    environment = {"PATH": str(path), "PYTHONPATH": str(ROOT / "release")}
    command = [interpreter, "-S", "-c", "import backend"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30)


def write_program(path, says):
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_building_without_rust_says_what_is_missing(tmp_path):
    done = import_backend(tmp_path)
    assert done.returncode == 1
    assert "That needs Rust 1.95 or newer,\nand cargo and rustc are not on the path." in done.stderr
    assert "Traceback" not in done.stderr


def test_building_with_an_old_rust_says_what_is_missing(tmp_path):
    write_program(tmp_path / "cargo", "cargo 1.94.0")
    write_program(tmp_path / "rustc", "rustc 1.94.0 (4a4ef493e 2026-03-02)")
    done = import_backend(tmp_path)
    assert done.returncode == 1
    assert "and there is rustc 1.94.0 (4a4ef493e 2026-03-02)." in done.stderr
    write_program(tmp_path / "rustc", "rustc 1.95.0 (59807616e 2026-04-14)")
    assert "needs Rust" not in import_backend(tmp_path).stderr


def old_python():
    """An interpreter that is older than 3.11, if there is one. Those on the path may be shims that run none."""
    found = [*pathlib.Path.home().glob(".pyenv/versions/3.10.*/bin/python"), shutil.which("python3.10")]
    runs = (path for path in found if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0)
    return next(runs, None)


def test_building_on_an_old_python_says_in_one_line_what_is_needed():
    interpreter = old_python()
    if interpreter is None:
        pytest.skip("no Python older than 3.11 is installed")
    done = import_backend(os.environ["PATH"], interpreter)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"wakeloop needs Python 3\.11 or newer, and this is Python 3\.\d+\.\d+", line)


def test_the_oldest_python_is_that_of_the_metadata():
    backend, metadata = (ROOT / "release" / "backend.py").read_text(), (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^OLDEST = (.*)$", backend, re.MULTILINE)[1] == "(3, 11)"
    assert 'requires-python = ">=3.11"' in metadata


MATURIN = pathlib.Path(sys.executable).with_name("maturin")


@pytest.mark.skipif(not MATURIN.exists(), reason="maturin is not installed")
def test_building_from_a_checkout_warns_of_nothing(tmp_path):
    # maturin reads the project's settings before it makes the metadata, and warns there.
    makes_metadata = f"import backend; backend.prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    environment = {**os.environ, "PATH": f"{MATURIN.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "release")}
    environment.pop("MATURIN_NO_MISSING_BUILD_BACKEND_WARNING", None)
    done = subprocess.run(
        [sys.executable, "-c", makes_metadata], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.dist-info"))
    assert "warning" not in (done.stdout + done.stderr).lower()


def test_the_backend_names_the_wheels_that_are_built():
    makefile = (ROOT / "Makefile").read_text()
    pythons = re.search(r"^WHEEL_PYTHONS \?= (.*)$", makefile, re.MULTILINE)[1].split()
    systems = re.search(r"^WHEEL_SYSTEMS \?= (.*)$", makefile, re.MULTILINE)[1].split()
    message = (ROOT / "release" / "backend.py").read_text()
    assert f"CPython {pythons[0]} to {pythons[-1]} on Linux" in message
    assert {system.partition("-")[0] for system in systems} == {"x86_64", "aarch64"}
    assert "for x86_64 and aarch64" in message
    glibc = check_wheels.TAGS["gnu"].removeprefix("manylinux_").replace("_", ".")
    assert f"glibc {glibc} or newer" in message
    assert f"{check_wheels.TAGS['gnu']})" in makefile


def test_every_python_that_has_wheels_is_in_the_metadata():
    makefile, metadata = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()
    pythons = re.search(r"^WHEEL_PYTHONS \?= (.*)$", makefile, re.MULTILINE)[1].split()
    assert re.findall(r"Python :: (3\.\d+)", metadata) == pythons


# -- licences and workflows ----------------------------------------------------------------------------------------


def test_the_licence_of_every_crate_in_a_wheel_is_in_the_file_of_licences():
    command = ["cargo", "tree", "--offline", "--locked", "--features", "python", "--prefix", "none"]
    edges = ["--edges", "normal,no-proc-macro", "--target", "x86_64-unknown-linux-gnu"]
    done = subprocess.run([*command, *edges], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    crates = {" ".join(line.split()[:2]).replace(" v", " ") for line in done.stdout.splitlines()}
    assert len(crates) > 10
    licences = (ROOT / "THIRD-PARTY-LICENSES.txt").read_text()
    assert [crate for crate in sorted(crates) if f"\n   {crate}" not in licences] == [], "say make licenses"
    assert "LLVM Exceptions" in licences


def test_every_action_is_pinned_by_its_digest():
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    used = [line for path in workflows for line in re.findall(r"uses: (.*)", path.read_text())]
    assert used
    remote = [line for line in used if not line.startswith("$/")]
    assert [line for line in remote if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


