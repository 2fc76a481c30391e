"""Fixtures of the Python tests.

Every test that takes `loop_factory`, `loop` or `run` runs once on wakeloop and once on asyncio, the control group. So
a test that passes states asyncio's behaviour, not only ours. `--loop asyncio` runs the control group alone.
"""

import asyncio
import faulthandler
import logging
import os
import random
from pathlib import Path

import pytest

from tests.support import builds, certificate, leaks, loops, processes, signals

#: Seconds for a test without a limit of its own. The slowest take ten on a quiet machine.
TIMEOUT = 60


def pytest_addoption(parser):
    parser.addoption("--loop", action="append", metavar="NAME", help="asyncio, wakeloop or uvloop; may be repeated")
    parser.addoption("--measured", action="store_true", help="run the tests that compare times, and only those")
    parser.addoption("--every-guide", action="store_true", help="what a page of docs/ needs and is missing is a failure")


def pytest_configure(config):
    signals.restore_dispositions()
    config.stash[STDERR] = os.dup(2)
    config.addinivalue_line("markers", "measured: compares times, for which other processes count: see `make measure`")
    config.addinivalue_line("markers", "native: about wakeloop alone, without a counterpart in asyncio")
    config.addinivalue_line("filterwarnings", "error::ResourceWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "error:.*was never awaited:RuntimeWarning")
    config.addinivalue_line("filterwarnings", "ignore:'asyncio..*policy:DeprecationWarning")
    names = config.getoption("--loop") or ["wakeloop", "asyncio"]
    try:
        config.stash[FACTORIES] = {name: loops.factory(name) for name in names}
    except ImportError as error:
        raise pytest.UsageError(f"{error}; `--loop asyncio` runs the control group alone") from error


FACTORIES = pytest.StashKey()
#: A duplicate of the descriptor, which is not captured.
STDERR = pytest.StashKey()
SIMULATED = Path(__file__).parent / "testing"


def pytest_collection_modifyitems(config, items):
    kept, left_out = [], []
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
        native_only = item.get_closest_marker("native") and "wakeloop" not in config.stash[FACTORIES]
        is_measured = item.get_closest_marker("measured") is not None
        (left_out if native_only or is_measured != config.getoption("--measured") else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    # The simulated loops of wakeloop.testing add an audit hook, which stays: connections are made in asyncio's way then.
    items[:] = sorted(kept, key=lambda item: item.path.is_relative_to(SIMULATED))


def pytest_generate_tests(metafunc):
    if "loop_name" in metafunc.fixturenames:
        names = metafunc.config.stash[FACTORIES]
        if metafunc.definition.get_closest_marker("native"):
            names = [name for name in names if name == "wakeloop"]
        marks = {"asyncio": pytest.mark.control}
        if "tls_engine" in metafunc.fixturenames:
            pairs = [(name, engine) for name in names for engine in (ENGINES if name == "wakeloop" else ["its own"])]
            cases = [pytest.param(*pair, marks=marks.get(pair[0], ()), id="-".join(pair)) for pair in pairs]
            metafunc.parametrize(("loop_name", "tls_engine"), cases, indirect=["tls_engine"])
            return
        metafunc.parametrize("loop_name", [pytest.param(name, marks=marks.get(name, ())) for name in names])


#: wakeloop's two TLS engines. Every TLS test runs with both.
ENGINES = ["native", "sslobject"]


@pytest.fixture
def tls_engine(request, monkeypatch):
    """Makes wakeloop use one TLS engine, in this process and in its children."""
    if request.param in ENGINES:
        monkeypatch.setenv("WAKELOOP_TLS", request.param)
    return request.param


@pytest.fixture
def loop_factory(loop_name, pytestconfig):
    return pytestconfig.stash[FACTORIES][loop_name]


@pytest.fixture
def run(loop_factory):
    """`run(coroutine)` does what asyncio.run does, on a new loop of the kind under test."""

    def run(coroutine, **options):
        with asyncio.Runner(loop_factory=loop_factory, **options) as runner:
            return runner.run(coroutine)

    return run


@pytest.fixture
def loop(loop_factory):
    """A loop that is not running, for tests that run it themselves."""
    loop = loop_factory()
    yield loop
    if not loop.is_closed():
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture
def asyncio_log(caplog):
    """The records of the `asyncio` logger. A test that does not request this fixture must not cause any."""
    caplog.set_level(logging.DEBUG, logger="asyncio")
    return caplog


@pytest.fixture(scope="session")
def runtime():
    """Starts the runtime's workers, and opens their descriptors, before anything is counted."""
    import wakeloop

    # More than once: on a busy machine a short sleep is over before a worker has armed the driver's timer for it.
    for _ in range(10):
        wakeloop.run(wakeloop.sleep(0.005))


@pytest.fixture(scope="session")
def tls(tmp_path_factory):
    return certificate.Certificate(tmp_path_factory.mktemp("tls"))


def end_hangs(item):
    """Ends the run if a test takes much longer than its limit: its loop does not even answer SIGALRM."""
    limit = 4 * item.get_closest_marker("timeout").args[0]
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    # A time limit counts once, and pytest cancels the other one when a test has failed. Fixtures may hang even then.
    end_hangs(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def seeded_random(request):
    """Seeds `random` with the name of the test, so that a test that fails fails again."""
    random.seed(request.node.nodeid)


#: What debug mode logs of a step that took long, as any step may on a machine that has other work.
SLOW = "Executing %s took %.3f seconds"


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    """Fails a test that leaks, or that makes asyncio log something unexpected."""
    if "runtime" in request.fixturenames:
        request.getfixturevalue("runtime")
    if "tls" in request.fixturenames:
        request.getfixturevalue("tls")
    complaints = []
    if "asyncio_log" not in request.fixturenames:
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: record.msg == SLOW or complaints.append(record.getMessage())
        logging.getLogger("asyncio").addHandler(handler)
    end_hangs(request.node)
    failures, mark = request.session.testsfailed, processes.mark()
    before = leaks.Snapshot()
    yield
    faulthandler.cancel_dump_traceback_later()
    kept = None  # as it stays if the test's timeout ends the check
    try:
        kept = before.check()
    finally:
        if kept != [] or request.session.testsfailed > failures:
            processes.end(mark, before.children)
    if "asyncio_log" not in request.fixturenames:
        logging.getLogger("asyncio").removeHandler(handler)
    assert not kept, f"left behind: {', '.join(kept)}"
    assert not complaints, f"asyncio complained: {complaints}"
