"""The exit of child processes: it is noticed at once, and nothing is left behind."""

import asyncio
import errno
import os
import signal
import sys
import threading
import time

import pytest

from tests.support import leaks
from tests.support.script import run_script

PIPE = asyncio.subprocess.PIPE
SLEEP = ("/bin/sleep", "60")


def spawn(*command, **options):
    return asyncio.create_subprocess_exec(*command, **options)


def popen_of(process):
    return process._transport.get_extra_info("subprocess")


def stdin_of(process):
    return process._transport.get_pipe_transport(0).get_extra_info("pipe").fileno()


def is_zombie_or_alive(pid):
    return os.path.exists(f"/proc/{pid}")


def resources():
    """Returns what the kernel counts for this process: descriptors, threads, children."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), leaks.children()


def are_more(now, before):
    """Fewer are no leak: a thread of an earlier test may have ended meanwhile."""
    return not all(count <= earlier for count, earlier in zip(now, before, strict=True))


async def settled():
    """Returns the same, once asyncio's thread that waited for the last child (if there is one) has ended."""
    while any("waitpid" in thread.name for thread in threading.enumerate()):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    return resources()


@pytest.mark.slow
@pytest.mark.parametrize("at_once, total", [(1, 1000), (50, 1000)], ids=["one after another", "fifty at a time"])
@pytest.mark.timeout(180)
def test_a_thousand_processes_leave_nothing(run, at_once, total):
    async def one():
        process = await spawn("/bin/true")
        return await process.wait()

    async def main():
        await one()
        before = await settled()
        for _ in range(total // at_once):
            assert await asyncio.gather(*(one() for _ in range(at_once))) == [0] * at_once
        assert not are_more(await settled(), before)

    run(main())


@pytest.mark.native
def test_no_thread_and_no_poll_waits_for_a_process(run):
    async def main():
        loop, before = asyncio.get_running_loop(), set(os.listdir("/proc/self/task"))
        process = await spawn(*SLEEP)
        await asyncio.sleep(0.05)
        polls = loop.metrics().polls
        await asyncio.sleep(0.3)
        # One is the timer of the sleep itself, and a machine under load may add one.
        assert loop.metrics().polls - polls <= 4
        assert set(os.listdir("/proc/self/task")) <= before
        process.kill()
        assert await process.wait() == -signal.SIGKILL

    run(main())


@pytest.mark.parametrize("error", [None, errno.ENOSYS, errno.EPERM, errno.EMFILE])
def test_a_thread_waits_for_the_process_without_pidfds(run, monkeypatch, error, loop_name):
    def refuse(pid, flags=0):
        raise OSError(error, os.strerror(error))

    async def main():
        process = await spawn("/bin/sh", "-c", "exit 5", stdout=PIPE)
        assert await process.communicate() == (b"", None)
        assert process.returncode == 5
        process = await spawn(*SLEEP)
        process.terminate()
        assert await process.wait() == -signal.SIGTERM

    if loop_name == "asyncio" and sys.version_info[:2] in ((3, 12), (3, 13)):
        pytest.skip("asyncio looks once in the life of a policy")
    if error is None:
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    run(main())


@pytest.mark.native
def test_a_thread_waits_for_the_process_if_the_poller_refuses_the_pidfd(run, monkeypatch):
    before = resources()

    async def main():
        loop = asyncio.get_running_loop()

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(type(loop), "_add_reader", full)
        process = await spawn("sh", "-c", "exit 7")
        assert await process.wait() == 7

    run(main())
    # The thread ends a moment after it has reported the exit.
    while are_more(resources(), before):
        time.sleep(0.01)


def test_a_process_reaped_by_other_code_has_returncode_255(run, asyncio_log):
    async def main():
        process = await spawn("/bin/sh", "-c", "read line; exit 3", stdin=PIPE)
        os.write(stdin_of(process), b"go\n")
        # The loop does not run meanwhile. A thread of asyncio's does.
        try:
            os.waitpid(process.pid, 0)
        except ChildProcessError:
            assert await process.wait() == 3
            return
        assert await process.wait() == 255
        # Until 3.11, asyncio's thread per child says it in other words.
        told = f"child process pid {process.pid} exit status already read:  will report returncode 255"
        if sys.version_info < (3, 12):
            told = f"Unknown child process pid {process.pid}, will report returncode 255"
        assert told in asyncio_log.messages

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has a thread for each child, and no reader")
def test_nothing_reads_the_descriptor_of_a_process_that_has_ended(run):
    async def main():
        readers = asyncio.get_running_loop()._selector.get_map()
        before = set(readers)
        process = await spawn("/bin/sh", "-c", "read line", stdin=PIPE)
        assert set(readers) > before
        await process.communicate()
        assert set(readers) == before

    run(main())


@pytest.mark.native
def test_a_process_reaped_by_other_code_is_not_waited_for_by_its_number(run, asyncio_log, monkeypatch):
    """The number may be that of another child by then."""

    async def main():
        process = await spawn("/bin/sh", "-c", "read line; exit 3", stdin=PIPE)
        os.write(stdin_of(process), b"go\n")
        os.waitpid(process.pid, 0)
        monkeypatch.setattr(os, "waitpid", lambda pid, options: pytest.fail(f"waits for {pid}"))
        assert await process.wait() == 255

    run(main())


def test_an_interrupt_while_a_process_starts_is_raised_at_once(run):
    async def main():
        class Remembering(asyncio.SubprocessProtocol):
            def connection_made(self, transport):
                transports.append(transport)

        transports = []
        start = asyncio.get_running_loop().subprocess_exec(Remembering, *SLEEP)
        # The coroutine waits for its pipes. What is thrown into it comes back from this call, or it waits further.
        future = start.send(None)
        with pytest.raises(KeyboardInterrupt):
            start.throw(KeyboardInterrupt)
        await asyncio.wait([future])
        (transport,) = transports
        assert transport.get_returncode() is None
        transport.close()
        await transport._wait()

    run(main())


@pytest.mark.native
def test_a_process_reaped_by_its_popen_object_keeps_its_returncode(run):
    async def main():
        process = await spawn("/bin/sh", "-c", "read line; exit 3", stdin=PIPE)
        os.write(stdin_of(process), b"go\n")
        assert popen_of(process).wait() == 3
        assert await process.wait() == 3

    run(main())


@pytest.mark.native
def test_ignoring_sigchld_does_not_hide_the_exit(loop_name):
    """With SIGCHLD ignored the kernel keeps no exit code: asyncio reports 255, and does not hang."""
    body = """
        import signal, logging
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        async def main():
            process = await asyncio.create_subprocess_exec("/bin/sleep", "0.1")
            print(await asyncio.wait_for(process.wait(), 5))
        asyncio.Runner(loop_factory=new_loop).run(main())
    """
    outcome = run_script(loop_name, body)
    assert (outcome.code, outcome.out) == (0, "255\n"), outcome


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="child watchers are gone")
@pytest.mark.parametrize("kind", ["a subclass", "asyncio's other one"])
def test_a_child_watcher_set_by_the_program_is_used(loop_name, kind):
    kinds = {
        "a subclass": """
            class Chosen(asyncio.ThreadedChildWatcher):
                def add_child_handler(self, pid, callback, *args):
                    print("asked")
                    super().add_child_handler(pid, callback, *args)
        """,
        "asyncio's other one": """
            import sys
            Kind = asyncio.PidfdChildWatcher if sys.version_info < (3, 12) else asyncio.ThreadedChildWatcher
            original = Kind.add_child_handler
            def add_child_handler(self, *args):
                print("asked")
                original(self, *args)
            Kind.add_child_handler, Chosen = add_child_handler, Kind
        """,
    }
    body = kinds[kind] + """
            async def main():
                watcher = Chosen()
                watcher.attach_loop(asyncio.get_running_loop())
                asyncio.set_child_watcher(watcher)
                process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "exit 4")
                print(await process.wait())
            loop = new_loop()
            loop.run_until_complete(main())
            asyncio.get_event_loop_policy()._watcher = None
            loop.close()
    """  # fmt: skip
    outcome = run_script(loop_name, body, options=("-W", "ignore"))
    assert (outcome.code, outcome.out) == (0, "asked\n4\n"), outcome


