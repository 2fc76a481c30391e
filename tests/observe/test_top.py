"""python -m wakeloop top: the screen and the JSON of another process's loops."""

import contextlib
import fcntl
import http.client
import json
import os
import pty
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import pytest

from tests.support.script import start_script
from wakeloop._observe import client

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

#: A web server with a task that takes long. It prints its port.
SERVER = """
import os, socket, sys, time
os.environ["WAKELOOP_ADMIN"] = "1"
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
wakeloop.admin()
async def main():
    print("ready", flush=True)
    time.sleep(1000)
wakeloop.run(main())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder for the sockets of windows. A process that is killed leaves its socket behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


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


@pytest.mark.parametrize("length", [100, 500])
def test_a_process_whose_folder_has_a_long_path_is_found(tmp_path, monkeypatch, length):
    """An address of a socket has 108 bytes: with the path of the process's file system it is longer than that."""
    folder = str(tmp_path)
    while len(folder) < length - 1:
        folder = os.path.join(folder, "d" * min(200, length - len(folder) - 1))
    os.makedirs(folder)
    monkeypatch.setenv("TMPDIR", folder)
    with started(BLOCKED) as (process, _):
        for temporary in (folder, "/tmp"):  # also for a tool that has another folder
            environment = {**os.environ, "TMPDIR": temporary}
            done = top(process.pid, "--once", "--json", "--interval", 0.05, env=environment)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["pid"] == process.pid
            done = top("--once", "--json", "--interval", 0.05, env=environment)
            assert process.pid in [json.loads(line)["pid"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("moves", ["", "os.chdir('/')"])
@pytest.mark.parametrize("given", ["the environment", "the program"])
@pytest.mark.parametrize("form", ["absolute", "relative"])
def test_a_process_is_found_whose_program_has_another_temporary_folder(tmp_path, monkeypatch, moves, given, form):
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(tmp_path)
    chosen = str(inner) if form == "absolute" else "inner"
    if given == "the environment":
        monkeypatch.setenv("TMPDIR", chosen)
    body = f"""
import os, wakeloop
os.environ["TMPDIR"] = {chosen!r}
window = wakeloop.admin()
{moves}
print("ready", flush=True)
wakeloop.run(asyncio.sleep(1000))
"""
    with started(body) as (process, _):
        options = {"env": {**os.environ, "TMPDIR": "/tmp"}, "cwd": "/"}
        done = top(process.pid, "--once", "--json", "--interval", 0.05, **options)
        assert done.returncode == 0 and json.loads(done.stdout)["pid"] == process.pid, done.stderr
        done = top("--once", "--json", "--interval", 0.05, **options)
        assert process.pid in [json.loads(line)["pid"] for line in done.stdout.splitlines()]


def test_a_process_with_a_relative_folder_whose_path_is_long_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = os.path.join("d" * 100, "e" * 100)
    os.makedirs(folder)
    monkeypatch.setenv("TMPDIR", folder)
    with started(BLOCKED) as (process, _):
        done = top(process.pid, "--once", "--json", "--interval", 0.05, env={**os.environ, "TMPDIR": "/tmp"}, cwd="/")
    assert done.returncode == 0 and json.loads(done.stdout)["pid"] == process.pid, done.stderr


@pytest.mark.parametrize("place", ["its folder", "another folder"])
def test_a_socket_of_another_process_is_not_asked(tmp_path, place):
    with started("import time; print('ready'); time.sleep(1000)") as (process, _):
        folder = (tmp_path if place == "its folder" else tmp_path / "other") / f"wakeloop-{os.geteuid()}"
        folder.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / str(process.pid)))
            listener.listen()
            done = top(process.pid, "--once", "--interval", 0.05)
    assert done.returncode == 1 and "has no window" in done.stderr


