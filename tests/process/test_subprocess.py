"""Child processes."""

import asyncio
import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys

import pytest

PIPE = asyncio.subprocess.PIPE


def python(source, **options):
    return asyncio.create_subprocess_exec(sys.executable, "-c", source, **options)


def test_communicate_sends_input_and_returns_output(run):
    async def main():
        process = await python(
            "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]); sys.stderr.write('done')",
            stdin=PIPE, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        payload = os.urandom(2_000_000)
        out, err = await process.communicate(payload)
        assert out == payload[::-1] and err == b"done" and process.returncode == 0

    run(main())


def test_wait_returns_the_exit_code(run):
    async def main():
        process = await python("raise SystemExit(7)")
        assert process.pid > 0 and process.returncode is None
        assert await asyncio.gather(process.wait(), process.wait()) == [7, 7]
        assert process.returncode == 7 == await process.wait()

    run(main())


@pytest.mark.parametrize("method, code", [("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM)])
def test_terminate_and_kill_end_a_process(run, method, code):
    async def main():
        process = await python("import time; time.sleep(60)")
        getattr(process, method)()
        assert await process.wait() == code
        with pytest.raises(ProcessLookupError):
            getattr(process, method)()

    run(main())


def test_lines_can_be_exchanged_while_it_runs(run):
    async def main():
        source = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"
        process = await python(source, stdin=PIPE, stdout=PIPE)
        for number in range(100):
            process.stdin.write(b"line %d\n" % number)
            assert await process.stdout.readline() == b"LINE %d\n" % number
        process.stdin.close()
        assert await process.wait() == 0

    run(main())


def test_subprocess_shell_uses_the_environment(run):
    async def main():
        process = await asyncio.create_subprocess_shell(
            'echo "$GREETING from $(pwd)"', stdout=PIPE, env={**os.environ, "GREETING": "hello"}, cwd="/"
        )
        assert await process.communicate() == (b"hello from /\n", None)

    run(main())


def test_every_argument_of_popen_is_taken(run):
    async def main():
        for options in ({"start_new_session": True}, {"process_group": 0}, {"umask": 0o77}, {"close_fds": True}):
            process = await python("import os; print(os.getpid() == os.getpgid(0))", stdout=PIPE, **options)
            out, _ = await process.communicate()
            assert out == (b"True\n" if {"start_new_session", "process_group"} & set(options) else b"False\n")
        reader, writer = os.pipe()
        process = await python(f"import os; os.write({writer}, b'passed')", pass_fds=(writer,))
        await process.wait()
        os.close(writer)
        assert os.read(reader, 100) == b"passed"
        os.close(reader)

    run(main())


IDENTITY = "import os; print(os.getuid(), os.getgid(), sorted(os.getgroups()), oct(os.umask(0)), os.getcwd())"
MASK = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), signal.getsignal(signal.SIGPIPE))"
TABLE = {
    "cwd": ({"cwd": "/"}, "import os; print(os.getcwd())"),
    "env": ({"env": {"ONLY": "this"}}, "import os; print(os.environ.get('ONLY'), 'HOME' in os.environ)"),
    "start_new_session": ({"start_new_session": True}, "import os; print(os.getsid(0) == os.getpid())"),
    "process_group": ({"process_group": 0}, "import os; print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid())"),
    "umask": ({"umask": 0o027}, IDENTITY),
    "user": ({"user": os.getuid()}, IDENTITY),
    "group": ({"group": os.getgid()}, IDENTITY),
    "restore_signals": ({"restore_signals": False}, MASK),
    "close_fds": ({"close_fds": False}, MASK),
    "preexec_fn": ({"preexec_fn": lambda: os.environ.update(SET="before") or os.chdir("/")}, "import os; print(os.getcwd())"),
    "pipesize": ({"pipesize": 65536 * 2}, "import fcntl; print(fcntl.fcntl(1, fcntl.F_GETPIPE_SZ))"),
    "executable": ({"executable": "/bin/sh"}, "echo $0"),
    "bufsize": ({"bufsize": 0}, "print(1)"),
    "creationflags": ({"creationflags": 0, "startupinfo": None}, "print(1)"),
}
if os.getuid() == 0:
    TABLE["another user"] = ({"user": 65534, "group": 65534, "extra_groups": [65533]}, IDENTITY)


@pytest.mark.parametrize("options, source", TABLE.values(), ids=TABLE)
def test_each_argument_does_what_popen_does(run, options, source):
    command = [sys.executable, "-c", source]
    if os.getuid() == 0 and "user" in options:
        command[0] = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else command[0]

    async def main():
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=asyncio.subprocess.STDOUT, **options)
        out, _ = await process.communicate()
        return process.returncode, out

    expected = subprocess.run(command, stdout=PIPE, stderr=subprocess.STDOUT, **options)  # noqa: PLW1510
    assert run(main()) == (expected.returncode, expected.stdout)


@pytest.mark.parametrize(
    "options",
    [
        {"universal_newlines": True}, {"text": True}, {"encoding": "utf-8"}, {"errors": "replace"}, {"bufsize": 1},
        {"shell": True}, {"no_such_argument": 1}, {"pass_fds": "x"}, {"user": "no such user"}, {"cwd": "/no/such/directory"},
        {"stdin": -5}, {"process_group": "x"}, {"umask": "x"}, {"env": 5}, {"preexec_fn": 5},
    ],
)  # fmt: skip
def test_wrong_arguments_raise_as_asyncio_does_and_leave_nothing(loop_factory, options):
    async def main():
        try:
            process = await asyncio.create_subprocess_exec("/bin/true", **options)
        except Exception as error:
            return type(error), str(error)
        return await process.wait()

    def outcome(factory):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main())

    assert outcome(loop_factory) == outcome(asyncio.SelectorEventLoop)


