"""Traces that are asked of the window (`wakeloop.admin`)."""

import contextlib
import json
import os
import textwrap
import threading

import pytest

from tests.support.window import answer_to, go_on, program, send_request, until

pytestmark = pytest.mark.native


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
