"""``python -m wakeloop load TARGET``: puts a load on a server and checks every byte it answers.

The work is done by the Rust load generator (``wakeloop._core.load``); this is its command line, and the process
that measurements keep beside their servers (``--serve``).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from typing import Any
from urllib.parse import urlsplit

from wakeloop._core import load
from wakeloop.demo.processes import die_with_parent, pin


def allow_many_files() -> None:
    """Raises the soft limit on open files to the hard one: thousands of connections need it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve() -> None:
    """One JSON object with options a line on stdin, one with the report on stdout, until stdin ends."""
    die_with_parent()
    for line in sys.stdin:
        options = json.loads(line)
        if isinstance(options.get("expect_body"), str):
            options["expect_body"] = options["expect_body"].encode("latin-1")
        try:
            answer = load(**options)
        except Exception as error:
            answer = {"fail": f"the load generator: {type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def where(target: str) -> dict[str, Any]:
    """The options that a target stands for: http://HOST:PORT/PATH, tcp://HOST:PORT, udp://HOST:PORT or unix:PATH."""
    parts = urlsplit(target)
    if parts.scheme == "unix":
        return {"path": parts.path}
    if parts.scheme not in ("http", "tcp", "udp") or not parts.hostname:
        raise ValueError(f"{target!r} is not http://HOST:PORT/PATH, tcp://HOST:PORT, udp://HOST:PORT or unix:PATH")
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    options = {"host": host, "port": parts.port or 80}
    if parts.scheme == "udp":
        options["datagrams"] = True
    if parts.scheme == "http":
        query = f"?{parts.query}" if parts.query else ""
        options |= {"kind": "http", "url_path": (parts.path or "/") + query}
    return options


def describe(report: dict[str, Any]) -> str:
    latency = report["latency_us"]
    lines = [
        f"requests   {report['requests']} in {report['seconds']:.2f} s: {report['rate']:.0f}/s, "
        f"{report['bytes'] / report['seconds'] / 1e6:.1f} MB/s",
        "latency    "
        + ", ".join(f"{name} {latency[name]:.0f} us" for name in ("mean", "p50", "p90", "p99", "p99.9", "max")),
    ]
    if report["lag_us"] is not None:
        lag = report["lag_us"]
        lines.append(f"own lag    p50 {lag['p50']:.0f} us, p99 {lag['p99']:.0f} us; {report['unsent']} never sent")
    if report["idle_answered"]:
        lines.append(f"idle       {report['idle_answered']} connections answered at the start and at the end")
    if report["watched_cpu_seconds"] is not None and report["requests"]:
        cpu = report["watched_cpu_seconds"] / report["requests"]
        lines.append(f"server     {cpu * 1e6:.2f} us of CPU per request")
    errors = ", ".join(f"{count} {kind}" for kind, count in report["errors"].items())
    lines.append(f"errors     {errors or 'none'}" + (f" (first: {report['first_error']})" if errors else ""))
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m wakeloop load", description=__doc__.splitlines()[0])
    made.add_argument("target", nargs="?", help="http://HOST:PORT/PATH, tcp:// or udp://HOST:PORT (an echo server) or unix:PATH")
    made.add_argument("-c", "--connections", type=int, default=10)
    made.add_argument("-d", "--duration", type=float, default=5.0, help="seconds (5)")
    made.add_argument("--warmup", type=float, default=0.5, help="seconds before counting starts (0.5)")
    made.add_argument("-n", "--count", type=int, help="end after so many requests, if that is sooner")
    made.add_argument("-r", "--rate", type=float, help="open loop: requests per second, latency from the due time")
    made.add_argument("-i", "--idle", type=int, default=0, help="connections held open beside the active ones")
    made.add_argument("-s", "--size", type=int, default=1024, help="echo: bytes per message (1024)")
    made.add_argument("--lines", action="store_true", help="echo: each message is one line")
    made.add_argument("--accept", action="store_true", help="tcp: connect, wait for the server to close, repeat")
    made.add_argument("--post", dest="post_size", type=int, metavar="BYTES", help="http: POST a body to be echoed")
    made.add_argument("--workers", type=int, default=1, help="threads of the generator (1)")
    made.add_argument("--watch", dest="watch_pid", type=int, metavar="PID", help="report this process's CPU time")
    made.add_argument("--json", action="store_true", help="the whole report as JSON")
    made.add_argument("--cpu", type=int, default=-1, help="run on this core only")
    made.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return made


def main(argv: list[str] | None = None) -> int:
    made = parser()
    arguments = made.parse_args(argv)
    pin(arguments.cpu)
    allow_many_files()
    if arguments.serve:
        serve()
        return 0
    if arguments.target is None:
        made.error("a target is needed")
    try:
        options = where(arguments.target)
    except ValueError as error:
        made.error(str(error))
    names = ["connections", "duration", "warmup", "count", "rate", "idle", "workers", "watch_pid"]
    if options.get("kind") == "http":
        names.append("post_size")
    elif arguments.accept:
        options["kind"] = "accept"
    else:
        names += ["size", "lines"]
    options |= {name: getattr(arguments, name) for name in names}
    try:
        report = load(**options)
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report, indent=1) if arguments.json else describe(report))
    return 1 if report["errors"] or not report["requests"] else 0


if __name__ == "__main__":
    sys.exit(main())
