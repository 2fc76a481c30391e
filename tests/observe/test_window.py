"""The window (`wakeloop.admin`): what it answers while a program blocks, and what it refuses."""

import asyncio
import contextlib
import errno
import http.client
import json
import os
import re
import select
import signal
import socket
import stat
import textwrap
import threading
import time
from pathlib import Path

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED
from tests.support.pages import DOCS
from tests.support.window import answer_to, get, program, send_request

pytestmark = pytest.mark.native

#: Ten ways to block a loop: the code of a function, and a piece of the line in which it stands.
BLOCKS = {
    "a sleep": ("time.sleep(1000)", "time.sleep"),
    "a computation": ("while True:\n        for _ in range(1000): pass", "for _ in"),
    "a lock": ("lock = threading.Lock(); lock.acquire()\n    lock.acquire()", "    lock.acquire()"),
    "a queue": ("import queue\n    queue.SimpleQueue().get()", "queue.SimpleQueue"),
    "a socket": ("import socket\n    a, b = socket.socketpair()\n    a.recv(1)", "a.recv"),
    "a child process": ("import subprocess\n    subprocess.run(['cat'])", "subprocess.run"),
    "a pipe": ("reader, writer = os.pipe()\n    os.read(reader, 1)", "os.read"),
    "native code with the GIL": (
        "import ctypes\n    ctypes.PyDLL(None).poll(None, 0, 1000_000)", "ctypes.PyDLL(None).poll",
    ),
    "a thread": ("thread = threading.Thread(target=threading.Event().wait, daemon=True)\n"
                 "    thread.start(); thread.join()", "thread.join"),
    "a regular expression": ("import re\n    re.match('(a+)+b', 'a' * 200)", "re.match"),
}  # fmt: skip
BLOCKED = """
def block():
    {block}

async def blocks():
    block()

async def main():
    asyncio.get_running_loop().call_later(0.001, print, "ready")
    await asyncio.sleep(0.01)
    await asyncio.create_task(blocks())
wakeloop.run(main())
"""


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


# -- a blocked loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", BLOCKS)
def test_the_line_that_blocks_the_loop_is_named(tmp_path, how):
    code, words = BLOCKS[how]
    body = BLOCKED.format(block=code)
    with program(tmp_path, body, WAKELOOP_ADMIN_LIMIT="50ms") as window:
        _, text = until(lambda answer: answer[0] == 503, lambda: window.get("/livez"))
        frames = re.findall(r'File "<string>", line (\d+), in (\w+)', text)
        _, stacks = window.get("/stack")
    assert re.match(r'the event loop "MainThread" has been in one turn for \d+\.\d+ s, in blocks, at\n', text), text
    functions = [function for _, function in frames]
    assert "block" in functions and "blocks" in functions, text
    block, blocks = (int(frames[functions.index(name)][0]) for name in ("block", "blocks"))
    # The coroutine calls the function three lines below its end.
    source = body.splitlines()
    first = next(number for number, line in enumerate(source) if line.startswith("async def blocks")) + 1
    wanted = line_of("\n".join(source[:first]), words)
    assert block - blocks == wanted - (first + 1), text
    assert "in block" in stacks and "which runs the event loop" in stacks


def test_a_callback_that_is_native_code_is_not_taken_for_the_loop(tmp_path):
    body = """
    async def main():
        asyncio.get_running_loop().call_soon(time.sleep, 1000)
        print("ready")
        await asyncio.sleep(1000)
    wakeloop.run(main())
    """
    with program(tmp_path, body, WAKELOOP_ADMIN_LIMIT="50ms") as window:
        _, text = until(lambda answer: answer[0] == 503, lambda: window.get("/livez"))
    first = text.splitlines()[0]
    assert re.fullmatch(r".* has been in one turn for \d+\.\d+ s, in a callback that is native code", first), text


def test_a_deadlock_of_two_locks_is_shown_with_both_stacks(tmp_path):
    body = """
    one, two = threading.Lock(), threading.Lock()
    def other():
        with two:
            started.set()
            with one:
                pass
    started = threading.Event()
    async def main():
        with one:
            threading.Thread(target=other, daemon=True).start()
            started.wait()
            print("ready")
            with two:
                pass
    wakeloop.run(main())
    """
    with program(tmp_path, body, WAKELOOP_ADMIN_LIMIT="50ms") as window:
        _, text = until(lambda answer: answer[0] == 503, lambda: window.get("/livez"))
        _, stacks = window.get("/stack")
    assert "in main" in text and ("There is no GIL. It is in a call" if FREE_THREADED else "Nobody has the GIL") in text
    assert re.search(r"line \d+, in other", stacks) and re.search(r"line \d+, in main", stacks)


