# The commands of a contributor. `make help` lists the main ones; docs/development.md describes all of them.
#
# demo, test and bench build what they need into a private .venv: the release extension, installed so that changes to
# Python files need no new build. Stamp files in .venv record what is up to date. CARGO_TARGET_DIR is honoured.

PYTHON ?= python3
PYTHON314 ?= python3.14
PYTHON315 ?= python3.15
# A debug build of CPython (Py_DEBUG); Debian packages it under this name.
PYTHONDEBUG ?= python3.11-dbg
PYTHONS ?= python3.11 python3.12 python3.13 $(PYTHON314) $(PYTHON315)
VENV   ?= .venv
# The build backend is release/backend.py, which is maturin's. maturin warns that its name is another.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING = 1

PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --quiet
MADE   := $(VENV)/.made
# The extension and the load generator are built again when one of these is newer.
RUST   := Cargo.toml $(wildcard Cargo.lock) pyproject.toml $(shell find src -name '*.rs' 2>/dev/null)
LOAD   := $(shell find benchmarks/load -name '*.rs' -o -name Cargo.toml 2>/dev/null)
# Other event loops to compare with. Those without a wheel for this Python are left out, with a message.
PEERS  := uvloop rloop rsloop zuvloop
# Rust tests with the python feature embed an interpreter. pyo3 links the library of the venv's Python for that.
LIBDIR  = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
EMBED   = PYO3_PYTHON=$(abspath $(PY)) LD_LIBRARY_PATH=$(LIBDIR)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}
# A static library can seldom be linked into the extension: it is not compiled for that.
CAN_EMBED = $(PY) -c 'import sys, pathlib, sysconfig as s; v = s.get_config_var; \
	sys.exit(not (v("Py_ENABLE_SHARED") and (pathlib.Path(v("LIBDIR")) / v("LDLIBRARY")).exists()))'

.DEFAULT_GOAL := help
.PHONY: help tools environment build requirements demo docs guides every-guide test test-rust test-rust-with-python test-python test-loop test-others conformance-quick measure nightly nightly-report loom mutants mutants-python shuttle miri sanitize sanitize-threads other-systems debug-python debug-tests bench-echo conformance conformance-modes conformance-3.14 conformance-matrix conformance-summed ecosystem extension lint check-free-threaded types soak stress-loops stress-loops-sanitized fuzz fuzz-coverage determinism testing-peers bench bench-3.14 bench-3.15 bench-quick results bench-instructions bench-shares bench-fastapi bench-workers bench-primitives bench-files bench-queues bench-bulk bench-window bench-runtime wheels wheels-macos check-wheels sdist check-sdist check-arm64 licenses deny workflows address release-check clean

help: ## lists the main targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo; echo 'docs/development.md describes every target.'

# -- what is built -------------------------------------------------------------------------------------------------

# rustup's cargo is on the path even if its toolchains are not where it looks for them.
tools: #- says what is missing to build wakeloop here
	@command -v cargo >/dev/null || { echo "wakeloop is built from Rust source: install cargo (1.95 or newer) first"; exit 1; }
	@cargo --version >/dev/null && rustc --version >/dev/null || { echo "cargo and rustc are on the path, but do not run, as \
	they say above. If rustup's toolchains are not in $$HOME/.rustup, set RUSTUP_HOME; if cargo's files are not in \
	$$HOME/.cargo, set CARGO_HOME"; exit 1; }
	@command -v cc >/dev/null || { echo "Rust programs are linked by cc: install gcc or clang"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is not CPython 3.11 or newer: \
	say make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }

$(MADE)-venv: | tools
	$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments: install its venv package"; exit 1; }
	$(PIP) install 'maturin>=1.14,<2'
	@touch $@

$(MADE)-extension: $(MADE)-venv $(RUST)
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --release --quiet
	@touch $@

$(MADE)-load: $(MADE)-venv $(RUST) $(LOAD)
	cargo build --quiet --package wakeloop-load --profile load
	@touch $@

$(MADE)-demo: $(MADE)-venv $(MADE)-load pyproject.toml
	$(PIP) install $$($(PY) .ci/requirements.py demo)
	@for loop in uvloop; do $(PIP) install --only-binary :all: $$loop 2>/dev/null || echo "$$loop has no wheel for this Python: left out"; done
	@touch $@

