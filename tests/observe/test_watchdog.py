"""The watchdog: a turn that does not end is reported while it happens.

Most tests give the watchdog a pipe, and block the loop until something can be read from it. So a report that comes only
after the turn would be a timeout here, and no test depends on how fast the machine is.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import inspect
import math
import os
import re
import select
import sys
import textwrap
import threading
import time
import traceback

import pytest

import wakeloop
from tests.support import nesting
from tests.support.builds import FREE_THREADED, needs_gil

pytestmark = pytest.mark.native

LIMIT = 0.03
#: The C library, called without releasing the GIL.
NATIVE = ctypes.PyDLL(None)
FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


class Pollfd(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Reports:
    """The pipe that the watchdog writes to."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.text = ""

    def fileno(self):
        return self.writer

    def close(self):
        os.close(self.reader)
        os.close(self.writer)

    def has_come(self, timeout=20):
        """Waits without the GIL until there is something to read."""
        return bool(select.select([self.reader], [], [], timeout)[0])

    def come_to_native_code(self):
        """Waits as `has_come` does, but with the GIL held."""
        return NATIVE.poll(ctypes.byref(Pollfd(self.reader, select.POLLIN)), 1, 20_000) == 1

    def read(self):
        """Everything that has come so far."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.reader, 1 << 16):
                self.text += data.decode()
        return self.text

    def wait_for(self, words):
        """Reads until these words have come."""
        while words not in self.read():
            assert self.has_come(), self.text
        return self.text


@pytest.fixture
def reports():
    reports = Reports()
    yield reports
    reports.close()


def stack(text, whose="Its stack"):
    """The frames of the first stack of this heading, as (function, line)."""
    _, _, rest = text.partition(f"{whose}, most recent call first:\n")
    frames = "".join(line for line in iter_frames(rest))
    return [(function, int(line)) for _, line, function in FRAME.findall(frames)]


def iter_frames(text):
    for line in text.splitlines(keepends=True):
        if not line.startswith("  File "):
            return
        yield line


def line_of(function, words):
    """The number of the line of a function that has these words."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [number for number, line in enumerate(lines, first) if words in line]
    return found


def has_waited(name, thread="MainThread", what="has been in one turn"):
    # Without a GIL, names of tasks are not read.
    task = "" if FREE_THREADED else f', in task "{name}"'
    return rf'wakeloop: the event loop of thread "{thread}" \(\d+\) {what} for \d+\.\d+ s{task}\n'


def run_in_task(run, function, name="the task"):
    async def main():
        asyncio.current_task().set_name(name)
        await asyncio.sleep(0)
        function()

    run(main())


# -- what is reported ------------------------------------------------------------------------------------------------


def test_a_call_that_has_released_the_gil_is_reported_while_it_blocks(run, reports):
    def block():
        assert reports.has_come()

    with wakeloop.watchdog(LIMIT, file=reports):
        run_in_task(run, block)
        text = reports.wait_for("ended its turn after")
    assert re.match(has_waited("the task"), text)
    if FREE_THREADED:
        assert "There is no GIL. It is in a call that has left the interpreter.\n" in text
    else:
        assert "Nobody has the GIL: it is in a call that has released it.\n" in text
    functions = [function for function, _ in stack(text)]
    assert functions[:3] == [name(Reports.has_come), name(block), name(run_in_task) + ".<locals>.main"]
    assert stack(text)[1] == (name(block), line_of(block, "has_come"))


def name(function):
    return function.__qualname__


def test_a_sleep_is_reported_with_its_line(run, reports):
    def block():
        while not reports.has_come(0):
            time.sleep(2 * LIMIT)

    with wakeloop.watchdog(LIMIT, file=reports):
        run_in_task(run, block)
        text = reports.wait_for("\n  File ")
    assert re.match(has_waited("the task"), text)
    assert (name(block), line_of(block, "sleep")) in stack(text) or (name(block), line_of(block, "while")) in stack(text)


def test_a_computation_in_python_is_reported_while_it_runs(run, reports):
    def compute():
        while not reports.has_come(0):
            for _ in range(1_000_000):
                pass

    with wakeloop.watchdog(LIMIT, file=reports):
        run_in_task(run, compute)
        text = reports.wait_for("ended its turn after")
    assert re.match(has_waited("the task"), text) or "No progress" in text
    assert "t runs Python code" in text or "did not release it" in text
    assert name(compute) in [function for function, _ in stack(text)]