def test_a_process_that_does_not_answer_for_a_while_is_reported_and_shown_again(tmp_path):
    with started(BLOCKED) as (process, _):
        line = [sys.executable, "-m", "wakeloop", "top", "--json", "--interval", "0.05", str(process.pid)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(line, text=True, **pipes) as shown, terminal(process.pid, "--interval", 0.05) as screen:
            said = f"process {process.pid} does not answer"
            assert shown.stdout.readline()
            screen.until("blocked")
            process.send_signal(signal.SIGSTOP)
            assert shown.stderr.readline() == f"wakeloop: {said}\n"
            screen.until(said)
            done = top(process.pid, "--once")
            assert (done.returncode, done.stdout, done.stderr) == (1, "", f"wakeloop: {said}\n")
            process.send_signal(signal.SIGCONT)
            # The time without an answer is in the next figures.
            while json.loads(shown.stdout.readline())["interval"] < 1.5:
                pass
            screen.until("blocked")
            process.kill()
            process.wait()
            assert (shown.wait(10), screen.process.wait(10)) == (0, 0)


def test_a_process_without_a_window_is_reported():
    done = top(os.getpid(), "--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no window: start it with WAKELOOP_ADMIN=1" in done.stderr
    done = top(2**30, "--once")
    assert done.returncode == 1 and "there is no process" in done.stderr


@pytest.mark.parametrize("arguments", [["x"], ["1", "--interval", "0"], ["1", "--interval", "nan"], ["1", "2"]])
def test_wrong_arguments_are_explained(arguments):
    done = top(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("usage:") and "Traceback" not in done.stderr


class Terminal:
    """A terminal of 80 by 24 characters, with the program in it."""

    def __init__(self, *line, own_session=True):
        pyte = pytest.importorskip("pyte")
        self.screen = pyte.Screen(80, 24)
        self.stream = pyte.ByteStream(self.screen)
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            line,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=own_session,
            process_group=None if own_session else 0,
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
def terminal(*arguments, **options):
    pytest.importorskip("rich")
    opened = Terminal(sys.executable, "-m", "wakeloop", "top", *map(str, arguments), **options)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_screen_leaves_the_terminal_as_it_was(number):
    with started(BLOCKED) as (process, _), terminal(process.pid, "--interval", 0.2) as shown:
        shown.until("blocked")
        assert not termios.tcgetattr(shown.master)[3] & termios.ICANON
        shown.process.send_signal(number)
        assert shown.process.wait(10) == -number
        written = b""
        with contextlib.suppress(OSError):
            while more := os.read(shown.master, 65536):
                written += more
        # The other screen is left, and the cursor is shown.
        assert b"\x1b[?1049l" in written and b"\x1b[?25h" in written
        assert termios.tcgetattr(shown.master)[3] & (termios.ICANON | termios.ECHO) == termios.ICANON | termios.ECHO


def test_a_screen_that_is_stopped_gives_the_terminal_back_until_it_goes_on():
    # Nobody could let a process go on that leads a session, so the system does not stop it.
    with started(BLOCKED) as (process, _), terminal(process.pid, "--interval", 0.2, own_session=False) as shown:
        for _ in range(2):
            shown.until("blocked")
            assert not termios.tcgetattr(shown.master)[3] & termios.ICANON
            shown.process.send_signal(signal.SIGTSTP)
            _, status = os.waitpid(shown.process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            written = b""
            with contextlib.suppress(BlockingIOError):
                while more := os.read(shown.master, 65536):
                    written += more
            assert b"\x1b[?1049l" in written and b"\x1b[?25h" in written
            echoes = termios.ICANON | termios.ECHO
            assert termios.tcgetattr(shown.master)[3] & echoes == echoes
            shown.screen.reset()
            shown.process.send_signal(signal.SIGCONT)
        shown.until("blocked")
        os.write(shown.master, b"q")
        assert shown.process.wait(10) == 0


def test_the_workers_of_a_master_are_shown_and_q_ends_the_screen():
    master = """
import os, sys, wakeloop
for number in range(2):
    if os.fork() == 0:
        if number == 1 and os.fork():
            # A process between the master and its worker, as a shell or a reloader.
            os.wait()
            os._exit(0)
        os.environ["WAKELOOP_ADMIN"] = "1"
        async def main():
            import asyncio
            os.write(1, b"x")
            await asyncio.Event().wait()
        wakeloop.run(main())
print("ready", flush=True)
os.wait()
"""
    with started(master) as (process, line):
        try:
            # A worker writes when its loop runs.
            assert line.replace("x", "") == "ready"
            end = time.monotonic() + 20
            while True:
                done = top(process.pid, "--once", "--json", "--interval", 0.05)
                found = [json.loads(line) for line in done.stdout.splitlines()]
                if len(found) == 2:
                    break
                assert time.monotonic() < end, done
            workers = {each["pid"] for each in found}
            assert process.pid not in workers and all(len(each["loops"]) == 1 for each in found)
            everybody = [json.loads(line)["pid"] for line in top("--once", "--json", "--interval", 0.05).stdout.splitlines()]
            assert workers <= set(everybody)
            with terminal(process.pid, "--interval", 0.2) as shown:
                shown.until("2 processes", "waits")
                os.write(shown.master, b"q")
                assert shown.process.wait(10) == 0
        finally:
            for pid in descendants_of(process.pid):
                os.kill(pid, signal.SIGKILL)


def descendants_of(pid):
    """The children of a process and theirs, the youngest first."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = list(map(int, file.read().split()))
    return [*(each for child in children for each in descendants_of(child)), *children]


def test_a_trace_is_written_to_a_file(tmp_path):
    with started(BLOCKED) as (process, _):
        line = [sys.executable, "-m", "wakeloop", "trace", str(process.pid), "--seconds", "0.1", "--output", tmp_path / "t.json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    assert "traceEvents" in json.loads((tmp_path / "t.json").read_text())
    # It has names of tasks and functions.
    assert stat.S_IMODE((tmp_path / "t.json").stat().st_mode) == 0o600
    done = subprocess.run([*line[:3], "trace", str(2**30)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no process" in done.stderr


@pytest.mark.parametrize("megabytes", [65, 0])
def test_an_answer_is_written_as_a_whole_or_not_at_all(tmp_path, monkeypatch, megabytes):
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    folder.mkdir()
    body = b"{" + b" " * (megabytes << 20) + b"}"

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / str(os.getpid())))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        if megabytes:
            line = [sys.executable, "-m", "wakeloop", "trace", str(os.getpid()), "--output", tmp_path / "t.json"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and (tmp_path / "t.json").stat().st_size == len(body), done.stderr
        else:
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
            with pytest.raises(client.WindowError, match="is longer than 1 bytes"):
                client.fetch(os.getpid(), "/loops", longest=1)
        thread.join()


def test_the_screen_needs_no_standard_input():
    with started(BLOCKED) as (process, _):
        line = [sys.executable, "-m", "wakeloop", "top", str(process.pid)]
        code = f"import os; os.close(0); os.execv({line[0]!r}, {line!r})"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        shown = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shown.wait(2)
        # It ends with the process.
        process.kill()
        _, errors = shown.communicate(timeout=60)
    assert "Traceback" not in errors
