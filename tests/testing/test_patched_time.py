"""`patch_time`: which clocks follow that of a testing loop, for whom, and beside which tools."""

import asyncio
import datetime
import email.utils
import logging
import pickle
import queue
import threading
import time
import uuid
import warnings
from datetime import datetime as early_datetime
from time import monotonic as early_monotonic
from time import strftime as early_strftime

import pytest

import wakeloop
from wakeloop import _core, testing

pytestmark = pytest.mark.native

HOUR = 3600.0
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc).timestamp()
#: The functions of the module before any run.
NAMES = {name: value for name, value in vars(time).items() if callable(value)}

real_seconds = _core._monotonic


def is_unchanged():
    return not [name for name, value in NAMES.items() if vars(time)[name] is not value]


def everything():
    return (
        time.time(),
        time.monotonic(),
        datetime.datetime.now(),
        datetime.datetime.now(datetime.timezone.utc),
        datetime.date.today(),
        time.localtime(),
        time.gmtime(),
        time.clock_gettime(time.CLOCK_MONOTONIC),
    )


class Timer:
    """As many libraries do it."""

    def __init__(self, now=time.monotonic):
        self.now = now


def in_utc(text):
    return datetime.datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=datetime.timezone.utc).timestamp()


#: Readings of the wall clock, as seconds since 1970.
WALL = {
    "time": lambda: time.time(),
    "time_ns": lambda: time.time_ns() / 1e9,
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_REALTIME) / 1e9,
    "datetime.now": lambda: datetime.datetime.now().timestamp(),
    "datetime.now(tz)": lambda: datetime.datetime.now(tz=datetime.timezone(datetime.timedelta(hours=5))).timestamp(),
    "datetime.utcnow": lambda: datetime.datetime.utcnow().replace(tzinfo=datetime.timezone.utc).timestamp(),
    "datetime.today": lambda: datetime.datetime.today().timestamp(),
    "early datetime.now": lambda: early_datetime.now().timestamp(),
    "localtime": lambda: time.mktime(time.localtime()),
    "localtime(None)": lambda: time.mktime(time.localtime(None)),
    "gmtime": lambda: in_utc(time.asctime(time.gmtime())),
    "ctime": lambda: time.mktime(time.strptime(time.ctime())),
    "asctime": lambda: time.mktime(time.strptime(time.asctime())),
    "strftime": lambda: time.mktime(time.strptime(time.strftime("%Y %j %H %M %S"), "%Y %j %H %M %S")),
    "early strftime": lambda: time.mktime(time.strptime(early_strftime("%Y %j %H %M %S"), "%Y %j %H %M %S")),
    "email.utils.formatdate": lambda: email.utils.parsedate_to_datetime(email.utils.formatdate()).timestamp(),
    "email.utils.localtime": lambda: email.utils.localtime().timestamp(),
    "uuid1": lambda: (uuid.uuid1().time - 0x01B21DD213814000) / 1e7,
}
MONOTONIC = {
    "monotonic": lambda: time.monotonic(),
    "monotonic_ns": lambda: time.monotonic_ns() / 1e9,
    "perf_counter": lambda: time.perf_counter(),
    "perf_counter_ns": lambda: time.perf_counter_ns() / 1e9,
    "clock_gettime": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "clock_gettime_ns": lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e9,
    "early": early_monotonic,
    "a default argument": Timer().now,
}
# UUIDs of these versions are new in Python 3.14.
if hasattr(uuid, "uuid7"):
    WALL["uuid7"] = lambda: (uuid.uuid7().int >> 80) / 1e3


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")
@pytest.mark.parametrize("name", WALL)
def test_every_reading_of_the_wall_clock_follows(name):
    read = WALL[name]

    async def main():
        first = read()
        await asyncio.sleep(48 * HOUR)
        in_thread = await asyncio.to_thread(read)
        return first, read(), in_thread

    before, after = real_seconds(), read()
    first, second, in_thread = testing.run(main, patch_time=True)
    took = real_seconds() - before
    # A uuid1 is at least a tick after the last one.
    assert first == pytest.approx(START, abs=1e-5)
    # While a thread is awaited, the clock flows in real time.
    then = START + 48 * HOUR
    assert then - 1e-5 <= in_thread <= second + 1e-5 <= then + took + 2e-5
    assert abs(read() - after) <= real_seconds() - before + 2