$(MADE)-bench: $(MADE)-demo
	$(PIP) install $$($(PY) .ci/requirements.py bench)
	@for loop in $(PEERS); do $(PIP) install --only-binary :all: $$loop 2>/dev/null || echo "$$loop has no wheel for this Python: left out"; done
	@touch $@

$(MADE)-lint: $(MADE)-venv pyproject.toml
	$(PIP) install $$($(PY) .ci/requirements.py lint)
	@touch $@

$(MADE)-docs: $(MADE)-venv pyproject.toml
	$(PIP) install $$($(PY) .ci/requirements.py docs)
	@touch $@

GUIDES_PIP := $(VENV)/guides/bin/python -m pip --disable-pip-version-check --quiet install --only-binary :all:

# An environment of its own: plugins of what the guides need must not load into our tests.
$(MADE)-guides: $(MADE)-extension pyproject.toml
	$(PY) -m venv $(VENV)/guides
	@packages=$$($(PY) .ci/requirements.py guides); $(GUIDES_PIP) $$packages || for package in $$packages; do \
	$(GUIDES_PIP) "$$package" 2>/dev/null || echo "$$package has no wheel for this Python: left out"; done
	$(PY) .ci/install_again.py $(VENV)/guides
	@touch $@

# The same for other virtual clocks: looptime is a plugin of pytest too.
$(MADE)-peers: $(MADE)-extension
	$(PY) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip --disable-pip-version-check --quiet install looptime aiotools trio anyio
	$(PY) .ci/install_again.py $(VENV)/peers
	@touch $@

$(MADE)-test: $(MADE)-demo $(MADE)-lint
	$(PIP) install $$($(PY) .ci/requirements.py test)
	@touch $@

$(MADE)-types: $(MADE)-test
	$(PIP) install $$($(PY) .ci/requirements.py types)
	@touch $@

$(MADE)-mutants: $(MADE)-test
	$(PIP) install $$($(PY) .ci/requirements.py mutants)
	@touch $@

$(MADE)-wheels: $(MADE)-venv pyproject.toml
	$(PIP) install $$($(PY) .ci/requirements.py wheels)
	@touch $@

$(MADE)-release: $(MADE)-wheels
	$(PIP) install $$($(PY) .ci/requirements.py release)
	@touch $@

environment: $(MADE)-lint #- makes .venv, with what `make lint` needs

build: $(MADE)-extension ## builds the release extension into .venv

requirements: $(MADE)-test $(MADE)-types $(MADE)-docs #- installs what the tests and the documentation need into .venv

# -- demo and tests ------------------------------------------------------------------------------------------------

demo: $(MADE)-extension $(MADE)-demo ## compares real services on asyncio, uvloop and wakeloop; writes demo.png
	$(PY) benchmarks/demo.py

# Its parts are targets of this file; tests/gate has their list.
test: tools ## runs everything that a change must pass, and ends with a table
	@$(PYTHON) -m tests.gate

lint: $(MADE)-lint ## checks the formatting, the structure of the source, and the Rust code with clippy
	cargo fmt --all --check
	$(PY) -m tests.structure
	cargo clippy --all-targets --package wakeloop-load --quiet -- -D warnings
	cargo clippy --all-targets --no-default-features --quiet -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --no-default-features --no-deps --document-private-items --quiet
	PYO3_PYTHON=$(abspath $(PY)) cargo clippy --all-targets --features async-runtimes --quiet -- -D warnings --cfg wakeloop_fuzz
	$(MAKE) --no-print-directory check-free-threaded

FREE_THREADED ?= 3.14t 3.15t

# No such interpreter is needed: pyo3 is told of it by a file. clippy has the warnings, and the list of functions that only
# a GIL makes right (clippy.toml). The build finds what is checked only when code is generated, such as layouts. Both are
# one run of the compiler, and these folders are for nothing else, so that nothing in them is compiled twice.
check-free-threaded: #- compiles the extension for free-threaded CPython, with warnings as errors
	@set -e; for python in $(FREE_THREADED); do echo $$python; \
	env -u PYO3_PYTHON PYO3_CONFIG_FILE=$(abspath tests/free_threaded)/$$python.txt \
		CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),target)/free-threaded-$$python \
		CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 RUSTC_WORKSPACE_WRAPPER=clippy-driver \
		cargo rustc --lib --crate-type cdylib --features async-runtimes --quiet -- -D warnings; done

