"""The functions of `wakeloop.fs` take the arguments of the functions that they run."""

import glob
import inspect
import os
import pathlib
import shutil
import tempfile

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from wakeloop import fs  # noqa: E402

#: Parameters of Python 3.12, which fs does not offer.
LATER = {"NamedTemporaryFile": {"delete_on_close"}, "TemporaryDirectory": {"delete"}}
#: The methods of pathlib.Path that fs has as functions.
OF_PATHS = ["read_bytes", "read_text", "touch", "write_bytes", "write_text"]


def original(name):
    modules = [module for module in (os, os.path, shutil, glob, tempfile) if hasattr(module, name)]
    return getattr(modules[0], name) if modules and name != "open" else None


def parameters(function):
    """The names of the parameters, with how each is given and its default."""
    # The directory of os.scandir is the current one by default, and its signature has no word for that.
    described = inspect.signature(function).parameters.values()
    return {one.name: (one.kind, "." if function is os.scandir else one.default) for one in described}


@pytest.mark.parametrize("name", [*filter(original, fs.__all__)])
def test_a_function_has_the_parameters_and_defaults_of_its_original(name):
    try:
        expected = parameters(original(name))
    except ValueError as error:
        pytest.skip(str(error))
    later = LATER.get(name, ())
    assert [*parameters(getattr(fs, name)).items()] == [item for item in expected.items() if item[0] not in later]


@pytest.mark.parametrize("name", OF_PATHS)
def test_a_function_has_the_parameters_and_defaults_of_the_method_of_a_path(name):
    ours = parameters(getattr(fs, name))
    assert [*ours].pop(0) == "path" and ours.pop("path")[1] is inspect.Parameter.empty
    theirs = parameters(getattr(pathlib.Path, name))
    # pathlib reads with a newline since Python 3.13.
    newline = {name: ours["newline"] for name in ours.keys() & {"newline"}}
    assert [*ours.items()] == [*(theirs | newline).items()][1:]


def test_glob_takes_a_directory_by_its_descriptor_and_bytes(run, tmp_path):
    (tmp_path / "file").touch()

    async def main():
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            assert await fs.glob("f*", dir_fd=folder) == ["file"]
        finally:
            os.close(folder)
        assert await fs.glob(b"f*", root_dir=os.fsencode(tmp_path)) == [b"file"]

    run(main())