def test_native_code_that_keeps_the_gil_is_reported_while_nobody_can_take_it(run, reports):
    def block():
        assert reports.come_to_native_code()

    with wakeloop.watchdog(LIMIT, file=reports):
        run_in_task(run, block)
        text = reports.wait_for("ended its turn after")
    assert re.match(r'wakeloop: the event loop of thread "MainThread" \(\d+\) has been in one turn for \d+\.\d+ s\n', text)
    if FREE_THREADED:
        assert "There is no GIL. It runs Python code, or native code.\n" in text
    else:
        assert "No progress: the GIL is held by this thread itself, which did not release it in " in text
    assert stack(text)[:2] == [
        (name(Reports.come_to_native_code), line_of(Reports.come_to_native_code, "NATIVE.poll")),
        (name(block), line_of(block, "come_to_native_code")),
    ]


def test_a_deadlocked_lock_is_reported_with_its_line(run, reports):
    lock = threading.Lock()

    def deadlock():
        with lock:
            rescuer.start()
            lock.acquire()

    def rescue():
        reports.has_come()
        lock.release()

    rescuer = threading.Thread(target=rescue)
    with wakeloop.watchdog(LIMIT, file=reports):
        with contextlib.suppress(RuntimeError):
            run_in_task(run, deadlock)
        text = reports.wait_for("ended its turn after")
    rescuer.join()
    assert re.match(has_waited("the task"), text)
    assert stack(text)[0] == (name(deadlock), line_of(deadlock, "lock.acquire()"))


@needs_gil
def test_a_loop_that_waits_for_the_gil_is_reported_with_the_thread_that_keeps_it(run, reports, request):
    begin, kept = threading.Event(), []
    # The thread cannot take the GIL in the middle of a turn.
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(20)

    def keep():
        begin.wait()
        kept.append(reports.come_to_native_code())

    async def main():
        thread = threading.Thread(target=keep, name="the holder")
        thread.start()
        begin.set()
        # The thread takes the GIL while the loop polls.
        while not kept:
            await asyncio.sleep(0.001)
        thread.join()

    with wakeloop.watchdog(LIMIT, file=reports):
        run(main())
        text = reports.wait_for("The stack of thread")
        text = reports.wait_for("got the GIL after ")
    assert kept == [True] and "has waited for the GIL for " in text
    holder = r'thread ("the holder" \(\d+\)|\d+)' if sys.version_info >= (3, 14) else r"thread \d+"
    found = re.search(rf"No progress: the GIL is held by ({holder}), which did not release it in ", text)
    assert found, text
    assert stack(text, f"The stack of {found[1]}")[:2] == [
        (name(Reports.come_to_native_code), line_of(Reports.come_to_native_code, "NATIVE.poll")),
        (name(keep), line_of(keep, "come_to_native_code")),
    ]


def test_the_loops_of_several_threads_are_reported_by_their_names(loop_factory, reports):
    both = threading.Barrier(3)

    def serve():
        async def main():
            await asyncio.sleep(0)
            both.wait()
            both.wait()

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    threads = [threading.Thread(target=serve, name=f"loop {number}") for number in range(2)]
    with wakeloop.watchdog(LIMIT, file=reports):
        for thread in threads:
            thread.start()
        both.wait()
        for thread in threads:
            reports.wait_for(f'the event loop of thread "{thread.name}" ')
        both.wait()
        for thread in threads:
            thread.join()
        text = reports.wait_for("ended its turn after")
    assert text.count("in one turn") >= 2


def test_a_loop_that_does_its_work_or_waits_is_not_reported(run, reports):
    async def main():
        loop = asyncio.get_running_loop()
        longest, last = 0.0, loop.time()
        while loop.time() < end:
            for _ in range(20):
                await asyncio.sleep(0)
            longest, last = max(longest, loop.time() - last), loop.time()
            await asyncio.sleep(limit / 10)
            last = loop.time()
        await asyncio.sleep(2 * limit)
        return longest

    limit = 0.2
    end = time.monotonic() + 3 * limit
    with wakeloop.watchdog(limit, file=reports):
        longest = run(main())
    # On a busy machine the loop may really have been late.
    assert reports.read() == "" or longest > limit / 2, longest