def test_every_path_that_needs_no_gil_answers_while_native_code_keeps_it(tmp_path):
    with program(tmp_path, BLOCKED.format(block=BLOCKS["native code with the GIL"][0]), WAKELOOP_ADMIN_LIMIT="50ms") as window:
        _, text = until(lambda answer: answer[0] == 503, lambda: window.get("/livez"))
        assert ("There is no GIL. It runs Python or native code" if FREE_THREADED else "The GIL is held by its thread") in text
        assert window.get("/readyz") == (200, "ready\n")
        [loop] = window.json("/loops")["loops"]
        assert (loop["state"], loop["running"]) == ("works", True) and loop["busy_seconds"] > 0.05
        assert window.json("/slow")["loops"] == [{"name": "MainThread", "slow": [], "busy_waits": []}]
        assert 'wakeloop_eventloop_running{loop="MainThread"} 1\n' in window.get("/metrics")[1]
        assert FREE_THREADED or "which has the GIL" in window.get("/stack")[1]
        assert "/livez" in window.get("/")[1]


def test_the_window_answers_while_the_interpreter_ends(tmp_path):
    body = """
    import atexit
    async def main():
        pass
    wakeloop.run(main())
    def last():
        print("ready")
        sys.stdin.read()
    atexit.register(last)
    """
    with program(tmp_path, body) as window:
        assert window.get("/livez") == (200, "alive: 0 event loops\n")
        assert window.get("/stack")[0] in (200, 503)
        sock = window.connect()
        window.process.stdin.close()
        assert window.process.wait(20) == 0
        assert not os.path.exists(window.path)
        sock.close()


def test_a_program_that_is_asked_all_the_time_ends_as_without_a_window(tmp_path):
    body = """
    async def main():
        print("ready")
        await asyncio.sleep(0.1)
    wakeloop.run(main())
    for _ in range(20):
        loops = [wakeloop.new_event_loop() for _ in range(4)]
        for loop in loops:
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
    """

    def ask(target):
        # The last answer may be cut.
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                window.get(target)

    for _ in range(8):
        with program(tmp_path, body) as window:
            targets = "/tasks /trace?seconds=0.02 /trace?seconds=0.01 /labels?seconds=0.01 /stack /stack /loops"
            threads = [threading.Thread(target=ask, args=(target,)) for target in targets.split()]
            for thread in threads:
                thread.start()
            code = window.process.wait(50)
            for thread in threads:
                thread.join()
            assert (code, window.process.stderr.read()) == (0, "")
            assert not os.path.exists(window.path)


def test_a_loop_that_waits_or_works_in_short_turns_is_alive(tmp_path):
    body = """
    async def main():
        async def busy():
            while True:
                await asyncio.sleep(0)
        task = asyncio.create_task(busy())
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        task.cancel()
        print("idle")
        await asyncio.to_thread(sys.stdin.readline)
    wakeloop.run(main())
    """
    with program(tmp_path, body, WAKELOOP_ADMIN_LIMIT="10s") as window:
        for line in ("idle\n", ""):
            assert window.get("/livez") == (200, "alive: 1 event loops\n")
            go_on(window)
            assert window.process.stdout.readline() == line


# -- what it shows -----------------------------------------------------------------------------------------------------