def test_stdin_stdout_and_stderr_can_be_redirected(run, tmp_path):
    echo = "import sys; sys.stdout.write(sys.stdin.read()); sys.stdout.flush(); sys.stderr.write('!')"

    async def main():
        null, merge = asyncio.subprocess.DEVNULL, asyncio.subprocess.STDOUT
        (tmp_path / "in").write_text("from a file")
        with open(tmp_path / "in") as source, open(tmp_path / "out", "wb") as target:
            process = await python(echo, stdin=source, stdout=target, stderr=target.fileno())
            assert (process.stdin, process.stdout, process.stderr) == (None, None, None)
            assert await process.wait() == 0
        assert (tmp_path / "out").read_text() == "from a file!"
        process = await python(echo, stdin=null, stdout=PIPE, stderr=merge)
        assert process.stderr is None and await process.communicate() == (b"!", None)
        process = await python(echo, stdin=PIPE, stdout=null, stderr=PIPE)
        assert await process.communicate(b"lost") == (None, b"!")
        one, other = socket.socketpair()
        with one, other:
            process = await python(echo, stdin=other, stdout=other, stderr=null)
            other.close()
            one.sendall(b"over a socket")
            one.shutdown(socket.SHUT_WR)
            await process.wait()
            assert one.recv(100) == b"over a socket"
        terminal, inside = os.openpty()
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read line; echo got $line", stdin=inside, stdout=inside)
        os.close(inside)
        os.write(terminal, b"typed\n")
        assert await process.wait() == 0
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while chunk := os.read(terminal, 1000):
                shown += chunk
        assert b"got typed" in shown
        os.close(terminal)

    run(main())


@pytest.mark.native
def test_the_three_pipes_are_native(run):
    async def main():
        process = await asyncio.create_subprocess_exec("/bin/cat", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        kinds = [type(process._transport.get_pipe_transport(fd)).__name__ for fd in range(3)]
        assert kinds == ["WritePipeTransport", "ReadPipeTransport", "ReadPipeTransport"]
        assert all(type(process._transport.get_pipe_transport(fd)).__module__ == "wakeloop._core" for fd in range(3))
        await process.communicate(b"")

    run(main())


@pytest.mark.skipif(
    "_log_traceback" not in inspect.getsource(asyncio.subprocess.SubprocessStreamProtocol),
    reason="an early 3.11 leaves a future behind that has the error",
)
def test_a_process_that_does_not_read_its_input(run):
    """The pipe breaks while the program writes: communicate() ignores it, drain() raises."""

    async def main():
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "exec <&-; echo done", stdin=PIPE, stdout=PIPE)
        assert await process.communicate(b"x" * 1_000_000) == (b"done\n", None)
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "exec <&-; sleep 60", stdin=PIPE)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                process.stdin.write(b"x" * 100_000)
                await process.stdin.drain()
        process.kill()
        await process.wait()

    run(main())