# The tests of the runtime use nothing of Python's half. So they run without it, and `make nightly` runs them with it too.
test-rust: $(MADE)-venv ## runs the Rust tests, of the runtime without Python and of the rest with it
	cargo test --no-default-features --quiet
	cargo test --package wakeloop-load --quiet
	@if $(CAN_EMBED); then set -ex; $(EMBED) cargo test --features async-runtimes --quiet --lib --test async_runtimes; \
	$(EMBED) cargo test --features async-runtimes --quiet --doc; \
	else echo "skipped: cargo test with the python feature ($(PYTHON) has no shared library to link)"; fi

test-rust-with-python: $(MADE)-venv #- runs all the Rust tests in a build with Python
	@if $(CAN_EMBED); then set -x; $(EMBED) cargo test --features async-runtimes --quiet; \
	else echo "skipped: $(PYTHON) has no shared library to link"; fi

test-python: test-loop test-others ## runs the Python tests

# `make test` runs these two beside each other.
LOOP_TESTS := tests/loop tests/transport tests/tls tests/streams tests/queue tests/primitives tests/observe

test-loop: $(MADE)-extension $(MADE)-test #- runs the Python tests of the loop, its transports and primitives, and of what looks inside
	$(PY) -m pytest $(LOOP_TESTS)

# `make types` and `make guides` run the files that are left out here.
test-others: $(MADE)-extension $(MADE)-test #- runs the other Python tests
	$(PY) -m pytest $(addprefix --ignore ,$(LOOP_TESTS) tests/project/test_typing.py tests/project/test_pyright.py tests/project/test_guides.py)

conformance-quick: $(MADE)-extension $(MADE)-test ## runs a part of CPython's own asyncio tests, and none of them twice
	$(PY) -m tests.conformance --quick

# Other processes count here. So these tests measure several times, compare the median with a bound, and run alone.
measure: $(MADE)-extension $(MADE)-test #- runs the tests that compare times; needs a machine without other work
	cargo test --no-default-features --quiet --test metrics -- --ignored --test-threads 1
	$(PY) -m pytest --measured

nightly: tools ## runs the long parts that have not run on this commit, or PART (one or more of them)
	@$(PYTHON) -m tests.gate.nightly $(PART)

nightly-report: ## prints when each long part last ran, on which commit, and what it found
	@$(PYTHON) -m tests.gate.nightly --report

loom: #- runs the models of the concurrent core in every order of their threads, with up to three preemptions
	RUSTFLAGS="--cfg wakeloop_loom" CARGO_TARGET_DIR=target/loom cargo test --release --no-default-features --lib --quiet model

mutants: #- runs the mutation tests of the concurrent core: the loom models must catch every mutant in MODELS.md
	$(PYTHON) -m tests.mutants

# MUTANTS has options, and names of modules: tests/python_mutants says which.
mutants-python: $(MADE)-extension $(MADE)-mutants #- runs mutation tests of the Python package
	@if $(PY) -c 'import sys; sys.exit(not hasattr(sys, "monitoring"))'; then $(PY) -m tests.python_mutants $(MUTANTS); \
	else echo 'skipped: Python 3.12 or newer tells which test executes which line'; fi

shuttle: #- runs the same models, and whole runtimes, in thousands of random orders
	RUSTFLAGS="--cfg wakeloop_shuttle" CARGO_TARGET_DIR=target/shuttle cargo test --release --no-default-features --lib --quiet model

NIGHTLY := $(shell rustup toolchain list 2>/dev/null | sed -n 's/^\(nightly[^ ]*\).*/\1/p' | head -1)

# The flags ask for tree borrows and permissive provenance, because crossbeam-epoch follows no stricter model. They
# ignore leaks, because Miri would report the memory that crossbeam's collector holds at the end: `make sanitize`
# looks for leaks. Backtraces are off, because the one of an intended panic would take minutes. Miri has no
# non-blocking socket pairs and a thousandth of the speed, so tests of sockets and of fairness are left out.
miri: #- runs the runtime's tests under Miri, which finds undefined behaviour; needs nightly's miri
	@if [ -z '$(NIGHTLY)' ] || ! cargo +$(NIGHTLY) miri --version >/dev/null 2>&1; then \
		echo 'skipped: no miri (rustup +nightly component add miri rust-src)'; else \
	MIRIFLAGS='-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks' \
		CARGO_TARGET_DIR=target/miri PROPTEST_CASES=2 RUST_BACKTRACE=0 \
		cargo +$(NIGHTLY) miri test --no-default-features --quiet --no-fail-fast \
		--lib --test task_lifecycle --test sync --test join_set --test local_tasks --test scheduling; fi