def test_the_metrics_are_the_text_that_python_gives(run, tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/window") as window:

        async def main():
            await asyncio.sleep(0.001)
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(f"{tmp_path}/window")
            return await asyncio.to_thread(get, sock, "/metrics"), wakeloop.metrics_text()

        (status, text), ours = run(main())
    assert status == 200 and not window.is_open()

    def names(text):
        return [re.sub(r" [^ ]*$", "", line) for line in text.splitlines()]

    assert names(text) == names(ours)


def test_gauges_are_counted_for_a_loop_that_waits(tmp_path):
    body = """
    async def main():
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        timers = [loop.call_later(1000, int) for _ in range(7)]
        print("ready")
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:
        found = until(lambda loop: loop["metrics"]["timers"] == 7, lambda: window.json("/loops")["loops"][0])
    assert found["metrics"]["transports"]["listener"] == 1 and found["state"] == "waits"


def test_slow_turns_have_the_names_of_tasks_and_no_control_characters(tmp_path):
    body = """
    async def main():
        async def worker():
            time.sleep(0.02)
        await asyncio.create_task(worker(), name="worker\\x1b[31m\\n1")
        await asyncio.sleep(0)
        print("ready")
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    with program(tmp_path, body, WAKELOOP_SLOW_TURN="10ms") as window:
        text = window.get("/slow")[1]
    assert text.isprintable() or text.rstrip("\n").isprintable()
    [slow] = json.loads(text)["loops"][0]["slow"]
    assert slow["name"] == "worker\x1b[31m\n1 main.<locals>.worker" and 0.02 <= slow["seconds"] < 20


def test_readiness_is_what_the_program_sets(tmp_path):
    body = """
    wakeloop.set_ready(False)
    async def main():
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        wakeloop.set_ready(True, limit="100ms")
        print("set")
        await asyncio.to_thread(sys.stdin.readline)
        time.sleep(1000)
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:

        assert window.get("/readyz") == (503, "not ready: the program says so\n")
        go_on(window)
        assert window.process.stdout.readline() == "set\n"
        until(lambda answer: answer == (200, "ready\n"), lambda: window.get("/readyz"))
        go_on(window)
        _, text = until(lambda answer: answer[0] == 503, lambda: window.get("/readyz"))
        assert re.fullmatch(r'not ready: the event loop "MainThread" is late by \d+\.\d+ s\n', text)


def test_the_probes_of_the_deployment_page_are_paths_of_the_window():
    yaml = pytest.importorskip("yaml")
    page = (DOCS / "guides" / "deployment.md").read_text()
    [manifest] = re.findall(r"^```yaml[^\n]*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    template = yaml.safe_load(manifest)["spec"]["template"]
    [container] = template["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    annotations = template["metadata"]["annotations"]
    assert given["WAKELOOP_ADMIN"] == f"0.0.0.0:{ports['window']}" and {each["port"] for each in probes} == {"window"}
    assert annotations["prometheus.io/port"] == str(ports["window"])
    with wakeloop.admin("0.0.0.0:0", limit=given["WAKELOOP_ADMIN_LIMIT"]) as window:
        port = int(window.addresses[-1].rpartition(":")[2])
        for path in [*(each["path"] for each in probes), annotations["prometheus.io/path"]]:
            # The kubelet and Prometheus ask by the address of the pod.
            assert get(socket.create_connection(("127.0.0.1", port)), path, host=f"10.1.2.3:{ports['window']}")[0] == 200


def test_a_closed_loop_is_not_shown(tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/window"):

        def shown():
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(f"{tmp_path}/window")
            return [loop["name"] for loop in json.loads(get(sock, "/loops")[1])["loops"]]

        loop, other = wakeloop.new_event_loop(), wakeloop.new_event_loop()
        assert shown() == ["MainThread", "MainThread-2"]
        loop.close()
        assert shown() == ["MainThread-2"]
        other.close()
        assert shown() == []


# -- what needs the GIL, and traces -------------------------------------------------------------------------------------

WAITS = """
async def worker(lock):
    async with lock:
        pass
async def main():
    lock = asyncio.Lock()
    await lock.acquire()
    task = asyncio.create_task(worker(lock), name="wor\\x1b[mker")
    await asyncio.sleep(0)
    print("ready")
    {rest}
wakeloop.run(main())
"""


def test_tasks_are_shown_also_while_the_loop_is_blocked(tmp_path):
    with program(tmp_path, WAITS.format(rest="time.sleep(1000)")) as window:
        status, text = window.get("/tasks")
        assert status == 200 and text.isascii() and "\x1b" not in text
        [loop] = json.loads(text)["loops"]
        [worker] = [task for task in loop["tasks"] if task["coroutine"] == "worker"]
        assert worker["name"] == "wor\x1b[mker" and worker["state"] == "waiting" and "Lock" in worker["waits_for"]
        assert any("worker" in frame for frame in worker["stack"])
        # Python is asked once a second at most.
        assert window.get("/tasks") == (200, text)


def test_tasks_say_who_keeps_the_gil(tmp_path):
    rest = """await asyncio.to_thread(sys.stdin.readline)
    import ctypes
    ctypes.PyDLL(None).poll(None, 0, 1000_000)"""
    with program(tmp_path, WAITS.format(rest=rest)) as window:
        assert window.get("/tasks")[0] == 200
        go_on(window)
        status, text = until(lambda answer: answer[0] == 503, lambda: window.get("/tasks"))
        gil = r"There is no GIL\." if FREE_THREADED else r"The GIL is held by thread .*\."
        said = rf"the tasks could not be asked for in a second. {gil} The last answer was \d+\.\d+ s ago\.\n"
        assert re.fullmatch(said, text), text
        assert window.get("/livez")[0] == 200


TICKS = """
async def tick():
    while True:
        await asyncio.sleep(0.001)
async def main():
    print("ready")
    await asyncio.create_task(tick(), name="ticker")
wakeloop.run(main())
"""


def test_a_trace_has_what_happens_from_now_on(tmp_path):
    with program(tmp_path, TICKS) as window:
        for target in ("/trace", "/trace?seconds=0", "/trace?seconds=nan", "/trace?seconds=1e9", "/trace?seconds=x"):
            assert window.get(target)[0] == 400
        status, text = window.get("/trace?seconds=0.2")
        assert status == 200
        events = json.loads(text)["traceEvents"]
        assert any("ticker" in event["name"] for event in events)
        # The recorder has ended, and can be started again.
        again = json.loads(window.get("/trace?seconds=0.05")[1])["traceEvents"]
        assert 0 < len(again)


@pytest.mark.parametrize(
    "path, busy",
    [
        pytest.param("/trace", "another trace is being recorded\n", id="trace"),
        pytest.param("/labels", "somebody else asks for labels\n", id="labels"),
    ],
)
def test_what_takes_seconds_is_answered_once_at_a_time_and_ends_with_its_connection(tmp_path, path, busy):
    def begin():
        connection = stack.enter_context(contextlib.closing(window.connect()))
        # A peer may send more than it has to.
        connection.sendall(f"GET {path}?seconds=60 HTTP/1.0\r\n\r\n".encode() + b"x" * 4096)
        # An answer to this one says that the window has read the other.
        window.get("/livez")
        assert window.get(f"{path}?seconds=0.01") == (503, busy)
        return connection

    with program(tmp_path, TICKS) as window, contextlib.ExitStack() as stack:
        begin().close()
        until(lambda answer: answer[0] == 200, lambda: window.get(f"{path}?seconds=0.01"))
        begin()
        # One that others push out ends too.
        for _ in range(33):
            stack.enter_context(contextlib.closing(window.connect()))
        until(lambda answer: answer[0] == 200, lambda: window.get(f"{path}?seconds=0.01"))


def test_a_recorder_that_runs_is_read_and_goes_on(tmp_path):
    path = str(tmp_path / "trace.json")
    with program(tmp_path, TICKS, WAKELOOP_RECORD=path) as window:
        for _ in range(2):
            status, text = window.get("/trace?seconds=0.1")
            assert status == 200 and any("ticker" in event["name"] for event in json.loads(text)["traceEvents"])


def has_ticks(text):
    return any("ticker" in event["name"] for event in json.loads(text)["traceEvents"])


def test_a_trace_right_after_another_has_what_happens_in_its_time(tmp_path):
    # The threads make it wait for the GIL.
    spins = """
    def spin():
        while True:
            pass
    for _ in range(2):
        threading.Thread(target=spin, daemon=True).start()
    """
    with program(tmp_path, textwrap.dedent(spins) + TICKS) as window:
        for _ in range(8):
            status, text = window.get("/trace?seconds=0.3")
            assert status == 200 and has_ticks(text)


#: Says when a trace has begun, and then does what `rest` says at a line of input.
TRACED = """
import signal
from wakeloop._observe import admin
start = admin.start_trace
def started():
    found = start()
    print("tracing")
    return found
admin.start_trace = started
async def tick():
    while True:
        await asyncio.sleep(0.001)
async def main():
    task = asyncio.create_task(tick(), name="ticker")
    print("ready")
    while await asyncio.to_thread(sys.stdin.readline):
        await asyncio.to_thread(traced)
wakeloop.run(main())
"""


def begin_trace(window):
    sock = window.connect()
    send_request(sock, "/trace?seconds=60")
    assert window.process.stdout.readline() == "tracing\n"
    return sock


def test_the_recorder_of_the_program_takes_the_place_of_a_trace(tmp_path):
    body = f"""
def traced():
    with wakeloop.record() as recorder:
        print("recording")
        sys.stdin.readline()
        print(recorder.active and recorder.events > 0, flush=True)
        print(recorder.save({str(tmp_path / "trace.json")!r}))
"""
    with program(tmp_path, body + TRACED) as window:
        for _ in range(2):
            trace = begin_trace(window)
            go_on(window)
            assert window.process.stdout.readline() == "recording\n"
            reason = "the program has started its own recorder, which takes the place of this trace\n"
            assert answer_to(trace) == (503, reason)
            # The recorder of the program is read now, and goes on.
            status, text = window.get("/trace?seconds=0.3")
            assert status == 200 and has_ticks(text)
            go_on(window)
            assert window.process.stdout.readline() == "True\n"
            assert window.process.stdout.readline() == f"{tmp_path}/trace.json\n"
            assert has_ticks((tmp_path / "trace.json").read_text())


def test_a_trace_of_the_recorder_of_the_program_has_what_there_is_when_that_stops(tmp_path):
    body = """
recorder = wakeloop.record()
def traced():
    recorder.stop()
    print("stopped")
"""
    with program(tmp_path, body + TRACED) as window:
        trace = window.connect()
        send_request(trace, "/trace?seconds=60")
        # An answer to this one says that the window has read the other.
        window.get("/livez")
        assert window.get("/trace?seconds=0.01") == (503, "another trace is being recorded\n")
        go_on(window)
        assert window.process.stdout.readline() == "stopped\n"
        status, text = answer_to(trace)
        assert status == 200 and json.loads(text)["traceEvents"]


def test_a_child_that_is_forked_during_a_trace_can_record(tmp_path):
    body = f"""
def traced():
    if (child := os.fork()) == 0:
        signal.alarm(50)
        try:
            with wakeloop.record({str(tmp_path / "child.json")!r}):
                wakeloop.run(some())
            os._exit(0)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
async def some():
    task = asyncio.create_task(tick(), name="ticker")
    await asyncio.sleep(0.05)
    task.cancel()
"""
    with program(tmp_path, body + TRACED) as window:
        for _ in range(2):
            with contextlib.closing(begin_trace(window)):
                go_on(window)
                assert window.process.stdout.readline() == "0\n"
                assert has_ticks((tmp_path / "child.json").read_text())
                os.remove(tmp_path / "child.json")
                # The parent's trace goes on.
                assert window.get("/trace?seconds=0.01") == (503, "another trace is being recorded\n")
            until(lambda answer: answer[0] == 200, lambda: window.get("/trace?seconds=0.01"))
            window.process.stdout.readline()


def test_a_child_that_is_forked_while_a_trace_loads_the_recorder_can_record(tmp_path):
    body = """
    import signal
    class Finder:
        def find_spec(self, name, *_):
            if name == "wakeloop._observe.record" and threading.current_thread() is not threading.main_thread():
                loads.set()
                # The fork comes meanwhile, and waits.
                time.sleep(0.05)
    loads = threading.Event()
    sys.meta_path.insert(0, Finder())
    wakeloop.admin()
    print("ready")
    loads.wait()
    if (child := os.fork()) == 0:
        signal.alarm(20)
        wakeloop.record().stop()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    with program(tmp_path, body, admin=None) as window, contextlib.closing(window.connect()) as sock:
        send_request(sock, "/trace?seconds=60")
        assert window.process.stdout.readline() == "0\n"


def test_children_that_are_forked_while_traces_begin_and_end_can_record(tmp_path):
    body = """
    import signal
    async def main():
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        codes = set()
        for _ in range(100):
            if (child := os.fork()) == 0:
                signal.alarm(50)
                try:
                    wakeloop.record().stop()
                    os._exit(0)
                finally:
                    os._exit(1)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            await asyncio.sleep(0.001)
        print(codes)
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:
        ended = threading.Event()

        def trace():
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    window.get("/trace?seconds=0.01")

        thread = threading.Thread(target=trace)
        thread.start()
        go_on(window)
        try:
            assert window.process.stdout.readline() == "{0}\n"
        finally:
            ended.set()
            thread.join()


# -- several processes --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def workers(folder):
    """Two programs that have the same TCP address, and its port."""
    first = """
    window = wakeloop.admin("127.0.0.1:0", limit="100ms")
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


# -- bad input ---------------------------------------------------------------------------------------------------------


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


def test_a_head_that_comes_byte_by_byte_is_read_and_one_that_does_not_come_is_given_up(window):
    with contextlib.closing(window()) as sock:
        for byte in b"GET /livez HTTP/1.0\r\n\r\n":
            sock.sendall(bytes([byte]))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
    assert exchange(window(), b"GET /livez HT").startswith(b"HTTP/1.1 408 ")


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
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(contextlib.closing(window())) for _ in range(100)]
        assert get(window(), "/livez")[0] == 200
        assert idle[0].recv(1) == b""


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