@pytest.mark.native
def test_subprocesses_work_with_a_policy_without_child_watchers(loop_name):
    body = """
        class Policy(asyncio.events.AbstractEventLoopPolicy if not hasattr(asyncio, "AbstractEventLoopPolicy")
                     else asyncio.AbstractEventLoopPolicy):
            _loop = None
            def get_event_loop(self):
                return self._loop
            def set_event_loop(self, loop):
                self._loop = loop
            def new_event_loop(self):
                return new_loop()
        asyncio.set_event_loop_policy(Policy())
        async def main():
            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "exit 4")
            print(await process.wait())
        asyncio.run(main())
    """
    outcome = run_script(loop_name, body, options=("-W", "ignore"))
    assert (outcome.code, outcome.out) == (0, "4\n"), outcome


def test_a_loop_in_another_thread_can_run_subprocesses(loop_factory):
    seen = []

    async def main():
        process = await spawn("/bin/sh", "-c", "echo here; exit 6", stdout=PIPE)
        seen.append((await process.communicate(), process.returncode))

    def work():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen == [((b"here\n", None), 6)]


def test_a_loop_in_another_thread_sees_a_slow_process_end(loop_factory):
    """The process exits while the loop is parked, not before it polls."""
    seen = []

    async def main():
        process = await spawn("/bin/sh", "-c", "sleep 0.1; exit 6")
        seen.append(await asyncio.wait_for(process.wait(), 10))

    def work():
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen == [6]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the transport goes with the loop, with warnings")
@pytest.mark.parametrize("ends", [False, True])
def test_a_process_that_outlives_its_loop_is_waited_for_until_python_3_11(loop_name, ends):
    body = f"""
        import os, threading, time
        async def main():
            process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read line", stdin=-1, stdout=-1)
            transport = process._transport.get_pipe_transport(0)
            return process.pid, os.dup(transport.get_extra_info("pipe").fileno())
        loop = new_loop()
        pid, pipe = loop.run_until_complete(main())
        loop.close()
        if {ends}:
            os.write(pipe, b"go\\n")
            while os.path.exists(f"/proc/{{pid}}"):
                time.sleep(0.001)
            while any("waitpid" in thread.name for thread in threading.enumerate()):
                time.sleep(0.001)
            print("reaped")
    """
    outcome = run_script(loop_name, body, options=("-W", "default"))
    if ends:
        assert (outcome.code, outcome.out) == (0, "reaped\n"), outcome
        assert "that handles pid" in outcome.err and "is closed" in outcome.err, outcome
    else:
        assert (outcome.code, outcome.err) == (0, ""), outcome


