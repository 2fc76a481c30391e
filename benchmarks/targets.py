"""The targets: the ratio to uvloop 0.23 on CPython 3.13, by the metric of each scenario.

They were set before the code was written. A row that does not reach its target stays in the table, marked as short.
"""

from __future__ import annotations

#: The Python version of the targets.
PYTHON = "3.13"

TARGETS: dict[str, float] = {
    "call_soon/noargs": 2.0,
    "call_soon/3args": 1.9,
    "call_soon/chain": 4.0,
    "call_later/schedule+cancel": 4.5,
    "call_later/100k-firing": 3.0,
    "call_soon_threadsafe/flood": 2.0,
    "task/sleep0": 2.1,
    "task/sleep0-100tasks": 1.4,
    "task/create+await": 1.2,
    "task/queue-pingpong": 1.45,
    "task/gather1000": 1.15,
    "executor/round-trip": 1.1,
    "loop/run-trivial": 3.0,
    "tcp/proto/1k/c1": 1.15,
    "tcp/proto/1k/c10": 1.5,
    "tcp/proto/1k/c100": 1.5,
    "tcp/proto/10k/c10": 1.3,
    "tcp/proto/100k/c10": 1.25,
    "tcp/buffered/1k/c10": 1.6,
    "tcp/two-writes/1k/c10": 2.0,
    "tcp/streams/1k/c10": 1.4,
    "tcp/readline/1k/c10": 1.25,
    "tcp/streams/100k/c10": 1.7,
    "client/streams/1k/c10": 1.35,
    "tcp/native-streams/1k/c10": 1.9,
    "tcp/native-streams/100k/c10": 2.2,
    "tcp/sock/1k/c10": 4.0,
    "tcp/accept+close/c10": 1.2,
    "tcp/bulk/64k-writes/c4": 1.3,
    "udp/1k/c10": 1.5,
    "unix/proto/1k/c10": 1.6,
    "unix/streams/1k/c10": 1.35,
    "tls/proto/1k/c10": 1.75,
    "tls/proto/100k/c10": 1.3,
    "tls/streams/1k/c10": 1.6,
    "http/uvicorn-httptools": 1.5,
    "http/uvicorn-h11": 1.15,
    "http/aiohttp": 1.25,
    "client/connect+close": 1.1,
    "pipe/64k-chunks": 1.2,
    "subprocess/communicate": 2.3,
    "getaddrinfo/numeric": 1.2,
    "getaddrinfo/localhost": 1.1,
    "tcp/idle-memory/c5000": 1.5,
    "tcp/active-among-idle/c50+9950": 1.0,
    "tcp/busy-thread/c50": 2.0,
}
