"""Modules that `import wakeloop` loads, and those that it loads on first use. Counts modules, not time."""

import sys

import pytest

from tests.support.script import run_script

pytestmark = pytest.mark.native

#: All that the import loads. A module that a program may do without belongs into `_LAZY` of the package instead.
LOADED = {
    "wakeloop",
    *(f"wakeloop.{name}" for name in ("_asyncio", "_core", "_first_import", "_lazy", "_support", "loop", "policy")),
    *(f"wakeloop._asyncio.{name}" for name in ("compat", "parameters")),
    *("wakeloop._loop", "wakeloop._net", "wakeloop._observe"),
    *(
        f"wakeloop._loop.{name}"
        for name in (
            *("children", "debug", "executor", "fallbacks", "inheritance", "reports", "selector", "settings"),
            *("stepping", "wakeup"),
        )
    ),
    *(f"wakeloop._net.{name}" for name in ("connections", "pipes", "sendfile", "sockets", "streams", "tls")),
    *(f"wakeloop._observe.{name}" for name in ("registry", "slow")),
}


def check(body):
    outcome = run_script("wakeloop", body)
    assert outcome.code == 0, outcome


def loaded(body):
    """The modules that are loaded after a script, and were not before."""
    script = f"""
import asyncio, sys
before = set(sys.modules)
{body}
print(*sorted(set(sys.modules) - before))
"""
    outcome = run_script("asyncio", script)
    assert outcome.code == 0, outcome
    return set(outcome.out.split())


def test_the_import_loads_no_more_than_a_loop_needs():
    found = loaded("import wakeloop")
    assert {name for name in found if name.partition(".")[0] == "wakeloop"} == LOADED
    # Before Python 3.14 asyncio loads them.
    typing = {"typing", "_typing"} if sys.version_info >= (3, 14) else set()
    assert found - LOADED <= {"__future__"} | typing, "modules of the standard library that asyncio has not loaded"


def test_a_loop_runs_and_ends_with_one_more_module():
    body = """
import wakeloop
async def main():
    await asyncio.sleep(0)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    server.close()
    await server.wait_closed()
wakeloop.run(main())
"""
    assert {name for name in loaded(body) if name.startswith("wakeloop")} == LOADED | {"wakeloop.metrics"}


@pytest.mark.parametrize("moment", ["before the run", "in the run"])
def test_a_process_without_a_free_descriptor_runs_a_loop_and_one_that_runs_has_metrics(moment):
    body = f"""
import os, resource
moment = {moment!r}
def use_all():
    resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
    while True:
        try:
            os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return
async def main():
    if moment == "in the run":
        use_all()
        assert asyncio.get_running_loop().metrics().turns > 0
assert "wakeloop.metrics" not in sys.modules
loop = wakeloop.new_event_loop()
if moment == "before the run":
    use_all()
loop.run_until_complete(main())
os._exit(0)
"""
    check("import sys\n" + body)


def test_every_public_name_is_there_before_it_is_loaded():
    body = """
listed = dir(wakeloop)
assert sorted(set(listed)) == listed and {"fs", "metrics", "testing"} <= set(listed), listed
missing = [name for name in wakeloop.__all__ if name not in listed]
assert not missing, missing
for name in wakeloop.__all__:
    assert getattr(wakeloop, name) is getattr(wakeloop, name) and name in vars(wakeloop), name
assert dir(wakeloop) == sorted({*listed, *vars(wakeloop)})
assert not hasattr(wakeloop, "metric")
names = {}
exec("from wakeloop import *", names)
assert set(wakeloop.__all__) <= set(names)
"""
    check(body)


def test_what_is_loaded_late_can_be_pickled_and_inspected():
    body = """
import inspect, pickle
histogram = wakeloop.Histogram((0,) * 3, 0.0, 0.0)
assert pickle.loads(pickle.dumps(histogram)) == histogram
for name in "open", "record", "metrics_text", "EventLoopGroup":
    assert pickle.loads(pickle.dumps(getattr(wakeloop, name))) is getattr(wakeloop, name)
assert "slow_turns" in inspect.signature(wakeloop.record).parameters
"""
    check(body)


def test_a_name_can_be_replaced_before_it_is_loaded():
    body = """
from unittest import mock
with mock.patch("wakeloop.record") as record:
    assert wakeloop.record is record
assert wakeloop.record.__module__ == "wakeloop._observe.record"
"""
    check(body)


def test_many_threads_that_need_a_module_at_once_get_the_same():
    body = """
import threading
start, found = threading.Barrier(8), []
def use():
    start.wait()
    found.append((wakeloop.metrics_text, wakeloop.open, wakeloop.Recorder, wakeloop.metrics))
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8 and len(set(found)) == 1
"""
    check(body)


def test_a_fork_waits_until_no_thread_loads_a_module():
    body = """
import sys, threading
from wakeloop import _lazy
begun, end = threading.Event(), threading.Event()

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "wakeloop.metrics":
            begun.set()
            end.wait()

sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: wakeloop.metrics)
thread.start()
begun.wait()
_lazy._LONGEST_WAIT = 60
threading.Timer(0.1, end.set).start()
child = os.fork()
if not child:
    os._exit(0 if wakeloop.metrics.Histogram else 1)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
# The lock is free again, in the parent too.
assert wakeloop.fs and not _lazy._loading
"""
    check("import os\n" + body)


def test_a_fork_goes_on_in_the_middle_of_a_load_of_its_own():
    body = """
import os, sys

class Forks:
    def find_spec(self, name, path=None, target=None):
        if name == "wakeloop.metrics":
            sys.meta_path.remove(self)
            child = os.fork()
            if not child:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

sys.meta_path.insert(0, Forks())
assert wakeloop.Histogram
"""
    check(body)