@pytest.mark.parametrize("name", MONOTONIC)
def test_every_reading_of_the_monotonic_clock_follows(name):
    read = MONOTONIC[name]

    async def main():
        first = read()
        await asyncio.sleep(48 * HOUR)
        return first, read(), await asyncio.to_thread(read)

    before = real_seconds()
    first, second, in_thread = testing.run(main, patch_time=True)
    assert (first, second) == (0, 48 * HOUR)
    # While a thread is awaited, the clock flows in real time.
    assert second <= in_thread <= second + real_seconds() - before
    assert real_seconds() - read() < 60


def test_the_date_of_today_follows_and_processor_time_does_not():
    async def main():
        before = time.process_time(), time.thread_time(), time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
        await asyncio.sleep(48 * HOUR)
        after = time.process_time(), time.thread_time(), time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
        assert all(now - then < HOUR for then, now in zip(before, after, strict=True))
        return datetime.date.today()

    expected = datetime.date.fromtimestamp(START + 48 * HOUR)
    assert testing.run(main, patch_time=True) == expected


def test_classes_stay_what_they_are():
    class Moment(datetime.datetime):
        pass

    before = datetime.datetime.now(), datetime.date.today()

    async def main():
        now = datetime.datetime.now()
        assert type(now) is type(before[0]) is datetime.datetime is early_datetime
        assert isinstance(before[0], datetime.datetime) and isinstance(before[1], datetime.date)
        assert pickle.loads(pickle.dumps(now)) == now
        assert type(Moment.now()) is Moment and Moment.now() == now
        assert type(Moment.utcnow()) is Moment
        return now

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert testing.run(main, patch_time=True).timestamp() == START


def outcome(function, *arguments, **keywords):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = type(function(*arguments, **keywords))
        except Exception as error:
            result = type(error), str(error)
    return result, [(each.category, str(each.message), each.filename, each.lineno) for each in caught]


def test_arguments_errors_and_warnings_are_those_of_the_functions():
    now, utcnow = datetime.datetime.now, datetime.datetime.utcnow
    calls = [
        (time.time, 1), (time.monotonic, 1), (time.localtime, 0), (time.localtime, "x"), (time.localtime, 1, 2),
        (time.gmtime, 1e300), (time.ctime, 5), (time.ctime, "x"), (time.asctime, 1), (time.asctime, 1, 2), (time.strftime,),
        (time.strftime, "%Y", (2000, 1, 1, 0, 0, 0, 0, 1, 0)), (time.strftime, 5), (time.strftime, "%Y"),
        (time.clock_gettime,), (time.clock_gettime, "x"), (time.clock_gettime, 10**6), (time.clock_gettime, []),
        (time.clock_gettime_ns, time.CLOCK_MONOTONIC), (time.sleep, -1), (time.sleep, "x"), (time.sleep, 0),
        (now, 5), (now, None), (now, None, None), (now,), (utcnow,), (utcnow, 1),
    ]  # fmt: skip
    named = [(now, {"tz": None}), (now, {"tz": 5}), (now, {"zone": 5}), (now, {"tz": datetime.timezone.utc})]

    def outcomes():
        return [outcome(*call) for call in calls] + [outcome(function, **named) for function, named in named]

    async def main():
        return outcomes()

    expected = outcomes()
    assert testing.run(main, patch_time=True) == expected


def readings():
    return time.time(), time.monotonic(), time.perf_counter(), time.time_ns(), time.monotonic_ns(), time.perf_counter_ns()


def test_the_time_module_follows_the_clock_for_code_under_test():
    async def main():
        assert readings() == (START, 0, 0, START * 1e9, 0, 0)
        await asyncio.sleep(HOUR)
        assert readings() == (START + HOUR, HOUR, HOUR, (START + HOUR) * 1e9, HOUR * 1e9, HOUR * 1e9)

    testing.run(main, patch_time=True)
    assert is_unchanged()


