"""Tools that replace parts of asyncio or of the clock: a program each, which prints the same on asyncio's loop."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.ecosystem.support import environment, free_port, need_installed

pytestmark = [pytest.mark.native, pytest.mark.timeout(90)]

START = """
import asyncio, sys

def loop_factory():
    if sys.argv[1] == "asyncio":
        return asyncio.SelectorEventLoop()
    import wakeloop
    return wakeloop.new_event_loop()

def run(main):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)
"""


def outputs(program, *arguments):
    """Returns what the program prints on asyncio's loop and on ours."""
    text = START + textwrap.dedent(program)
    printed = []
    for loop in ("asyncio", "wakeloop"):
        line = [sys.executable, "-Wignore", "-c", text, loop, *map(str, arguments)]
        done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (loop, done.stdout, done.stderr)
        printed.append(done.stdout)
    return printed


FREEZEGUN = """
import datetime, time
import freezegun
from tests.support.exchange import exchange

# Times are compared with what was frozen: the clock itself is not the same in two processes.
async def connection():
    print(await exchange(), datetime.datetime.now().isoformat()[:16])

# Timers take real time with real_asyncio; around the run, and inside of it.
async def sleeps():
    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.wait_for(asyncio.sleep(0.01), 30)
    print(0.009 < loop.time() - start < 30, time.monotonic() == time.monotonic())
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except TimeoutError:
        print("timeout", datetime.date.today())
    await connection()

with freezegun.freeze_time("2020-02-02", real_asyncio=True):
    run(sleeps())

async def inside():
    with freezegun.freeze_time("2021-03-04", real_asyncio=True) as frozen:
        await sleeps()
        frozen.tick(3600)
        await sleeps()
    print(datetime.datetime.now().year > 2022)
    await asyncio.sleep(0.001)

run(inside())

# Without it the loop's clock stands still. The program moves it.
async def frozen_clock(frozen):
    loop, fired = asyncio.get_running_loop(), []
    start = loop.time()
    loop.call_later(10, fired.append, "late")
    loop.call_later(5, fired.append, "early")
    await connection()
    print(loop.time() - start, fired)
    frozen.tick(6)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    print(round(loop.time() - start, 3), fired)
    frozen.tick(datetime.timedelta(seconds=6))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    print(round(loop.time() - start, 3), fired)

with freezegun.freeze_time("2022-01-01") as frozen:
    run(frozen_clock(frozen))

# The clock ticks by itself.
with freezegun.freeze_time("2022-01-01", tick=True):
    print(run(asyncio.sleep(0.01, "ticked")), datetime.date.today())

# A decorated coroutine function.
@freezegun.freeze_time("1999-12-31", real_asyncio=True)
async def decorated():
    await asyncio.sleep(0.001)
    return datetime.date.today().isoformat()

print(run(decorated()), datetime.date.today().year > 2022)

@freezegun.freeze_time("1999-12-31", auto_tick_seconds=15, real_asyncio=True)
async def ticking():
    first = datetime.datetime.now()
    await asyncio.sleep(0.001)
    return (datetime.datetime.now() - first).seconds

print(run(ticking()))
"""

TIME_MACHINE = """
import datetime, time
import time_machine

async def main(traveller):
    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.wait_for(asyncio.sleep(0.01), 30)
    print(datetime.date.today(), 0.009 < loop.time() - start < 30)
    traveller.shift(datetime.timedelta(days=2))
    print(datetime.date.today(), await asyncio.to_thread(lambda: datetime.date.today().year))
    traveller.move_to("2030-01-01")
    await asyncio.sleep(0.001)
    print(time.strftime("%Y", time.localtime()))

with time_machine.travel("2020-02-02 12:00", tick=False) as traveller:
    run(main(traveller))
with time_machine.travel("2020-02-02 12:00", tick=True) as traveller:
    run(main(traveller))

@time_machine.travel("1999-12-31 12:00")
async def decorated():
    await asyncio.sleep(0.001)
    return datetime.date.today().isoformat()

print(run(decorated()), datetime.date.today().year > 2022)
"""

