"""wakeloop.record(): a recorder from its start to its stop, one at a time, and how much its ring keeps."""

import asyncio
import signal
import time

import pytest
import wakeloop
from wakeloop import _core

from tests.support.recorder import Truth, recorded, recorder_stops, trace_path  # noqa: F401
from tests.support.trace import Trace

pytestmark = pytest.mark.native


def test_without_a_recorder_nothing_is_recorded(loop, path):
    with wakeloop.record(path) as recorder:
        loop.run_until_complete(asyncio.sleep(0))
    events = recorder.events
    assert events > 0
    loop.run_until_complete(asyncio.sleep(0.001))
    assert recorder.events == events and not recorder.active and wakeloop.Recorder.running() is None


def test_a_trace_that_is_saved_later_ends_when_the_recorder_was_stopped(loop, path):
    pause, recorder = 0.05, wakeloop.record()
    loop.call_soon(recorder.stop)
    loop.call_soon(loop.stop)
    loop.run_forever()

    def end():
        return max(each["ts"] + each["dur"] for each in Trace.read(recorder.save(path)).slices)

    first = end()
    time.sleep(pause)
    assert end() - first < pause * 1e6 / 2


def test_a_recorder_sees_a_loop_that_runs_already_and_stops_in_its_middle(run, path):
    truth = Truth()

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_soon(truth.callback("before"))
        await asyncio.sleep(0)
        with wakeloop.record(path):
            loop.call_soon(truth.callback("during"))
            await asyncio.sleep(0)
        loop.call_soon(truth.callback("after"))
        await asyncio.sleep(0)

    run(main())
    names = Trace.read(path).names()
    assert "during" in names and "before" not in names and "after" not in names


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_error_that_leaves_the_loop_leaves_the_recorder_running(loop, path, error):
    def fails():
        raise error

    fails.__qualname__ = "fails"
    truth = Truth()
    with recorded(path) as found:
        loop.call_soon(fails)
        with pytest.raises(error):
            loop.run_forever()
        time.sleep(0.02)
        loop.call_soon(truth.callback("afterwards"))
        loop.run_until_complete(asyncio.sleep(0))
    truth.check(found[0])
    [failed], [afterwards] = found[0].find("fails"), found[0].find("afterwards")
    assert afterwards["ts"] - (failed["ts"] + failed["dur"]) >= 15_000, "the sleep is no part of the callback"


def test_a_full_ring_keeps_the_last_events_and_counts_the_others(loop, path):
    ran = []
    with recorded(path, size=1024) as found:
        recorder = wakeloop.Recorder.running()
        assert (recorder.events, recorder.dropped) == (0, 0)
        for index in range(500):
            callback = Truth().callback(f"callback {index}", 0)
            loop.call_soon(callback)
            ran.append(f"callback {index}")
        loop.run_until_complete(asyncio.sleep(0))
        assert recorder.events > 500
        assert recorder.events - recorder.dropped == 63
    (trace,) = found
    names = [name for name in trace.names() if name.startswith("callback ")]
    assert 40 < len(names) <= 63 and names == ran[-len(names) :]
    assert trace.data["otherData"]["events_dropped"] == str(recorder.dropped)


def test_a_second_recorder_is_refused_while_the_first_one_runs(path):
    with wakeloop.record(path) as first:
        with pytest.raises(RuntimeError, match="running already"):
            wakeloop.record()
        assert wakeloop.Recorder.running() is first and first.active
    with wakeloop.record() as second:
        assert wakeloop.Recorder.running() is second
        # The first one is over, and does not stop the second.
        first.stop()
        assert second.active


def test_the_native_half_refuses_a_second_recording_too():
    first = _core.Recording(1024, False)
    with pytest.raises(RuntimeError):
        _core.Recording(1024, False)
    first.stop()
    assert not first.active and first.counts() == (0, 0)


def test_a_recording_that_gives_way_ends_when_the_other_begins(loop, path):
    pause, first, others = 0.05, _core.Recording(1 << 20, True), []
    # The callback has not ended by then.
    loop.call_soon(lambda: others.append(_core.Recording(1024, False)))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert [first.active, others[0].active] == [False, True]
    others[0].stop()

    def end():
        with open(path, "wb") as file:
            first.write(file.fileno(), 1, "program", {}, [])
        return max(each["ts"] + each["dur"] for each in Trace.read(path).slices)

    earlier = end()
    time.sleep(pause)
    assert end() - earlier < pause * 1e6 / 2


def test_wrong_arguments_are_refused_and_start_nothing(tmp_path):
    for options in ({"size": 1023}, {"size": -1}, {"signal": signal.SIGUSR2}, {"slow_turns": True}):
        with pytest.raises(ValueError):
            wakeloop.record(**options)
    with pytest.raises(ValueError):
        wakeloop.record(tmp_path / "trace.json", signal=10_000)
    for size in (1 << 62, 1 << 80):
        with pytest.raises(MemoryError):
            wakeloop.record(size=size)
    with pytest.raises(TypeError):
        wakeloop.record(17.5)
    with pytest.raises(TypeError):
        wakeloop.Recorder()
    assert wakeloop.Recorder.running() is None