@pytest.mark.native
def test_a_loop_that_closes_with_processes_alive_keeps_no_descriptor(loop_name):
    body = """
        import os
        async def main():
            return [await asyncio.create_subprocess_exec("/bin/sleep", "60") for _ in range(3)]
        before = len(os.listdir("/proc/self/fd"))
        loop = new_loop()
        processes = loop.run_until_complete(main())
        loop.close()
        print(len(os.listdir("/proc/self/fd")) - before)
        for process in processes:
            popen = process._transport.get_extra_info("subprocess")
            assert popen.poll() is None
            popen.kill()
            print(popen.wait())
            process._transport._closed = True
    """
    outcome = run_script(loop_name, body)
    left, *codes = outcome.out.split()
    # Until 3.11, a thread of asyncio's may take the exit code.
    known = {"-9"} if sys.version_info >= (3, 12) else {"-9", "0"}
    assert outcome.code == 0 and left == "0" and len(codes) == 3 and known.issuperset(codes), outcome


def test_the_interpreter_ends_quietly_with_a_process_alive(loop_name):
    body = """
        async def main():
            process = await asyncio.create_subprocess_exec("/bin/sleep", "60", stdin=-1, stdout=-1)
            process.kill()
        asyncio.Runner(loop_factory=new_loop).run(main())
    """
    assert run_script(loop_name, body, options=("-W", "ignore")).code == 0