def test_the_wall_clock_starts_where_the_test_says():
    noon = datetime.datetime(2030, 6, 1, 12, tzinfo=datetime.timezone.utc)

    async def main():
        await asyncio.sleep(60)
        return time.time()

    assert testing.run(main, patch_time=noon) == noon.timestamp() + 60
    assert testing.run(main, patch_time=1000) == 1060
    with pytest.raises(TypeError, match="patch_time"):
        testing.run(main, patch_time="noon")


def test_a_function_that_was_imported_by_name_follows_the_clock_too(tmp_path, monkeypatch):
    (tmp_path / "uses_time.py").write_text("from time import monotonic as clock\n")
    monkeypatch.syspath_prepend(tmp_path)
    import uses_time

    async def main():
        await asyncio.sleep(HOUR)
        return uses_time.clock()

    real = uses_time.clock
    assert testing.run(main, patch_time=True) == HOUR
    assert uses_time.clock is real


def test_threading_and_queues_keep_real_time():
    async def main():
        await asyncio.sleep(HOUR)
        before = real_seconds()
        with pytest.raises(queue.Empty):
            queue.Queue().get(timeout=0.05)
        assert not threading.Event().wait(0.05)
        assert not await asyncio.to_thread(threading.Event().wait, 0.05)
        return real_seconds() - before

    assert testing.run(main, patch_time=True) >= 0.15


def test_records_of_logging_follow_the_clock(caplog):
    async def main():
        for _ in range(2):
            logging.getLogger("under.test").warning("logged")
            await asyncio.sleep(HOUR)

    testing.run(main, patch_time=True)
    first, second = (record.created for record in caplog.records if record.name == "under.test")
    assert (first, second) == (START, START + HOUR)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_time_is_restored_whatever_happens(error):
    before = everything()

    async def main():
        await asyncio.sleep(HOUR)
        assert time.time() == START + HOUR
        raise error

    with pytest.raises(error):
        testing.run(main, patch_time=True)
    assert all(now >= then for then, now in zip(before, everything(), strict=True))
    assert is_unchanged()


def test_other_threads_that_were_there_before_keep_real_time():
    ask, answers = queue.Queue(), queue.Queue()

    def serve():
        while ask.get():
            answers.put(time.monotonic())

    thread = threading.Thread(target=serve)
    thread.start()

    async def main():
        ask.put(True)
        theirs = answers.get(timeout=10)
        ours = await asyncio.to_thread(lambda: time.monotonic())
        return theirs, ours

    before = time.monotonic()
    theirs, ours = testing.run(main, patch_time=True)
    ask.put(False)
    thread.join()
    assert theirs >= before and ours < 60


def test_a_sleep_in_an_inline_job_takes_the_clocks_time():
    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.gather(asyncio.to_thread(time.sleep, HOUR), asyncio.to_thread(lambda: time.sleep(60)))
        return loop.time()

    before = time.monotonic()
    assert testing.run(main, patch_time=True, executor="inline") == HOUR
    assert time.monotonic() - before < 60


def test_a_job_of_the_runtime_sees_the_clock(runtime):
    async def main():
        await asyncio.sleep(HOUR)
        return await wakeloop.spawn_blocking(time.monotonic)

    # The clock flows while it waits for the job.
    assert HOUR <= testing.run(main, patch_time=True) < HOUR + 60


def test_a_run_in_another_thread_has_a_clock_of_its_own():
    async def inner():
        await asyncio.sleep(2 * HOUR)
        return time.monotonic(), datetime.datetime.now().timestamp() - START

    async def main():
        found = []
        await asyncio.sleep(HOUR)
        thread = threading.Thread(target=lambda: found.append(testing.run(inner, patch_time=True)))
        thread.start()
        thread.join()
        return found, time.monotonic(), datetime.datetime.now().timestamp() - START

    for _ in range(2):
        assert testing.run(main, patch_time=True) == ([(2 * HOUR, 2 * HOUR)], HOUR, HOUR)
    assert abs(time.monotonic() - real_seconds()) < 60


# -- beside other tools ------------------------------------------------------------------------------------------


