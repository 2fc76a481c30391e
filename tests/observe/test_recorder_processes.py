"""The flight recorder in other processes: environment variables, exit and forks."""

import os
import signal

import pytest

from tests.support.recorder import recorder_stops, wait_for  # noqa: F401
from tests.support.script import run_script, start_script
from tests.support.trace import Trace

pytestmark = pytest.mark.native

#: Runs a loop, with a callback that has this name.
LOOP = """
    import os, signal, sys, threading, time, wakeloop

    def run(name):
        async def main():
            def callback(): pass
            callback.__qualname__ = name
            asyncio.get_running_loop().call_soon(callback)
            await asyncio.sleep(0)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
"""


def test_the_environment_variable_records_from_the_first_loop_on_and_writes_at_exit(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "trace-%p.json"))
    outcome = run_script("wakeloop", LOOP + "    print(os.getpid(), wakeloop.Recorder.running().path); run('seen')")
    assert (outcome.code, outcome.err) == (0, ""), outcome
    pid, path = outcome.out.split()
    assert path.endswith("trace-%p.json") and os.listdir(tmp_path) == [f"trace-{pid}.json"]
    trace = Trace.read(tmp_path / f"trace-{pid}.json")
    assert "seen" in trace.names() and trace.pid == int(pid)


def test_the_environment_variable_writes_nothing_if_no_loop_has_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD", str(tmp_path / "trace.json"))
    outcome = run_script("wakeloop", LOOP)
    assert (outcome.code, outcome.err) == (0, "") and os.listdir(tmp_path) == []


def test_a_trace_that_cannot_be_written_at_exit_is_logged(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("WAKELOOP_RECORD", str(folder / "trace.json"))
    outcome = run_script("wakeloop", LOOP + f"    run('seen'); os.rmdir({str(folder)!r}); print('done')")
    assert (outcome.code, outcome.out) == (0, "done\n")
    assert "cannot write its trace" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize("name", ["USR2", "SIGUSR2", "sigusr2", str(int(signal.SIGUSR2))])
def test_the_signal_of_the_environment_writes_the_trace_while_the_loop_runs(tmp_path, monkeypatch, name):
    path = tmp_path / "trace.json"
    monkeypatch.setenv("WAKELOOP_RECORD", str(path))
    monkeypatch.setenv("WAKELOOP_RECORD_SIGNAL", name)
    process = start_script("wakeloop", LOOP + "    run('seen'); print('ready'); new_loop().run_forever()")
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR2)
        wait_for(path.exists)
        assert "seen" in Trace.read(path).names()
    finally:
        process.kill()
        process.communicate()


def test_the_signal_of_the_environment_needs_the_main_thread_and_the_rest_works_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WAKELOOP_RECORD_SIGNAL", "USR2")
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    os.environ["WAKELOOP_RECORD"] = {str(tmp_path / "trace.json")!r}
    thread = threading.Thread(target=run, args=["seen"])
    thread.start()
    thread.join()
    """,
    )
    assert outcome.code == 0 and outcome.err.startswith("WAKELOOP_RECORD_SIGNAL: signal only works in main thread")
    assert "seen" in Trace.read(tmp_path / "trace.json").names()


@pytest.mark.parametrize("kind", ["missing", "a named pipe", "full"])
def test_a_trace_that_cannot_be_written_neither_blocks_the_exit_nor_stays_silent(tmp_path, monkeypatch, kind):
    path = {"missing": tmp_path / "missing" / "trace.json", "full": "/dev/full"}.get(kind, tmp_path / "pipe")
    if kind == "a named pipe":
        os.mkfifo(path)
    monkeypatch.setenv("WAKELOOP_RECORD", str(path))
    outcome = run_script("wakeloop", LOOP + "    print('imported', flush=True); run('seen')")
    if kind == "missing":
        assert outcome.code == 1 and f"ValueError: WAKELOOP_RECORD is '{path}'" in outcome.err, outcome
    else:
        assert outcome.code == 0 and f"cannot write its trace to '{path}'" in outcome.err, outcome
    assert outcome.out == "imported\n" and outcome.err.count("Error:") <= 1


def test_a_forked_child_has_an_empty_recorder_and_its_own_file(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    async def use_runtime():
        await wakeloop.sleep(0.002)
    recorder = wakeloop.record({str(tmp_path / "trace-%p.json")!r})
    run("parent")
    asyncio.Runner(loop_factory=new_loop).run(use_runtime())
    pid = os.fork()
    if pid == 0:
        assert recorder.active and recorder.events == 0 and recorder is wakeloop.Recorder.running()
        run("child")
        asyncio.Runner(loop_factory=new_loop).run(use_runtime())
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    run("parent again")
    print(os.getpid(), pid)
    """,
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert (outcome.code, outcome.err) == (0, ""), outcome
    parent, child = [Trace.read(tmp_path / f"trace-{pid}.json") for pid in outcome.out.split()]
    assert {"parent", "parent again"} <= set(parent.names()) and "child" not in parent.names()
    assert "child" in child.names() and "parent" not in child.names()
    assert child.find(thread="runtime") and parent.find(thread="runtime")


def test_a_forked_child_does_not_write_to_its_parents_file(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    recorder = wakeloop.record({str(tmp_path / "trace.json")!r}, signal=signal.SIGUSR2)
    run("parent")
    pid = os.fork()
    if pid == 0:
        run("child")
        os.kill(os.getpid(), signal.SIGUSR2)
        assert recorder.path is None and recorder.active
        recorder.save({str(tmp_path / "child.json")!r})
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    assert not os.path.exists(recorder.path)
    """,
    )
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert "parent" in Trace.read(tmp_path / "trace.json").names()
    assert "child" in Trace.read(tmp_path / "child.json").names()


def test_a_fork_inside_of_a_callback_is_survived_by_both_recorders(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    recorder = wakeloop.record({str(tmp_path / "trace-%p.json")!r})
    other = threading.Thread(target=lambda: [run("other") for _ in range(20)])
    async def main():
        other.start()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if recorder.events == 0 and recorder.save() else 1)
        other.join()
        return os.waitpid(pid, 0)[1]
    with asyncio.Runner(loop_factory=new_loop) as runner:
        print(runner.run(main()))
    """,
    )
    assert (outcome.code, outcome.out) == (0, "0\n"), outcome
    assert len(os.listdir(tmp_path)) == 2


def test_a_daemon_thread_with_a_loop_may_record_until_the_process_ends(tmp_path):
    outcome = run_script(
        "wakeloop",
        LOOP
        + f"""
    recorder = wakeloop.record({str(tmp_path / "trace.json")!r})
    def forever():
        loop = new_loop()
        def again(): loop.call_soon(again)
        again()
        loop.run_forever()
    threading.Thread(target=forever, daemon=True).start()
    while recorder.events < 1000: time.sleep(0.001)
    """,
    )
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert Trace.read(tmp_path / "trace.json").slices
