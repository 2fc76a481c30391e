"""Runs the test suites of well-known asyncio libraries on asyncio, then on the loop under test.

    python -m tests.suites                          every library that libraries/ describes
    python -m tests.suites aiohttp tornado          these
    python -m tests.suites --loop asyncio           asyncio alone, for the record
    python -m tests.suites --only '*keepalive*'     some tests of each

A test that passes on asyncio and not on ours is a regression. It is none if it passes when run again alone, if it
then fails on asyncio as well, or if the library's description accepts it with a reason. The exit code is 1 if there
is a regression, if a suite never made our loop, or if a suite could not be run. The last lines count the retries. The
environments stay in the cache directory.
"""

import argparse
import json
import pathlib
import signal
import sys

from ..conformance.__main__ import closing_line, print_result, totals, type_name
from ..support import signals
from . import libraries
from .environment import Failed
from .services import Missing
from .suite import Judge, failed


def arguments(known):
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description="Libraries' own tests on our loop.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(known)} (default: all)")
    parser.add_argument("--loop", default="wakeloop", help="wakeloop, asyncio, uvloop or package.module:Class")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="run the tests whose names match (may be repeated)")
    parser.add_argument("--cached", action="store_true", help="take asyncio's results from the last full run")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path(sys.prefix, "suites"), metavar="DIRECTORY")
    parser.add_argument("--json", metavar="FILE", help="write all the results to FILE")
    parser.add_argument("--verbose", action="store_true", help="show the last lines of every failure in full")
    options = parser.parse_args()
    if unknown := set(options.names) - set(known):
        parser.error(f"no such library: {', '.join(sorted(unknown))}")
    return options


def say(line):
    print(line, flush=True)


def report(library, verdict, verbose):
    """Returns the parts of this library's result that are not in the table."""
    if verdict.found is None:
        for name in failed(verdict.run):
            print_result(name, verdict.run.results[name], verbose)
        return
    for name, exemption in verdict.found.accepted.items():
        say(f"  accepted: {name}: {exemption.reason}")
    for exemption in verdict.found.stale:
        say(f"  stale exception, its tests pass: {exemption.test}")
    for name in verdict.flaky:
        say(f"  differs only among the others, or fails on asyncio too when alone: {name}")
    for name, result in verdict.found.regressions.items():
        say(f"  regression in {library.name}:")
        print_result(name, result, verbose)


def table(verdicts, own_name, known):
    verdict_titles = f"{'accepted':>8} {'flaky':>6} {'worse':>6} {'loops':>7}"
    say(f"\n{'library':<24} {'asyncio':>16} {'here':>16} {verdict_titles} {'s there':>8} {'s here':>8} {'s':>6}")
    for name, verdict in verdicts.items():
        title = f"{name} {known[name].version}"
        passed, not_passed, _ = totals(verdict.run.results.values())
        here = f"{passed} + {not_passed} bad"
        before, accepted, flaky, worse, there = "", "", len(verdict.flaky), "", ""
        if verdict.found is not None:
            passed, not_passed, _ = totals(verdict.baseline.results.values())
            before, there = f"{passed} + {not_passed} bad", f"{verdict.baseline.seconds:.1f}"
            accepted, worse = len(verdict.found.accepted), len(verdict.found.regressions)
        loops = verdict.run.loops.get(own_name, 0)
        counts = f"{accepted:>8} {flaky:>6} {worse:>6} {loops:>7}"
        seconds = f"{there:>8} {verdict.run.seconds:>8.1f} {verdict.seconds:>6.0f}"
        say(f"{title:<24} {before:>16} {here:>16} {counts} {seconds}")


def main():
    signals.restore_dispositions()
    # On SIGTERM, end the child processes: workers and servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = libraries.read_all()
    options = arguments(known)
    own_name = type_name(options.loop)
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    judge = Judge(options.loop, own_name, cache, patterns=options.only, cached=options.cached, say=say)
    verdicts, good = {}, True
    for name in options.names or known:
        try:
            verdict = judge.judge(known[name])
        except (Missing, Failed) as error:
            say(f"  {name}: not run: {error}")
            good = False
            continue
        verdicts[name] = verdict
        report(known[name], verdict, options.verbose)
        if not verdict.run.loops.get(own_name):
            say(f"  {name}: not one loop was a {own_name}: the substitution does not work")
        good = good and verdict.good(own_name)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({name: verdict.run.to_json() for name, verdict in verdicts.items()}, file, indent=1)
    if verdicts:
        table(verdicts, own_name, known)
    retried = [name for verdict in verdicts.values() for name in verdict.retried]
    say(f"retries: {len(retried)}" + (f" ({', '.join(dict.fromkeys(retried))})" if retried else ""))
    runs = [verdict.run for verdict in verdicts.values()]
    passed, not_passed, skipped = totals([result for run in runs for result in run.results.values()])
    if options.loop != "asyncio":
        not_passed = sum(len(verdict.found.regressions) for verdict in verdicts.values())
    closing_line(passed, not_passed, skipped)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