def test_a_turn_is_reported_at_doubling_times_until_it_ends(run, reports):
    def block():
        while reports.read().count("has been in one turn") < 3:
            assert reports.has_come()

    with wakeloop.watchdog(LIMIT, file=reports):
        before = time.monotonic()
        run_in_task(run, block)
        lasted = time.monotonic() - before
        text = reports.wait_for("ended its turn after")
    times = [float(number) for number in re.findall(r"has been in one turn for (\d+\.\d+) s", text)]
    assert len(times) == 3 and text.count("ended its turn") == 1
    # Numbers are rounded. A late report may skip some of the times.
    steps = [math.floor(math.log2(seconds / LIMIT + 0.02)) for seconds in times]
    assert steps[0] >= 0 and all(a < b for a, b in zip(steps, steps[1:], strict=False)), times
    (end,) = re.findall(r"ended its turn after (\d+\.\d+) s", text)
    assert times[-1] <= float(end) and times[-1] <= lasted + 0.01


def test_nested_iterations_count_as_progress(loop_factory, reports):
    loop = loop_factory()
    nesting.make_nestable(loop)

    async def inner():
        for _ in range(20):
            await asyncio.sleep(LIMIT)

    async def main():
        await asyncio.sleep(0)
        nesting.run_nested(loop, inner())

    with contextlib.closing(loop):
        # Long enough for a busy machine, and shorter than the turn that the nested iterations are in.
        with wakeloop.watchdog(10 * LIMIT, file=reports):
            loop.run_until_complete(main())
    assert reports.read() == ""


# -- what a report says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_gil", [False, True], ids=["attached", "detached"])
def test_the_stack_is_the_one_that_python_sees(run, reports, keeps_gil):
    """Without the GIL the interpreter's memory is read: names of every width, line tables with every kind of entry."""
    source = """
    class Clásse:
        def método(self, depth):
            return [
                0,
                *(
                    self.método(depth - 1)
                    if depth
                    else block()
                    for _ in range(1)
                ),
            ]

        @property
        def 属性(self):
            return (lambda it: it.método(3))(
                self
            )



    def 𐐷(
        first=1,
    ):
        try:
            raise KeyError
        except KeyError:
            {name: Clásse().属性 for name in ["a"]}
        finally:
            first += 1
    """
    expected = []

    def block():
        frames = traceback.extract_stack()[:-1]
        expected.extend((frame.name, frame.lineno) for frame in reversed(frames))
        assert reports.come_to_native_code() if keeps_gil else reports.has_come()

    namespace = {"block": block}
    exec(compile("\n" * 300 + textwrap.dedent(source), "módulo 文字.py", "exec"), namespace)
    with wakeloop.watchdog(LIMIT, file=reports):
        run_in_task(run, namespace["𐐷"])
        text = reports.wait_for("ended its turn after")
    found = [(function.rpartition(".")[2], line) for function, line in stack(text)]
    assert found[2:] == expected, text
    assert 'File "módulo 文字.py", line 3' in text
    assert ("Clásse.属性.<locals>.<lambda>" if sys.version_info < (3, 15) else "<lambda>") in text
    kept = "It runs Python code, or native code" if FREE_THREADED else "did not release it"
    assert (kept in text) == keeps_gil


@pytest.mark.parametrize("keeps_gil", [False, True], ids=["attached", "detached"])
def test_a_deep_stack_is_cut(run, reports, keeps_gil):
    def dive(depth):
        if depth:
            dive(depth - 1)
        else:
            assert reports.come_to_native_code() if keeps_gil else reports.has_come()

    with wakeloop.watchdog(LIMIT, file=reports):
        run_in_task(run, lambda: dive(200))
        text = reports.wait_for("ended its turn after")
    assert len(stack(text)) == 100 and stack(text)[99] == (name(dive), line_of(dive, "dive(depth - 1)"))


