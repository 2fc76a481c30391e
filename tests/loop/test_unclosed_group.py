"""Groups that nobody closes: exit goes on, and a warning says so."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading

import pytest

wakeloop = pytest.importorskip("wakeloop", reason="the group is wakeloop's; the control group has none")

UNCLOSED = {
    "after a run": "print(group.run(asyncio.sleep(0, 'done')))",
    "that never ran": "group.loops; print('done')",
    "after an exception": "group.run(asyncio.sleep(0)); print('done', flush=True); raise SystemExit",
    "in another thread": """
        async def later():
            while threading.main_thread().is_alive():
                await asyncio.sleep(0.01)
            return await group.run_on(group.loops[1], asyncio.sleep, 0, 'done')
        threading.Thread(target=lambda: print(group.run(later()))).start()
    """,
    "in a daemon thread": """
        started = threading.Event()
        async def forever():
            started.set()
            await asyncio.sleep(1000)
        group.loops
        threading.Thread(target=lambda: group.run(forever()), daemon=True).start()
        started.wait(); print('done')
    """,
    "with tasks that have to be cancelled": """
        async def forever():
            try:
                await asyncio.sleep(1000)
            finally:
                await group.run_on(loops[0], asyncio.sleep, 0)
                await asyncio.get_running_loop().run_in_executor(None, print, 'done')
        async def main():
            await group.run_on(loops[1], begin)
        async def begin():
            tasks.append(asyncio.create_task(forever()))
            await asyncio.sleep(0)
        loops, tasks = group.loops, []
        group.run(main())
    """,
    "made as the interpreter exits": """
        def late():
            threading.main_thread().join()
            print(wakeloop.EventLoopGroup(2).run(asyncio.sleep(0, 'done')))
        threading.Thread(target=late).start()
    """,
    "with a server": """
        async def serve():
            await group.start_server(lambda reader, writer: None, '127.0.0.1', 0)
        group.run(serve()); print('done')
    """,
    "the first loop in a daemon thread": """
        first, begun = group.loops[0], threading.Event()
        first.call_soon(begun.set)
        threading.Thread(target=first.run_forever, daemon=True).start()
        begun.wait(); print('done')
    """,
    "after a fork": """
        group.run(asyncio.sleep(0))
        warnings.simplefilter("ignore")
        if (pid := os.fork()) == 0:
            sys.exit()
        print('done' if os.waitpid(pid, 0)[1] == 0 else 'failed')
    """,
}


@pytest.mark.parametrize("case", UNCLOSED)
def test_a_group_that_is_not_closed_does_not_keep_the_interpreter_from_exiting(case):
    script = "import asyncio, os, sys, threading, warnings, wakeloop\ngroup = wakeloop.EventLoopGroup(2)\n"
    done = subprocess.run(
        [sys.executable, "-c", script + textwrap.dedent(UNCLOSED[case])], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_group_that_is_not_closed_is_reported_at_exit_as_a_resource_warning():
    script = "import asyncio, wakeloop\ngroup = wakeloop.EventLoopGroup(2)\ngroup.run(asyncio.sleep(0))\n"
    done = subprocess.run([sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert done.stderr.count("ResourceWarning: unclosed event loop group") == 1


def test_a_group_that_is_collected_before_it_is_closed_warns_and_ends_its_threads(loop_factory):
    group = wakeloop.EventLoopGroup(3, loop_factory=loop_factory, thread_name_prefix="collected")
    group.run(asyncio.sleep(0))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("collected")]
    assert len(threads) == 2
    first = group.loops[0]
    with pytest.warns(ResourceWarning, match="unclosed event loop group"):
        del group
        gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    first.close()
