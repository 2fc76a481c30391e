"""wakeloop.publish(): the page on which a process shows its loops, and what reads it."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from wakeloop import _core
from wakeloop._observe import page as _page
from tests.support.script import start_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="the page needs Linux"),
]

PLACES = {name: place for name, place, _ in _core._page_layout()[2]}


@contextlib.contextmanager
def target(body):
    """A program that runs until its stdin ends, and prints `ready` when its figures are worth reading."""
    process = start_script("wakeloop", "import dataclasses, os, sys, threading, time, wakeloop\n" + body)
    try:
        line = process.stdout.readline()
        assert line == "ready\n", line + process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def page(pid):
    fd = _page.find(pid)
    try:
        return _page.read(fd)
    finally:
        os.close(fd)


def until(test, what):
    """Calls `what` until the test is true of the result."""
    end = time.monotonic() + 15
    while not test(found := what()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


SERVER = """
wakeloop.publish()
async def main():
    writers = []  # since 3.13 a writer that nobody has closes its transport
    server = await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    asyncio.get_running_loop().call_later(1000, int)
    async def worker():
        time.sleep(0.02)
    await asyncio.create_task(worker(), name="worker\\x1b[31m 1")
    asyncio.get_running_loop().call_soon(print, "ready")
    await asyncio.sleep(1000)
asyncio.run(main(), loop_factory=new_loop) if sys.version_info >= (3, 12) else wakeloop.run(main())
"""


def test_a_page_shows_gauges_counters_and_slow_tasks():
    with target(SERVER) as process:
        [loop] = until(lambda page: page.loops[0].metrics.transports["tcp"] == 6, lambda: page(process.pid)).loops
    metrics = loop.metrics
    assert (loop.name, metrics.running, metrics.closed) == ("MainThread", True, False)
    assert metrics.transports["listener"] == 1 and metrics.timers >= 1
    assert metrics.connections_accepted == 3 and metrics.callbacks > 5
    [slow] = [slow for slow in loop.slow if "worker" in slow.name]
    assert slow.name == "worker?[31m 1 main.<locals>.worker"
    assert 0.02 <= slow.seconds < 10 and slow.ago >= 0


def test_a_waiting_loop_is_idle_and_a_blocked_one_is_busy():
    with target(SERVER) as process:
        first = page(process.pid)
        time.sleep(0.3)
        later = page(process.pid)
    window = later.loops[0].metrics - first.loops[0].metrics
    assert later.loops[0].busy_seconds == 0
    # The machine may be busy, but the loop waits in one poll all the time.
    assert window.idle_seconds == pytest.approx(later.time - first.time, rel=0.01)
    assert window.running_seconds == pytest.approx(later.time - first.time, rel=0.01)
    blocked = """
wakeloop.publish()
async def main():
    await asyncio.sleep(0.01)
    print("ready")
    time.sleep(1000)
wakeloop.run(main())
"""
    with target(blocked) as process:
        begin = time.monotonic()
        first = page(process.pid)
        time.sleep(0.3)
        later = page(process.pid)
    assert later.loops[0].busy_seconds - first.loops[0].busy_seconds == pytest.approx(later.time - first.time, rel=0.01)
    assert later.loops[0].busy_seconds >= later.time - begin
    assert (later.loops[0].metrics - first.loops[0].metrics).utilization > 0.99


def test_figures_are_those_of_the_loop_itself():
    body = """
wakeloop.publish()
async def main():
    loop = asyncio.get_running_loop()
    for _ in range(50):
        await asyncio.sleep(0.001)
    time.sleep(0.05)
    await asyncio.sleep(0)
    from wakeloop._observe import page as _page
    fd = _page.find(os.getpid())
    # This also counts what the page has as it was before the last poll.
    own = loop.metrics()
    [published] = _page.read(fd).loops
    # The time and the turn go on, and what belongs to an executor is not published.
    others = {"running_seconds", "idle_seconds", "turn_length", "last_slow_turns"}
    names = {field.name for field in dataclasses.fields(own)} - others
    assert {name: getattr(own, name) for name in names} == {name: getattr(published.metrics, name) for name in names}
    assert own.turn_length.counts == published.metrics.turn_length.counts
    assert abs(own.idle_seconds - published.metrics.idle_seconds) < 1e-6
    assert 0 <= published.metrics.running_seconds - own.running_seconds < 1
    loop.reset_metrics()
    assert _page.read(fd).loops[0].metrics.delay.count == loop.metrics().delay.count == 0
    print("ready")
