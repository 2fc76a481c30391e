"""The baseline: what the kernel, OpenSSL and the least possible program cost, for the scenarios that serve.

Its servers have neither Python nor an event loop (``main.rs``); rustc builds them when they are first needed. The
baseline is one more "loop" in the results. No loop can be cheaper, so the distance to it is what is left to gain.
Where it does not reach a target on some machine, no loop can reach the target there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import tls

BASELINE = "baseline"
# Scenario -> the server of main.rs that gives the same answers.
SCENARIOS_WITH_BASELINE: dict[str, str] = {
    **{f"tcp/proto/1k/c{connections}": "tcp" for connections in (1, 10, 100)},
    **{f"tcp/proto/{size}k/c10": "tcp" for size in (10, 100)},
    "tcp/buffered/1k/c10": "tcp",
    "tcp/two-writes/1k/c10": "tcp",
    "tcp/streams/1k/c1": "tcp",
    "tcp/streams/1k/c10": "tcp",
    "tcp/streams/100k/c10": "tcp",
    "tcp/native-streams/1k/c10": "tcp",
    "tcp/native-streams/100k/c10": "tcp",
    "tcp/readline/1k/c10": "tcp",
    "tcp/sock/1k/c10": "tcp",
    "tcp/accept+close/c10": "accept",
    **{f"tcp/bulk/{kib}k-writes/c1": f"bulk-{kib}" for kib in (4, 64, 1024)},
    "tcp/bulk/64k-writes/c4": "bulk-64",
    **{f"tcp/upload/{size}/c1": "upload" for size in ("4m", "4k-writes", "64k-writes")},
    "tcp/native-streams/upload/4m/c1": "upload",
    "unix/proto/1k/c10": "unix",
    "unix/streams/1k/c10": "unix",
    "udp/1k/c10": "udp",
    "tls/proto/1k/c10": "tls",
    "tls/streams/1k/c10": "tls",
    "http/uvicorn-httptools": "http",
    "http/uvicorn-h11": "http",
    "http/aiohttp": "http",
}
SOURCES = Path(__file__).parent


@cache
def baseline_program() -> Path:
    """The built program; ImportError (as for a loop that is not installed) where it cannot be built."""
    if shutil.which("rustc") is None:
        raise ImportError("there is no rustc to build it with")
    newest = max(source.stat().st_mtime_ns for source in SOURCES.glob("*.rs"))
    target = Path(os.environ.get("CARGO_TARGET_DIR") or SOURCES.parent.parent / "target")
    built = target / "baseline" / str(newest)
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        fresh = built.with_suffix(f".{os.getpid()}")
        command = ["rustc", "--edition=2024", "-O", "-o", str(fresh), str(SOURCES / "main.rs")]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ImportError(f"it does not build: {done.stderr.strip()}")
        fresh.rename(built)
    return built


def baseline_command(scenario: str, cpu: int, path: str) -> list[str]:
    """How to start the program for a scenario; ``path`` is where a Unix socket goes."""
    what = SCENARIOS_WITH_BASELINE[scenario]
    command = [str(baseline_program()), what, str(cpu)]
    if what == "unix":
        return [*command, path]
    if what == "tls":
        # An interpreter with an OpenSSL of its own may have its own C library too, which that OpenSSL needs.
        loader, libc, *openssl = loaded_files("ld-", "libc.so", "libcrypto", "libssl")
        return [loader, "--library-path", str(Path(libc).parent), *command, *openssl, *map(str, tls.pem_files())]
    return command


@cache
def loaded_files(*names: str) -> list[str]:
    """The files whose names begin so, among those that this interpreter and its ``ssl`` module have loaded."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found = {name: path for path in mapped for name in names if Path(path).name.startswith(name)}
    if len(found) < len(names):
        raise ImportError("this Python has no shared OpenSSL")
    return [found[name] for name in names]
