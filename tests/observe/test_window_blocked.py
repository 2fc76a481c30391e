"""The window (`wakeloop.admin`) of a program that blocks, or ends."""

import contextlib
import http.client
import os
import re
import threading
import time

import pytest

from tests.support.builds import FREE_THREADED, needs_gil
from tests.support.window import go_on, line_of, program, until

pytestmark = pytest.mark.native


@needs_gil
def test_the_last_wait_is_idle_time_while_the_loop_waits_for_the_gil(tmp_path):
    body = """
    import ctypes
    loop = wakeloop.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    while not loop.metrics().polls:
        time.sleep(0.001)
    print("ready")
    sys.stdin.readline()
    loop.call_soon_threadsafe(int)
    ctypes.PyDLL(None).poll(None, 0, 1000_000)
    """
    with program(tmp_path, body) as window:

        def shown():
            return window.json("/loops")["loops"][0]

        # A question wakes the loop, so the wait begins with it.
        before = until(lambda found: found["state"] == "waits", shown)["metrics"]
        time.sleep(0.5)
        go_on(window)
        after = until(lambda found: found["state"] == "waits for the GIL", shown)["metrics"]
    assert after["idle_seconds"] >= before["idle_seconds"] + 0.25


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
