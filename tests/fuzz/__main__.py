"""Fuzzing by coverage: feeds what parses what others send or store with inputs that reach new code.

    python -m tests.fuzz                               run every target for a minute
    python -m tests.fuzz --seconds 1200 bio window  run these for twenty minutes each
    python -m tests.fuzz bio --input FILE              run one input again

A target compares the source with a naive model: in `targets/*.rs`, or in the function `check` of a Python module here.
The engine is libFuzzer, which `Cargo.toml` links with the crate and an interpreter, under AddressSanitizer. So what
Python calls in native code counts as reached. RUSTC_BOOTSTRAP allows the flags of `cargo fuzz` on a stable compiler.

`corpus/TARGET` has inputs to begin with. New ones are kept in `target/fuzz/corpus`, where the next run goes on.
The exit code is 1 if a target found something.
"""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TARGETS = ("framing", "streams", "bio", "sockaddr", "recorder", "window")
WORK = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "fuzz"

COVERAGE = ["level=4", "inline-8bit-counters", "pc-table", "trace-compares"]
FLAGS = ["--cfg=wakeloop_fuzz", "-Zsanitizer=address", "-Cpasses=sancov-module"]
FLAGS += [f"-Cllvm-args=-sanitizer-coverage-{option}" for option in COVERAGE]


def build():
    """Builds the fuzzer, and returns its path."""
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    host = re.search(r"host: (\S+)", version)[1]
    # A target of its own, so that the flags are not those of build scripts and macros.
    command = ["cargo", "build", "--release", "--quiet", "--locked", "--target", host]
    command += ["--manifest-path", str(HERE / "Cargo.toml"), "--target-dir", str(WORK)]
    flags = {"RUSTFLAGS": " ".join(FLAGS), "RUSTC_BOOTSTRAP": "1", "PYO3_PYTHON": sys.executable}
    subprocess.run(command, check=True, env=os.environ | flags)
    return WORK / host / "release/fuzz"


def environment(target):
    package = ROOT / "python"
    libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    return os.environ | {
        "FUZZ_TARGET": target,
        # The interpreter is embedded: it does not find its virtual environment.
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(package), *filter(None, sys.path)]),
        "PYTHONHOME": sys.base_prefix,
        "PYTHONHASHSEED": "0",
        "PYTHONMALLOC": "malloc",
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        # The interpreter leaks what lives until its end.
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=64",
    }


def run(fuzzer, target, seconds):
    """Runs a target, and returns the cells of its row."""
    corpus, findings = WORK / "corpus" / target, WORK / "findings"
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-timeout=20", "-detect_leaks=0", "-rss_limit_mb=4096", "-max_len=4096"]
    reports = ["-print_final_stats=1", f"-artifact_prefix={findings}/{target}-"]
    command = [fuzzer, *limits, *reports, corpus, HERE / "corpus" / target]
    # libFuzzer reports to stderr.
    options = {"stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, env=environment(target), cwd=ROOT, **options)
    log = []
    for line in process.stderr:
        log.append(line)
        if not re.match(r"#\d+\s+(NEW|REDUCE|RELOAD)|\s+NEW_FUNC|stat::|\"|#####", line):
            print(line, end="", flush=True)
    failed = process.wait() != 0
    text = "".join(log)
    executions = re.search(r"number_of_executed_units: (\d+)", text)
    coverage = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    found = re.search(r"Test unit written to (\S+)", text)
    return (
        target,
        executions[1] if executions else "?",
        *(coverage[-1] if coverage else ("?", "?", "?")),
        (found[1] if found else "it did not run to its end") if failed else "none",
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="how long to run each target")
    parser.add_argument("--input", type=Path, help="run this input only")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if options.input and len(options.targets) != 1:
        parser.error("an input is that of one target")
    fuzzer = build()
    if options.input:
        target = options.targets[0]
        command = [fuzzer, options.input.absolute()]
        sys.exit(subprocess.run(command, check=False, env=environment(target), cwd=ROOT).returncode)
    rows = [run(fuzzer, target, options.seconds) for target in options.targets or TARGETS]
    print(f"\n{'target':10} {'executions':>12} {'edges':>7} {'features':>9} {'corpus':>7}  finding")
    for target, executions, edges, features, corpus, finding in rows:
        print(f"{target:10} {executions:>12} {edges:>7} {features:>9} {corpus:>7}  {finding}")
    sys.exit(any(row[-1] != "none" for row in rows))


if __name__ == "__main__":
    main()
