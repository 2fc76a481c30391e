"""The pytest plugin, with pytest-asyncio and anyio; and kernels of Jupyter."""

import os
import subprocess
import sys

import pytest

from tests.ecosystem.support import need_installed
from tests.ecosystem.test_servers import installed  # noqa: F401

pytestmark = [pytest.mark.native, pytest.mark.timeout(90)]

TESTS = """
import asyncio, pytest, wakeloop

@pytest.fixture
async def kind():
    return type(asyncio.get_running_loop())

@pytest.mark.MARK
async def test_kind(kind):
    assert kind is type(asyncio.get_running_loop()) is wakeloop.EventLoop
"""


def pytest_on(tmp_path, *options):
    # looptime's plugin needs pytest-asyncio's.
    plugins = ["-p", "no:cacheprovider", "-p", "no:looptime_plugin"]
    line = [sys.executable, "-m", "pytest", "-q", *plugins, *options, "test_kind.py"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=variables)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("library", "mark", "options"),
    [
        ("pytest_asyncio", "asyncio", ["--asyncio-mode", "auto", "-p", "no:anyio"]),
        ("anyio", "anyio", ["--anyio-mode", "auto", "-p", "no:asyncio"]),
    ],
)
def test_the_plugin_gives_tests_our_loop(tmp_path, library, mark, options):
    need_installed(library)
    (tmp_path / "test_kind.py").write_text(TESTS.replace("MARK", mark))
    assert "1 passed" in pytest_on(tmp_path, *options, "-p", "wakeloop.pytest")
    assert "1 passed" not in pytest_on(tmp_path, *options)


def test_the_plugin_does_nothing_without_either_of_them(tmp_path):
    (tmp_path / "test_kind.py").write_text("def test_one(): pass")
    assert "1 passed" in pytest_on(tmp_path, "-p", "no:asyncio", "-p", "no:anyio", "-p", "wakeloop.pytest")


KERNEL = """
from jupyter_client.manager import start_new_kernel

kernel, client = start_new_kernel(startup_timeout=60)
try:
    code = "import asyncio; await asyncio.sleep(0.01); print(type(asyncio.get_running_loop()).__module__)"
    reply = client.execute_interactive(code, timeout=30)
    assert reply["content"]["status"] == "ok", reply
finally:
    client.stop_channels()
    kernel.shutdown_kernel(now=True)
"""


def test_a_kernel_of_jupyter_runs_on_our_loop(installed):  # noqa: F811
    need_installed("ipykernel", "jupyter_client")
    line = [sys.executable, "-Wignore", "-c", KERNEL]
    done = subprocess.run(line, env={**installed, "WAKELOOP": "1"}, capture_output=True, text=True, timeout=80)
    assert done.stdout == "wakeloop.loop\n", done.stderr