@pytest.mark.parametrize("keeps_gil", [False, True], ids=["attached", "detached"])
def test_no_name_reaches_the_terminal_raw(run, reports, keeps_gil):
    evil = "\x1b[2J\r\n\x07\x9b\u202e\u2028\udc80"

    def block():
        assert reports.come_to_native_code() if keeps_gil else reports.has_come()

    code = compile("def f(): block()", f"{evil}.py", "exec")
    namespace = {"block": block, "__name__": evil}
    exec(code, namespace)
    f = namespace["f"]
    f.__code__ = f.__code__.replace(co_name=evil, co_qualname=evil)
    thread = threading.current_thread()
    before, thread.name = thread.name, evil
    try:
        with wakeloop.watchdog(LIMIT, file=reports):
            run_in_task(run, f, evil)
            text = reports.wait_for("ended its turn after")
    finally:
        thread.name = before
    assert all(character == "\n" or character.isprintable() for character in text), ascii(text)
    assert text.count(r"\u{1b}[2J\r\n\u{7}\u{9b}\u{202e}\u{2028}") >= (2 if keeps_gil or FREE_THREADED else 4)
    begins = ("wakeloop: ", "  File ", "Its ", "No ", "Nobody ", "The ", "There ", "It ")
    assert all(line.startswith(begins) for line in text.splitlines())


def test_tasks_of_other_classes_and_callbacks_without_a_task_are_reported(loop, reports):
    class Mine(asyncio.Task):
        def get_name(self):
            pytest.fail("a report has called Python code")

    def block():
        assert reports.has_come()
        reports.wait_for("\nIts stack")

    async def main():
        await asyncio.sleep(0)
        block()

    # Since 3.14 asyncio's own current_task() does not know tasks of the class that is written in Python.
    classes = [Mine, asyncio.tasks._PyTask] if sys.version_info < (3, 14) else [Mine]
    with wakeloop.watchdog(LIMIT, file=reports):
        for kind in classes:
            loop.run_until_complete(kind(main(), loop=loop, name=f"a {kind.__name__}"))
            assert re.match(has_waited(f"a {kind.__name__}"), reports.wait_for("ended its turn after"))
            reports.text = ""
        loop.call_soon(block)
        loop.call_soon(loop.stop)
        loop.run_forever()
        text = reports.wait_for("ended its turn after")
    assert ", in task" not in text.split("\n")[0] and stack(text)[-1]


@pytest.mark.parametrize("collects", [True, False], ids=["on", "off"])
def test_a_report_runs_neither_the_collector_nor_python_code(run, reports, collects):
    """Only threads of the program may be seen by it."""
    threads, seen = {threading.get_ident()}, set()

    def note(*_args):
        seen.add(threading.get_ident())

    def compute():
        while reports.read().count("in one turn") < 3:
            [[] for _ in range(1000)]

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    threading.setprofile(note)
    gc.set_threshold(1, 1, 1)
    if not collects:
        gc.disable()
    try:
        with wakeloop.watchdog(0.005, file=reports):
            run_in_task(run, compute)
        left = gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        threading.setprofile(None)
        gc.callbacks.remove(note)
    # A collection without a GIL begins when the process has grown, whatever the thresholds are.
    assert left == collects and (seen == (threads if collects else set()) or FREE_THREADED and not seen)
    assert threading.active_count() == 1


# -- starting and stopping -------------------------------------------------------------------------------------------


def test_a_stopped_watchdog_writes_nothing_more(run, reports):
    def block():
        assert reports.has_come()
        watchdog.stop()
        before = reports.read()
        time.sleep(4 * LIMIT)
        assert reports.read() == before

    watchdog = wakeloop.watchdog(LIMIT, file=reports)
    assert watchdog.is_running() and watchdog.limit == LIMIT and "running" in repr(watchdog)
    run_in_task(run, block)
    assert not watchdog.is_running() and "stopped" in repr(watchdog)
    watchdog.stop()


def test_a_new_watchdog_takes_the_place_of_the_earlier_one(run, reports):
    first = wakeloop.watchdog(1000)
    with wakeloop.watchdog(LIMIT, file=reports) as second:
        assert not first.is_running() and second.is_running()
        first.stop()
        run_in_task(run, reports.has_come)
        reports.wait_for("ended its turn after")
    assert not second.is_running()


def test_a_watchdog_can_be_started_while_a_turn_lasts(run, reports):
    def block():
        with wakeloop.watchdog(LIMIT, file=reports):
            assert reports.has_come()

    run_in_task(run, block)
    assert re.match(has_waited("the task"), reports.read())


