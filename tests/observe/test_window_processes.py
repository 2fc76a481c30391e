"""The windows (`wakeloop.admin`) of several processes: a shared address, and forked children."""

import contextlib
import json
import os
import re
import signal
import socket
import textwrap

import pytest

from tests.support.window import get, go_on, program, until, workers

pytestmark = pytest.mark.native


def test_a_shared_address_answers_for_all_processes(tmp_path):
    with workers(tmp_path) as (one, two, ask):
        pids = sorted([one.pid, two.pid])
        for _ in range(8):  # either of them may accept the connection
            assert ask("/livez") == (200, "".join(f"process {pid}: alive: 1 event loops\n" for pid in pids))
            assert [each["pid"] for each in json.loads(ask("/loops")[1])] == pids
        status, text = ask("/metrics")
        assert status == 200 and text.count("# HELP wakeloop_eventloop_turns_total ") == 1
        assert sorted(map(int, re.findall(r'^wakeloop_eventloop_running\{pid="(\d+)",loop="MainThread"\} 1$', text, re.M))) == pids
        go_on(two)
        _, text = until(lambda answer: answer[0] == 503, lambda: ask("/livez"))
        assert text.startswith(f'process {two.pid}: the event loop "MainThread" has been in one turn')


def test_a_shared_address_answers_for_all_processes_also_in_a_folder_with_a_long_path(tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with workers(folder) as (one, two, ask):
        both = sorted([one.pid, two.pid])
        assert ask("/livez") == (200, "".join(f"process {pid}: alive: 1 event loops\n" for pid in both))


@pytest.mark.parametrize("others", [0, 1])
def test_tasks_of_a_tcp_address_are_unavailable_while_one_of_its_processes_does_not_answer(tmp_path, others):
    body = """
    window = wakeloop.admin({address!r})
    print("ready")
    print(window.addresses[1].rsplit(":", 1)[1])
    async def main():
        await asyncio.to_thread(sys.stdin.readline)
        import ctypes
        ctypes.PyDLL(None).poll(None, 0, 1000_000)
    wakeloop.run(main())
    """
    with contextlib.ExitStack() as stack:
        blocks = stack.enter_context(program(tmp_path, body.format(address="127.0.0.1:0"), admin=None))
        port = int(blocks.process.stdout.readline())
        for _ in range(others):
            stack.enter_context(program(tmp_path, body.format(address=f"127.0.0.1:{port}"), admin=None))

        def ask(target):
            return get(socket.create_connection(("127.0.0.1", port)), target)

        status, text = ask("/tasks")
        found = json.loads(text)
        assert status == 200 and len(found) == 1 + others and all(each["loops"] for each in found)
        go_on(blocks)
        _, text = until(lambda answer: answer[0] == 503, lambda: ask("/tasks"))
        found = json.loads(text)
        [error] = [each.pop("error") for each in found if each["pid"] == blocks.pid]
        assert re.fullmatch(
            r"the tasks could not be asked for in a second. (The GIL is held by thread .*|There is no GIL)\. "
            r"The last answer was \d+\.\d+ s ago\.", error
        ), error  # fmt: skip
        assert {"pid": blocks.pid} in found and len(found) == 1 + others
        # The others are shown all the same.
        assert [len(each["loops"]) for each in found if each["pid"] != blocks.pid] == [1] * others
        # A probe is as it was: nothing has lasted longer than its limit.
        assert ask("/livez")[0] == ask("/metrics")[0] == 200


def test_a_process_that_does_not_answer_is_named_by_a_shared_address_and_its_metrics_are_left_out(tmp_path):
    body = """
    window = wakeloop.admin("127.0.0.1:0")
    print("ready")
    print(window.addresses[1].rsplit(":", 1)[1])
    sys.stdin.read()
    """
    with program(tmp_path, body, admin=None) as window, contextlib.closing(socket.socket(socket.AF_UNIX)) as other:
        port = int(window.process.stdout.readline())
        # Stands for a process that is stopped.
        silent = os.getpid()
        other.bind(f"{tmp_path}/other")
        other.listen()
        os.symlink(f"{tmp_path}/other", f"{os.path.dirname(window.path)}/127.0.0.1:{port}/{silent}")

        def ask(target):
            return get(socket.create_connection(("127.0.0.1", port)), target)

        status, text = ask("/loops")
        found = json.loads(text)
        assert status == 503 and {"pid": silent, "error": "it does not answer"} in found
        assert window.pid in [each["pid"] for each in found]
        status, text = ask("/stack")
        assert status == 503 and f"process {silent}: it does not answer\n" in text
        assert ask("/livez") == (503, f"process {silent}: it does not answer\n")
        status, text = ask("/metrics")
        assert status == 200 and f"{silent}" not in text


@pytest.mark.parametrize("killed", [0, 1])
def test_a_shared_address_goes_on_when_one_of_its_processes_ends(tmp_path, killed):
    with workers(tmp_path) as (*both, ask):
        both[killed].process.kill()
        both[killed].process.wait()
        left = both[1 - killed].pid
        for _ in range(8):
            assert ask("/livez") == (200, f"process {left}: alive: 1 event loops\n")


# -- forked children ---------------------------------------------------------------------------------------------------


def test_a_forked_child_has_no_window_until_its_first_loop_when_the_environment_asks(tmp_path):
    body = """
    listener = wakeloop.admin("127.0.0.1:0")
    port = int(listener.addresses[1].rsplit(":", 1)[1])
    if (child := os.fork()) == 0:
        assert not listener.is_open()
        listener.close()
        os.write(1, b"%d\\n" % os.getpid())
        sys.stdin.readline()
        wakeloop.run(asyncio.sleep(0))
        print("opened", flush=True)
        sys.stdin.readline()
        os._exit(0)
    os.write(1, b"%d %d\\n" % (child, port))
    os.waitpid(child, 0)
    """
    with program(tmp_path, "print('ready')\n" + "import textwrap\nexec(textwrap.dedent(" + repr(body) + "))") as window:
        lines = {len(line.split()): line.split() for line in (window.process.stdout.readline() for _ in range(2))}
        [child], port = lines[1], int(lines[2][1])
        path = os.path.join(os.path.dirname(window.path), child)
        assert window.get("/livez")[0] == 200 and not os.path.exists(path)
        # The child has no copy of the listener, so its parent accepts each connection.
        for _ in range(8):
            assert get(socket.create_connection(("127.0.0.1", port)), "/livez")[0] == 200
        go_on(window)
        assert window.process.stdout.readline() == "opened\n"
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        assert f"process {child}" in get(sock, "/")[1]
        os.kill(int(child), signal.SIGKILL)


def test_a_forked_child_keeps_a_server_at_the_address_of_a_window_that_was_closed(tmp_path):
    body = """
    import socket
    window = wakeloop.admin("127.0.0.1:0")
    port = int(window.addresses[1].rsplit(":", 1)[1])
    window.close()
    with socket.create_server(("127.0.0.1", port)) as server:
        print("ready")
        if (child := os.fork()) == 0:
            os._exit(server.getsockname()[1] != port)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    with program(tmp_path, body, admin=None) as window:
        assert window.process.stdout.readline() == "0\n"


def test_a_forked_child_keeps_a_datagram_socket_at_the_address_of_the_window(tmp_path):
    body = """
    import socket
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # An address that no other program uses.
        window = wakeloop.admin("127.9.8.7:0")
        sock.bind(("127.9.8.7", int(window.addresses[1].rsplit(":", 1)[1])))
        print("ready")
        if (child := os.fork()) == 0:
            try:
                sock.getsockname()
                os._exit(0)
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    with program(tmp_path, body, admin=None) as window:
        assert window.process.stdout.readline() == "0\n"


def test_a_shared_address_answers_for_all_processes_after_one_has_changed_its_environment(tmp_path):
    with workers(tmp_path, 'os.environ["TMPDIR"] = "/"') as (one, two, ask):
        both = sorted([one.pid, two.pid])
        for _ in range(8):
            assert ask("/livez") == (200, "".join(f"process {pid}: alive: 1 event loops\n" for pid in both))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_connection_ends_with_its_process_although_a_forked_child_goes_on(tmp_path, kind):
    body = """
    window = wakeloop.admin("127.0.0.1:0")
    own = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(socket.create_connection(own.getsockname())):
        accepted, _ = own.accept()
        print("ready")
        print(window.addresses[1].rsplit(":", 1)[1], flush=True)
        sys.stdin.readline()
        if os.fork() == 0:
            left = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
            print(os.getpid(), sum("socket:" in each for each in left))
            # The sockets of the program stay.
            assert own.getsockname() and accepted.getpeername()
            sys.stdin.readline()
            os._exit(0)
        signal.pause()
    """
    imports = "import contextlib, signal, socket\n"
    with program(tmp_path, imports + textwrap.dedent(body), admin=None) as window, contextlib.ExitStack() as stack:
        port = int(window.process.stdout.readline())
        connections = []
        for target in ("", "/livez", "/labels?seconds=60"):
            sock = socket.create_connection(("127.0.0.1", port)) if kind == "tcp" else window.connect()
            connections.append(stack.enter_context(contextlib.closing(sock)))
            sock.settimeout(20)
            if target:
                sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connections[1].recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        go_on(window)
        child, sockets = map(int, window.process.stdout.readline().split())
        stack.callback(os.kill, child, signal.SIGKILL)
        # Its own listener, the connection, and the other side of that.
        assert sockets == 3
        window.process.kill()
        window.process.wait()
        for sock in connections:
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(65536):
                    pass
