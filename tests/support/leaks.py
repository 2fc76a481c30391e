"""Checks that a test leaves no descriptors, threads or child processes behind."""

import gc
import os
import threading
import time

from .builds import FREE_THREADED


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass  # the descriptor of this very listing
    return found


def take_failures():
    """Has to precede a collection that nobody shall notice; see `take_stream_failures`."""
    if FREE_THREADED:
        from wakeloop.testing._run import take_stream_failures

        take_stream_failures()


def children():
    found = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                found.update(map(int, file.read().split()))
        except FileNotFoundError:
            pass  # a thread that has just ended
    return found


class Snapshot:
    """Counts only Python's threads: the runtime's workers stay until the process ends."""

    def __init__(self):
        gc.collect()
        # What is alive now is not the test's. Without it, collections take a tenth of the time, those of CPython included.
        gc.freeze()
        self._descriptors = descriptors()
        self._threads = set(threading.enumerate())
        self.children = children()

    def left_behind(self):
        kept = [
            f"descriptor {fd} ({target})"
            for fd, target in descriptors().items()
            if self._descriptors.get(fd) != target
        ]
        kept += [f"thread {thread.name}" for thread in set(threading.enumerate()) - self._threads]
        kept += [f"child process {pid}" for pid in children() - self.children]
        return kept

    def check(self, patience=2.0):
        """Returns what is left after `patience` seconds. Executor threads and child processes need a moment to end."""
        take_failures()
        deadline = time.monotonic() + patience
        while self.left_behind():
            gc.collect()
            kept = self.left_behind()
            if not kept or time.monotonic() > deadline:
                return kept
            time.sleep(0.02)
        return []
