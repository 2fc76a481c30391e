"""Loops that wait busily: a task or callback runs again and again, and waits for nothing. `/livez` and `/slow` name it."""

import sys
import time

import pytest

from tests.support.window import program

pytestmark = pytest.mark.native

#: Programs that wait busily: the code, the name, and the functions of the chain of awaits.
BUSY = {
    "a task": (
        """
        async def inner():
            while True:
                await asyncio.sleep(0)
        async def outer():
            await inner()
        tasks.append(asyncio.create_task(outer(), name="worker\\n1"))
        """,
        r"worker\n1 main.<locals>.outer",
        ["main.<locals>.outer", "main.<locals>.inner", "sleep", "__sleep0"],
    ),
    "a callback": (
        """
        class Scope:
            def deliver(self, origin):
                loop.call_soon(self.deliver, origin)
        Scope().deliver(None)
        """,
        "main.<locals>.Scope.deliver",
        [],
    ),
    "a task beside timers": (
        """
        async def ticks():
            while True:
                await asyncio.sleep(0.1)
        async def spin():
            while True:
                await asyncio.sleep(0)
        tasks.append(asyncio.create_task(ticks()))
        tasks.append(asyncio.create_task(spin(), name="spins"))
        """,
        "spins main.<locals>.spin",
        ["main.<locals>.spin", "sleep", "__sleep0"],
    ),
}
#: Programs that are busy for other reasons.
WORKING = {
    "steps that work": """
        async def work():
            while True:
                end = time.thread_time() + 1e-4
                while time.thread_time() < end: pass
                await asyncio.sleep(0)
        tasks.append(asyncio.create_task(work()))
        """,
    "steps and a pipe": """
        reader, writer = os.pipe()
        loop.add_reader(reader, os.read, reader, 1)
        async def talk():
            while True:
                os.write(writer, b"x")
                await asyncio.sleep(0)
        tasks.append(asyncio.create_task(talk()))
        """,
    "a service": """
        async def talk():
            reader, writer = await connected()
            while True:
                writer.write(b"x" * 100)
                await reader.readexactly(100)
        tasks.extend(asyncio.create_task(talk()) for _ in range(10))
        """,
    "a benchmark of queues": """
        one, two = asyncio.Queue(), asyncio.Queue()
        async def pass_on(source, target):
            while True:
                target.put_nowait(await source.get())
        tasks.append(asyncio.create_task(pass_on(one, two)))
        tasks.append(asyncio.create_task(pass_on(two, one)))
        one.put_nowait(1)
        two.put_nowait(1)
        """,
    "a benchmark of tasks": """
        async def switch():
            while True:
                await asyncio.sleep(0)
        tasks.extend(asyncio.create_task(switch()) for _ in range(6))
        """,
    "a benchmark of callbacks": """
        def schedule():
            for _ in range(1000): loop.call_soon(int)
            loop.call_soon(schedule)
        schedule()
        """,
}
PROGRAM = """
tasks = []
async def main():
    loop = asyncio.get_running_loop()
    async def echo(reader, writer):
        while data := await reader.read(1000):
            writer.write(data)
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async def connected():
        return await asyncio.open_connection(*server.sockets[0].getsockname())
{code}
    print("ready")
    line = await loop.run_in_executor(None, sys.stdin.readline)
    for task in tasks:
        task.cancel()
    while True:
        for _ in range(20_000): pass
        await asyncio.sleep(0)
wakeloop.run(main())
"""


def running(tmp_path, code):
    indented = "\n".join(f"    {line[8:]}" for line in code.strip("\n").splitlines())
    return program(tmp_path, PROGRAM.format(code=indented))


def busy_waits(window):
    [loop] = window.json("/slow")["loops"]
    return loop["busy_waits"]


def counted(window):
    [loop] = window.json("/loops")["loops"]
    return loop["metrics"]["busy_waits"], loop["metrics"]["callbacks"]


@pytest.mark.parametrize("what", BUSY)
def test_a_task_or_callback_that_waits_for_nothing_is_named(tmp_path, what):
    code, name, functions = BUSY[what]
    with running(tmp_path, code) as window:
        end = time.monotonic() + 20
        while not (found := busy_waits(window)) and time.monotonic() < end:
            time.sleep(0.05)
        [busy] = found
        status, text = window.get("/livez")
        time.sleep(1.5)
        count, _ = counted(window)
    assert (busy["name"], busy["goes_on"], count) == (name, True, 1)
    assert busy["seconds"] >= 1
    if sys.version_info < (3, 12) or functions == []:
        assert [line.rpartition(" in ")[2] for line in busy["stack"]] == functions
    assert status == 200 and 'the event loop "MainThread" has been waiting busily for ' in text
    assert f", in {name}\n" in text
    assert all(f"  {line}\n" in text for line in busy["stack"])


@pytest.mark.parametrize("what", WORKING)
def test_a_loop_that_works_does_not_wait_busily(tmp_path, what):
    with running(tmp_path, WORKING[what]) as window:
        _, before = counted(window)
        time.sleep(3)
        count, after = counted(window)
        assert after > before + 100, "it is busy"
        assert (count, busy_waits(window)) == (0, [])
        assert window.get("/livez") == (200, "alive: 1 event loops\n")


def test_a_busy_wait_ends_and_is_remembered(tmp_path):
    with running(tmp_path, BUSY["a task"][0]) as window:
        end = time.monotonic() + 20
        while not busy_waits(window) and time.monotonic() < end:
            time.sleep(0.05)
        print("end", file=window.process.stdin, flush=True)
        while window.get("/livez")[1] != "alive: 1 event loops\n" and time.monotonic() < end:
            time.sleep(0.05)
        [busy] = busy_waits(window)
        assert window.get("/livez") == (200, "alive: 1 event loops\n")
    assert (busy["goes_on"], busy["name"]) == (False, BUSY["a task"][1])
