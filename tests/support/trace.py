"""Reads the recorder's traces, and checks them against Chrome's Trace Event Format, as far as the recorder uses it."""

import json
import math
import unicodedata
from collections import defaultdict
from pathlib import Path

#: The rounding of a time: three decimals of a microsecond.
ROUNDING = 0.0011
METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def refuse(constant):
    raise ValueError(f"{constant} is no JSON")


class Trace:
    """A trace that was checked."""

    def __init__(self, text):
        # The only line ends are those between events, and nothing controls a terminal that shows the file.
        assert not {char for char in text if unicodedata.category(char) in ("Cc", "Zl", "Zp")} - {"\n"}
        self.data = json.loads(text, parse_constant=refuse)
        assert set(self.data) == {"traceEvents", "displayTimeUnit", "otherData"}
        assert self.data["displayTimeUnit"] in ("ms", "ns")
        assert all(type(value) is str for value in self.data["otherData"].values())
        self.slices, self.instants, self.threads = [], [], {}
        pids = set()
        for event in self.data["traceEvents"]:
            pids.add(event["pid"])
            assert type(event["pid"]) is type(event["tid"]) is int and type(event["name"]) is str and event["name"]
            assert type(event.get("args", {})) is dict
            {"M": self._metadata, "X": self._slice, "i": self._instant}[event["ph"]](event)
        assert len(pids) == 1
        self.pid = pids.pop()
        assert {event["tid"] for event in self.slices + self.instants} <= set(self.threads)
        self._check_nesting()

    @classmethod
    def read(cls, path):
        return cls(Path(path).read_text())

    def _metadata(self, event):
        assert set(event) == {"ph", "pid", "tid", "name", "args"} and set(event["args"]) == {METADATA[event["name"]]}
        if event["name"] == "thread_name":
            assert self.threads.setdefault(event["tid"], event["args"]["name"]) == event["args"]["name"]

    def _slice(self, event):
        assert set(event) - {"args"} == {"ph", "pid", "tid", "cat", "ts", "dur", "name"}
        assert all(type(event[key]) is float and math.isfinite(event[key]) and event[key] >= 0 for key in ("ts", "dur"))
        self.slices.append(event)

    def _instant(self, event):
        assert set(event) - {"args"} == {"ph", "pid", "tid", "cat", "ts", "s", "name"} and event["s"] == "t"
        self.instants.append(event)

    def _check_nesting(self):
        """The slices of a thread are inside of each other or apart."""
        by_thread = defaultdict(list)
        for event in self.slices:
            by_thread[event["tid"]].append((event["ts"], -event["dur"], event["name"]))
        for slices in by_thread.values():
            ends = []
            for start, negative, name in sorted(slices):
                while ends and start >= ends[-1] - ROUNDING:
                    ends.pop()
                end = start - negative
                assert not ends or end <= ends[-1] + ROUNDING, f"{name} at {start} ends after what it is in"
                ends.append(end)

    # -- queries

    def find(self, name=None, *, category=None, thread=None):
        """The slices of a name, of a category, or of the threads whose name has a text, in the order of time."""
        found = [
            event
            for event in self.slices
            if (name is None or event["name"] == name)
            and (category is None or event["cat"] == category)
            and (thread is None or thread in self.threads[event["tid"]])
        ]
        return sorted(found, key=lambda event: (event["ts"], -event["dur"]))

    def names(self, **query):
        return [event["name"] for event in self.find(**query)]

    def slowest(self):
        """The callback or task step that took longest: what to look at if a loop is late."""
        return max(self.find(category="callback") + self.find(category="task"), key=lambda event: event["dur"])


def ends(event):
    """When a slice begins and ends, on the clock of time.monotonic()."""
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
