"""Programs with a window (`wakeloop.admin`), and questions to it."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import textwrap
import time

from .loops import PRELUDE


class Window:
    """A program that runs, and the socket of its window."""

    def __init__(self, process, folder):
        self.process, self.pid = process, process.pid
        self.path = os.path.join(folder, f"wakeloop-{os.geteuid()}", str(process.pid))

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(20)
        try:
            sock.connect(self.path)
        except BaseException:
            sock.close()
            raise
        return sock

    def get(self, target, method="GET"):
        """The status and the text of an answer."""
        return get(self.connect(), target, method)

    def json(self, target):
        status, text = self.get(target)
        assert status == 200, text
        return json.loads(text)


def get(sock, target, method="GET", host="localhost"):
    with contextlib.closing(sock):
        send_request(sock, target, method, host)
        return answer_to(sock, method)


def send_request(sock, target, method="GET", host="localhost"):
    sock.sendall(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())


def answer_to(sock, method="GET"):
    """The status and the text of the answer to what was sent. Closes the connection."""
    with contextlib.closing(sock):
        answer = http.client.HTTPResponse(sock, method=method)
        answer.begin()
        return answer.status, answer.read().decode()


@contextlib.contextmanager
def program(folder, body, *, admin="1", options=(), **environment):
    """Runs `body` until the block ends. It prints `ready` when it can be asked."""
    source = PRELUDE["wakeloop"] + "import os, sys, threading, time, wakeloop\n" + textwrap.dedent(body)
    given = {**os.environ, "TMPDIR": str(folder), **environment}
    if admin is not None:
        given["WAKELOOP_ADMIN"] = admin
    line = [sys.executable, "-u", "-X", "faulthandler", *options, "-c", source]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(line, env=given, text=True, **pipes)
    try:
        said = process.stdout.readline()
        assert said == "ready\n", said + process.stderr.read()
        yield Window(process, folder)
    finally:
        process.kill()
        if process.stdin.closed:
            process.stdin = None
        process.communicate()


def until(test, what):
    """Calls `what` until the test is true of the result."""
    end = time.monotonic() + 20
    while not test(found := what()):
        assert time.monotonic() < end, found
        time.sleep(0.005)
    return found


def go_on(window):
    window.process.stdin.write("\n")
    window.process.stdin.flush()


def line_of(source, words):
    [found] = [number for number, line in enumerate(source.splitlines(), 1) if words in line]
    return found


@contextlib.contextmanager
def workers(folder, then="pass"):
    """Two programs that have the same TCP address, and its port. The first does something when it has the address."""
    first = f"""
    window = wakeloop.admin("127.0.0.1:0", limit="100ms")
    {then}
    async def main():
        print("ready")
        print(window.addresses[1].rsplit(":", 1)[1])
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    second = """
    async def main():
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        time.sleep(1000)
    wakeloop.run(main())
    """
    with program(folder, first, admin=None) as one:
        port = int(one.process.stdout.readline())
        with program(folder, second, admin=f"127.0.0.1:{port}", WAKELOOP_ADMIN_LIMIT="100ms") as two:
            yield one, two, lambda target: get(socket.create_connection(("127.0.0.1", port)), target)