sanitize: #- runs the runtime's tests under AddressSanitizer and LeakSanitizer; needs a nightly toolchain
	@if [ -z '$(NIGHTLY)' ]; then echo 'skipped: no nightly toolchain (rustup toolchain install nightly)'; else \
	RUSTFLAGS='-Zsanitizer=address' CARGO_TARGET_DIR=target/asan PROPTEST_CASES=32 \
		ASAN_OPTIONS=allocator_may_return_null=1 \
		cargo +$(NIGHTLY) test --no-default-features --quiet --no-fail-fast \
		--target $$(rustc -vV | sed -n 's/^host: //p') --lib --tests; fi

# The standard library has to be built with the sanitizer too: it would report what it does not see of a lock or an Arc.
# A cargo of the distribution does as well, if it has the library's source and the sanitizer's runtime:
# RUSTC_BOOTSTRAP=1 make sanitize-threads SANITIZE_CARGO=cargo. Fences are beyond this sanitizer, so crossbeam and we
# use loads in their place. The list of suppressions has names, so llvm-symbolizer has to be on the path.
SANITIZE_CARGO ?= $(if $(NIGHTLY),cargo +$(NIGHTLY))
STRESS_SECONDS ?= 600

sanitize-threads: #- runs the runtime's tests, and 64 runtimes in 64 threads for ten minutes, under ThreadSanitizer
	@source=lib/rustlib/src/rust/library; \
	if [ -z '$(SANITIZE_CARGO)' ] || ! [ -d "$$($(subst cargo,rustc,$(SANITIZE_CARGO)) --print sysroot)/$$source" ]; then \
		echo 'skipped: no source of the standard library (rustup +nightly component add rust-src)'; else \
	export RUSTFLAGS='-Zsanitizer=thread --cfg wakeloop_tsan' CARGO_TARGET_DIR=target/tsan PROPTEST_CASES=32 \
		TSAN_OPTIONS='allocator_may_return_null=1 suppressions=$(abspath tests/rust/tsan.suppressions)'; \
	test="$(SANITIZE_CARGO) test -Zbuild-std --target $$(rustc -vV | sed -n 's/^host: //p') --no-default-features --quiet"; \
	$$test --no-fail-fast --lib --tests && STRESS_SECONDS=$(STRESS_SECONDS) $$test --test many_runtimes -- --nocapture; fi

debug-python: #- runs the Python tests on a debug build of CPython (PYTHONDEBUG), which checks every use of its C API
	@if $(PYTHONDEBUG) -c 'import sys; sys.gettotalrefcount' 2>/dev/null; then \
	$(MAKE) debug-tests PYTHON=$(PYTHONDEBUG) VENV=$(VENV)-debug; \
	else echo 'skipped: no $(PYTHONDEBUG) that is a debug build (apt-get install python3.11-dbg python3.11-venv)'; fi

# Extensions of other projects may not work on such an interpreter, so multidict, aiohttp and others run their Python
# code. The warnings that a debug build shows by default are ignored, and the timeouts are longer because it is slow.
# Our own code is built with its assertions on.
DEBUG_ENV := MULTIDICT_NO_EXTENSIONS=1 AIOHTTP_NO_EXTENSIONS=1 YARL_NO_EXTENSIONS=1 FROZENLIST_NO_EXTENSIONS=1 \
	PROPCACHE_NO_EXTENSIONS=1 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_LTO=off \
	PYTHONWARNINGS=ignore::DeprecationWarning,ignore::PendingDeprecationWarning,ignore::ImportWarning,ignore::ResourceWarning

debug-tests: export CARGO_TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)/debug-python
debug-tests: $(MADE)-venv
	env $(DEBUG_ENV) $(MAKE) PYTHON=$(PYTHON) VENV=$(VENV) $(MADE)-extension $(MADE)-test
	env $(DEBUG_ENV) $(PY) -m pytest --loop wakeloop --timeout 120 --ignore tests/ecosystem --ignore tests/project/test_typing.py
	env $(DEBUG_ENV) $(PY) -m tests.conformance --quick

SYSTEMS := aarch64-apple-darwin x86_64-apple-darwin x86_64-unknown-freebsd

