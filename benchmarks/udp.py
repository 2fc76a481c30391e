"""The load for UDP scenarios: every socket sends one datagram and takes its echo, in turn, every byte compared.

Ten datagrams are on their way at once. It runs in this process, pinned while it runs; the figures it gives have
the names that the Rust load generator uses.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeAlias

Exchange: TypeAlias = Callable[[list[Any], int, float], tuple[list[float], dict[str, int], float]]
"""Given sockets, a message size and a time: latencies, errors, and the time that was taken."""


def cpu_seconds(pid: int) -> float:
    """CPU time of another process: the kernel's clock id for a process (see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def run(
    port: int, pid: int, options: dict[str, Any], duration: float, warmup: float, cpu: int
) -> dict[str, Any]:
    def connect() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.connect(("127.0.0.1", port))
        made.settimeout(2)
        return made

    return measured(connect, _exchange, pid, options, duration, warmup, cpu)


def measured(
    connect: Callable[[], Any],
    exchange: Exchange,
    pid: int,
    options: dict[str, Any],
    duration: float,
    warmup: float,
    cpu: int,
) -> dict[str, Any]:
    """Exchanges messages over connections of this process's, and reports in the names of the Rust load generator."""
    before = os.sched_getaffinity(0)
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})
    try:
        sockets = [connect() for _ in range(options["connections"])]
        try:
            exchange(sockets, options["size"], warmup)
            server, own = cpu_seconds(pid), time.process_time()
            latencies, errors, seconds = exchange(sockets, options["size"], duration)
            server, own = cpu_seconds(pid) - server, time.process_time() - own
        finally:
            for each in sockets:
                each.close()
    finally:
        os.sched_setaffinity(0, before)
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [0.0] * 99
    return {
        "requests": len(latencies),
        "rate": len(latencies) / seconds,
        "errors": errors,
        "first_error": f"{next(iter(errors))} of a message" if errors else None,
        "latency_us": {"p50": cuts[49] * 1e6, "p99": cuts[98] * 1e6},
        "watched_cpu_seconds": server,
        "own_cpu_seconds": own,
    }


def _exchange(
    sockets: list[Any], size: int, duration: float
) -> tuple[list[float], dict[str, int], float]:
    latencies: list[float] = []
    errors: dict[str, int] = {}
    start = time.perf_counter()
    number = 0
    while (now := time.perf_counter()) - start < duration and not errors:
        sent = []
        for each in sockets:
            number += 1
            message = number.to_bytes(8, "little") * (size // 8)
            each.send(message)
            sent.append((each, message, time.perf_counter()))
        for each, message, when in sent:
            try:
                echo = each.recv(65536)
            except TimeoutError:
                errors["lost"] = errors.get("lost", 0) + 1
                continue
            if echo != message:
                errors["mismatch"] = errors.get("mismatch", 0) + 1
            latencies.append(time.perf_counter() - when)
    return latencies, errors, now - start
