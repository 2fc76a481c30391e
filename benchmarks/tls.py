"""TLS scenarios: the certificate, the load, and what a connection costs in memory.

The load runs in this process, which is pinned meanwhile. In each turn every connection sends one message, and every
byte of the echoes is compared. All messages of a turn are encrypted first and then sent together: Python encrypts more
slowly than the servers answer, and a server that slept between two messages would mostly show the cost of sleeping. The
report has the same keys as the load generator's. The openssl command makes the certificate when it is first needed.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VARIABLE = "WAKELOOP_BENCHMARK_CERTIFICATE"


def certificate() -> Path:
    """A directory with certificate.pem and key.pem, the same in this process and in its children."""
    if known := os.environ.get(_VARIABLE):
        return Path(known)
    # A benchmark that is killed leaves it there, where `make clean` removes it.
    target = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parent.parent / "target")
    target.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="tls-", dir=target))
    atexit.register(shutil.rmtree, directory, True)
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "certificate.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    os.environ[_VARIABLE] = str(directory)
    return directory


def pem_files() -> tuple[Path, Path]:
    """The certificate and its key."""
    return certificate() / "certificate.pem", certificate() / "key.pem"


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pem_files())
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(pem_files()[0])
    return context


class Peer:
    """The client's end of a connection."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                self._incoming.write(self.socket.recv(65536))
            else:
                self.socket.sendall(self._outgoing.read())
                return

    def encrypted(self, message: bytes) -> bytes:
        self._tls.write(message)
        return self._outgoing.read()

    def received(self, size: int) -> bytes:
        """The next `size` bytes, or fewer at the end."""
        data = bytearray()
        while len(data) < size:
            try:
                data += self._tls.read(size - len(data))
            except ssl.SSLWantReadError:
                if not (more := self.socket.recv(262144)):
                    break
                self._incoming.write(more)
        return bytes(data)

    def close(self) -> None:
        self.socket.close()


def connector(port: int) -> Callable[[], Peer]:
    context = client_context()
    return lambda: Peer(port, context)


def run(
    port: int, pid: int, options: dict[str, Any], duration: float, warmup: float, cpu: int
) -> dict[str, Any]:
    connect = connector(port)
    idle: list[Peer] = []
    more: dict[str, Any] = {}
    if options.get("idle"):
        # The first connections also allocate what all connections share.
        idle = [connect() for _ in range(20)]
        exchange(idle, options["size"], 0.1)
        before = settled(pid)
        for _ in range(options["idle"] // 10):
            added = [connect() for _ in range(10)]
            exchange(added, options["size"], 0.01)
            idle += added
        more["kib_per_idle"] = (settled(pid) - before) / options["idle"] / 1024
    try:
        return {**measured(connect, pid, options, duration, warmup, cpu), **more}
    finally:
        for each in idle:
            each.close()


def cpu_seconds(pid: int) -> float:
    """CPU time of another process: the kernel's clock id for a process (see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def measured(
    connect: Callable[[], Peer],
    pid: int,
    options: dict[str, Any],
    duration: float,
    warmup: float,
    cpu: int,
) -> dict[str, Any]:
    """Exchanges messages over connections of this process. The report has the keys of the load generator's."""
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


def settled(pid: int) -> int:
    """The memory of a process that has settled, in bytes."""
    time.sleep(0.2)
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def exchange(peers: list[Peer], size: int, duration: float) -> tuple[list[float], dict[str, int], float]:
    latencies: list[float] = []
    errors: dict[str, int] = {}
    start = time.perf_counter()
    number = 0
    while (now := time.perf_counter()) - start < duration and not errors:
        ready = []
        for peer in peers:
            number += 1
            message = number.to_bytes(8, "little") * (size // 8)
            ready.append((peer, message, peer.encrypted(message)))
        sent = []
        for peer, message, data in ready:
            sent.append((peer, message, time.perf_counter()))
            peer.socket.sendall(data)
        for peer, message, when in sent:
            if peer.received(size) != message:
                errors["mismatch"] = errors.get("mismatch", 0) + 1
            latencies.append(time.perf_counter() - when)
    return latencies, errors, now - start