def test_sending_a_signal_after_the_exit_raises_process_lookup_error(run):
    async def main():
        process = await spawn("/bin/true")
        await process.wait()
        await asyncio.sleep(0.01)  # on 3.14 wait() returns before connection_lost
        for call in (process.kill, process.terminate, lambda: process.send_signal(signal.SIGUSR1)):
            with pytest.raises(ProcessLookupError):
                call()
        assert process.returncode == 0

    run(main())


def test_a_signal_between_the_exit_and_its_notification_is_harmless(run, loop_name):
    if loop_name == "asyncio" and sys.version_info < (3, 13):
        pytest.skip("Popen.send_signal() polls, which takes the code from asyncio's watcher")

    async def main():
        process = await spawn("/bin/true")
        time.sleep(0.1)
        process.kill()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0

    run(main())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGSEGV, signal.SIGRTMIN + 1])
def test_the_returncode_of_a_process_killed_by_a_signal_is_the_negative_signal_number(run, number):
    async def main():
        process = await spawn(*SLEEP)
        process.send_signal(number)
        assert await process.wait() == -number

    run(main())


def test_a_stopped_process_has_not_ended(run):
    async def main():
        process = await spawn(*SLEEP)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.05)
        process.send_signal(signal.SIGCONT)
        process.kill()
        assert await process.wait() == -signal.SIGKILL

    run(main())


def test_closing_the_transport_kills_the_process(run):
    async def main():
        process = await spawn(*SLEEP, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        process._transport.close()
        assert await process.wait() == -signal.SIGKILL
        assert not is_zombie_or_alive(process.pid)

    run(main())


@pytest.mark.native
def test_closing_the_transport_just_after_the_exit_keeps_the_returncode(run):
    """asyncio's close() polls the process, which takes the exit code from its own watcher: it reports 255."""

    async def main():
        process = await spawn("/bin/sh", "-c", "exit 3")
        time.sleep(0.1)
        process._transport.close()
        assert await process.wait() == 3

    run(main())


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_cancelling_a_start_kills_the_process(run, steps, asyncio_log):
    pids = []

    async def main():
        class Remembering(asyncio.SubprocessProtocol):
            def connection_made(self, transport):
                pids.append(transport.get_pid())

        loop = asyncio.get_running_loop()
        task = asyncio.create_task(loop.subprocess_exec(Remembering, *SLEEP))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            transport, _ = await asyncio.wait_for(task, 5)
            transport.close()
            await transport._wait()
        except asyncio.CancelledError:
            pass

    run(main())
    assert not any(is_zombie_or_alive(pid) for pid in pids)


def test_a_process_can_be_killed_after_communicate_was_cancelled(run):
    async def main():
        process = await spawn(*SLEEP, stdin=PIPE, stdout=PIPE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(process.communicate(b"input"), 0.05)
        assert process.returncode is None
        process.kill()
        assert await process.communicate() == (b"", None)
        assert process.returncode == -signal.SIGKILL

    run(main())


def test_a_process_may_run_on_after_its_pipes_are_closed(run):
    async def main():
        source = "import os, sys, time; os.close(1); os.close(2); sys.stdin.read(); sys.exit(9)"
        process = await spawn(sys.executable, "-c", source, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert await process.stdout.read() == b"" == await process.stderr.read()
        assert process.returncode is None
        process.stdin.close()
        assert await process.wait() == 9

    run(main())


def test_a_grandchild_may_keep_the_pipe_when_the_process_has_ended(run):
    async def main():
        # cat ends when its standard input does. The shell would take that away from a child in the background.
        script = "exec 3<&0; cat <&3 & exit 2"
        process = await spawn("/bin/sh", "-c", script, stdin=PIPE, stdout=PIPE)
        while process.returncode is None:
            await asyncio.sleep(0.005)
        assert not process.stdout.at_eof()
        process.stdin.close()
        assert await process.stdout.read() == b""
        assert await process.wait() == 2

    run(main())
