"""The files that the flight recorder writes its traces to."""

import asyncio
import os
import threading

import pytest
import wakeloop

from tests.support.recorder import recorder_stops, trace_path  # noqa: F401
from tests.support.trace import Trace

pytestmark = pytest.mark.native


def test_a_recorder_without_a_path_writes_only_where_it_is_told(path):
    recorder = wakeloop.record()
    assert recorder.path is None and "running" in repr(recorder)
    with pytest.raises(ValueError):
        recorder.save()
    assert recorder.save(path) == str(path)
    recorder.stop()
    recorder.stop()
    assert "stopped" in repr(recorder)
    os.unlink(path)
    # What was recorded stays.
    Trace.read(recorder.save(path))


def test_placeholders_are_the_process_and_the_number_of_the_trace(tmp_path):
    with wakeloop.record(tmp_path / "trace-%p-%n.json") as recorder:
        assert recorder.save() == str(tmp_path / f"trace-{os.getpid()}-1.json")
        assert recorder.save(tmp_path / "%n%n") == str(tmp_path / "22")
    assert (tmp_path / f"trace-{os.getpid()}-3.json").exists()


def test_the_path_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with wakeloop.record("trace.json"):
        monkeypatch.chdir("/")
    Trace.read(tmp_path / "trace.json")


def test_a_file_that_cannot_be_written_is_reported_and_nothing_else_is_lost(loop, tmp_path):
    good = tmp_path / "trace.json"
    with wakeloop.record(good) as recorder:
        loop.run_until_complete(asyncio.sleep(0))
        recorder.save()
        before = good.read_bytes()
        for bad, error in {
            tmp_path / "missing" / "trace.json": FileNotFoundError,
            tmp_path: OSError,
            "/dev/full": OSError,
            "/proc/trace.json": OSError,
            tmp_path / ("x" * 1000): OSError,
        }.items():
            with pytest.raises(error):
                recorder.save(bad)
        with pytest.raises(ValueError):
            recorder.save("nul\0")
        events = recorder.events
        loop.run_until_complete(asyncio.sleep(0))
        assert recorder.active and recorder.events > events
        assert good.read_bytes() == before
    assert os.listdir(tmp_path) == ["trace.json"]
    Trace.read(good)


def test_a_full_disk_leaves_the_old_trace_and_no_other_file(loop, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    with wakeloop.record() as recorder:
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            recorder.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["trace.json"]


def test_stop_raises_if_the_trace_cannot_be_written_and_has_stopped(loop, tmp_path, path):
    recorder = wakeloop.record(tmp_path / "missing" / "trace.json")
    loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(FileNotFoundError):
        recorder.stop()
    assert not recorder.active and wakeloop.Recorder.running() is None
    assert Trace.read(recorder.save(path)).slices


def test_only_the_owner_may_read_a_trace_and_a_pipe_gets_one(tmp_path):
    with wakeloop.record() as recorder:
        path = recorder.save(tmp_path / "trace.json")
        assert os.stat(path).st_mode & 0o777 == 0o600
        link = tmp_path / "link"
        link.symlink_to(path)
        recorder.save(link)
        assert link.is_symlink()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        read = []
        thread = threading.Thread(target=lambda: read.append(pipe.read_text()))
        thread.start()
        recorder.save(pipe)
        thread.join()
    Trace(read[0])
