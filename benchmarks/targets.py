"""The targets: what our cost is worth on any machine and on any Python, by the metric of each scenario.

Where a scenario has a baseline, which no loop can beat by doing the same, the target is a share of that floor: the
baseline's cost divided by ours. Elsewhere it is the cost of the best other loop divided by ours. ``results.py`` prints
the rows that do not reach their target; the pages of results have every row, and no targets.
"""

from __future__ import annotations

#: The baseline's cost over ours. What the floor of a row leaves out, Python code does: asyncio's streams, a web server.
OF_THE_BASELINE: dict[str, float] = {
    "tcp/proto/1k/c1": 1.0,
    "tcp/proto/1k/c10": 0.95,
    "tcp/proto/1k/c100": 0.95,
    "tcp/proto/10k/c10": 0.95,
    "tcp/proto/100k/c10": 0.95,
    "tcp/buffered/1k/c10": 0.9,
    "tcp/two-writes/1k/c10": 0.9,
    "tcp/streams/1k/c1": 1.0,
    "tcp/streams/1k/c10": 0.75,
    "tcp/streams/100k/c10": 0.8,
    "tcp/native-streams/1k/c10": 0.85,
    "tcp/native-streams/100k/c10": 0.9,
    "tcp/readline/1k/c10": 0.7,
    "tcp/sock/1k/c10": 0.75,
    "tcp/accept+close/c10": 0.95,
    "tcp/bulk/4k-writes/c1": 0.95,
    "tcp/bulk/64k-writes/c1": 0.95,
    "tcp/bulk/1024k-writes/c1": 0.95,
    "tcp/bulk/64k-writes/c4": 0.95,
    "tcp/upload/4m/c1": 0.95,
    "tcp/upload/4k-writes/c1": 0.95,
    "tcp/upload/64k-writes/c1": 0.95,
    "tcp/native-streams/upload/4m/c1": 0.9,
    "udp/1k/c10": 0.9,
    "unix/proto/1k/c10": 0.9,
    "unix/streams/1k/c10": 0.6,
    "tls/proto/1k/c10": 0.8,
    "tls/streams/1k/c10": 0.7,
}

#: The cost of the best other loop over ours, if it is not to be just as good.
OF_THE_BEST: dict[str, float] = {
    "call_soon/noargs": 1.5,
    "call_soon/3args": 2.0,
    "call_soon/chain": 1.5,
    "call_soon_threadsafe/flood": 1.2,
    "call_later/schedule+cancel": 3.0,
    "call_later/100k-firing": 1.2,
    "task/sleep0": 1.2,
    "future/set_result-wake": 1.3,
    "task/timeout-ctx": 1.5,
    "executor/100-jobs": 1.5,
    "loop/run-trivial": 1.3,
}
AS_GOOD = 1.0
