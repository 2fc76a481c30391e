"""Signals: handlers on a loop, and the effects of an interrupt."""

import asyncio
import ctypes
import os
import signal
import threading
import time

import pytest

from tests.support.script import run_script, start_script
from tests.support.sockets import socketpair


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
    """Without a loop handler, Python's own handler must run at once, and the loop continues."""
    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda *args: seen.append(time.monotonic()))
    try:
        sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        start = time.monotonic()
        loop.run_until_complete(asyncio.sleep(1))
        sender.join()
        assert len(seen) == 1 and seen[0] - start < 0.9
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
    """The callback that sends the signal is not Python code: the handler runs when the iteration is over already."""
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


def test_signal_handlers_can_be_replaced_and_are_separate_for_each_signal(loop):
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


@pytest.mark.native
def test_the_wakeup_descriptor_goes_back_to_its_owner(loop_factory):
    """asyncio does not restore it."""
    with socketpair() as (_, owner), socketpair() as (_, newcomer):
        signal.set_wakeup_fd(owner.fileno())
        try:
            loop = loop_factory()
            loop.add_signal_handler(signal.SIGUSR1, print)
            loop.add_signal_handler(signal.SIGUSR2, print)
            loop.remove_signal_handler(signal.SIGUSR1)
            loop.close()
            assert signal.set_wakeup_fd(owner.fileno()) == owner.fileno()

            loop = loop_factory()
            with pytest.raises(RuntimeError):
                loop.add_signal_handler(signal.SIGKILL, print)
            assert signal.set_wakeup_fd(owner.fileno()) == owner.fileno()
            loop.add_signal_handler(signal.SIGUSR1, print)
            signal.set_wakeup_fd(newcomer.fileno())
            loop.close()
            assert signal.set_wakeup_fd(owner.fileno()) == newcomer.fileno()
        finally:
            signal.set_wakeup_fd(-1)


@pytest.mark.native
def test_the_wakeup_descriptor_is_not_restored_if_its_owner_closed_it(loop):
    """The number may belong to another file by now, and signal numbers must not be written to that."""
    with socketpair() as (_, owner), socketpair() as (stranger, _):
        number = owner.fileno()
        signal.set_wakeup_fd(number)
        loop.add_signal_handler(signal.SIGUSR1, print)
        os.dup2(stranger.fileno(), number)
        loop.remove_signal_handler(signal.SIGUSR1)
        assert signal.set_wakeup_fd(-1) == -1


def test_loops_one_after_another_have_handlers_of_their_own(loop_factory):
    first, second, seen = loop_factory(), loop_factory(), []
    for loop in (first, second):
        loop.add_signal_handler(signal.SIGUSR1, lambda loop=loop: (seen.append(loop), loop.stop()))
        loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        loop.call_later(10, loop.stop)
        loop.run_forever()
        loop.close()
    assert seen == [first, second]
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.native
def test_a_loop_that_lent_the_wakeup_descriptor_gets_signals_again(loop_factory):
    """Two loops have handlers. The second is closed and the first continues. On asyncio it would get no more signals.
    """
    first, second, seen = loop_factory(), loop_factory(), []
    first.add_signal_handler(signal.SIGUSR1, lambda: (seen.append(1), first.stop()))
    second.add_signal_handler(signal.SIGUSR2, print)
    second.close()
    first.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
    first.call_later(5, first.stop)
    first.run_forever()
    first.close()
    assert seen == [1]


def test_a_loop_in_another_thread_cannot_have_handlers(loop_factory):
    outcome = []

    def work():
        loop = loop_factory()
        try:
            loop.add_signal_handler(signal.SIGUSR1, print)
        except RuntimeError as error:
            outcome.append(str(error))
        outcome.append(loop.remove_signal_handler(signal.SIGUSR1))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome[0].startswith("set_wakeup_fd only works in main thread") and outcome[1] is False


def test_system_calls_go_on_after_a_signal_with_a_handler(loop):
    """asyncio sets SA_RESTART: C code that reads elsewhere in the process need not handle EINTR."""
    loop.add_signal_handler(signal.SIGUSR1, print)
    with open("/proc/self/status") as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    assert int(caught.split()[1], 16) & 1 << signal.SIGUSR1 - 1
    libc = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    sender = threading.Timer(0.05, lambda: (signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1), os.write(writer, b"x")))
    sender.start()
    buffer = ctypes.create_string_buffer(1)
    assert libc.read(reader, buffer, 1) == 1, ctypes.get_errno()
    sender.join()
    os.close(reader)
    os.close(writer)
    loop.remove_signal_handler(signal.SIGUSR1)


def test_a_burst_of_signals_arrives(loop):
    """Each wakes the loop. Those that come while one is handled are not lost."""
    count, seen = 200, []

    def handler():
        seen.append(1)
        if len(seen) < count:
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            loop.stop()

    loop.add_signal_handler(signal.SIGUSR1, handler)
    loop.call_soon(os.kill, os.getpid(), signal.SIGUSR1)
    loop.call_later(10, loop.stop)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert len(seen) == count


@pytest.mark.parametrize("start", ["asyncio.run(main())", "run(main())", "run_with_runner(main())"])
def test_control_c_under_each_way_to_run(loop_name, start):
    """The first Control-C cancels the main task, which may clean up. KeyboardInterrupt comes out of run()."""
    body = f"""
        import signal, sys, warnings
        warnings.simplefilter("ignore")
        if new_loop is not asyncio.SelectorEventLoop:
            wakeloop.install()
        run = asyncio.run if new_loop is asyncio.SelectorEventLoop else wakeloop.run
        def run_with_runner(main):
            with asyncio.Runner(loop_factory=new_loop) as runner:
                return runner.run(main)
        async def main():
            other = asyncio.ensure_future(asyncio.sleep(60))
            print("ready", flush=True)
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                print("cleaned up", flush=True)
        try:
            {start}
        except KeyboardInterrupt:
            print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
    """
    process = start_script(loop_name, body)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, err, process.returncode) == ("cleaned up\ninterrupted True\n", "", 0)


def test_a_second_control_c_does_not_wait_for_the_clean_up(loop_name):
    body = """
        async def main():
            print("ready", flush=True)
            try:
                await asyncio.sleep(60)
            finally:
                print("cleaning up", flush=True)
                await asyncio.sleep(60)
        try:
            asyncio.Runner(loop_factory=new_loop).run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = start_script(loop_name, body)
    for line in ("ready\n", "cleaning up\n"):
        assert process.stdout.readline() == line
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert out == "interrupted\n"


def test_control_c_during_a_blocking_callback_interrupts_it(loop_name):
    """The first Control-C cancels the main task, which cannot react. The second one raises where the code is."""
    body = """
        import time
        async def main():
            print("ready", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                print("here", flush=True)
                raise
        try:
            asyncio.Runner(loop_factory=new_loop).run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = start_script(loop_name, body)
    assert process.stdout.readline() == "ready\n"
    for _ in range(2):
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert out == "here\ninterrupted\n"


def test_the_loops_own_handler_for_control_c_is_kept_by_run(loop_name):
    body = """
        import signal
        async def main():
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
            print("ready", flush=True)
            await stopped.wait()
            print("stopped", flush=True)
        asyncio.Runner(loop_factory=new_loop).run(main())
    """
    process = start_script(loop_name, body)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (out, process.returncode) == ("stopped\n", 0), err
