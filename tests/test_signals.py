"""Signals: handlers on a loop, and the way an interrupt takes."""

import asyncio
import os
import signal
import threading
import time

import pytest

from tests.support.script import run_script, start_script


def test_a_handler_runs_in_the_loop_with_its_arguments(loop):
    seen = []
    loop.add_signal_handler(signal.SIGUSR1, lambda *args: (seen.append(args), loop.stop()), 1, "two")
    loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
    loop.run_forever()
    assert seen == [(1, "two")]
    assert loop.remove_signal_handler(signal.SIGUSR1) is True
    assert loop.remove_signal_handler(signal.SIGUSR1) is False


def test_a_signal_wakes_a_parked_loop(loop):
    loop.add_signal_handler(signal.SIGUSR1, loop.stop)
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    start = time.monotonic()
    sender.start()
    loop.run_forever()
    assert time.monotonic() - start < 5
    sender.join()
    loop.remove_signal_handler(signal.SIGUSR1)


def test_a_plain_python_handler_runs_while_the_loop_is_parked(loop):
    """No loop handler: Python's own handler must run at once, and the loop goes on."""
    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda *args: seen.append(time.monotonic()))
    try:
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        start = time.monotonic()
        loop.run_until_complete(asyncio.sleep(0.3))
        sender.join()
        assert len(seen) == 1 and seen[0] - start < 0.25
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_an_exception_from_a_python_handler_leaves_the_loop(loop):
    class Stop(BaseException):
        pass

    def handler(*args):
        raise Stop

    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        sender = threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        with pytest.raises(Stop):
            loop.run_until_complete(asyncio.sleep(5))
        sender.join()
        assert not loop.is_running()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        signal.signal(signal.SIGUSR1, previous)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))


@pytest.mark.parametrize("schedule", ["call_soon(", "call_later(0.01, "])
def test_a_stop_from_a_python_handler_just_before_the_loop_parks_is_not_lost(loop_name, schedule):
    """The callback that sends the signal is no Python code: the handler runs when the turn is over already."""
    body = f"""
        import ctypes, faulthandler, os, signal
        faulthandler.dump_traceback_later(10, exit=True)
        loop = new_loop()
        signal.signal(signal.SIGUSR1, lambda *args: loop.stop())
        loop.{schedule}ctypes.PyDLL(None).kill, os.getpid(), int(signal.SIGUSR1))
        loop.run_forever()
        loop.close()
        print("stopped")
    """
    outcome = run_script(loop_name, body)
    assert (outcome.out, outcome.code) == ("stopped\n", 0), outcome


def test_handlers_can_be_replaced_and_several_signals_told_apart(loop):
    seen = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, seen.append, "replaced")
        loop.add_signal_handler(number, seen.append, number)
    loop.call_soon(os.kill, os.getpid(), signal.SIGUSR2)
    loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
    loop.call_later(0.03, loop.stop)
    loop.run_forever()
    assert sorted(seen) == [signal.SIGUSR1, signal.SIGUSR2]
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.remove_signal_handler(number)


def test_bad_signals_are_refused(loop):
    with pytest.raises(TypeError):
        loop.add_signal_handler("SIGUSR1", print)
    with pytest.raises(ValueError):
        loop.add_signal_handler(10_000, print)
    with pytest.raises(RuntimeError, match="cannot be caught"):
        loop.add_signal_handler(signal.SIGKILL, print)

    async def coroutine():
        pass

    with pytest.raises(TypeError, match="coroutines cannot be used"):
        loop.add_signal_handler(signal.SIGUSR1, coroutine)


def test_only_the_main_thread_adds_handlers(loop):
    errors = []

    def attempt():
        try:
            loop.add_signal_handler(signal.SIGUSR1, print)
        except (RuntimeError, ValueError) as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_close_removes_the_handlers(loop_factory):
    loop = loop_factory()
    loop.add_signal_handler(signal.SIGUSR1, print)
    assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


INTERRUPTED = """
    import signal
    async def main():
        print("ready", flush=True)
        try:
            await {wait}
        except asyncio.CancelledError:
            print("cancelled", flush=True)
            raise
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("wait", ["asyncio.sleep(60)", "asyncio.Event().wait()"])
def test_control_c_cancels_the_main_task_and_raises_keyboard_interrupt(loop_name, wait):
    process = start_script(loop_name, INTERRUPTED.format(wait=wait))
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, process.returncode) == ("cancelled\ninterrupted\n", 0), err


def test_control_c_interrupts_a_busy_loop(loop_name):
    body = """
        async def main():
            print("ready", flush=True)
            while True:
                await asyncio.sleep(0)
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = start_script(loop_name, body)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, process.returncode) == ("interrupted\n", 0), err


def test_control_c_leaves_run_forever(loop_name):
    body = """
        loop = new_loop()
        loop.call_soon(print, "ready", flush=True) if False else loop.call_soon(lambda: print("ready", flush=True))
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            print("interrupted", loop.is_running(), loop.is_closed())
        loop.close()
    """
    process = start_script(loop_name, body)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, process.returncode) == ("interrupted False False\n", 0), err


def test_system_exit_in_a_callback_leaves_the_loop(loop_name):
    body = """
        loop = new_loop()
        loop.call_soon(lambda: (_ for _ in ()).throw(SystemExit(3)))
        loop.run_forever()
    """
    assert run_script(loop_name, body).code == 3