other-systems: #- checks that the crate compiles for macOS and FreeBSD; rustup fetches their standard libraries
	rustup target add $(SYSTEMS)
	@set -e; for system in $(SYSTEMS); do echo $$system; \
	cargo clippy --target $$system --all-targets --no-default-features --quiet -- -D warnings; \
	env -u PYO3_PYTHON PYO3_CROSS=1 PYO3_CROSS_PYTHON_VERSION=3.13 \
		cargo clippy --target $$system --features async-runtimes --lib --quiet -- -D warnings; done

conformance: $(MADE)-extension $(MADE)-test ## runs all of CPython's own asyncio tests, and compares each with asyncio
	$(PY) -m tests.conformance --retries 2

conformance-modes: $(MADE)-extension $(MADE)-test #- runs them in debug mode, and under python -X dev
	$(PY) -m tests.conformance --mode debug --mode dev --retries 2

conformance-3.14: #- runs them in all three modes on Python 3.14 (PYTHON314)
	@command -v $(PYTHON314) >/dev/null || { echo "no $(PYTHON314): say make conformance-3.14 PYTHON314=/path/to/python3.14"; exit 1; }
	$(MAKE) conformance conformance-modes PYTHON=$(PYTHON314) VENV=$(VENV)-3.14

# One line for each run of the matrix.
MATRIX = $(abspath $(VENV)-matrix.txt)

conformance-matrix: #- runs them in all three modes on each of PYTHONS; prints one line for each run
	@rm -f '$(MATRIX)'; status=0; for python in $(PYTHONS); do \
		$(MAKE) conformance-summed PYTHON="$$python" VENV="$(VENV)-$${python##*python}" MATRIX='$(MATRIX)' \
		|| { status=1; echo "$$python: not all of it is as on asyncio, or it did not run" >> '$(MATRIX)'; }; \
	done; cat '$(MATRIX)'; exit $$status

conformance-summed: $(MADE)-extension $(MADE)-test
	$(PY) -m tests.conformance --mode normal --mode debug --mode dev --retries 2 --summary '$(MATRIX)'

ecosystem: $(MADE)-extension $(MADE)-test #- runs well-known libraries' own test suites on asyncio and on wakeloop
	$(PY) -m tests.suites

extension: $(MADE)-extension $(MADE)-test #- builds and tests examples/extension, whose Rust futures Python awaits
	VIRTUAL_ENV=$(abspath $(VENV)) CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),$(abspath target)) \
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(VENV)/bin/maturin develop --release --quiet -m examples/extension/Cargo.toml
	PYO3_PYTHON=$(abspath $(PY)) PYO3_BUILD_EXTENSION_MODULE=1 CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),$(abspath target)) \
	CARGO_PROFILE_RELEASE_OPT_LEVEL=0 cargo build --release --quiet --example hello --manifest-path examples/extension/Cargo.toml
	$(PY) -m pytest -p no:cacheprovider -c examples/extension/pyproject.toml examples/extension

types: $(MADE)-extension $(MADE)-types ## checks types: mypy over the package and its tools, the stubs against the extension, pyright over programs and pages
	$(PY) -m pytest tests/project/test_typing.py tests/project/test_pyright.py

# Rust's documentation first: the site has it under rust/.
docs: $(MADE)-extension $(MADE)-docs ## builds the documentation into docs/_build; a warning is an error
	PYO3_PYTHON=$(abspath $(PY)) RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' CARGO_BUILD_BUILD_DIR=$(or $(CARGO_TARGET_DIR),target) \
		cargo doc --no-deps --lib --features async-runtimes --quiet --target-dir target/docs
	@rm -rf docs/_build target/docs/site && mkdir -p target/docs/site && cp -r target/docs/doc target/docs/site/rust
	$(PY) -m sphinx -n -W --keep-going --quiet -j auto docs docs/_build
	@test -f docs/_build/rust/wakeloop/index.html && echo 'docs/_build/index.html'

guides: $(MADE)-guides ## runs the code of the documentation's pages, those about other people's packages included
	$(VENV)/guides/bin/python -m pytest -p no:asyncio -p no:anyio tests/project/test_guides.py tests/project/test_pyright.py

every-guide: $(MADE)-guides #- the same; a package or a program that a page needs and that is missing is a failure
	$(VENV)/guides/bin/python -m pytest -p no:asyncio -p no:anyio --every-guide tests/project/test_guides.py