wakeloop.run(main())
"""
    with target(body):
        pass


def test_counters_go_on_before_during_and_after_publishing():
    body = """
loop = wakeloop.new_event_loop()
loop.run_until_complete(asyncio.sleep(0.01))
before = loop.metrics()
wakeloop.publish()
wakeloop.publish()
assert loop.metrics().turns == before.turns > 0
loop.run_until_complete(asyncio.sleep(0.01))
between = loop.metrics()
assert between.turns > before.turns
from wakeloop._observe import page as _page
fd = _page.find(os.getpid())
assert len(_page.read(fd).loops) == 1
loop.close()
after = loop.metrics()
assert after.turns == between.turns and after.closed
assert len(_page.read(fd).loops) == 0
loops = [wakeloop.new_event_loop() for _ in range(20)]
assert len(_page.read(fd).loops) == 16
for loop in loops:
    loop.run_until_complete(asyncio.sleep(0))
    assert loop.metrics().turns > 0
    loop.close()
del loop, loops
loop = wakeloop.new_event_loop()
assert [each.name for each in _page.read(fd).loops] == ["MainThread"]
loop.close()
print("ready", flush=True)
sys.stdin.read()
"""
    with target(body):
        pass


def test_nothing_is_published_unless_asked():
    body = 'loop = wakeloop.new_event_loop()\nprint("ready")\nloop.run_forever()'
    with target(body) as process:
        with pytest.raises(_page.PageError, match="publishes nothing"):
            page(process.pid)


def test_the_environment_variable_publishes_without_a_thread(monkeypatch):
    monkeypatch.setenv("WAKELOOP_PUBLISH", "1")
    body = 'loop = wakeloop.new_event_loop()\nprint("ready")\nloop.run_forever()'
    with target(body) as process:
        assert [loop.name for loop in page(process.pid).loops] == ["MainThread"]
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1
        [file] = [
            f"/proc/{process.pid}/fd/{name}"
            for name in os.listdir(f"/proc/{process.pid}/fd")
            if _page.FILE in os.readlink(f"/proc/{process.pid}/fd/{name}")
        ]
        assert os.stat(file).st_mode & 0o777 == 0o600
        # Not even its owner can shorten it, which would end the process when the loop counts.
        with open(file, "r+b") as opened, pytest.raises(PermissionError):
            opened.truncate(0)


def test_a_forked_child_leaves_its_parents_page_alone():
    body = """
wakeloop.publish()
loop = wakeloop.new_event_loop()
loop.run_until_complete(asyncio.sleep(0.01))
from wakeloop._observe import page as _page
fd = _page.find(os.getpid())
turns = loop.metrics().turns
before = os.pread(fd, _page.SIZE, 0)
if (child := os.fork()) == 0:
    code = 1
    try:
        assert loop.metrics().turns == turns
        loop.run_until_complete(asyncio.sleep(0.01))
        assert loop.metrics().turns > turns
        other = wakeloop.new_event_loop()
        other.run_until_complete(asyncio.sleep(0.01))
        own = _page.read(_page.find(os.getpid()))
        assert [each.metrics.turns for each in own.loops] == [other.metrics().turns]
        wakeloop.publish()
        assert len(_page.read(_page.find(os.getpid())).loops) == 2
        loop.close()
        other.close()
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
assert os.pread(fd, _page.SIZE, 0) == before
loop.close()
print("ready")
"""
    with target(body):
        pass


def test_publishing_can_begin_while_the_loop_runs_in_another_thread():
    body = """
loop = wakeloop.new_event_loop()
def tick():
    loop.call_soon(tick)
