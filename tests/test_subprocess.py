"""Child processes."""

import asyncio
import os
import signal
import sys

import pytest

PIPE = asyncio.subprocess.PIPE


def python(source, **options):
    return asyncio.create_subprocess_exec(sys.executable, "-c", source, **options)


def test_communicate_feeds_and_collects(run):
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
def test_a_process_can_be_ended(run, method, code):
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


def test_the_shell_and_its_environment(run):
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


def test_a_program_that_is_not_there(run):
    async def main():
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/no/such/program")

    run(main())


def test_cancelling_a_wait_lets_the_process_live(run):
    async def main():
        process = await python("import time; time.sleep(60)")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.02)
        assert process.returncode is None
        process.kill()
        await process.wait()

    run(main())


def test_the_protocol_hears_of_pipes_and_exit_in_order(run):
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
