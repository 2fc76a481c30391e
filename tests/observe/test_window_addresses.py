"""The addresses of the window (`wakeloop.admin`): sockets, folders, and what is there before."""

import contextlib
import errno
import os
import re
import socket
import stat
import struct
import threading

import pytest

import wakeloop
from tests.support.window import get, program, workers

pytestmark = pytest.mark.native


def test_the_socket_is_the_users_alone_and_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with wakeloop.admin() as window:
        [address] = window.addresses
        path = address.removeprefix("unix:")
        assert path == str(tmp_path / f"wakeloop-{os.geteuid()}" / str(os.getpid()))
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert (window.limit, window.is_open()) == (10.0, True) and "open" in repr(window)
    assert not os.path.exists(path) and not window.is_open()
    window.close()


@pytest.mark.parametrize("address", [None, "127.0.0.1:0"])
def test_a_window_that_is_closed_leaves_no_folder_behind_but_one_that_others_use(tmp_path, monkeypatch, address):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    with wakeloop.admin(address):
        assert os.listdir(tmp_path) == [folder.name]
    assert os.listdir(tmp_path) == []
    with wakeloop.admin(address):
        (folder / "1").touch()
    assert os.listdir(folder) == ["1"]


def test_the_folder_is_the_one_for_temporary_files_even_if_the_current_folder_changes(tmp_path, monkeypatch):
    def folder():
        with wakeloop.admin() as window:
            return os.path.dirname(window.addresses[0].removeprefix("unix:"))

    name = f"wakeloop-{os.geteuid()}"
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "there")
    assert folder() == str(tmp_path / "there" / name)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert folder() == f"/tmp/{name}"


def test_the_sockets_of_killed_processes_are_removed_after_a_minute_by_the_next_window(tmp_path):
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    waits = """
    async def main():
        print("ready")
        await asyncio.Event().wait()
    wakeloop.run(main())
    """
    with program(tmp_path, waits) as alive, workers(tmp_path) as (old, fresh, _):
        for window in (old, fresh):
            window.process.kill()
            window.process.wait()
        [group] = [path for path in folder.iterdir() if path.is_dir()]
        for pid in (alive.pid, old.pid):
            for path in (folder / str(pid), group / str(pid)):
                if path.is_symlink() or path.exists():
                    os.utime(path, (0, 0), follow_symlinks=False)
        with program(tmp_path, waits) as third:
            left = {path.name for path in folder.iterdir() if path.is_socket()}
            assert left == {str(window.pid) for window in (alive, fresh, third)}
            # The link to the old one leads nowhere now.
            assert [path.name for path in group.iterdir()] == [str(fresh.pid)]
            assert alive.get("/livez")[0] == third.get("/livez")[0] == 200


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_folder_that_is_not_the_users_alone_is_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / f"wakeloop-{os.geteuid()}"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to("elsewhere")
    elif kind == "open":
        folder.mkdir(mode=0o755)
    else:
        folder.touch(mode=0o700)
    with pytest.raises(PermissionError, match="not a folder of this user alone") as found:
        wakeloop.admin()
    assert (found.value.errno, found.value.filename) == (errno.EACCES, str(folder))
    # With an address, the process does without its own socket.
    with wakeloop.admin("127.0.0.1:0") as window:
        assert len(window.addresses) == 1


def test_a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not(tmp_path):
    path = str(tmp_path / "window")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(path)
    with wakeloop.admin(f"unix:{path}"):
        pass
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as used:
        used.bind(path)
        used.listen()
        with pytest.raises(OSError, match="Address already in use"):
            wakeloop.admin(f"unix:{path}")
    os.remove(path)
    (tmp_path / "file").touch()
    os.symlink(tmp_path / "file", path)
    with pytest.raises(OSError, match="Address already in use"):
        wakeloop.admin(f"unix:{path}")


