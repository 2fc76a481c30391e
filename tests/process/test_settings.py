"""Environment variables: one table, and one way in which a wrong value is told."""

import os
import re
import signal
import subprocess
import sys

import pytest

import wakeloop
from tests.support.pages import DOCS
from wakeloop import _core

pytestmark = pytest.mark.native

#: Wrong for every variable but the path.
WRONG = [b"foo", b"-1", b"2**3", b"nan", b"inf", b"-inf", b"1e999", b"9" * 40, "٣".encode(), "é".encode(), b"\xff"]
WRONG += [b"\x1b[2J", b"1;2", b"x" * 100_000]
SWITCHES = ["WAKELOOP", "WAKELOOP_REPORT", "WAKELOOP_GIL"]
TIMES = ["WAKELOOP_WATCHDOG", "WAKELOOP_SLOW_TURN", "WAKELOOP_ADMIN_LIMIT"]
#: For each variable, what is wrong for it alone, and what it may be set to.
VALUES = {
    **dict.fromkeys(SWITCHES, ([b"yes", b"on", b"true", b"2", b"01"], [b"0", b"1", b" 1\n"])),
    **dict.fromkeys(
        TIMES, ([b"100m", b"ms", b"0ms", b"1e-12", b"+1"], [b"100ms", b"0.5", b" 1 S ", b"5e-2", b"OFF", b"0"])
    ),
    "WAKELOOP_ADMIN": (
        [b"2", b"unix:", b":80", b"shop", b"shop:http", b"shop:65536"],
        [b"0", b" 1", b"unix:/a B", b"unix:\xff", b"localhost:9000", b"[::1]:80", b"0.0.0.0:9000"],
    ),
    "WAKELOOP_TLS": ([b"openssl", b"native,asyncio"], [b"native", b"SSLObject", b" asyncio", b"auto"]),
    "WAKELOOP_WORKERS": ([b"0", b"1025", b"many", b"1.5", b"+2"], [b"1", b" 8 ", b"1024"]),
    "WAKELOOP_SPIN": ([b"1001", b"on", b"20us"], [b"auto", b"Off", b"0", b"20", b"1000"]),
    "WAKELOOP_SEED": ([b"1.0", b"0x10"], [b"0", b"17"]),
    "WAKELOOP_RECORD_SIGNAL": (
        [b"KILL", b"9", b"SIGSTOP", b"%d" % signal.SIGSTOP, b"0", b"9999"], [b"USR2", b"sigusr2", b"12"]
    ),
}  # fmt: skip
EMPTY = [b"", b" ", b"\t\n "]
PATH = "WAKELOOP_RECORD"


