"""Real services on asyncio, uvloop and wakeloop side by side: what ``make demo`` runs.

    python benchmarks/demo.py [--quick] [--loops a,b,c] [--json FILE] [--markdown FILE] [--chart FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from loops import split
from processes import ChildError
from side_by_side import show
from side_by_side.contest import LOOPS, Contest, Entry, Results

NEEDED = ("rich", "uvicorn", "httptools")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description="Serves a uvicorn application and echo servers on several event loops and compares them.",
    )
    made.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    made.add_argument("--loops", default=",".join(LOOPS), help=f"names, separated by commas ({','.join(LOOPS)})")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table there")
    made.add_argument("--chart", type=Path, metavar="FILE", default=Path("demo.png"), help="the chart (demo.png)")
    return made


def measure(contest: Contest, rounds: int) -> None:
    """All rounds, under a progress bar; plain lines where the output is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not sys.stdout.isatty():
        contest.start(lambda text: print(text, flush=True))
        print("practice round", flush=True)
        contest.practice(lambda entry: None)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            contest.round(number, lambda entry: None)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console()) as progress:
        task = progress.add_task("starting", total=(rounds + 1) * len(contest.entries))
        contest.start(lambda text: progress.update(task, description=f"{text:<48}"))

        def show_step(entry: Entry) -> None:
            where = f"{stage}: {entry.service.title} on {entry.loop}"
            progress.update(task, description=f"{where:<48}")
            progress.advance(task)

        stage = "practice"
        contest.practice(show_step)
        for number in range(rounds):
            stage = f"round {number + 1}"
            contest.round(number, show_step)


def main() -> int:
    arguments = parser().parse_args()
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"this needs {', '.join(absent)}; `make demo` installs them", file=sys.stderr)
        return 2
    from rich.console import Console

    loops, missing = split(arguments.loops.split(","))
    for name, why in missing.items():
        print(f"{name} is left out: {why}")
    if not loops:
        return 2
    rounds, window, warmup = (5, 0.2, 0.05) if arguments.quick else (10, 0.4, 0.1)
    start = time.monotonic()
    with Contest(loops, window, warmup) as contest:
        try:
            measure(contest, rounds)
        except KeyboardInterrupt:
            print("interrupted")
            return 130
        except ChildError as error:
            print(error, file=sys.stderr)
            return 2
        reference = "uvloop" if "uvloop" in loops else loops[0]
        results = Results(contest.entries, reference, rounds)

    console = Console() if sys.stdout.isatty() else Console(width=100)
    console.print(show.table(results))
    for note in (show.machine(results), *show.notes(results)):
        print(note)
    if arguments.json:
        arguments.json.write_text(results.as_json() + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(show.markdown(results))
    if importlib.util.find_spec("matplotlib"):
        show.chart(results, arguments.chart)
        print(f"chart: {arguments.chart.resolve()}")
    else:
        print("no chart: matplotlib is not installed")
    print(f"{time.monotonic() - start:.0f} s")
    for entry in results.troubled():
        print(f"ERROR {entry.service.title} on {entry.loop}: {entry.errors} errors; {entry.trouble}")
    return 1 if results.troubled() else 0


if __name__ == "__main__":
    sys.exit(main())
