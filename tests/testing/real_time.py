"""A testing loop in real time without a schedule: it has to do what asyncio does. CPython's own tests run on it:

    python -m tests.conformance --loop tests.testing.real_time:EventLoop
    python -m pytest tests/loop/test_timers.py --loop tests.testing.real_time
"""

from wakeloop import testing


class EventLoop(testing.EventLoop):
    def __init__(self):
        super().__init__(clock="real")


def new_event_loop():
    return EventLoop()
