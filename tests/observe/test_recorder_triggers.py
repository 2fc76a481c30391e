"""What makes the flight recorder write a trace while a loop runs: another thread, a signal, a slow turn."""

import asyncio
import os
import signal
import threading
import time

import pytest
import wakeloop

from tests.support.recorder import recorded, recorder_stops, trace_path, wait_for  # noqa: F401
from tests.support.trace import Trace

pytestmark = pytest.mark.native


def test_a_trace_is_saved_from_another_thread_while_the_loop_is_busy(run, path):
    done = threading.Event()
    problems = []

    def save():
        try:
            wait_for(lambda: recorder.dropped)
            for _ in range(20):
                trace = Trace.read(recorder.save())
                assert trace.data["traceEvents"]
        except BaseException as error:
            problems.append(error)
        finally:
            done.set()

    async def main():
        loop = asyncio.get_running_loop()
        saving = threading.Thread(target=save)
        saving.start()
        while not done.is_set():
            loop.call_soon(int)
            await asyncio.sleep(0)
        saving.join()

    with wakeloop.record(path, size=1 << 16) as recorder:
        run(main())
    assert not problems
    assert recorder.dropped > 0


def test_a_trace_from_another_thread_shows_what_blocks_the_loop_now(run, path):
    blocking, saved = threading.Event(), threading.Event()

    def blocks():
        blocking.set()
        assert saved.wait(20)

    async def main():
        asyncio.get_running_loop().call_soon(blocks)
        await asyncio.sleep(0)

    blocks.__qualname__ = "blocks"
    with wakeloop.record() as recorder:
        thread = threading.Thread(target=run, args=(main(),))
        thread.start()
        assert blocking.wait(20)
        time.sleep(0.02)
        recorder.save(path)
        saved.set()
        thread.join()
    (event,) = Trace.read(path).find("blocks")
    assert event["args"]["unfinished"] is True and event["dur"] >= 20_000


def test_a_signal_writes_the_trace_and_the_handler_is_restored(run, path):
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:

        async def main():
            os.kill(os.getpid(), signal.SIGUSR2)
            while not path.exists():
                await asyncio.sleep(0.005)
            Trace.read(path)

        with wakeloop.record(path, signal=signal.SIGUSR2):
            run(main())
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
        wait_for(lambda: threading.active_count() == 1 or "recorder" not in str(threading.enumerate()))
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_that_is_no_integer_is_refused(path):
    before = [signal.getsignal(number) for number in (10, 12)]
    for number in (10.5, "USR1", b"10"):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            wakeloop.record(path, signal=number)
        assert wakeloop.Recorder.running() is None
    assert [signal.getsignal(number) for number in (10, 12)] == before


def test_a_signal_outside_of_the_main_thread_is_refused(path):
    errors = []

    def start():
        try:
            wakeloop.record(path, signal=signal.SIGUSR2)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert errors and wakeloop.Recorder.running() is None


def test_a_trace_that_a_signal_cannot_write_is_logged(loop, tmp_path, asyncio_log):
    before = signal.getsignal(signal.SIGUSR2)
    folder = tmp_path / "folder"
    folder.mkdir()
    recorder = wakeloop.record(folder / "trace.json", signal=signal.SIGUSR2)
    folder.rmdir()
    os.kill(os.getpid(), signal.SIGUSR2)
    wait_for(lambda: "cannot write its trace" in asyncio_log.text)
    assert recorder.active
    with pytest.raises(FileNotFoundError):
        recorder.stop()
    assert signal.getsignal(signal.SIGUSR2) == before


def test_a_slow_turn_writes_the_trace_at_most_every_ten_seconds(loop, tmp_path, asyncio_log):
    loop.slow_turn_duration = 0.01
    with wakeloop.record(tmp_path / "trace-%n.json", slow_turns=True):
        first = tmp_path / "trace-1.json"
        for _ in range(3):
            loop.call_soon(time.sleep, 0.02)
            loop.run_until_complete(asyncio.sleep(0))
        wait_for(first.exists)
        (slow, *_) = [event for event in Trace.read(first).instants if event["name"] == "slow turn"]
        assert slow["args"]["took_us"] >= 20_000
        time.sleep(0.02)
        assert os.listdir(tmp_path) == ["trace-1.json"]
    wait_for(lambda: "recorder" not in str(threading.enumerate()))


def test_a_slow_turn_only_adds_an_event_if_no_trace_is_asked_for(loop, path, asyncio_log):
    loop.slow_turn_duration = 0.01
    with recorded(path) as found:
        loop.call_soon(time.sleep, 0.02)
        loop.run_until_complete(asyncio.sleep(0))
        assert not path.exists()
    assert [event["name"] for event in found[0].instants].count("slow turn") == 1
