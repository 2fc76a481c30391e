"""A trace of the flight recorder is what Chrome's Trace Event Format allows, and has every event."""

from collections import Counter

from tests.support.trace import Trace


def check(text, instants, callbacks, detail, dropped):
    trace = Trace(bytes(text).decode())
    counts = Counter(event["name"] for event in trace.instants)
    assert {name: counts[name] for name in instants} == instants
    shown = Counter(event["name"] for event in trace.slices if event["cat"] in ("callback", "task"))
    # A receive of a callback, and what is sent, are no callbacks.
    assert shown == Counter(name or "(name not kept)" for name in callbacks)
    key, value = detail
    assert trace.data["otherData"] == {key: value, "events_dropped": str(dropped)}
