"""Python 3.14's introspection: the call graph, and `python -m asyncio ps` and `pstree` on a running process."""

import asyncio
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="the call graph is new in 3.14")


async def leaf(event):
    await event.wait()


async def middle(event):
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(event), name="leaf one")
        group.create_task(leaf(event), name="leaf two")


def test_the_call_graph_of_a_task_names_what_it_awaits_and_who_awaits_it(run):
    async def main():
        event = asyncio.Event()
        task = asyncio.create_task(middle(event), name="the middle")
        await asyncio.sleep(0.001)
        graph = asyncio.capture_call_graph(task)
        names = [entry.frame.f_code.co_name for entry in graph.call_stack]
        assert names == ["_aexit", "__aexit__", "middle"]
        below = next(other for other in asyncio.all_tasks() if other.get_name() == "leaf one")
        (awaiter,) = asyncio.capture_call_graph(below).awaited_by
        assert awaiter.future is task
        assert "leaf one" in asyncio.format_call_graph(below) and "the middle" in asyncio.format_call_graph(below)
        event.set()
        await task

    run(main())


@pytest.mark.parametrize("command", ["ps", "pstree"])
def test_the_tasks_of_a_process_can_be_listed_from_another(run, command):
    async def main():
        event = asyncio.Event()
        task = asyncio.create_task(middle(event), name="the middle")
        await asyncio.sleep(0.001)
        line = [sys.executable, "-m", "asyncio", command, str(os.getpid())]
        done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, timeout=20)
        event.set()
        await task
        return done

    done = run(main())
    if done.returncode != 0 and "ermission" in done.stderr:
        pytest.skip("this system does not let one process read another's memory")
    assert done.returncode == 0, done.stderr
    for name in ("the middle", "leaf one", "leaf two"):
        assert name in done.stdout, done.stdout
