"""Scenarios for a child process: a shell that reads commands from a socket and answers when each is done."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys

from .scenario import Scenario
from .tasks import Tasks
from .writing import SMALL

SHELL = 'while read -r command <&"$0"; do eval "$command"; echo >&"$0"; done'
COMMANDS = {
    "writes": "echo 123",
    "writes more": "head -c 1000 /dev/zero",
    "writes an error": "echo 12345 >&2",
    "reads": "dd iflag=nonblock of=/dev/null bs=1M 2>/dev/null",
    "closes its input": "exec <&-",
    "closes its output": "exec >&-",
    "closes its errors": "exec 2>&-",
    "ignores": "trap '' TERM",
    "stops ignoring": "trap - TERM",
}
ENDS = ["exit 0", "exit 3", "kill -9 $$"]
#: More than a pipe holds.
BIG = 200_000


class Listening(asyncio.SubprocessProtocol):
    def __init__(self, scenario):
        self.scenario = scenario

    def connection_made(self, transport):
        self.scenario.transport = transport
        self.scenario.called("connection_made")

    def pipe_data_received(self, number, data):
        self.scenario.called("pipe_data_received", number, len(data))

    def pipe_connection_lost(self, number, error):
        self.scenario.called("pipe_connection_lost", number, self.scenario.describe(error))

    def pause_writing(self):
        self.scenario.called("pause_writing")

    def resume_writing(self):
        self.scenario.called("resume_writing")

    def process_exited(self):
        self.scenario.called("process_exited")

    def connection_lost(self, error):
        self.scenario.called("connection_lost", self.scenario.describe(error))


class ProcessScenario(Tasks, Scenario):
    CALLS = ["pipe_data_received", "pause_writing", "resume_writing", "connection_lost"]
    ACTIONS = {
        "child": 40, "child_ends": 3, "terminate": 3, "kill": 2, "send_signal": 3, "close": 3, "wait": 4, "cancel": 3,
        "code": 2, "pipe_writes": 12, "pipe_ends": 2, "pipe_closes": 3, "pipe_pauses": 4, "pipe_resumes": 5,
    }  # fmt: skip

    def __init__(self, seed, loop):
        super().__init__(seed, loop)
        self.tasks, self.ignoring = [], False
        if sys.version_info < (3, 12) and type(loop) is asyncio.SelectorEventLoop:
            # Until 3.11 asyncio has a thread for each child, which takes its time.
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(loop)
            asyncio.set_child_watcher(watcher)
        #: The step in which the child ended.
        self.ended = None

    async def begin(self):
        pipes = {
            name: self.random.choice([subprocess.PIPE, subprocess.PIPE, subprocess.DEVNULL])
            for name in ("stdin", "stdout", "stderr")
        }
        if self.random.random() < 0.2:
            pipes["stderr"] = subprocess.STDOUT
        self.record("pipes", *pipes.values())
        self.peer, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            shell = "/bin/bash", "-c", SHELL, str(number)
            await self.loop.subprocess_exec(lambda: Listening(self), *shell, pass_fds=[number], **pipes)

    def state(self):
        pipes = [self.transport.get_pipe_transport(number) for number in range(3)]
        closing = [pipe and pipe.is_closing() for pipe in pipes]
        return self.transport.get_returncode(), closing, sum(not task.done() for task in self.tasks)

    def cleaned(self, text):
        return re.sub(r"(pid[= ]|process )\d+", r"\1", super().cleaned(text))

    def leave(self):
        self.transport.close()
        self.wait_for_end()
        for task in self.tasks:
            task.cancel()

    def end(self):
        super().end()
        if sys.version_info < (3, 12):
            asyncio.set_child_watcher(None)
        self.tasks.clear()

    def record(self, *what):
        """Sorts the step in which the child ends: the poller decides the order of its exit and of its pipes' ends."""
        super().record(*what)
        if self.ended == self.step:
            start = next(n for n, one in enumerate(self.seen) if one[0] == self.step)
            self.seen[start:] = sorted(self.seen[start:], key=repr)

    # After the child has ended, the step does nothing else: asyncio's transport and its watcher race for the exit status.
    def act(self, action):
        if self.ended != self.step:
            super().act(action)

    # -- the child ---------------------------------------------------------------------------------------------------

    def child(self, what):
        if self.ended is None:
            self.ignoring = what == "ignores" or self.ignoring and what != "stops ignoring"
            self.peer.send(COMMANDS[what].encode() + b"\n")
            return len(self.peer.recv(1))

    def choose_child(self):
        return (self.random.choice(list(COMMANDS)),)

    def child_ends(self, how):
        if self.ended is None:
            self.peer.send(how.encode() + b"\n")
            self.wait_for_end()

    def choose_child_ends(self):
        return (self.random.choice(ENDS),)

    def wait_for_end(self):
        """Waits until the kernel has the exit status, without taking it from the loop."""
        if self.ended is None:
            self.ended = self.step
            try:
                os.waitid(os.P_PID, self.transport.get_pid(), os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                pass  # the transport has collected it

    # -- the transport -----------------------------------------------------------------------------------------------

    def close(self):
        self.transport.close()
        self.wait_for_end()

    def kill(self):
        self.transport.kill()
        self.wait_for_end()

    def terminate(self):
        self.transport.terminate()
        if not self.ignoring:
            self.wait_for_end()

    def send_signal(self, number):
        self.transport.send_signal(number)
        if number == signal.SIGUSR1:
            self.wait_for_end()

    def choose_send_signal(self):
        return (self.random.choice([signal.SIGUSR1, signal.SIGCONT, signal.SIGWINCH, 0]),)

    def wait(self):
        self.spawn("wait", self.transport._wait)

    def code(self):
        return self.transport.get_returncode()

    # -- its pipes ---------------------------------------------------------------------------------------------------

    def pipe(self, number):
        return self.transport.get_pipe_transport(number)

    def pipe_writes(self, size):
        if self.pipe(0):
            self.pipe(0).write(bytes(size))

    def choose_pipe_writes(self):
        return (self.random.choice([*SMALL, BIG]),)

    def pipe_ends(self):
        if self.pipe(0):
            self.pipe(0).write_eof()

    def pipe_closes(self, number):
        if self.pipe(number):
            self.pipe(number).close()

    def choose_pipe_closes(self):
        return (self.random.randrange(3),)

    def pipe_pauses(self, number):
        if self.pipe(number):
            self.pipe(number).pause_reading()

    def choose_pipe_pauses(self):
        return (self.random.choice([1, 2]),)

    def pipe_resumes(self, number):
        if self.pipe(number):
            self.pipe(number).resume_reading()

    choose_pipe_resumes = choose_pipe_pauses
