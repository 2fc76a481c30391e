"""Creates the environment of a library's suite: a virtual environment with the library, our package and the hook, and
the tests from its source distribution. There is one for each version of Python, and both are created again when the
library's description changes.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile

import wakeloop

from ..conformance import substitution
from .libraries import HERE

#: The version of pytest for every suite. Libraries may ask for another one.
RUNNER = ["pytest==9.2.0"]

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


class Failed(Exception):
    """The environment could not be created."""


def run(*command, limit=900, **user):
    """Runs a command to its end. Raises Failed if it fails, or if it takes longer than `limit` seconds: then it is
    ended, with the compilers that it may have started.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes, text=True, errors="replace", start_new_session=True, **user) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"{' '.join(map(str, command))}\ntook longer than {limit} s") from None
            raise
    if process.returncode:
        raise Failed(f"{' '.join(map(str, command))}\n{output[-3000:]}")


class Environment:
    def __init__(self, library, cache):
        self._library = library
        self._directory = cache / f"{library.name}-{sysconfig.get_python_version()}"
        self._venv = self._directory / "venv"
        self.bin = self._venv / "bin"
        self.python = self.bin / "python"
        self._sources = self._directory / "sources"

    @property
    def tests(self):
        return self._library.own or self._sources

    def make(self, say):
        stamp = self._directory / "made"
        if not stamp.exists() or stamp.read_text() != self._library.digest:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir(parents=True)
            say(f"  {self._library.name}: making its environment in {self._directory}")
            run(sys.executable, "-m", "venv", "--without-pip", self._venv)
            wanted = self._library.to_install
            if not any(line.startswith("pytest==") for line in wanted):
                wanted = RUNNER + wanted
            run(*PIP, "--python", self.python, "install", *wanted)
            self._sources.mkdir()
            if self._library.keep:
                self._unpack()
            stamp.write_text(self._library.digest)
        self._add_ours()

    def _unpack(self):
        """Unpacks the tests of the source distribution without the library's code, which would hide the installed
        one.
        """
        name = self._library.name
        with tempfile.TemporaryDirectory(dir=self._directory) as download:
            wanted = ("--no-deps", "--no-binary", name, f"{name}=={self._library.version}")
            run(*PIP, "download", "--dest", download, *wanted)
            [archive] = pathlib.Path(download).glob("*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(download, filter="data")
            [root] = (path for path in pathlib.Path(download).iterdir() if path.is_dir())
            for kept in self._library.keep:
                shutil.move(root / kept, self._sources / kept)

    def _add_ours(self):
        """Adds the hook to the environment's path, and a copy of our package, so that a later build does not change
        it.
        """
        [site] = self._venv.glob("lib/python*/site-packages")
        package = pathlib.Path(wakeloop.__file__).parent
        shutil.rmtree(site / package.name, ignore_errors=True)
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        for target in [pathlib.Path(substitution.__file__), *(HERE / "hook").glob("*.py")]:
            shutil.copy(target, site / target.name)
        (site / "suites.pth").write_text("import suites_hook\n")

    def variables(self, environment):
        """Returns `environment`, changed to use this virtual environment."""
        path = f"{self.bin}{os.pathsep}{environment.get('PATH', os.defpath)}"
        kept = {name: value for name, value in environment.items() if not name.startswith(("PYTEST", "PYTHON"))}
        return kept | {"PATH": path, "VIRTUAL_ENV": str(self._venv), "PYTHONDONTWRITEBYTECODE": "1"}