def python(code, *options, timeout=60, **environment):
    """Runs code in an interpreter that has these variables alone. Returns the exit code, stdout and stderr."""
    kept = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    line = [sys.executable, *options, "-c", code]
    done = subprocess.run(line, env=kept | environment, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def result_of(monkeypatch):
    """Returns the meaning of a variable's value as text, or raises ValueError."""

    def result_of(name, value):
        monkeypatch.setitem(os.environb, name.encode(), value)
        try:
            return repr(_core._settings()[name])
        except ValueError as error:
            return str(error)

    return result_of


def test_every_variable_of_the_page_is_in_the_table():
    rows = re.findall(r"^\| (`[^|]*`) \|", (DOCS / "reference" / "environment.md").read_text(), re.MULTILINE)
    listed = {variable for row in rows for variable in re.findall(r"`(WAKELOOP\w*)`", row)}
    assert listed == set(_core._settings()) == {*VALUES, PATH}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_valid_or_a_value_error_that_says_what_is_allowed(name, result_of):
    wrong, right = VALUES[name]
    assert {result_of(name, value) for value in EMPTY} == {"None"}
    for value in right:
        assert not re.search("it can be|None", result_of(name, value)), value
    for value in [*wrong, *WRONG]:
        result = result_of(name, value)
        assert re.fullmatch(rf"{name} is '.*'; it can be .*", result), (value, result)
        assert result.isprintable() and len(result) < 300


def test_a_path_is_taken_as_it_is(result_of):
    assert [result_of(PATH, value) for value in EMPTY] == ["None"] * 3
    for value in (b" a ", b"OFF", b"\xff", "é".encode(), b"x" * 10_000):
        assert result_of(PATH, value) == repr(value)


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_raised_when_the_first_loop_is_made_and_not_by_the_import(name):
    code = "import wakeloop; print('imported', flush=True)\nwakeloop.new_event_loop()"
    result, out, err = python(code, **{name: "foo"})
    assert (result, out) == (1, "imported\n")
    assert f"ValueError: {name} is 'foo'; it can be " in err and err.count("Error") == 1


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_raised_when_the_runtime_is_made_beside_asyncios_own_loop(name):
    code = """
import asyncio, wakeloop
with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(wakeloop.sleep(0.001))
"""
    result, _, err = python(code, **{name: "foo"})
    assert result == 1 and f"ValueError: {name} is 'foo'; it can be " in err


@pytest.mark.parametrize("option", ["-E", "-I"])
def test_an_interpreter_that_ignores_its_environment_ignores_every_variable(option, tmp_path):
    folder = os.path.dirname(os.path.dirname(wakeloop.__file__))
    code = f"""
import os, sys; sys.path.insert(0, {folder!r})
import asyncio, time, wakeloop
from wakeloop import _core
from wakeloop._observe import client
async def main():
    await wakeloop.sleep(0.001)
    time.sleep(0.1)
with asyncio.Runner(loop_factory=wakeloop.new_event_loop) as runner:
    assert runner.get_loop().slow_turn_duration == 0.25
    runner.run(main())
assert not any(_core._settings().values()) and wakeloop.Recorder.running() is None
assert os.getpid() not in client.processes()
"""
    right = {
        "WAKELOOP_RECORD": str(tmp_path / "trace.json"),
        "WAKELOOP_RECORD_SIGNAL": "USR2",
        "WAKELOOP_ADMIN": "1",
        "WAKELOOP_WATCHDOG": "10ms",
        "WAKELOOP_SLOW_TURN": "10ms",
    }
    wrong = {name: "foo" for name in (*VALUES, PATH)}
    for environment in (right, wrong):
        assert python(code, option, **environment) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_a_variable_that_is_set_after_the_import_counts_for_the_next_loop():
    code = """
import os, wakeloop
os.environ["WAKELOOP_SLOW_TURN"] = "2s"
first = wakeloop.new_event_loop()
os.environ["WAKELOOP_SLOW_TURN"] = "soon"
try:
    wakeloop.new_event_loop()
except ValueError as error:
    print(error)
del os.environ["WAKELOOP_SLOW_TURN"]
second = wakeloop.new_event_loop()
print(first.slow_turn_duration, second.slow_turn_duration)
first.close(); second.close()
"""
    expected = "WAKELOOP_SLOW_TURN is 'soon'; it can be a time such as 100ms, 0.1 or 1s, or off\n2.0 0.25\n"
    assert python(code, "-W", "error") == (0, expected, "")


def test_a_loop_that_a_wrong_value_prevents_leaves_nothing_behind(monkeypatch):
    # The fixture that looks for descriptors and warnings is the test.
    monkeypatch.setenv("WAKELOOP_SPIN", "on")
    for _ in range(3):
        with pytest.raises(ValueError, match="WAKELOOP_SPIN is 'on'"):
            wakeloop.new_event_loop()


@pytest.mark.parametrize(
    ("wanted", "missing"), [("missing/trace.json", "No such file or directory"), ("", "Is a directory")]
)
def test_a_trace_that_could_not_be_written_is_told_when_the_first_loop_is_made(tmp_path, wanted, missing):
    path = str(tmp_path / wanted)
    code = "import wakeloop; print('imported', flush=True)\nwakeloop.new_event_loop()"
    result, out, err = python(code, WAKELOOP_RECORD=path)
    assert (result, out) == (1, "imported\n")
    assert f"ValueError: WAKELOOP_RECORD is '{path}'; it can be the path of a file: {missing}" in err


def test_more_workers_than_a_runtime_can_have_are_a_value_error_of_configure():
    with pytest.raises(ValueError, match="workers must be at most 1024"):
        wakeloop.configure(workers=1025)


def test_every_name_of_a_signal_that_a_process_can_handle_is_known(result_of):
    for each in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        assert result_of("WAKELOOP_RECORD_SIGNAL", each.name.encode()) == str(int(each)), each


def test_a_variable_counts_as_it_was_when_a_loop_was_last_made(loop_factory, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "sslobject")
    first = loop_factory()
    monkeypatch.setenv("WAKELOOP_TLS", "asyncio")
    assert first.tls_engine == "sslobject"
    second = loop_factory()
    assert first.tls_engine == second.tls_engine == "asyncio"
    first.close()
    second.close()


def test_before_the_first_loop_a_variable_counts_as_it_is():
    code = "from wakeloop._net import tls; print(tls.engine())"
    assert python(code, WAKELOOP_TLS="asyncio") == (0, "asyncio\n", "")
    # The import has not told this one.
    result, out, err = python(code, WAKELOOP_TLS="foo")
    assert (result, out) == (1, "") and "ValueError: WAKELOOP_TLS is 'foo'" in err
