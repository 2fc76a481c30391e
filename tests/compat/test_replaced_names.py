"""Programs put functions and subclasses under the names of classes, before the loop's package is imported."""

import pytest

from tests.support.script import run_script

BEFORE = """
import asyncio, asyncio.base_subprocess, asyncio.trsock, importlib, os, ssl, weakref

called = []

def replace(module, name, how):
    module = importlib.import_module(module)
    real = getattr(module, name)
    if how == "function":
        def stand_in(*arguments, **options):
            called.append(name)
            return real(*arguments, **options)
    else:
        class stand_in(real):
            def __init__(self, *arguments, **options):
                called.append(name)
                super().__init__(*arguments, **options)
    setattr(module, name, stand_in)
"""

PROGRAM = """
from tests.support.exchange import exchange

async def main():
    print(await exchange())
    process = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    print(await process.wait())
    print(await asyncio.get_running_loop().run_in_executor(None, len, "abc"))
    print(len(asyncio.all_tasks()))

loop = new_loop()
called.clear()
try:
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
finally:
    loop.close()
"""

NAMES = [
    ("weakref", "WeakSet"),
    ("asyncio", "AbstractEventLoop"),
    ("asyncio", "BaseTransport"),
    ("asyncio", "Future"),
    ("asyncio", "StreamReader"),
    ("asyncio", "StreamReaderProtocol"),
    ("asyncio", "StreamWriter"),
    ("asyncio", "Task"),
    ("asyncio", "get_event_loop_policy"),
    ("asyncio.events", "get_event_loop_policy"),
    ("asyncio.events", "get_child_watcher"),
    ("asyncio.transports", "BaseTransport"),
    ("asyncio.unix_events", "PidfdChildWatcher"),
    ("asyncio.unix_events", "ThreadedChildWatcher"),
    ("asyncio.unix_events", "_PidfdChildWatcher"),
    ("asyncio.unix_events", "waitstatus_to_exitcode"),
]


@pytest.mark.parametrize("how", ["function", "subclass"])
@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda part: part)
def test_a_program_that_replaces_a_name_before_the_import_works(loop_name, module, name, how):
    missing = f"if not hasattr(importlib.import_module({module!r}), {name!r}): os._exit(77)\n"
    if how == "subclass":
        missing += f"if not isinstance(getattr(importlib.import_module({module!r}), {name!r}), type): os._exit(77)\n"
    # What asyncio calls is called, and nothing else. (Where no pidfds are, it is the other child watcher.)
    shown = "" if name == "ThreadedChildWatcher" else "print(sorted(set(called)))"
    outcomes = []
    for loop in dict.fromkeys(("asyncio", loop_name)):
        before = BEFORE + missing + f"replace({module!r}, {name!r}, {how!r})\n"
        outcomes.append(run_script(loop, PROGRAM + shown, before=before, options=("-W", "ignore"), timeout=60))
    if outcomes[0].code == 77:
        pytest.skip("this Python has no such name")
    assert [each.code for each in outcomes] == [0] * len(outcomes), outcomes
    assert len({each.out for each in outcomes}) == 1, outcomes
