"""How a loop notices the end of its child processes: by a pidfd each, in the loop's own poller.

The kernel makes a pidfd readable when its process ends, so no thread has to wait and no signal is needed. Where there
are no pidfds, or no descriptor is left, asyncio's thread per child waits. Until Python 3.13 the event loop policy has a
child watcher; a child watcher that the program has chosen is used as asyncio uses it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from .._asyncio import base_events, compat, events, unix_events
from . import LoopState

_REAPED_ELSEWHERE = (
    "Unknown child process pid %d, will report returncode 255"
    if compat.DefaultChildWatcher is compat.ThreadedChildWatcher
    else "child process pid %d exit status already read:  will report returncode 255"
)


def are_ours(loop: LoopState) -> bool:
    """Whether this loop watches its children itself. False if the program has chosen a child watcher."""
    if not compat.watches_children():
        return False
    if hasattr(loop, "_watcher"):
        return type(loop._watcher) is compat.DefaultChildWatcher
    policy: Any = events.get_event_loop_policy()
    getter = type(policy).get_child_watcher
    if getter is unix_events._UnixDefaultEventLoopPolicy.get_child_watcher:
        return policy._watcher is None or type(policy._watcher) is compat.DefaultChildWatcher
    # A policy without a child watcher leaves the choice to the loop.
    return getter is getattr(asyncio.AbstractEventLoopPolicy, "get_child_watcher")


async def spawn(loop: LoopState, *args: Any, **kwargs: Any) -> Any:
    """Starts a process as asyncio does, with the arguments of `_make_subprocess_transport`, and watches for its end."""
    waiter = loop.create_future()
    transport = unix_events._UnixSubprocessTransport(loop, *args, waiter=waiter, **kwargs)
    watch(loop, transport.get_pid(), transport)
    try:
        await waiter
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        transport.close()
        await asyncio.shield(transport._wait())
        raise
    return transport


def watch(loop: LoopState, pid: int, transport: Any) -> None:
    """Reports the return code of a process to its transport, once it has ended."""
    pidfd = -1
    try:
        pidfd = os.pidfd_open(pid)
        loop._add_reader(pidfd, _ended, loop, pid, pidfd, transport)
        loop._watches_itself(pidfd)
    except (AttributeError, OSError):
        if pidfd >= 0:
            os.close(pidfd)
        _wait_in_thread(loop, pid, transport)
        return
    loop._pidfds[pidfd] = transport


def _wait_in_thread(loop: LoopState, pid: int, transport: Any) -> None:
    global _threads
    if _threads is None:
        _threads = compat.ThreadedChildWatcher()
    running = events._get_running_loop()
    try:
        # The thread reports to the running loop.
        events._set_running_loop(loop)
        _threads.add_child_handler(pid, loop._child_watcher_callback, transport)
    finally:
        events._set_running_loop(running)


#: asyncio's threads for children. They outlive the loop.
_threads: Any = None


def forget(loop: LoopState) -> None:
    """Stops watching the children that still run, because the loop closes.

    Until Python 3.11 each of them has a thread of asyncio's, which outlives the loop: it keeps the transport, reaps the
    child, and logs that the loop is closed. From now on these children have one, too.
    """
    while loop._pidfds:
        pidfd, transport = loop._pidfds.popitem()
        loop._remove_reader(pidfd)
        has_thread = (
            compat.DefaultChildWatcher is compat.ThreadedChildWatcher
            and not loop._is_parents()
            and not sys.is_finalizing()  # A thread that is started then never runs.
            and _runs(pidfd)
        )
        os.close(pidfd)
        if has_thread:
            _wait_in_thread(loop, transport.get_pid(), transport)


def _runs(pidfd: int) -> bool:
    try:
        return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
    except (AttributeError, OSError):
        return False


def _ended(loop: LoopState, pid: int, pidfd: int, transport: Any) -> None:
    loop._pidfds.pop(pidfd, None)
    loop._remove_reader(pidfd)
    try:
        code = _reap(pid, pidfd)
    except ChildProcessError:
        # Other code has waited for the process. If that was its own Popen object, the return code is there.
        code = transport._proc.returncode
        if code is None:
            base_events.logger.warning(_REAPED_ELSEWHERE, pid)
            code = 255
    finally:
        os.close(pidfd)
    loop._child_watcher_callback(pid, code, transport)


def _reap(pid: int, pidfd: int) -> int:
    """Waits for a process that has ended. Returns its return code, as subprocess counts them."""
    try:
        # If other code has waited for the process, its number may belong to another child by now, for which waitpid()
        # would block. With WNOWAIT the process stays for waitpid(), which programs patch.
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        raise
    except (AttributeError, OSError):
        pass  # Linux 5.3 has pidfds that cannot be waited for
    code: int = unix_events.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code
