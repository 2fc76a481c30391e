"""What the window (`wakeloop.admin`) refuses: bad questions, and slow clients."""

import contextlib
import http.client
import re
import select
import socket
import time
from pathlib import Path

import pytest

import wakeloop
from tests.support.window import get, program, send_request

pytestmark = pytest.mark.native


@pytest.fixture
def window(tmp_path):
    """A window in this process, by a function that connects to it."""

    def connect():
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(20)
        sock.connect(f"{tmp_path}/window")
        return sock

    with wakeloop.admin(f"unix:{tmp_path}/window"):
        yield connect


def exchange(sock, data):
    """Sends the data, and returns all that comes back."""
    with contextlib.closing(sock):
        sock.sendall(data)
        found = b""
        while piece := sock.recv(65536):
            found += piece
        return found


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 9000), 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/3.0\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        (b"GET /%00%0d%0a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", None),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \xff\r\n\r\n", 400),
    ],
)
def test_what_is_no_question_is_refused(window, data, status):
    answer = exchange(window(), data)
    assert re.match(rb"HTTP/1.1 (%d) " % (status or 400), answer) or status is None and answer.startswith(b"HTTP/1.1 4")
    assert get(window(), "/livez")[0] == 200


def test_a_connection_answers_several_questions_and_head_has_no_body(window):
    requests = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nHEAD /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = exchange(window(), requests)
    first, rest = answer.split(b"\r\n\r\n", 1)
    assert b"Connection: keep-alive" in first and rest.startswith(b"alive: ")
    assert answer.endswith(b"Connection: close\r\n\r\n") and answer.count(b"Content-Length: ") == 2


def test_the_last_answer_of_a_connection_with_many_questions_says_that_it_is_the_last(window):
    """Otherwise a client would send its next question to a connection that ends."""
    said = []
    with contextlib.closing(window()) as sock:
        while "close" not in said and len(said) < 1000:
            sock.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            assert answer.read().startswith(b"alive: ")
            said.append(answer.getheader("Connection"))
        assert sock.recv(1) == b""
    assert said == ["keep-alive"] * 99 + ["close"]


def test_a_head_that_comes_byte_by_byte_is_read_and_one_that_does_not_come_is_given_up(window):
    with contextlib.closing(window()) as sock:
        for byte in b"GET /livez HTTP/1.0\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    assert exchange(window(), b"GET /livez HT").startswith(b"HTTP/1.1 408 ")


def test_a_refusal_of_head_has_no_body(window):
    assert exchange(window(), b"HEAD / HTTP/1.1\r\n\r\n").endswith(b"\r\nConnection: close\r\n\r\n")


LONG_NAME = """
async def main():
    asyncio.current_task().set_name("x" * 2_000_000)
    print("ready")
    await asyncio.Event().wait()
wakeloop.run(main())
"""


def begun_answer(sock):
    """A connection on which a large answer has begun, and how long the answer is."""
    send_request(sock, "/tasks")
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    return sock, int(re.search(rb"Content-Length: (\d+)", head)[1])


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_client_that_reads_slowly_gets_the_whole_answer(tmp_path, kind):
    with program(tmp_path, LONG_NAME, admin="127.0.0.1:0") as window:
        sock = window.connect()
        if kind == "tcp":
            [group] = Path(window.path).parent.glob("*:*")
            sock.close()
            sock = socket.create_connection(("127.0.0.1", int(group.name.rpartition(":")[2])))
        sock, left = begun_answer(sock)
        with contextlib.closing(sock):
            # For longer than five seconds, and so slowly that the sender's buffer stays full for as long.
            for _ in range(64):
                left -= len(sock.recv(2048))
                time.sleep(0.125)
            while piece := sock.recv(65536):
                left -= len(piece)
        assert left == 0


def test_a_client_that_stops_reading_is_given_up(tmp_path):
    with program(tmp_path, LONG_NAME) as window:
        sock, length = begun_answer(window.connect())
        with contextlib.closing(sock):
            # It goes on for longer than five seconds, and then stops.
            for _ in range(60):
                length -= len(sock.recv(4096))
                time.sleep(0.1)
            waits = select.poll()
            # Both sides have ended.
            waits.register(sock, 0)
            assert waits.poll(20_000) == [(sock.fileno(), select.POLLHUP)]
            while piece := sock.recv(65536):
                length -= len(piece)
        assert length > 0


def test_a_head_that_comes_slowly_is_given_up_although_it_goes_on(window):
    with contextlib.closing(window()) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        sock.settimeout(0.1)
        answer, end = b"", time.monotonic() + 30
        while not answer and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                answer = sock.recv(65536)
            with contextlib.suppress(BrokenPipeError):
                sock.sendall(b"x")
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_more_connections_than_there_may_be_end_the_oldest(window):
    question = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(34):
            socks.append(stack.enter_context(contextlib.closing(window())))
            socks[-1].sendall(question)
            assert socks[-1].recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert [sock.recv(1) for sock in socks[:2]] == [b""] * 2
        # They were not given up for their silence, as the others would be too.
        for sock in socks[2:]:
            sock.sendall(question)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_name_that_is_not_ours_and_a_path_for_the_inside_are_refused_on_a_tcp_address():
    with wakeloop.admin("127.0.0.1:0") as window:
        host, port = window.addresses[1].rsplit(":", 1)

        def ask(target, name):
            return get(socket.create_connection((host, int(port))), target, host=name)

        assert ask("/stack", f"localhost:{port}")[0] in (200, 503) and ask("/", "127.0.0.1")[0] == 200
        assert ask("/livez", "evil.example")[0] == ask("/", f"evil.example:{port}")[0] == 421
    with wakeloop.admin("0.0.0.0:0") as window:
        port = int(window.addresses[1].rsplit(":", 1)[1])
        for target, status in [("/livez", 200), ("/readyz", 200), ("/metrics", 200), ("/", 404), ("/stack", 404), ("/loops", 404)]:
            assert get(socket.create_connection(("127.0.0.1", port)), target, host="10.0.0.1")[0] == status
