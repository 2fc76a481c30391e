"""Servers of several processes: gunicorn with uvicorn's workers, and uvicorn's own manager and reloader."""

import asyncio
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

APPLICATION = '''
import asyncio
import os

VERSION = 1

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    loop = asyncio.get_running_loop()
    body = f'{{"pid": {os.getpid()}, "version": {VERSION}, "loop": "{type(loop).__module__}"}}'.encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
'''

GUNICORN = ["gunicorn", "-k", "uvicorn_worker.UvicornWorker", "-w", "2", "-b", "127.0.0.1:0", "application:app"]
UVICORN = ["uvicorn", "--loop", "asyncio", "--port", "0", "application:app"]


class Server:
    def __init__(self, directory, command):
        self.log = pathlib.Path(directory, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.port = self.wait(lambda: self.search(r"http://127\.0\.0\.1:(\d+)"), "an address")
        self.wait(self.answers, "an answer")

    def search(self, pattern):
        if self.process.poll() is not None:
            raise AssertionError(f"ended: {self.log.read_text()}")
        found = re.search(pattern, self.log.read_text())
        return found and found[1]

    def wait(self, look, what):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if value := look():
                    return value
            time.sleep(0.02)
        raise AssertionError(f"no {what}: {self.log.read_text()}")

    def ask(self, path="/"):
        connection = http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    answers = ask

    def workers(self):
        """Returns the ids of the processes that answer many requests."""
        return {self.ask()["pid"] for _ in range(60)}

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def serve(tmp_path):
    servers = []
    (tmp_path / "application.py").write_text(APPLICATION)

    def start(command):
        servers.append(Server(tmp_path, command))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(GUNICORN, signal.SIGTERM, id="gunicorn-term"),
        pytest.param(UVICORN, signal.SIGTERM, id="uvicorn-term"),
        pytest.param(UVICORN, signal.SIGINT, id="uvicorn-int"),
        pytest.param([*UVICORN, "--workers", "2"], signal.SIGTERM, id="uvicorn-2-term"),
        pytest.param([*UVICORN, "--workers", "2"], signal.SIGINT, id="uvicorn-2-int"),
    ],
)
def test_a_server_ends_without_an_error_on_a_signal(serve, command, number):
    server = serve(command)
    assert server.end(number) in (0, -number, 128 + number)
    text = server.log.read_text()
    assert "Traceback" not in text and "Exception" not in text, text


def test_a_request_under_way_is_answered_before_a_worker_ends(serve):
    server = serve(GUNICORN)
    connection = http.client.HTTPConnection("127.0.0.1", int(server.port), timeout=20)
    connection.request("GET", "/slow")
    time.sleep(0.3)
    server.process.terminate()
    assert json.loads(connection.getresponse().read())["version"] == 1
    connection.close()
    assert server.process.wait(20) == 0


def test_a_worker_that_dies_is_replaced(serve):
    for command in (GUNICORN, [*UVICORN, "--workers", "2"]):
        server = serve(command)
        before = server.wait(lambda: len(found := server.workers()) > 1 and found, "second worker")
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        server.wait(lambda: len(found := server.workers()) > 1 and victim not in found, "replacement")
        server.end()


def test_workers_are_replaced_on_hangup(serve):
    for command in (GUNICORN, [*UVICORN, "--workers", "2"]):
        server = serve(command)
        before = server.workers()
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: not before & server.workers(), "new workers")
        server.end()


def test_a_changed_file_reloads_the_application(serve, tmp_path):
    server = serve([*UVICORN, "--reload"])
    assert server.ask()["version"] == 1
    time.sleep(1)
    (tmp_path / "application.py").write_text(APPLICATION.replace("VERSION = 1", "VERSION = 2"))
    server.wait(lambda: server.ask()["version"] == 2, "reload")
    assert server.end() in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_the_workers_run_the_loop_under_test(serve):
    """The other tests mean something only if this one passes."""
    with asyncio.Runner() as runner:
        expected = type(runner.get_loop()).__module__
    for command in (GUNICORN, UVICORN, [*UVICORN, "--workers", "2"]):
        server = serve(command)
        assert server.ask()["loop"] == expected
        server.end()