def test_a_replaced_clock_is_refused_and_nothing_is_changed(monkeypatch):
    async def main():
        raise AssertionError("it must not run")

    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 5.0)
        with pytest.raises(RuntimeError, match=r"patch_time: time\.time was replaced by .*test_patched_time"):
            testing.run(main, patch_time=True)
        assert time.time() == 5.0 and abs(time.monotonic() - real_seconds()) < 60
    assert is_unchanged()


def test_freezegun_within_a_run_counts_until_it_ends():
    freezegun = pytest.importorskip("freezegun")

    async def main():
        await asyncio.sleep(HOUR)
        with freezegun.freeze_time("2001-02-03"):
            await asyncio.sleep(HOUR)
            assert datetime.datetime.now() == datetime.datetime(2001, 2, 3) and time.gmtime().tm_year == 2001
        return time.time(), datetime.datetime.now().timestamp()

    assert testing.run(main, patch_time=True) == (START + 2 * HOUR, START + 2 * HOUR)


@pytest.mark.parametrize("options", [{}, {"clock": "real"}, {"patch_time": True}], ids=str)
def test_a_step_in_which_freezegun_begins_has_not_blocked_the_thread(options, recwarn):
    freezegun = pytest.importorskip("freezegun")

    async def main():
        freezer = freezegun.freeze_time("2099-02-03")
        freezer.start()
        await asyncio.sleep(0.01)
        freezer.stop()
        await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time()

    begun = real_seconds() if "clock" in options else 0.0
    assert 0.02 <= testing.run(main, **options) - begun < 60
    assert not [each for each in recwarn if issubclass(each.category, testing.SimulationWarning)]


def test_freezegun_around_a_run_is_refused():
    freezegun = pytest.importorskip("freezegun")
    with freezegun.freeze_time("2001-02-03"):
        with pytest.raises(RuntimeError, match="patch_time: .* was replaced by freezegun"):
            testing.run(lambda: asyncio.sleep(0), patch_time=True)
        # Without patch_time it is none of the loop's business.
        assert testing.run(lambda: asyncio.sleep(HOUR, time.gmtime().tm_year)) == 2001


def test_a_clock_that_is_replaced_between_loop_and_run_is_refused(monkeypatch):
    loop = testing.EventLoop(patch_time=True)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    with pytest.raises(RuntimeError, match="patch_time"):
        testing.run_on(loop, lambda: asyncio.sleep(HOUR))
    monkeypatch.undo()
    assert is_unchanged()


def test_time_machine_within_a_run_counts_until_it_ends():
    time_machine = pytest.importorskip("time_machine")

    async def main():
        with time_machine.travel(5 * HOUR, tick=False):
            await asyncio.sleep(HOUR)
            assert time.time() == 5 * HOUR and early_datetime.now().timestamp() == 5 * HOUR
        return time.time(), early_datetime.now().timestamp()

    for _ in range(2):
        assert testing.run(main, patch_time=True) == (START + HOUR, START + HOUR)
    assert time.time() > START + HOUR


def test_time_machine_around_a_run_is_refused():
    time_machine = pytest.importorskip("time_machine")
    with time_machine.travel(5 * HOUR, tick=False):
        with pytest.raises(RuntimeError, match="patch_time: .* was replaced by time_machine"):
            testing.run(lambda: asyncio.sleep(0), patch_time=True)
        assert time.time() == 5 * HOUR
    assert time.time() > START


def test_time_machine_that_ends_after_the_run_leaves_real_time_behind():
    time_machine = pytest.importorskip("time_machine")
    traveller = time_machine.travel(5 * HOUR, tick=False)

    async def main():
        traveller.start()

    testing.run(main, patch_time=True)
    assert time.time() == 5 * HOUR
    traveller.stop()
    assert time.time() > START
    assert testing.run(lambda: asyncio.sleep(0, time.time() > START)) is True

    async def later():
        await asyncio.sleep(HOUR)
        with time_machine.travel(HOUR, tick=False):
            assert time.time() == HOUR
        return time.time()

    assert testing.run(later, patch_time=True) == START + HOUR
    assert time.time() > START + HOUR
