"""A second import of the package in one process, as tests make that take modules out of `sys.modules`."""

import pytest

from tests.support.script import run_script

pytestmark = pytest.mark.native

PRELUDE = """
import importlib, logging, os, sys
from unittest import mock
from tests.support.certificate import Certificate

def import_again():
    for name in [name for name in sys.modules if name.split(".")[0] == "wakeloop"]:
        del sys.modules[name]
    return importlib.import_module("wakeloop")

async def echo(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()

async def ask(module, tls):
    server = await module.start_server(echo, "127.0.0.1", 0, ssl=tls.server())
    reader, writer = await module.open_connection(
        *server.sockets[0].getsockname(), ssl=tls.client(), server_hostname="localhost")
    try:
        for data in b"first", b"second":
            writer.write(data)
            yield await asyncio.wait_for(reader.readexactly(len(data)), 5)
    finally:
        writer.close()
        server.close()
"""


def check(body, tmp_path):
    tls = f"import pathlib\ntls = Certificate(pathlib.Path({str(tmp_path)!r}))\n"
    outcome = run_script("wakeloop", PRELUDE + tls + body)
    assert outcome.code == 0, outcome
    return outcome.out


@pytest.mark.parametrize("restored", [True, False], ids=["restored afterwards", "in place of the first"])
@pytest.mark.parametrize("streams", ["asyncio", "wakeloop"])
def test_open_connections_and_new_ones_of_both_copies_work(tmp_path, restored, streams):
    body = f"""
async def main():
    module = asyncio if {streams!r} == "asyncio" else wakeloop
    answers = ask(module, tls)
    print(await anext(answers))
    if {restored}:
        with mock.patch.dict(sys.modules):
            second = import_again()
    else:
        second = import_again()
    async for answer in answers:
        print(answer)
    for module in wakeloop, second:
        async for answer in ask(module, tls):
            print(answer)
    return second

with asyncio.Runner(loop_factory=new_loop) as runner:
    second = runner.run(main())
with asyncio.Runner(loop_factory=second.new_event_loop) as runner:
    runner.run(main())
"""
    assert check(body, tmp_path) == "b'first'\nb'second'\n" * 6


def test_the_state_of_the_process_is_shared(tmp_path):
    body = """
recorder = wakeloop.record()
second = import_again()
print(second is wakeloop, second.EventLoop is wakeloop.EventLoop, second.Recorder.running() is recorder)
second.Recorder.running().stop()
print(wakeloop.Recorder.running())
loop = new_loop()
print(second.metrics_text() == wakeloop.metrics_text() != "")
loop.close()
import wakeloop.testing, wakeloop.metrics, wakeloop.fs
third = import_again()
print(third.testing is wakeloop.testing, third.metrics.LoopMetrics is wakeloop.LoopMetrics)
print(importlib.reload(third) is third, third.EventLoop is wakeloop.EventLoop)
"""
    assert check(body, tmp_path) == "False True True\nNone\nTrue\nTrue True\nTrue True\n"


def test_a_module_that_one_copy_loads_late_is_that_of_the_other(tmp_path):
    body = """
with mock.patch.dict(sys.modules):
    second = import_again()
    late = second.Histogram, second.open, second.Recorder
    assert "metrics" not in vars(wakeloop)
assert "wakeloop.metrics" not in sys.modules
loop = new_loop()
print(type(loop.metrics().delay) is late[0], (wakeloop.Histogram, wakeloop.open, wakeloop.Recorder) == late)
loop.close()
"""
    assert check(body, tmp_path) == "True True\n"


def test_a_child_forked_after_a_second_import_can_run_a_loop(tmp_path):
    body = """
second = import_again()
if (child := os.fork()) == 0:
    with asyncio.Runner(loop_factory=second.new_event_loop) as runner:
        runner.run(second.sleep(0.001))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert check(body, tmp_path) == "7\n"


def test_a_recorder_that_the_environment_asks_for_is_started_once(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "trace.json"))
    body = """
second = import_again()
with asyncio.Runner(loop_factory=second.new_event_loop) as runner:
    runner.run(asyncio.sleep(0))
print(second.Recorder.running() is wakeloop.Recorder.running() is not None)
"""
    assert check(body, tmp_path) == "True\n"
    assert (tmp_path / "trace.json").exists()