# -- addresses, processes and threads ----------------------------------------------------------------------------------


def test_the_socket_is_the_users_alone_and_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with wakeloop.admin() as window:
        [address] = window.addresses
        path = address.removeprefix("unix:")
        assert path == str(tmp_path / f"wakeloop-{os.geteuid()}" / str(os.getpid()))
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert (window.limit, window.is_open()) == (10.0, True) and "open" in repr(window)
    assert not os.path.exists(path) and not window.is_open()
    window.close()


@pytest.mark.parametrize("address", [None, "127.0.0.1:0"])
def test_a_window_that_is_closed_leaves_no_folder_behind_but_one_that_others_use(tmp_path, monkeypatch, address):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    with wakeloop.admin(address):
        assert os.listdir(tmp_path) == [folder.name]
    assert os.listdir(tmp_path) == []
    with wakeloop.admin(address):
        (folder / "1").touch()
    assert os.listdir(folder) == ["1"]


def test_the_folder_is_the_one_for_temporary_files_even_if_the_current_folder_changes(tmp_path, monkeypatch):
    def folder():
        with wakeloop.admin() as window:
            return os.path.dirname(window.addresses[0].removeprefix("unix:"))

    name = f"wakeloop-{os.geteuid()}"
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "there")
    assert folder() == str(tmp_path / "there" / name)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert folder() == f"/tmp/{name}"