def test_the_socket_of_a_process_with_the_same_number_is_replaced_only_if_nobody_listens(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with wakeloop.admin() as window:
        path = window.addresses[0].removeprefix("unix:")
    os.mkdir(os.path.dirname(path), mode=0o700)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(OSError, match="Address already in use"):
            wakeloop.admin()
        other.close()
        with wakeloop.admin():
            assert os.path.exists(path)


def test_threads_that_open_windows_at_once_leave_one(tmp_path):
    def opens(number):
        for _ in range(5):
            opened.append(wakeloop.admin(f"unix:{tmp_path}/{number}-{len(opened)}"))

    opened = []
    threads = [threading.Thread(target=opens, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [window.is_open() for window in opened].count(True) == 1
    for window in opened:
        window.close()


@pytest.mark.parametrize(
    "address", ["", "2", "unix:", "host", "host:port", ":80", "127.0.0.1:70000", "127.0.0.1:-1", "unix:a\0b", "a\0b:80"]
)
def test_an_address_that_means_nothing_is_refused(address):
    with pytest.raises(ValueError):
        wakeloop.admin(address)


def answers(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(20)
    sock.connect(str(path))
    return get(sock, "/livez")[0] == 200


def test_a_window_that_cannot_be_opened_raises_an_os_error_and_leaves_the_earlier_one_open(tmp_path, monkeypatch):
    def fails(address, number, filename=None, kind=OSError):
        with pytest.raises(kind) as found:
            wakeloop.admin(address)
        assert (found.value.errno, found.value.filename) == (number, filename and str(filename))
        assert first.is_open() and all(map(answers, paths))

    with wakeloop.admin(f"unix:{tmp_path}/first") as first, contextlib.ExitStack() as stack:
        paths = [address.removeprefix("unix:") for address in first.addresses]
        assert len(paths) == 2
        used, name = tmp_path / "used", "x" * 200
        listener = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        listener.bind(str(used))
        # Its backlog is full: a connection would wait.
        listener.listen(0)
        stack.enter_context(contextlib.closing(waits := socket.socket(socket.AF_UNIX)))
        waits.connect(str(used))
        fails(f"unix:{used}", errno.EADDRINUSE, used)
        fails(f"unix:{tmp_path}/none/window", errno.ENOENT, tmp_path / "none/window", FileNotFoundError)
        fails(f"unix:{tmp_path}/used/window", errno.ENOTDIR, tmp_path / "used/window", NotADirectoryError)
        fails(f"unix:{tmp_path}/{name}", errno.ENAMETOOLONG, tmp_path / name)
        tcp = stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0))))
        port = tcp.getsockname()[1]
        fails(f"127.0.0.1:{port}", errno.EADDRINUSE)
        fails("192.0.2.1:80", errno.EADDRNOTAVAIL)
        text = f"error while attempting to bind on address ('127.0.0.1', {port}): "
        with pytest.raises(OSError, match=re.escape(text)):
            wakeloop.admin(f"127.0.0.1:{port}")
        with pytest.raises(socket.gaierror):
            wakeloop.admin("no such host:80")
        for wrong in [("", None), ("127.0.0.1:0", -1)]:
            with pytest.raises(ValueError):
                wakeloop.admin(wrong[0], limit=wrong[1])
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        (tmp_path / f"wakeloop-{os.geteuid()}").touch()
        fails("1", errno.EACCES, tmp_path / f"wakeloop-{os.geteuid()}", PermissionError)
        assert first.is_open() and all(map(answers, paths))
    assert not any(map(os.path.exists, paths))


def test_without_descriptors_no_window_is_opened_and_the_earlier_one_stays(tmp_path):
    body = """
    import errno, resource
    window = wakeloop.admin()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    # It fails at each of its descriptors in turn.
    for limit in range(highest, highest + 30):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            other = wakeloop.admin("127.0.0.1:0")
        except OSError as error:
            assert error.errno == errno.EMFILE, error
            assert window.is_open()
        else:
            assert not window.is_open()
            window = other
            break
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limit > highest + 2 and window is other
    print("ready")
    sys.stdin.read()
    """
    with program(tmp_path, body, admin=None) as window:
        assert window.get("/livez") == (200, "alive: 0 event loops\n")


def test_a_path_counts_from_the_directory_in_which_the_window_was_opened(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with wakeloop.admin("unix:window") as window:
        assert window.addresses[1] == f"unix:{tmp_path}/one/window"
        monkeypatch.chdir(tmp_path / "two")
        (tmp_path / "two" / "window").touch()
        assert answers(tmp_path / "one" / "window")
    assert os.listdir(tmp_path / "one") == [] and os.listdir(tmp_path / "two") == ["window"]


def test_a_file_that_somebody_else_has_put_in_the_place_of_the_socket_stays(tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/window"):
        os.rename(tmp_path / "window", tmp_path / "moved")
        (tmp_path / "window").touch()
    assert (tmp_path / "window").exists()


def test_a_window_whose_socket_was_removed_is_opened_again_at_the_same_path(tmp_path):
    with wakeloop.admin(f"unix:{tmp_path}/window"):
        os.remove(tmp_path / "window")
        with wakeloop.admin(f"unix:{tmp_path}/window"):
            assert answers(tmp_path / "window")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["own", "path", "port"])
def test_a_window_that_is_opened_again_at_its_address_can_be_reached_all_the_time(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first = wakeloop.admin({"own": "1", "path": f"unix:{tmp_path}/window", "port": "127.0.0.1:0"}[kind])
    address = "1" if kind == "own" else first.addresses[-1]
    ended, failures, connected = threading.Event(), [], []

    def connect():
        while not ended.is_set():
            family = socket.AF_INET if kind == "port" else socket.AF_UNIX
            with contextlib.closing(socket.socket(family)) as sock:
                # With a timeout of Python's, a queue that is full would be an error.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 20, 0))
                try:
                    if kind == "port":
                        host, port = address.split(":")
                        sock.connect((host, int(port)))
                    else:
                        sock.connect(first.addresses[-1].removeprefix("unix:"))
                    connected.append(1)
                except OSError as error:
                    failures.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        windows = [first]
        while len(connected) < 200 and not failures:
            windows.append(wakeloop.admin(address))
            assert windows[-1].addresses == first.addresses
            assert [window.is_open() for window in windows[-2:]] == [False, True]
    finally:
        ended.set()
        thread.join()
        windows[-1].close()
    assert failures == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["own", "path", "port"])
def test_threads_that_open_the_same_address_at_once_leave_one_window(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as chosen:
        port = chosen.getsockname()[1]
    address = {"own": "1", "path": f"unix:{tmp_path}/window", "port": f"127.0.0.1:{port}"}[kind]
    begins, opened, failures = threading.Barrier(4), [], []

    def opens():
        begins.wait()
        for number in range(10):
            try:
                opened.append(window := wakeloop.admin(address))
                if number % 3 == 0:
                    window.close()
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=opens) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and [window.is_open() for window in opened].count(True) <= 1
    with wakeloop.admin(address) as last:
        assert [window.is_open() for window in opened].count(True) == 0
        assert answers(last.addresses[0].removeprefix("unix:"))
    assert os.listdir(tmp_path) == []