fuzz: $(MADE)-extension $(MADE)-test ## compares asyncio with wakeloop in a thousand random scenarios of each kind (differential fuzzing)
	SCENARIOS=$(or $(SCENARIOS),1000) FIRST_SEED=$(or $(FIRST_SEED),1000) $(PY) -m pytest -q tests/compat/test_differential.py
	FILE_SCENARIOS=$(or $(FILE_SCENARIOS),10000) FIRST_SEED=$(or $(FIRST_SEED),1000) $(PY) -m pytest -q tests/files/test_differential.py

SECONDS_EACH ?= 60

# The fuzzer has the crate and the interpreter in it. So it needs no extension, but a library of Python to link.
fuzz-coverage: $(MADE)-test #- runs the fuzz targets in tests/fuzz for SECONDS_EACH (60) seconds each (libFuzzer)
	@if $(CAN_EMBED); then $(PY) -m tests.fuzz --seconds $(SECONDS_EACH); \
	else echo "skipped: the fuzz targets ($(PYTHON) has no shared library to link)"; fi

determinism: $(MADE)-extension $(MADE)-test #- runs 200 programs of wakeloop.testing with 20 seeds, five times each, and compares their steps
	$(PY) -m tests.testing.determinism

testing-peers: $(MADE)-peers #- compares wakeloop.testing with other virtual clocks; writes docs/reference/testing.md
	$(VENV)/peers/bin/python -m tests.testing.peers --write

soak: $(MADE)-extension $(MADE)-test #- runs and observes every kind of work for twenty minutes; nothing may grow
	$(PY) -m tests.soak --observed

stress-loops: $(MADE)-extension $(MADE)-test #- runs 64 loops in 64 threads for ten minutes; nothing may be lost or left
	$(PY) -m tests.many_loops