def test_output_waits_for_a_paused_reader(run):
    """The stream's limit pauses reading. The process blocks on a full pipe, and nothing is lost."""

    async def main():
        source = "import sys\nfor n in range(20000): print('%0100d' % n)"
        process = await python(source, stdout=PIPE, limit=4096)
        await asyncio.sleep(0.2)
        lines = [int(line) async for line in process.stdout]
        assert lines == list(range(20000)) and await process.wait() == 0

    run(main())


def test_both_directions_at_once_do_not_block_each_other(run):
    async def main():
        payload = os.urandom(1 << 20) * 8
        process = await asyncio.create_subprocess_exec("/bin/cat", stdin=PIPE, stdout=PIPE)
        out, _ = await process.communicate(payload)
        assert out == payload

    run(main())


def test_many_processes_talk_at_once(run):
    async def one(number):
        process = await asyncio.create_subprocess_exec("/bin/cat", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        data = bytes([number]) * 200_000
        out, err = await process.communicate(data)
        assert (out, err, process.returncode) == (data, b"", 0)

    async def main():
        await asyncio.gather(*(one(number) for number in range(30)))

    run(main())


def test_many_processes_at_once(run):
    async def main():
        processes = await asyncio.gather(
            *(asyncio.create_subprocess_exec("/bin/sh", "-c", f"exit {number}") for number in range(40))
        )
        assert await asyncio.gather(*(process.wait() for process in processes)) == list(range(40))

    run(main())


def test_the_exit_is_noticed_at_once(run):
    async def main():
        loop, taken = asyncio.get_running_loop(), []
        for _ in range(10):
            process = await asyncio.create_subprocess_exec("/bin/true")
            start = loop.time()
            await process.wait()
            taken.append(loop.time() - start)
        assert sorted(taken)[5] < 0.1

    run(main())


def test_a_missing_program_raises_file_not_found_error(run):
    async def main():
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/no/such/program")

    run(main())


def test_cancelling_a_wait_does_not_end_the_process(run):
    async def main():
        process = await python("import time; time.sleep(60)")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.02)
        assert process.returncode is None
        process.kill()
        await process.wait()

    run(main())


def test_the_protocol_is_notified_of_pipes_and_exit_in_order(run):
    class Watching(asyncio.SubprocessProtocol):
        def __init__(self):
            self.calls, self.output = [], b""
            self.lost = asyncio.get_running_loop().create_future()

        def connection_made(self, transport):
            self.calls.append("connection_made")

        def pipe_data_received(self, fd, data):
            self.output += data

        def pipe_connection_lost(self, fd, exc):
            self.calls.append(f"pipe {fd} lost")

        def process_exited(self):
            self.calls.append("process_exited")

        def connection_lost(self, exc):
            self.calls.append("connection_lost")
            self.lost.set_result(None)

    async def main():
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(Watching, "/bin/sh", "-c", "echo out; exit 3", stdin=None, stderr=None)
        await protocol.lost
        assert protocol.output == b"out\n" and transport.get_returncode() == 3
        assert protocol.calls[0] == "connection_made" and protocol.calls[-1] == "connection_lost"
        assert sorted(protocol.calls[1:-1]) == ["pipe 1 lost", "process_exited"]
        assert isinstance(transport, asyncio.SubprocessTransport)
        transport.close()

    run(main())


def test_a_callback_may_write_to_a_child_and_block_until_it_answers(run):
    async def main():
        ours, theirs = os.pipe()
        with os.fdopen(ours, "rb") as answers:
            process = await asyncio.create_subprocess_exec("/bin/cat", stdin=PIPE, stdout=theirs)
            os.close(theirs)
            for line in (b"one\n", b"two\n"):
                process.stdin.write(line)
                assert answers.readline() == line
            process.stdin.close()
            assert await process.wait() == 0

    run(main())
