"""For the tests of the flight recorder: the trace of a block, and callbacks that note when they really ran."""

import contextlib
import itertools
import time

import pytest
import wakeloop

from .trace import Trace, ends

#: The two clocks of a recording are compared to some microseconds; a busy machine may interrupt that.
TOLERANCE = 0.0005


@pytest.fixture(autouse=True)
def recorder_stops():
    yield
    if wakeloop.Recorder.running():
        wakeloop.Recorder.running().stop()
        pytest.fail("the test has left a recorder running")


@pytest.fixture(name="path")
def trace_path(tmp_path):
    return tmp_path / "trace.json"


@contextlib.contextmanager
def recorded(path, **options):
    """Records a block; yields an empty list, which then has the trace."""
    found = []
    with wakeloop.record(path, **options):
        yield found
    found.append(Trace.read(path))


def record(path, run, coroutine, **options):
    """The trace of a coroutine."""
    with recorded(path, **options) as found:
        run(coroutine)
    return found[0]


def wait_for(condition):
    """Waits until a thread or another process has done something."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing has happened"
        time.sleep(0.005)


class Truth:
    """Callbacks and tasks that note when they really ran."""

    def __init__(self):
        self.ran = {}

    def callback(self, name, seconds=0.002):
        def run(*_):
            start = time.monotonic()
            time.sleep(seconds)
            self.ran[name] = (start, time.monotonic())

        run.__qualname__ = name
        return run

    def check(self, trace):
        """Each slice is from before its callback until after it, and does not reach into the next one."""
        order = sorted(self.ran, key=self.ran.get)
        before = 0.0
        for name, following in itertools.zip_longest(order, order[1:]):
            (event,) = trace.find(name)
            (start, end), (truly_start, truly_end) = ends(event), self.ran[name]
            assert before - TOLERANCE <= start <= truly_start + TOLERANCE, name
            assert end >= truly_end - TOLERANCE, name
            assert following is None or end <= self.ran[following][0] + TOLERANCE, name
            before = truly_end
