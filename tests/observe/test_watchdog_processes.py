"""The watchdog in a process: the variable, forks, the exit of the interpreter."""

import re
import textwrap

import pytest

from tests.observe.test_watchdog import has_waited
from tests.support import sandbox, script

pytestmark = pytest.mark.native

BLOCK = """
    import os, sys, threading, time, warnings

    async def main(seconds=0.15):
        await asyncio.sleep(0)
        time.sleep(seconds)

    def run(seconds=0.15):
        loop = new_loop()
        loop.run_until_complete(main(seconds))
        loop.close()
"""


def run_with_variable(value, body, options=()):
    """Runs a program with WAKELOOP_WATCHDOG set before the package is imported."""
    source = f"import os; os.environ['WAKELOOP_WATCHDOG'] = {value!r}\n"
    return script.run_script("wakeloop", source + textwrap.dedent(BLOCK) + textwrap.dedent(body), options=options)


@pytest.mark.parametrize("value", ["50ms", "0.05", "0.05s", " 50 ms ", "5e-2"])
def test_the_variable_starts_a_watchdog_at_the_first_run(value):
    done = run_with_variable(value, "print(len(os.listdir('/proc/self/task'))); run(); run()")
    assert done.code == 0 and done.out.split() == ["1"]
    assert done.err.count("ended its turn") == 2 and re.match(has_waited("Task-1"), done.err), done


@pytest.mark.parametrize("value", ["100m", "ms", "-1", "inf", "nan", "fast", "\x1b[2J", "-0.0", "0ms"])
def test_a_wrong_value_of_the_variable_is_an_error(value):
    done = run_with_variable(value, "run(); print('ran')")
    assert done.code == 1 and done.out == "" and "in one turn" not in done.err
    assert done.err.count("ValueError: WAKELOOP_WATCHDOG is ") == 1 and "such as 100ms, 0.1 or 1s" in done.err
    assert "\x1b" not in done.err


@pytest.mark.parametrize(("value", "options"), [("", ()), ("0", ()), ("off", ()), ("50ms", ("-E",))])
def test_the_variable_can_be_off_and_is_ignored_by_an_interpreter_that_ignores_the_environment(value, options):
    done = run_with_variable(value, "run()", options)
    assert done.code == 0 and done.err == ""


def test_the_variable_counts_when_a_loop_first_runs_and_not_later():
    done = run_with_variable("off", "run(); os.environ['WAKELOOP_WATCHDOG'] = '50ms'; run()")
    assert done.code == 0 and done.err == "", done


def test_a_call_of_the_program_wins_over_the_variable():
    done = run_with_variable("1ms", "import wakeloop; wakeloop.watchdog(1000); run()")
    assert done.code == 0 and done.err == ""


def test_a_forked_child_has_no_watchdog_unless_the_variable_asks_for_one():
    body = """
        import wakeloop
        warnings.simplefilter("ignore", DeprecationWarning)
        watchdog = wakeloop.watchdog(0.05)
        run()
        if os.fork() == 0:
            run()
            print(watchdog.is_running(), len(os.listdir('/proc/self/task')), flush=True)
            watchdog.stop()
            print(wakeloop.watchdog(0.05).is_running(), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
        print(watchdog.is_running())
    """
    done = run_with_variable("0", body)
    assert done.code == 0 and done.out.split() == ["False", "1", "True", "True"], done
    assert done.err.count("ended its turn") == 1
    done = run_with_variable("50ms", body)
    assert done.code == 0 and done.out.split() == ["False", "2", "True", "True"], done
    assert done.err.count("ended its turn") == 2


def test_a_report_has_the_stack_also_in_a_process_that_was_profiled():
    """Then the interpreter has a version of its instrumentation, which was once taken for the switch of the GIL."""
    done = run_with_variable(
        "50ms",
        """
        import cProfile
        cProfile.Profile().runcall(int)
        run()
        """,
    )
    assert done.code == 0 and "in main" in done.err and "could not be read" not in done.err, done


def test_forks_at_any_moment_do_not_block_the_child():
    """Some of the children are forked while the watchdog reads, writes or waits for the GIL."""
    done = run_with_variable(
        "1ms",
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        import ctypes
        native = ctypes.PyDLL(None)

        async def parent():
            for number in range(60):
                await asyncio.sleep(0)
                (native.usleep if number % 2 else ctypes.CDLL(None).usleep)(1000 + 50 * number)
                if os.fork() == 0:
                    asyncio._set_running_loop(None)
                    run(0.003)
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.wait()[1]) == 7

        loop = new_loop()
        loop.run_until_complete(parent())
        loop.close()
        print("done")
        """,
    )
    assert done.code == 0 and done.out == "done\n", done


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "os.kill(os.getpid(), 15)", "1 / 0", "os._exit(4)"])
def test_the_interpreter_ends_in_the_middle_of_reports(ending):
    """A daemon thread runs a loop, whose turn does not end; some of its turns keep the GIL."""
    done = run_with_variable(
        "1ms",
        f"""
        import ctypes
        native = ctypes.PyDLL(None)

        async def spin():
            while True:
                await asyncio.sleep(0)
                native.usleep(2500)
                time.sleep(0.0025)

        thread = threading.Thread(target=lambda: new_loop().run_until_complete(spin()), daemon=True)
        thread.start()
        time.sleep(0.1)
        {ending}
        """,
    )
    expected = {"sys.exit(3)": 3, "os.kill(os.getpid(), 15)": -15, "1 / 0": 1, "os._exit(4)": 4}.get(ending, 0)
    assert done.code == expected, done
    assert "in one turn" in done.err and "panicked" not in done.err and "Fatal" not in done.err


@pytest.mark.skipif(not sandbox.POSSIBLE, reason="no seccomp filter for this machine")
def test_a_system_without_threads_is_an_error_of_the_call_and_a_warning_for_the_variable():
    done = run_with_variable(
        "50ms",
        """
        import errno, wakeloop
        from tests.support import sandbox
        sandbox.refuse(errno.EAGAIN, "clone", "clone3")
        run()
        try:
            wakeloop.watchdog()
        except RuntimeError as error:
            print(error)
        """,
    )
    assert done.code == 0 and done.out == "can't start new thread\n", done
    assert done.err.count("RuntimeWarning: WAKELOOP_WATCHDOG: can't start new thread") == 1
