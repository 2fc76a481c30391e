"""python -m wakeloop top: the screen and the JSON of another process's loops."""

import contextlib
import fcntl
import http.client
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

from tests.support.script import start_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="the page needs Linux"),
]

#: A web server with a task that takes long. It prints its port.
SERVER = """
import os, socket, sys, time
os.environ["WAKELOOP_PUBLISH"] = "1"
import uvicorn, wakeloop

async def app(scope, receive, send):
    if scope["path"] == "/slow":
        time.sleep(0.03)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

listener = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
print(listener.getsockname()[1], flush=True)
wakeloop.run(server.serve([listener]))
"""
BLOCKED = """
import time, wakeloop
wakeloop.publish()
async def main():
    print("ready", flush=True)
    time.sleep(1000)
wakeloop.run(main())
"""


@contextlib.contextmanager
def started(body):
    process = start_script("asyncio", body)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def load(port):
    """Keeps two connections to the server busy."""
    ended = threading.Event()

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        with contextlib.closing(connection):
            number = 0
            while not ended.is_set():
                number += 1
                connection.request("GET", "/slow" if number % 20 == 0 else "/")
                response = connection.getresponse()
                assert response.status == 200 and response.read()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def top(*arguments, **options):
    line = [sys.executable, "-m", "wakeloop", "top", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=20, **options)


def test_json_of_a_loaded_uvicorn():
    pytest.importorskip("uvicorn")
    with started(SERVER) as (process, port), load(port):
        time.sleep(0.5)
        done = top(process.pid, "--once", "--json", "--interval", 1)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    found = json.loads(line)
    [loop] = found["loops"]
    assert found["pid"] == process.pid and found["interval"] >= 1
    assert (loop["name"], loop["running"], loop["connections"]) == ("MainThread", True, 2)
    assert loop["turns_rate"] > 5 and 0 < loop["utilization"] <= 1
    assert loop["turn_max"] >= 0.03
    assert {True} == {slow["seconds"] >= 0.005 for slow in loop["slow"]}
    assert any("run_asgi" in slow["name"] for slow in loop["slow"]), loop["slow"]


def test_json_works_without_rich_and_the_screen_says_what_to_install(tmp_path):
    (tmp_path / "rich.py").write_text("raise ImportError('there is no rich')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with started(BLOCKED) as (process, _):
        done = top(process.pid, "--once", "--json", "--interval", 0.2, env=environment)
        assert done.returncode == 0, done.stderr
        [loop] = json.loads(done.stdout)["loops"]
        assert loop["utilization"] > 0.99 and loop["busy"] >= 0.2
        done = top(process.pid, "--once", "--interval", 0.2, env=environment)
        assert done.returncode == 0 and "MainThread: used 100%" in done.stdout
        done = top(process.pid, env=environment)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("wakeloop: the live screen needs rich: pip install wakeloop[top]")


def test_a_process_that_publishes_nothing_is_reported():
    done = top(os.getpid(), "--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert "publishes nothing: start it with WAKELOOP_PUBLISH=1" in done.stderr
    done = top(2**30, "--once")
    assert done.returncode == 1 and "there is no process" in done.stderr


@pytest.mark.parametrize("arguments", [["x"], ["1", "--interval", "0"], ["1", "--interval", "nan"], []])
def test_wrong_arguments_are_explained(arguments):
    done = top(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("usage:") and "Traceback" not in done.stderr


class Terminal:
    """A terminal of 80 by 24 characters, with the program in it."""

    def __init__(self, *line):
        pyte = pytest.importorskip("pyte")
        self.screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.screen)
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            line, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        os.set_blocking(self.master, False)

    def until(self, *texts):
        """Waits until all texts are on the screen, and returns what is on it."""
        end = time.monotonic() + 20
        while not all(text in "\n".join(self.screen.display) for text in texts):
            assert time.monotonic() < end, "\n".join(self.screen.display)
            with contextlib.suppress(BlockingIOError):
                self.stream.feed(os.read(self.master, 65536))
            time.sleep(0.01)
        return "\n".join(self.screen.display)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@contextlib.contextmanager
def terminal(*arguments):
    pytest.importorskip("rich")
    opened = Terminal(sys.executable, "-m", "wakeloop", "top", *map(str, arguments))
    try:
        yield opened
    finally:
        opened.close()


def test_the_screen_in_a_terminal_shows_a_loaded_uvicorn():
    pytest.importorskip("uvicorn")
    with started(SERVER) as (process, port), load(port), terminal(process.pid, "--interval", 0.2) as shown:
        text = shown.until(f"process {process.pid}", "MainThread", "GIL wait", "run_asgi", "ms")
        assert "used" in text and "conns" in text
        shown.process.send_signal(signal.SIGINT)
        assert shown.process.wait(10) == 0


def test_the_screen_shows_a_loop_that_is_blocked_and_ends_with_the_process():
    with started(BLOCKED) as (process, _), terminal(process.pid, "--interval", 0.2) as shown:
        shown.until("blocked", "100%")
        process.kill()
        process.wait()
        assert shown.process.wait(10) == 0