# The sanitizer's runtime has to come before all other libraries; gcc's fits. It finds errors with memory of Python's
# objects too, because Python takes each from malloc.
stress-loops-sanitized: $(MADE)-venv #- the same with the extension under AddressSanitizer; needs a nightly toolchain and gcc
	@if [ -z '$(NIGHTLY)' ]; then echo 'skipped: no nightly toolchain (rustup toolchain install nightly)'; else \
	set -e; target=$$(rustc -vV | sed -n 's/^host: //p'); package=target/asan-loops/python; \
	RUSTFLAGS='-Zsanitizer=address' CARGO_TARGET_DIR=target/asan-loops CARGO_PROFILE_RELEASE_LTO=off \
		CARGO_PROFILE_RELEASE_DEBUG=line-tables-only PYO3_PYTHON=$(abspath $(PY)) \
		cargo +$(NIGHTLY) rustc --release --lib --crate-type cdylib --target $$target; \
	rm -rf $$package && mkdir -p $$package && cp -r python/wakeloop $$package && rm -f $$package/wakeloop/*.so; \
	cp target/asan-loops/$$target/release/libwakeloop.so \
		$$package/wakeloop/_core$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))'); \
	PYTHONPATH=$$package PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$$(gcc -print-file-name=libasan.so) \
		$(PY) -m tests.many_loops; fi

# -- benchmarks ----------------------------------------------------------------------------------------------------

# The name of the page that `make bench` writes, and of its result file.
RESULTS ?= RESULTS

bench: $(MADE)-extension $(MADE)-bench ## runs every benchmark on every loop; writes benchmarks/RESULTS.md
	$(PY) benchmarks/run.py --out benchmarks/out/$(RESULTS).json
	$(PY) benchmarks/results.py benchmarks/out/$(RESULTS).json --page benchmarks/$(RESULTS).md
	$(PY) benchmarks/figures.py

bench-3.14: #- runs every benchmark on Python 3.14; writes benchmarks/RESULTS-3.14.md
bench-3.15: #- runs every benchmark on Python 3.15; writes benchmarks/RESULTS-3.15.md
bench-3.14 bench-3.15: bench-%:
	@command -v $(PYTHON$(subst .,,$*)) >/dev/null || { echo "no $(PYTHON$(subst .,,$*)): say make $@ PYTHON$(subst .,,$*)=/path/to/python$*"; exit 1; }
	$(MAKE) bench PYTHON=$(PYTHON$(subst .,,$*)) VENV=$(VENV)-$* PEERS='$(PEERS) aiofastnet' RESULTS=RESULTS-$*

# Needs nothing but Python, and measures nothing.
results: #- writes the figures of the newest page of results into README and docs, and draws their chart
	$(PYTHON) benchmarks/figures.py

bench-instructions: $(MADE)-extension $(MADE)-bench #- counts instructions per operation with valgrind; writes benchmarks/INSTRUCTIONS.md
	$(PY) benchmarks/instructions.py --page benchmarks/INSTRUCTIONS.md

bench-workers: $(MADE)-extension $(MADE)-bench #- shows how evenly the workers of a server share connections
	$(PIP) install $$($(PY) .ci/requirements.py servers)
	$(PY) benchmarks/workers.py

bench-shares: $(MADE)-extension $(MADE)-bench #- shows with perf in whose code the CPU time is spent; writes benchmarks/SHARES.md
	$(PY) benchmarks/shares.py --page benchmarks/SHARES.md

bench-fastapi: $(MADE)-extension $(MADE)-bench #- the same for a request to FastAPI, in more rounds; writes benchmarks/FASTAPI.md
	$(PY) benchmarks/shares.py --only http/fastapi --only http/uvicorn-httptools --rounds 31 \
	--title "Where the time goes with FastAPI" --page benchmarks/FASTAPI.md

bench-primitives: $(MADE)-extension $(MADE)-bench #- compares wakeloop's primitives with asyncio on every loop, and with tokio
	@VIRTUAL_ENV=$(abspath $(VENV)) CARGO_TARGET_DIR=$(or $(CARGO_TARGET_DIR),$(abspath target)) \
	$(VENV)/bin/maturin develop --release --quiet -m benchmarks/tokio_sleep/Cargo.toml \
	|| echo 'skipped: the sleep on tokio, which cannot be built here'
	for scenario in sleep lines latency; do $(PY) benchmarks/primitives.py $$scenario || exit 1; done

bench-queues: $(MADE)-extension $(MADE)-bench #- compares wakeloop.Queue with janus and culsans
	$(PY) benchmarks/queues.py

bench-window: $(MADE)-extension $(MADE)-bench $(MADE)-test #- how soon the window answers while Python cannot, beside other health routes
	$(PY) benchmarks/window.py

bench-bulk: $(MADE)-extension $(MADE)-bench #- compares one sender of much data on every loop, and on a server that calls writev
	$(PY) benchmarks/bulk.py

bench-files: $(MADE)-extension $(MADE)-bench #- compares wakeloop's files with aiofiles and anyio
	$(PY) benchmarks/files.py

RUNTIME_BENCH := cargo run --release --quiet --manifest-path benchmarks/runtime/Cargo.toml --
# Makes the page, and the charts too if the environment of the other benchmarks exists.
PAGE = $(if $(wildcard $(PY)),$(PY),$(PYTHON)) benchmarks/runtime/results.py benchmarks/out

bench-runtime: #- compares the Rust runtime with tokio and smol; writes benchmarks/RUNTIME.md
	$(RUNTIME_BENCH) --json benchmarks/out/runtime.json
	$(RUNTIME_BENCH) sleeps --json benchmarks/out/sleeps.json
	$(RUNTIME_BENCH) delays --json benchmarks/out/delays.json
	$(PAGE)

bench-echo: #- puts load on echo and HTTP servers on wakeloop, tokio, smol and threads; writes benchmarks/RUNTIME.md
	@mkdir -p benchmarks/out
	cargo build --release --quiet --bins --manifest-path benchmarks/runtime/Cargo.toml
	cargo run --release --quiet --manifest-path benchmarks/runtime/Cargo.toml --bin echo -- --json benchmarks/out/echo.json
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) benchmarks/runtime/wrk.py --json benchmarks/out/wrk.json
	$(PAGE)

bench-quick: $(MADE)-extension $(MADE)-bench ## runs every benchmark in three short rounds
	$(PY) benchmarks/run.py --quick

# -- releases ------------------------------------------------------------------------------------------------------

DIST ?= dist
WHEEL_PYTHONS ?= 3.11 3.12 3.13 3.14 3.15
WHEEL_SYSTEMS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl
# glibc 2.17 is the oldest that Rust's standard library supports. maturin has the facts of each interpreter that is built
# for, so none of them has to be installed.
# README.md is the index's page, where links have to be absolute.
INDEX_README = $(PY) -m release.index_readme
WHEEL_TAG = $(if $(findstring darwin,$1),,--compatibility $(if $(findstring musl,$1),musllinux_1_2,manylinux_2_17))
# These wheels can be built, and no test of ours has run with them: see docs/releasing.md.
MAC_SYSTEMS := aarch64-apple-darwin x86_64-apple-darwin
export MACOSX_DEPLOYMENT_TARGET ?= 11.0
BUILD_WHEELS = $(INDEX_README) maturin build --release --strip --locked --zig --target $1 $(call WHEEL_TAG,$1) \
	$(WHEEL_PYTHONS:%=--interpreter python%) $(FREE_THREADED:%=--interpreter python%) --out $(DIST)
# With these, two builds of a commit in the same directory are the same, byte for byte: see docs/releasing.md.
REPRODUCIBLE = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) RUSTFLAGS='--remap-path-prefix=$(abspath .)=/wakeloop \
	--remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)/registry/src=/crates'
ON_PATH = PATH="$(abspath $(VENV))/bin:$$PATH"

wheels: $(MADE)-wheels #- builds a wheel for each of WHEEL_PYTHONS and FREE_THREADED on each of WHEEL_SYSTEMS into dist
	rustup target add $(WHEEL_SYSTEMS)
	$(foreach system,$(WHEEL_SYSTEMS),$(ON_PATH) $(REPRODUCIBLE) $(call BUILD_WHEELS,$(system)) &&) true

wheels-macos: #- builds the wheels for macOS, and checks them as far as Linux can; nothing is run
	$(MAKE) wheels check-wheels WHEEL_SYSTEMS='$(MAC_SYSTEMS)' DIST='$(DIST)/macos'

check-wheels: $(MADE)-wheels #- audits the wheels in dist, and runs the smoke test with those that can run here
	$(PY) -m release.check_wheels $(DIST) --pythons $(WHEEL_PYTHONS) $(FREE_THREADED) --systems $(WHEEL_SYSTEMS)

sdist: $(MADE)-wheels #- builds the source distribution into dist
	$(ON_PATH) $(REPRODUCIBLE) $(INDEX_README) maturin sdist --out $(DIST)

check-sdist: sdist #- builds and tests wakeloop from the source distribution, offline, and without Rust
	cargo fetch --locked
	$(ON_PATH) $(PY) -m release.check_sdist $(DIST)

# A minimal Debian for arm64, made by debootstrap.
ARM64_TREE ?= target/debian-arm64

check-arm64: $(MADE)-wheels #- runs the smoke test and the runtime's tests for aarch64, on an emulated processor
	$(ON_PATH) release/check-arm64 $(DIST) $(ARM64_TREE)

licenses: $(MADE)-wheels #- writes THIRD-PARTY-LICENSES.txt; needs cargo-about
	cargo about generate --config release/about.toml --locked --offline --fail release/licenses.hbs > THIRD-PARTY-LICENSES.txt
	cd "$$($(PY) -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent)')" && \
		cat LICENSE lib/libunwind/LICENSE.TXT >> $(abspath THIRD-PARTY-LICENSES.txt)

deny: #- checks the crates: licences, duplicates, sources and advisories; needs cargo-deny
	@if ! cargo deny --version >/dev/null 2>&1; then echo 'skipped: no cargo-deny (cargo install --locked cargo-deny)'; else \
	cargo deny check licenses bans sources && \
	if cargo deny fetch db 2>/dev/null; then cargo deny check advisories; \
	else echo 'skipped: advisories; their database cannot be fetched'; fi; fi

workflows: $(MADE)-release #- checks .github/workflows with zizmor, and with actionlint if it is installed
	$(VENV)/bin/zizmor --offline --pedantic --quiet .github
	@if command -v actionlint >/dev/null; then echo actionlint; actionlint; else echo 'skipped: no actionlint'; fi

address: #- writes the project's address, which pyproject.toml has, wherever it is needed; REPOSITORY and DOCUMENTATION change it
	@$(PYTHON) -m release.address --write $(if $(REPOSITORY),--repository $(REPOSITORY)) $(if $(DOCUMENTATION),--documentation $(DOCUMENTATION))

release-check: $(MADE)-release deny workflows #- checks that this commit can be released; docs/releasing.md has the steps
	$(PY) -m release.check

clean: ## removes .venv, target and caches
	rm -rf $(VENV) target docs/_build benchmarks/runtime/target .pytest_cache .mypy_cache benchmarks/out demo.png
	find python -name '*.so' -delete
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