def test_the_sockets_of_killed_processes_are_removed_after_a_minute_by_the_next_window(tmp_path):
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    waits = """
    async def main():
        print("ready")
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    with program(tmp_path, waits) as alive, workers(tmp_path) as (old, fresh, _):
        for window in (old, fresh):
            window.process.kill()
            window.process.wait()
        [group] = [path for path in folder.iterdir() if path.is_dir()]
        for pid in (alive.pid, old.pid):
            for path in (folder / str(pid), group / str(pid)):
                if path.is_symlink() or path.exists():
                    os.utime(path, (0, 0), follow_symlinks=False)
        with program(tmp_path, waits) as third:
            left = {path.name for path in folder.iterdir() if path.is_socket()}
            assert left == {str(window.pid) for window in (alive, fresh, third)}
            # The link to the old one leads nowhere now.
            assert [path.name for path in group.iterdir()] == [str(fresh.pid)]
            assert alive.get("/livez")[0] == third.get("/livez")[0] == 200


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_folder_that_is_not_the_users_alone_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    elif kind == "open":
        folder.mkdir(mode=0o755)
    else:
        folder.touch(mode=0o700)
    with pytest.raises(PermissionError, match="not a folder of this user alone") as found:
        wakeloop.admin()
    assert (found.value.errno, found.value.filename) == (errno.EACCES, str(folder))
    # With an address, the process does without its own socket.
    with wakeloop.admin("127.0.0.1:0") as window:
        assert len(window.addresses) == 1


def test_a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not(tmp_path):
    path = str(tmp_path / "window")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(path)
    with wakeloop.admin(f"unix:{path}"):
        pass
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as used:
        used.bind(path)
        used.listen()
        with pytest.raises(OSError, match="Address already in use"):
            wakeloop.admin(f"unix:{path}")
    os.remove(path)
    (tmp_path / "file").touch()
    os.symlink(tmp_path / "file", path)
    with pytest.raises(OSError, match="Address already in use"):
        wakeloop.admin(f"unix:{path}")


def test_the_socket_of_a_process_with_the_same_number_is_replaced_only_if_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with wakeloop.admin() as window:
        path = window.addresses[0].removeprefix("unix:")
    os.mkdir(os.path.dirname(path), mode=0o700)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(OSError, match="Address already in use"):
            wakeloop.admin()
        other.close()
        with wakeloop.admin():
            assert os.path.exists(path)


def test_threads_that_open_windows_at_once_leave_one(tmp_path):
    def opens(number):
        for _ in range(5):
            opened.append(wakeloop.admin(f"unix:{tmp_path}/{number}-{len(opened)}"))

    opened = []
    threads = [threading.Thread(target=opens, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [window.is_open() for window in opened].count(True) == 1
    for window in opened:
        window.close()


@pytest.mark.parametrize(
    "address", ["", "2", "unix:", "host", "host:port", ":80", "127.0.0.1:70000", "127.0.0.1:-1", "unix:a\0b", "a\0b:80"]
)
def test_an_address_that_means_nothing_is_refused(address):
    with pytest.raises(ValueError):
        wakeloop.admin(address)


def answers(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(str(path))
    return get(sock, "/livez")[0] == 200


def test_a_window_that_cannot_be_opened_raises_an_os_error_and_leaves_the_earlier_one_open(tmp_path, monkeypatch):
    def fails(address, number, filename=None, kind=OSError):
        with pytest.raises(kind) as found:
            wakeloop.admin(address)
        assert (found.value.errno, found.value.filename) == (number, filename and str(filename))
        assert first.is_open() and all(map(answers, paths))

    with wakeloop.admin(f"unix:{tmp_path}/first") as first, contextlib.ExitStack() as stack:
        paths = [address.removeprefix("unix:") for address in first.addresses]
        assert len(paths) == 2
        used, name = tmp_path / "used", "x" * 200
        listener = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        listener.bind(str(used))
        # Its backlog is full: a connection would wait.
        listener.listen(0)
        stack.enter_context(contextlib.closing(waits := socket.socket(socket.AF_UNIX)))
        waits.connect(str(used))
        fails(f"unix:{used}", errno.EADDRINUSE, used)
        fails(f"unix:{tmp_path}/none/window", errno.ENOENT, tmp_path / "none/window", FileNotFoundError)
        fails(f"unix:{tmp_path}/used/window", errno.ENOTDIR, tmp_path / "used/window", NotADirectoryError)
        fails(f"unix:{tmp_path}/{name}", errno.ENAMETOOLONG, tmp_path / name)
        tcp = stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0))))
        port = tcp.getsockname()[1]
        fails(f"127.0.0.1:{port}", errno.EADDRINUSE)
        fails("192.0.2.1:80", errno.EADDRNOTAVAIL)
        text = f"error while attempting to bind on address ('127.0.0.1', {port}): "
        with pytest.raises(OSError, match=re.escape(text)):
            wakeloop.admin(f"127.0.0.1:{port}")
        with pytest.raises(socket.gaierror):
            wakeloop.admin("no such host:80")
        for wrong in [("", None), ("127.0.0.1:0", -1)]:
            with pytest.raises(ValueError):
                wakeloop.admin(wrong[0], limit=wrong[1])
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        (tmp_path / f"wakeloop-{os.geteuid()}").touch()
        fails("1", errno.EACCES, tmp_path / f"wakeloop-{os.geteuid()}", PermissionError)
        assert first.is_open() and all(map(answers, paths))
    assert not any(map(os.path.exists, paths))


def test_without_descriptors_no_window_is_opened_and_the_earlier_one_stays(tmp_path):
    body = """
    import errno, resource
    window = wakeloop.admin()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    # It fails at each of its descriptors in turn.
    for limit in range(highest, highest + 30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            other = wakeloop.admin("127.0.0.1:0")
        except OSError as error:
            assert error.errno == errno.EMFILE, error
            assert window.is_open()
        else:
            assert not window.is_open()
            window = other
            break
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limit > highest + 2 and window is other
    print("ready")
    sys.stdin.read()
    """
    with program(tmp_path, body, admin=None) as window:
        assert window.get("/livez") == (200, "alive: 0 event loops\n")


def test_a_path_counts_from_the_directory_in_which_the_window_was_opened(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with wakeloop.admin("unix:window") as window:
        assert window.addresses[1] == f"unix:{tmp_path}/one/window"
        monkeypatch.chdir(tmp_path / "two")
        (tmp_path / "two" / "window").touch()
        assert answers(tmp_path / "one" / "window")
    assert os.listdir(tmp_path / "one") == [] and os.listdir(tmp_path / "two") == ["window"]


def test_a_file_that_somebody_else_has_put_in_the_place_of_the_socket_stays(tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/window"):
        os.rename(tmp_path / "window", tmp_path / "moved")
        (tmp_path / "window").touch()
    assert (tmp_path / "window").exists()


def test_a_window_whose_socket_was_removed_is_opened_again_at_the_same_path(tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/window"):
        os.remove(tmp_path / "window")
        with wakeloop.admin(f"unix:{tmp_path}/window"):
            assert answers(tmp_path / "window")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["own", "path", "port"])
def test_a_window_that_is_opened_again_at_its_address_can_be_reached_all_the_time(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first = wakeloop.admin({"own": "1", "path": f"unix:{tmp_path}/window", "port": "127.0.0.1:0"}[kind])
    address = "1" if kind == "own" else first.addresses[-1]
    ended, failures, connected = threading.Event(), [], []

    def connect():
        while not ended.is_set():
            family = socket.AF_INET if kind == "port" else socket.AF_UNIX
            with contextlib.closing(socket.socket(family)) as sock:
                sock.settimeout(20)
                try:
                    if kind == "port":
                        host, port = address.split(":")
                        sock.connect((host, int(port)))
                    else:
                        sock.connect(first.addresses[-1].removeprefix("unix:"))
                    connected.append(1)
                except OSError as error:
                    failures.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        windows = [first]
        while len(connected) < 200 and not failures:
            windows.append(wakeloop.admin(address))
            assert windows[-1].addresses == first.addresses
            assert [window.is_open() for window in windows[-2:]] == [False, True]
    finally:
        ended.set()
        thread.join()
        windows[-1].close()
    assert failures == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["own", "path", "port"])
def test_threads_that_open_the_same_address_at_once_leave_one_window(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as chosen:
        port = chosen.getsockname()[1]
    address = {"own": "1", "path": f"unix:{tmp_path}/window", "port": f"127.0.0.1:{port}"}[kind]
    begins, opened, failures = threading.Barrier(4), [], []

    def opens():
        begins.wait()
        for number in range(10):
            try:
                opened.append(window := wakeloop.admin(address))
                if number % 3 == 0:
                    window.close()
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=opens) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and [window.is_open() for window in opened].count(True) <= 1
    with wakeloop.admin(address) as last:
        assert [window.is_open() for window in opened].count(True) == 0
        assert answers(last.addresses[0].removeprefix("unix:"))
    assert os.listdir(tmp_path) == []


def test_a_window_that_takes_the_place_of_another_still_sees_long_callbacks(tmp_path):
    body = """
    wakeloop.admin()
    wakeloop.admin()
    async def main():
        time.sleep(0.02)
        await asyncio.sleep(0)
        print("ready")
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    with program(tmp_path, body, admin=None) as window:
        assert window.json("/loops")["loops"][0]["slow"]


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), ("soon", ValueError), (-1, ValueError), ([], TypeError)])
def test_a_limit_that_means_nothing_is_refused(limit, error):
    with pytest.raises(error, match="limit must be a"):
        wakeloop.admin(limit=limit)
    with pytest.raises(error, match="limit must be a"):
        wakeloop.set_ready(limit=limit)


def test_a_window_takes_the_place_of_an_earlier_one(tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/a") as first, wakeloop.admin(f"unix:{tmp_path}/b") as second:
        assert (first.is_open(), second.is_open()) == (False, True)
        assert not os.path.exists(tmp_path / "a")


def test_without_a_window_no_thread_is_started(tmp_path):
    body = "loop = wakeloop.new_event_loop()\nprint('ready')\nloop.run_forever()"
    with program(tmp_path, body, admin=None) as window:
        assert len(os.listdir(f"/proc/{window.pid}/task")) == 1
        assert not os.path.exists(window.path)


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


def test_a_window_can_be_opened_and_closed_while_it_is_asked(tmp_path):
    ended, answers = threading.Event(), []

    def ask():
        while not ended.is_set():
            with contextlib.suppress(OSError, ValueError), contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.settimeout(20)
                sock.connect(f"{tmp_path}/window")
                sock.sendall(b"GET /loops HTTP/1.0\r\n\r\n")
                answers.append(sock.recv(12))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        while answers.count(b"HTTP/1.1 200") < 20:
            with wakeloop.admin(f"unix:{tmp_path}/window"):
                wakeloop.new_event_loop().close()
    finally:
        ended.set()
        thread.join()