def test_a_watchdog_that_waits_for_the_gil_can_be_stopped(run, reports):
    """The helper waits for the GIL while its watchdog is stopped, and gets it later."""

    def block():
        for _ in range(20):
            watchdog = wakeloop.watchdog(0.001, file=reports)
            NATIVE.usleep(3000)
            watchdog.stop()

    run_in_task(run, block)
    assert "panicked" not in reports.read()


@pytest.mark.parametrize("limit", [0, -1, -0.0, math.nan, "soon", "0ms", "-1", "", "off"])
def test_a_limit_that_is_no_positive_time_is_a_value_error(limit):
    said = f"limit must be a positive number of seconds or a time such as '100ms', not {limit!r}"
    with pytest.raises(ValueError, match=re.escape(said)):
        wakeloop.watchdog(limit)


@pytest.mark.parametrize(("limit", "seconds"), [("100ms", 0.1), ("0.25", 0.25), (" 2s ", 2), ("50us", 5e-5)])
def test_a_limit_is_written_as_in_the_variable(reports, limit, seconds):
    with wakeloop.watchdog(limit, file=reports) as watchdog:
        assert watchdog.limit == pytest.approx(seconds)


@pytest.mark.parametrize("limit", [None, [], b"1"])
def test_a_limit_of_another_type_is_a_type_error(limit):
    said = f"limit must be a number of seconds or a time such as '100ms', not {type(limit).__name__}"
    with pytest.raises(TypeError, match=said):
        wakeloop.watchdog(limit)


@pytest.mark.parametrize("limit", [math.inf, 1e300, 5, 1e-300])
def test_extreme_limits_are_accepted(run, reports, limit):
    with wakeloop.watchdog(limit, file=reports) as watchdog:
        assert watchdog.limit == limit
        run(asyncio.sleep(0.01))


def test_an_argument_of_another_type_is_an_error_and_a_closed_file_an_os_error(tmp_path):
    for arguments in [{"limit": None}, {"file": "path"}, {"limit": [], "file": 1}]:
        with pytest.raises((TypeError, AttributeError)):
            wakeloop.watchdog(**arguments)
    for fd in (-1, 1 << 20):
        with pytest.raises(OSError):
            wakeloop.watchdog(file=fd)
    with pytest.raises(ValueError), open(tmp_path / "closed", "w") as file:
        file.close()
        wakeloop.watchdog(file=file)


def test_a_file_that_was_closed_after_the_start_is_still_written_to(run, tmp_path):
    def block():
        while "in one turn" not in (tmp_path / "reports").read_text():
            time.sleep(LIMIT)

    with open(tmp_path / "reports", "w") as file:
        watchdog = wakeloop.watchdog(LIMIT, file=file)
    with watchdog:
        run_in_task(run, block)


def full_pipe():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    return reader, writer


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return (writer,)


@pytest.mark.parametrize(
    "make", [full_pipe, closed_pipe, lambda: (os.open("/dev/full", os.O_WRONLY),)], ids=["full", "closed", "no space"]
)
def test_a_file_that_cannot_be_written_does_no_harm(run, make):
    fds = make()
    try:
        with wakeloop.watchdog(LIMIT, file=fds[-1]) as watchdog:
            run_in_task(run, lambda: time.sleep(5 * LIMIT))
            assert watchdog.is_running()
    finally:
        for fd in fds:
            os.close(fd)


def test_loops_that_come_and_go_in_many_threads_are_watched_and_do_not_disturb_each_other(loop_factory, reports):
    """Turns end, loops close and threads end while they are being looked at."""
    end = time.monotonic() + 2

    def work(number):
        while time.monotonic() < end:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(asyncio.sleep(0.0001 * number))
                runner.get_loop().call_soon(NATIVE.usleep if number % 2 else ctypes.CDLL(None).usleep, 1500)
                runner.run(asyncio.sleep(0))

    def drain():
        while not done.is_set():
            reports.has_come(0.05)
            reports.read()

    done = threading.Event()
    drainer = threading.Thread(target=drain)
    drainer.start()
    with wakeloop.watchdog(0.001, file=reports):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    done.set()
    drainer.join()
    assert "in one turn" in reports.text and "Its stack could not be read" not in reports.text