loop.call_soon(tick)
thread = threading.Thread(target=loop.run_forever, name="worker")
thread.start()
time.sleep(0.05)
wakeloop.publish()
before = loop.metrics()
time.sleep(0.05)
assert loop.metrics().turns > before.turns
print("ready")
time.sleep(1000)
"""
    with target(body) as process:
        first = page(process.pid).loops[0].metrics
        later = until(lambda metrics: metrics.turns > first.turns, lambda: page(process.pid).loops[0].metrics)
        assert later.running


# -- a page that is not right ------------------------------------------------------------------------------------------


def crafted(data):
    fd = os.memfd_create("crafted", os.MFD_CLOEXEC)
    os.write(fd, data)
    return fd


def good():
    return bytearray(_page.header(os.getpid(), "0.0.0").ljust(_page.SIZE, b"\0"))


def published(values):
    """The metrics that a reader finds, if there are these numbers on the page."""
    data = good()
    for name, value in {"generation": 1, "started": 1, **values}.items():
        at = 4096 + PLACES[name]
        data[at : at + 8] = value.to_bytes(8, sys.byteorder)
    fd = crafted(data)
    try:
        [loop] = _page.read(fd).loops
    finally:
        os.close(fd)
    return loop.metrics


def test_every_counter_is_read_from_its_own_place():
    kinds = {name.removesuffix("_seconds"): kind for name, kind, _ in _core._metric_tables()["LoopMetrics"]}
    names = [name for name in kinds if name in PLACES and kinds[name] != "histogram" and name != "transports"]
    assert len(names) > 20
    # Times on the page are in nanoseconds. This one goes on.
    wanted = {name: 1_000 + number for number, name in enumerate(names)} | {"running": 1 << 50}
    found = published(wanted)
    seconds = {name: getattr(found, f"{name}_seconds", None) for name in names}
    read = {name: getattr(found, name) if seconds[name] is None else round(seconds[name] * 1e9) for name in names}
    read["running"] = wanted["running"] if found.running_seconds >= wanted["running"] / 1e9 else found.running_seconds
    assert read == wanted
    for name in (name for name, kind in kinds.items() if kind == "histogram"):
        # A histogram begins with its sum. That of turns is made of the times.
        if name != "turn_length":
            assert getattr(published({name: 5 * 10**9}), name).sum == 5


def swapped(data, one, other):
    """The page of a build that has two counters in each other's place."""
    return data.replace(one, b" \0").replace(other, one).replace(b" \0", other)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: b"x" + data[1:],
        lambda data: data[:8] + b"\3" + data[9:],
        lambda data: data.replace(b" 8192 ", b" 8193 "),
        lambda data: swapped(data, b" turns:", b" polls:"),
    ],
)
def test_a_page_of_another_layout_is_refused(change):
    fd = crafted(change(good()))
    try:
        with pytest.raises(_page.PageError):
            _page.read(fd)
    finally:
        os.close(fd)


def test_no_contents_of_a_page_can_crash_the_reader():
    from wakeloop._observe import top

    rng, base = random.Random(5), good()
    slots = _page.SIZE - 4096
    contents = [b"\xff" * slots, b"\x01" * slots, b"\x1b" * slots, b"\x80" * slots, *(rng.randbytes(slots) for _ in range(20))]
    pages = []
    for each in contents:
        fd = crafted(bytes(base[:4096]) + each)
        try:
            pages.append(_page.read(fd))
        finally:
            os.close(fd)
    assert all(0 < len(page.loops) <= 16 for page in pages[:3])
    for before, now in zip(pages, pages[1:] + pages[:1], strict=True):
        for text in (top.as_json(1, before, now), top.plain(1, before, now)):
            assert all(char.isprintable() or char == "\n" for char in text)
        with contextlib.suppress(ImportError):
            import io

            import rich.console

            console = rich.console.Console(file=io.StringIO(), width=80)
            console.print(top.screen(1, before, now))
            assert "\x1b" not in console.file.getvalue()


def test_a_page_of_another_process_is_not_taken_for_the_targets():
    fd = os.memfd_create(_page.FILE, 0)
    os.set_inheritable(fd, True)
    os.write(fd, good())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[fd])
    try:
        with pytest.raises(_page.PageError, match="publishes nothing"):
            _page.find(child.pid)
    finally:
        os.close(fd)
        child.communicate(b"\n")


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_a_process_that_does_not_exist_is_reported(pid):
    with pytest.raises(_page.PageError, match="there is no process"):
        _page.find(pid)


def test_a_stopped_or_killed_target_leaves_no_file_behind():
    with target(SERVER) as process:
        fd = _page.find(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            # The page can still be read, and shows what was last written.
            assert _page.read(fd).loops
        finally:
            os.close(fd)
        with pytest.raises(_page.PageError):
            _page.find(process.pid)
