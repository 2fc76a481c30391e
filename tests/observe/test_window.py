"""The window (`wakeloop.admin`): what it shows, how it is opened, and how it ends."""

import asyncio
import contextlib
import json
import os
import re
import socket
import threading

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED
from tests.support.pages import DOCS
from tests.support.window import get, go_on, program, until

pytestmark = pytest.mark.native


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


def test_a_loop_is_late_also_after_the_program_has_emptied_its_histograms(tmp_path):
    body = """
    wakeloop.set_ready(True, limit="20ms")
    async def main():
        loop = asyncio.get_running_loop()
        async def wait_late():
            for _ in range(2):
                loop.call_soon(time.sleep, 0.05)
            await asyncio.sleep(0.15)
        for _ in range(10):
            await wait_late()
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        loop.reset_metrics()
        await wait_late()
        print("late")
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:
        # The first answer counts from now on.
        window.get("/readyz")
        go_on(window)
        assert window.process.stdout.readline() == "late\n"
        assert window.get("/readyz")[0] == 503


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


# -- open and closed ---------------------------------------------------------------------------------------------------


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