NEST_ASYNCIO = """
import nest_asyncio
from tests.support.exchange import exchange

loop = loop_factory()
asyncio.set_event_loop(loop)
nest_asyncio.apply(loop)

async def inner(value):
    await asyncio.sleep(0.001)
    return value

async def echo():
    async def serve(reader, writer):
        # A run inside of a callback of the run.
        line = await reader.readline()
        writer.write(asyncio.get_event_loop().run_until_complete(inner(line)))
        writer.close()

    print(await exchange(serve))

async def outer():
    print(loop.run_until_complete(inner("nested")))
    print(loop.run_until_complete(asyncio.gather(*(inner(number) for number in range(5)))))
    print(await inner("outer"), asyncio.run(inner("run")))
    loop.run_until_complete(echo())
    print(await asyncio.to_thread(int, "7"))
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    print(len(loop.run_until_complete(asyncio.wait([waiting], timeout=0.01))[1]))
    waiting.cancel()

loop.run_until_complete(outer())
print(loop.run_until_complete(inner("after")))
loop.close()
"""

LOOPTIME = """
import time
import looptime
from tests.support.exchange import exchange

async def timeouts():
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1000)
    print("slept", round(loop.time(), 3))
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 500)
    except TimeoutError:
        print("timeout", round(loop.time(), 3))
    print(await asyncio.gather(*(asyncio.sleep(number * 100, number) for number in (3, 1, 2))), round(loop.time(), 3))

async def others():
    print(await exchange())
    print(await asyncio.get_running_loop().run_in_executor(None, int, "7"))

real = time.monotonic()
loop = looptime.patch_event_loop(loop_factory(), start=100)
loop.run_until_complete(timeouts())
loop.run_until_complete(others())
loop.run_until_complete(loop.shutdown_default_executor())
loop.close()

# A class of its own.
sample = loop_factory()
sample.close()
with asyncio.Runner(loop_factory=looptime.make_event_loop_class(type(sample))) as runner:
    runner.run(timeouts())
print(time.monotonic() - real < 60)
"""

AIOMONITOR = """
import json
import aiomonitor

async def worker(name):
    await asyncio.sleep(1000)

async def main():
    telnet, web = map(int, sys.argv[2:])
    loop = asyncio.get_running_loop()
    monitor = aiomonitor.start_monitor(loop, port=telnet, webui_port=web, console_enabled=False, hook_task_factory=True)
    # The threads of the monitor print too: ours is printed when they have ended.
    lines = []
    with monitor:
        tasks = [asyncio.create_task(worker(name), name=name) for name in ("one", "two")]
        await asyncio.sleep(0.01)
        shown = {task.name: task for task in monitor.format_running_task_list("", False)}
        lines.append(sorted(name for name in shown if not name.startswith("Task-")))
        lines.append(shown["one"].coro)
        lines.append("worker" in str(monitor.format_running_task_stack(shown["two"].task_id)))
        reader, writer = await asyncio.open_connection("127.0.0.1", telnet)
        lines.append(len(await reader.read(1)))
        writer.close()
        await monitor.cancel_monitored_task(shown["one"].task_id)
        lines.append(await asyncio.gather(*tasks[:1], return_exceptions=True))
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps([*lines, monitor.closed], default=repr))

run(main())
"""


@pytest.mark.parametrize(
    ("modules", "program", "lines"),
    [
        pytest.param(["freezegun"], FREEZEGUN, 17, id="freezegun"),
        pytest.param(["time_machine"], TIME_MACHINE, 7, id="time-machine"),
        pytest.param(["nest_asyncio"], NEST_ASYNCIO, 7, id="nest_asyncio"),
        pytest.param(["looptime"], LOOPTIME, 9, id="looptime"),
    ],
)
def test_the_program_prints_what_it_prints_on_asyncio(modules, program, lines):
    need_installed(*modules)
    asyncios, ours = outputs(program)
    assert ours == asyncios and len(asyncios.splitlines()) == lines


def test_aiomonitor_shows_and_cancels_tasks():
    need_installed("aiomonitor")
    # The last line: the monitor's own threads write that the connection is gone, with one of two errors.
    asyncios, ours = (output.splitlines()[-1] for output in outputs(AIOMONITOR, free_port(), free_port()))
    assert ours == asyncios and asyncios.startswith('[["one", "two"], ')
