"""The functions of `wakeloop.fs` take the arguments of the functions that they run."""

import glob
import inspect
import os
import shutil
import tempfile

import pytest

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")

from wakeloop import fs  # noqa: E402

#: Parameters of Python 3.12, which fs does not offer.
LATER = {"NamedTemporaryFile": {"delete_on_close"}, "TemporaryDirectory": {"delete"}}


def original(name):
    modules = [module for module in (os, os.path, shutil, glob, tempfile) if hasattr(module, name)]
    return getattr(modules[0], name) if modules and name != "open" else None


@pytest.mark.parametrize("name", [*filter(original, fs.__all__)])
def test_a_function_has_the_parameters_of_its_original(name):
    try:
        expected = inspect.signature(original(name)).parameters
    except ValueError as error:
        pytest.skip(str(error))
    later = LATER.get(name, ())
    assert [*inspect.signature(getattr(fs, name)).parameters] == [name for name in expected if name not in later]


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
