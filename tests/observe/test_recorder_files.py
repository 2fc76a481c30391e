"""The files that the flight recorder writes its traces to."""

import asyncio
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
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

    def full(*_, **_keywords):
        raise OSError(28, "No space left on device")

    with wakeloop.record() as recorder:
        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            recorder.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["trace.json"]


def test_stop_raises_if_the_trace_cannot_be_written_and_has_stopped(loop, tmp_path, path):
    folder = tmp_path / "folder"
    folder.mkdir()
    recorder = wakeloop.record(folder / "trace.json")
    folder.rmdir()
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
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        # Until this one is closed, the pipe has no end.
        writer = os.open(pipe, os.O_WRONLY)
        os.set_blocking(reader, True)
        read = []

        def read_all():
            with open(reader) as file:
                read.append(file.read())

        thread = threading.Thread(target=read_all)
        thread.start()
        recorder.save(pipe)
        os.close(writer)
        thread.join()
    Trace(read[0])


# -- paths that are no file of ours ----------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
NOBODY = 65534


@pytest.fixture
def sticky(tmp_path):
    """A directory such as /tmp, in which everybody may make files."""
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def refused(path, error):
    """Neither record() nor save() accepts the path, and nothing is left behind."""
    folder = os.path.dirname(path)
    before = sorted(os.listdir(folder)) if os.path.isdir(folder) else None
    with pytest.raises(error) as info:
        wakeloop.record(path)
    assert info.value.filename == str(path) and info.value.filename2 is None
    assert wakeloop.Recorder.running() is None
    with wakeloop.record() as recorder, pytest.raises(error) as info:
        recorder.save(path)
    assert info.value.filename == str(path)
    assert before is None or sorted(os.listdir(folder)) == before


@as_root
@pytest.mark.parametrize("place", ["the last name", "a folder", "behind a link of ours"])
def test_a_symbolic_link_of_another_user_in_a_sticky_directory_is_not_followed(sticky, tmp_path, place):
    precious = tmp_path / "precious"
    precious.mkdir()
    file = precious / "trace.json"
    file.write_text("precious")
    link = sticky / "link"
    link.symlink_to(precious if place == "a folder" else file)
    os.lchown(link, NOBODY, NOBODY)
    if place == "behind a link of ours":
        (tmp_path / "ours").symlink_to(link)
    refused({"the last name": link, "a folder": link / "trace.json"}.get(place, tmp_path / "ours"), PermissionError)
    assert file.read_text() == "precious"


@as_root
def test_links_of_ours_and_of_the_directorys_owner_are_followed(sticky, tmp_path):
    os.chown(sticky, NOBODY, NOBODY)
    for owner in (0, NOBODY):
        link, file = sticky / f"link {owner}", tmp_path / f"trace {owner}"
        link.symlink_to(f"../trace {owner}")
        os.lchown(link, owner, owner)
        with wakeloop.record(link):
            pass
        assert link.is_symlink()
        Trace.read(file)


@as_root
@pytest.mark.parametrize("kind", ["file", "named pipe"])
def test_what_another_user_has_put_into_a_sticky_directory_is_not_touched(sticky, kind):
    path = sticky / "trace.json"
    path.write_text("theirs") if kind == "file" else os.mkfifo(path)
    os.chown(path, NOBODY, NOBODY)
    refused(path, PermissionError)
    assert kind == "named pipe" or path.read_text() == "theirs"


def test_a_loop_of_links_is_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused(tmp_path / "a", OSError)


def test_a_path_to_which_nothing_can_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    refused(tmp_path / "missing" / "trace.json", FileNotFoundError)
    refused(tmp_path / "file" / "trace.json", NotADirectoryError)
    refused(tmp_path, IsADirectoryError)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        refused(tmp_path / "socket", OSError)
    with pytest.raises(ValueError, match="null"):
        wakeloop.record("nul\0")
    assert wakeloop.Recorder.running() is None


@pytest.fixture
def ordinary_folder(tmp_path):
    """A directory of a user who may not write everywhere. The test runs as that user."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            yield pathlib.Path(folder)
        finally:
            os.seteuid(0)


def test_a_read_only_file_or_directory_is_refused(ordinary_folder):
    file = ordinary_folder / "file"
    file.write_text("kept")
    file.chmod(0o400)
    refused(file, PermissionError)
    folder = ordinary_folder / "folder"
    folder.mkdir(mode=0o500)
    refused(folder / "trace.json", PermissionError)
    file.chmod(0o600)
    with wakeloop.record(file):
        pass
    Trace.read(file)


def test_a_name_as_long_as_a_name_can_be_is_written(tmp_path):
    path = tmp_path / ("x" * 255)
    with wakeloop.record(path):
        pass
    Trace.read(path)


def test_a_named_pipe_that_nobody_reads_is_an_error_and_does_not_block(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # A reader may still come.
    recorder = wakeloop.record(pipe)
    with pytest.raises(OSError, match="Nobody reads this named pipe"):
        recorder.stop()


def test_a_reader_that_goes_away_or_does_not_go_on_is_an_error(loop, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with wakeloop.record() as recorder:
        # More than the pipe has room for.
        for number in range(2000):
            loop.call_soon(int, number)
        loop.run_until_complete(asyncio.sleep(0))
        with pytest.raises(TimeoutError):
            recorder.save(pipe)
        closes = threading.Timer(0.1, os.close, [reader])
        closes.start()
        with pytest.raises(BrokenPipeError):
            recorder.save(pipe)
        closes.join()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
@pytest.mark.skipif(sys.platform != "linux", reason="the names are those of Linux")
def test_a_trace_can_be_written_to_a_descriptor_of_the_process(tmp_path, name, kind):
    code = f"""
import os, wakeloop
os.write(1, b"before\\n")
with wakeloop.record({name!r}):
    wakeloop.run(wakeloop.sleep(0))
os.write(1, b"after\\n")
"""
    path = tmp_path / "out"
    near, far = socket.socketpair()
    with path.open("wb") as file:
        out = {"pipe": subprocess.PIPE, "file": file, "socket": far}[kind]
        done = subprocess.run([sys.executable, "-c", code], stdout=out, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    far.close()
    text = done.stdout if kind == "pipe" else b""
    if kind == "file":
        text = path.read_bytes()
    while kind == "socket" and (data := near.recv(1 << 20)):
        text += data
    near.close()
    assert text.startswith(b"before\n") and text.endswith(b"after\n")
    Trace(text.removeprefix(b"before\n").removesuffix(b"after\n").decode())
