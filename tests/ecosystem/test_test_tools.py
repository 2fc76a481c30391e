"""The pytest plugin, with pytest-asyncio and anyio; pytest-socket; and kernels of Jupyter."""

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
    assert done.stdout == "wakeloop\n", done.stderr


GUARDED = """
import asyncio, contextlib, socket
import pytest
from IMPORT import new_event_loop

@contextlib.contextmanager
def loop():
    with contextlib.closing(new_event_loop()) as made:
        yield made

def outcome(function, *args, **options):
    try:
        return type(function(*args, **options)).__name__
    except Exception as error:
        return type(error).__name__

def new_and_closed():
    new_event_loop().close()

async def connect(host, port):
    _, writer = await asyncio.open_connection(host, port, family=socket.AF_INET)
    writer.close()

def test_everything(record, listening):
    record("new loop", outcome(new_and_closed))
    with contextlib.suppress(Exception), loop() as made:
        for host in "127.0.0.1", "localhost":
            record(host, outcome(made.run_until_complete, connect(host, listening)))
        record("server", outcome(made.run_until_complete, asyncio.start_server(print, "127.0.0.1", 0)))
        record("udp", outcome(made.run_until_complete, made.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", listening))))
"""

GUARDED_CONFTEST = """
import socket
import pytest

waiting = socket.create_server(("127.0.0.1", 0))

@pytest.fixture
def listening():
    return waiting.getsockname()[1]

@pytest.fixture
def record():
    lines = []
    yield lambda *line: lines.append(" ".join(line))
    with open("record.txt", "w") as file:
        file.write("\\n".join(lines))
"""


@pytest.mark.parametrize(
    "options",
    [
        ["--disable-socket"],
        ["--disable-socket", "--allow-unix-socket"],
        ["--allow-hosts", "127.0.0.2"],
        ["--allow-hosts", "127.0.0.1,localhost"],
    ],
    ids=lambda options: " ".join(options),
)
def test_pytest_socket_blocks_what_it_blocks_on_asyncio(tmp_path, options):
    need_installed("pytest_socket")
    (tmp_path / "conftest.py").write_text(GUARDED_CONFTEST)
    recorded = []
    for name in "wakeloop", "asyncio":
        (tmp_path / "test_kind.py").write_text(GUARDED.replace("IMPORT", name))
        said = pytest_on(tmp_path, "-p", "no:anyio", "-W", "ignore", *options)
        assert "1 passed" in said, said
        recorded.append((tmp_path / "record.txt").read_text())
    assert recorded[0] == recorded[1]
