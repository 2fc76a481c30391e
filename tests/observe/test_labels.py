"""CPU time by label: `wakeloop.label`, `/labels` of the window, and the ASGI middleware."""

import asyncio
import contextvars
import copy
import gc
import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path

import pytest

import wakeloop
from tests.support.builds import needs_gil
from tests.support.window import answer_to, program, send_request
from wakeloop.asgi import LabelMiddleware

#: Uses so much processor time of its thread, by the thread's own clock.
BURN = """
def burn(milliseconds):
    end = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < end:
        for _ in range(100): pass
"""

native = pytest.mark.native


def spent(pid):
    """The processor time of a program's main thread in seconds."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def ask(window, seconds, during=None):
    """Asks for labels, and sends a line to the program while it is asked, if there is one."""
    question = begin(window, seconds) if during is None else asked(window, seconds)
    if during is not None:
        print(during, file=window.process.stdin, flush=True)
    status, text = answer_to(question)
    while status == 503 and during is None:
        # An earlier question has not ended.
        status, text = answer_to(begin(window, seconds))
    assert status == 200, text
    answer = json.loads(text)
    [loop] = answer["loops"]
    loop["other_threads"], loop["jobs"] = answer["other_threads"], answer["jobs"]
    return loop, {each["label"]: each["seconds"] for each in loop["labels"]}


def asked(window, seconds):
    """A question that is surely asked: the next one is refused."""
    question = begin(window, seconds)
    while window.get("/labels?seconds=0.01")[0] != 503:
        if select.select([question], [], [], 0)[0]:
            # It was refused itself, because it came during the look.
            question.close()
            question = begin(window, seconds)
    return question


def begin(window, seconds):
    sock = window.connect()
    send_request(sock, f"/labels?seconds={seconds}")
    return sock


# -- the sums ----------------------------------------------------------------------------------------------------------

ROUTES = (
    BURN
    + """
costs = dict.fromkeys(["GET /a", "GET /b", "GET /c"], 0.0)

async def route(name, milliseconds):
    with wakeloop.label(name):
        work(name, milliseconds)
        await asyncio.sleep(0)
        work(name, milliseconds)

def work(name, milliseconds):
    before = time.thread_time()
    burn(milliseconds)
    costs[name] += time.thread_time() - before

async def main():
    print("ready")
    await asyncio.to_thread(sys.stdin.readline)
    for _ in range(3):
        await asyncio.gather(*(route(name, 10 * number) for number, name in enumerate(costs, 1)))
    print(*costs.values())
    await asyncio.sleep(1000)
wakeloop.run(main())
"""
)


@native
def test_the_sums_are_the_cpu_time_of_the_thread_and_each_route_has_what_it_cost(tmp_path):
    with program(tmp_path, ROUTES) as window:
        before = spent(window.pid)
        loop, labels = ask(window, 6, during="go on")
        after = spent(window.pid)
        costs = dict(zip(["GET /a", "GET /b", "GET /c"], map(float, window.process.stdout.readline().split())))
    parts = loop["loop_seconds"] + loop["unlabelled_seconds"] + loop["other_seconds"] + sum(labels.values())
    assert parts == pytest.approx(loop["cpu_seconds"])
    # The loop waits before and after its work.
    assert 0.98 * (after - before) <= loop["cpu_seconds"] <= after - before
    assert labels == pytest.approx(costs, rel=0.03)
    assert list(labels) == ["GET /c", "GET /b", "GET /a"]
    assert 0.36 < sum(labels.values()) < loop["cpu_seconds"]


@native
@needs_gil
def test_what_an_event_does_counts_that_came_before_the_question(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    body = (
        BURN
        + """
    async def main():
        reader = os.open(os.environ["TMPDIR"] + "/fifo", os.O_RDWR | os.O_NONBLOCK)
        def work():
            os.read(reader, 1)
            with wakeloop.label("work"):
                before = time.thread_time()
                burn(50)
                print(time.thread_time() - before)
        asyncio.get_running_loop().add_reader(reader, work)
        # The loop waits, and another thread keeps the GIL.
        await asyncio.to_thread(read_with_gil)
        await asyncio.sleep(1000)

    def read_with_gil():
        time.sleep(0.2)     # until the loop waits
        sys.setswitchinterval(100)
        libc = ctypes.PyDLL(None)
        libc.write(1, b"ready\\n", 6)
        libc.read(0, ctypes.create_string_buffer(100), 100)
    import ctypes
    wakeloop.run(main())
    """.replace("\n    ", "\n")
    )
    with program(tmp_path, body) as window:
        with open(tmp_path / "fifo", "w") as fifo:
            fifo.write("x")
        loop, labels = ask(window, 3, during="go on")
        cost = float(window.process.stdout.readline())
    assert labels == {"work": pytest.approx(cost, rel=0.03)}


@native
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process")
def test_the_cpu_time_of_other_threads_is_beside_that_of_the_loops(tmp_path):
    body = (
        BURN
        + """
    def job():
        burn(200)
        print("burnt")
        sys.stdin.readline()
        before = time.thread_time()
        burn(100)
        print(threading.get_native_id(), time.thread_time() - before)

    async def main():
        print("ready")
        await asyncio.to_thread(job)
        await asyncio.sleep(1000)
    wakeloop.run(main())
    """.replace("\n    ", "\n")
    )
    with program(tmp_path, body) as window:
        assert window.process.stdout.readline() == "burnt\n"
        loop, _ = ask(window, 2, during="go on")
        number, cost = window.process.stdout.readline().split()
    threads = {each["thread"]: each for each in loop["other_threads"]}
    assert window.pid not in threads, "it has the loop"
    # What was spent before the question does not count.
    assert float(cost) <= threads[int(number)]["cpu_seconds"] < 0.2
    assert [each["cpu_seconds"] for each in threads.values()] == sorted(
        (each["cpu_seconds"] for each in threads.values()), reverse=True
    )


@native
def test_blocking_jobs_count_for_the_label_of_who_has_submitted_them(tmp_path):
    body = (
        BURN
        + """
    def job(name=None):
        with wakeloop.label(name) if name else contextlib.nullcontext():
            burn(20)
        burn(10)

    async def main():
        loop = asyncio.get_running_loop()
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(2):
            with wakeloop.label("thread"):
                await asyncio.to_thread(job)
            with wakeloop.label("executor"):
                await loop.run_in_executor(None, job)
            with wakeloop.label("pool"):
                await wakeloop.spawn_blocking(job)
            await asyncio.to_thread(job, "own")
            with wakeloop.label("both"):
                await asyncio.gather(asyncio.to_thread(job), asyncio.to_thread(job))
        with wakeloop.label("goes on"):
            await asyncio.to_thread(goes_on)

    def goes_on():
        burn(50)
        time.sleep(1000)
    import contextlib
    wakeloop.run(main())
    """.replace("\n    ", "\n")
    )
    with program(tmp_path, body) as window:
        loop, labels = ask(window, 5, during="go on")
    jobs = loop["jobs"]
    found = {each["label"]: each["seconds"] for each in jobs["labels"]}
    wanted = {"thread": 0.06, "executor": 0.06, "pool": 0.06, "own": 0.04, "both": 0.12, "goes on": 0.05}
    assert found == pytest.approx(wanted, rel=0.1)
    assert jobs["unlabelled_seconds"] == pytest.approx(0.02, rel=0.3)
    assert jobs["cpu_seconds"] == pytest.approx(sum(found.values()) + jobs["unlabelled_seconds"])
    # The loop waits meanwhile.
    assert sum(labels.values()) < 0.05


@native
def test_jobs_end_as_without_a_question(tmp_path):
    body = """
    def job(*args, **kwargs):
        if not args:
            raise ValueError("no arguments")
        return args, kwargs

    async def main():
        loop = asyncio.get_running_loop()
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        print(await asyncio.to_thread(job, 1, key=2), await loop.run_in_executor(None, job, 3))
        for fails in loop.run_in_executor(None, job), loop.run_in_executor(None, 5), asyncio.to_thread(job):
            try:
                await fails
            except Exception as error:
                print(type(error).__name__, error, traceback.extract_tb(error.__traceback__)[-1].name)
        print("end")
        await asyncio.sleep(1000)
    import traceback
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:
        with asked(window, 60) as question:
            print("go on", file=window.process.stdin, flush=True)
            said = list(iter(window.process.stdout.readline, "end\n"))
            assert not select.select([question], [], [], 0)[0]
    assert said == [
        "((1,), {'key': 2}) ((3,), {})\n",
        "ValueError no arguments job\n",
        "TypeError 'int' object is not callable run\n",
        "ValueError no arguments job\n",
    ]


@native
def test_a_label_holds_across_awaits_and_in_what_the_block_starts(tmp_path):
    body = (
        BURN
        + """
    async def child():
        await asyncio.sleep(0)
        burn(1)

    async def main():
        loop = asyncio.get_running_loop()
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(20):
            with wakeloop.label("outer"):
                await asyncio.sleep(0)
                burn(1)
                with wakeloop.label("inner"):
                    burn(2)
                    await asyncio.sleep(0)
                    burn(2)
                burn(1)
                with wakeloop.label("started"):
                    task = asyncio.create_task(child())
                    loop.call_soon(burn, 1)
                    loop.call_later(0.0001, burn, 1)
                with wakeloop.label(None):
                    burn(5)
                await task
            await asyncio.sleep(0.0002)
        await asyncio.sleep(1000)
    wakeloop.run(main())
    """.replace("\n    ", "\n")
    )
    with program(tmp_path, body) as window:
        loop, labels = ask(window, 5, during="go on")
    found = {**labels, None: loop["unlabelled_seconds"]}
    assert found == pytest.approx({"outer": 0.04, "inner": 0.08, "started": 0.06, None: 0.1}, rel=0.15)


@native
def test_a_loop_that_begins_to_run_during_the_question_is_counted_and_the_pause_between_two_runs_is_not(tmp_path):
    body = (
        BURN
        + """
async def main(name):
    with wakeloop.label(name):
        burn(20)
        await asyncio.sleep(0)
        burn(20)
loop = wakeloop.new_event_loop()
loop.run_until_complete(asyncio.sleep(0))
print("ready")
sys.stdin.readline()
for name in "first", "second":
    loop.run_until_complete(main(name))
    burn(60)
sys.stdin.readline()
"""
    )
    with program(tmp_path, body) as window:
        loop, labels = ask(window, 6, during="go on")
    assert labels == pytest.approx({"first": 0.04, "second": 0.04}, rel=0.1)
    assert loop["cpu_seconds"] < 0.1


@native
def test_a_blocked_loop_has_no_sums_and_does_not_delay_the_answer(tmp_path):
    body = """
    import ctypes
    async def main():
        asyncio.get_running_loop().call_later(0.001, print, "ready")
        await asyncio.sleep(0.01)
        ctypes.PyDLL(None).poll(None, 0, 1000_000)
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:
        time.sleep(0.1)
        loop, labels = ask(window, 0.1)
    assert (loop["name"], loop["measured_seconds"], loop["cpu_seconds"], labels) == ("MainThread", 0, 0, {})


@native
def test_what_runs_when_the_question_ends_is_counted(tmp_path):
    body = (
        BURN
        + """
async def main():
    print("ready")
    await asyncio.to_thread(sys.stdin.readline)
    with wakeloop.label("long"):
        await asyncio.sleep(0.5)
        burn(1_000_000)
wakeloop.run(main())
"""
    )
    with program(tmp_path, body) as window:
        print("go on", file=window.process.stdin, flush=True)
        before = spent(window.pid)
        _, labels = ask(window, 2)
        assert 0.9 * (spent(window.pid) - before) - 0.2 <= labels["long"] <= spent(window.pid) - before


# -- limits ------------------------------------------------------------------------------------------------------------


@native
def test_a_loop_counts_a_thousand_labels_and_the_rest_together(tmp_path):
    body = """
    async def main():
        print("ready")
        while True:
            for number in range(1500):
                with wakeloop.label(f"{number}:\\x1b\\ud800" + "é" * 300):
                    pass
            await asyncio.sleep(0)
    wakeloop.run(main())
    """
    with program(tmp_path, body) as window:
        loop, labels = ask(window, 3)
    assert len(labels) == 1000 and loop["other_seconds"] > 0
    assert {len(label) for label in labels} == {200}
    assert all(label.partition(":")[2].startswith("\x1b\\ud800é") for label in labels)


@native
def test_one_question_at_a_time_and_the_next_one_begins_with_nothing(tmp_path):
    body = (
        BURN
        + """
async def main():
    async def work(name):
        with wakeloop.label(name):
            while sys.stdin is not None:
                burn(1)
                await asyncio.sleep(0)
    task = asyncio.create_task(work("first"))
    print("ready")
    await asyncio.to_thread(sys.stdin.readline)
    task.cancel()
    await asyncio.wait([task])
    print("second")
    await work("second")
wakeloop.run(main())
"""
    )
    with program(tmp_path, body) as window:
        for wrong in "", "?seconds=", "?seconds=0", "?seconds=61", "?seconds=nan", "?seconds=x":
            assert window.get(f"/labels{wrong}")[0] == 400
        _, first = ask(window, 0.3)
        thread = threading.Thread(target=ask, args=(window, 2))
        thread.start()
        while (answer := window.get("/labels?seconds=0.01"))[0] == 200 and thread.is_alive():
            time.sleep(0.02)
        thread.join()
        assert answer == (503, "somebody else asks for labels\n")
        print("go on", file=window.process.stdin, flush=True)
        assert window.process.stdout.readline() == "second\n"
        _, again = ask(window, 0.3)
    assert set(first) == {"first"}
    assert set(again) == {"second"}


# -- the context manager -----------------------------------------------------------------------------------------------


@pytest.mark.control
def test_a_label_is_set_in_the_block_on_any_loop_and_refuses_what_means_nothing(run):
    variable = wakeloop._core._label

    async def main():
        with wakeloop.label("one"):
            with wakeloop.label(None):
                assert variable.get() is None
            await asyncio.sleep(0)
            assert variable.get() == "one" and await asyncio.create_task(seen()) == "one"
        return variable.get(None)

    async def seen():
        return variable.get()

    assert run(main()) is None
    with pytest.raises(TypeError, match="a string or None was expected, not int"):
        wakeloop.label(1)
    again = wakeloop.label("again")
    with again, pytest.raises(RuntimeError, match="entered already"), again:
        pass
    assert variable.get(None) is None and repr(again) == "wakeloop.label('again')"


@pytest.mark.control
def test_a_block_that_ends_in_another_context_changes_no_label_there(run, asyncio_log):
    variable = wakeloop._core._label

    async def rows(ended):
        try:
            with wakeloop.label("rows"):
                yield 1
        finally:
            ended.set()

    async def waits():
        with wakeloop.label("waits"):
            await asyncio.get_running_loop().create_future()

    async def leaves_early(ended):
        async for _ in rows(ended):
            break

    async def main():
        with wakeloop.label("outer"):
            ended = asyncio.Event()
            await asyncio.create_task(leaves_early(ended))
            gc.collect()
            # The loop closes the generator in a task.
            await ended.wait()
            coroutine = waits()
            contextvars.Context().run(coroutine.send, None)
            coroutine.close()
            label = wakeloop.label("thread")
            label.__enter__()
            thread = threading.Thread(
                target=lambda: seen.append((label.__exit__(None, None, None), variable.get(None)))
            )
            thread.start()
            thread.join()
            seen.append(variable.get())
            label.__exit__(None, None, None)
            return variable.get()

    seen = []
    assert run(main()) == "outer"
    # A thread may begin with a copy of the context: on a free-threaded build it does.
    inherited = "thread" if getattr(sys.flags, "thread_inherit_context", False) else None
    assert seen == [(None, inherited), "thread"]
    assert not [record for record in asyncio_log.records if record.levelno > logging.DEBUG]


# -- the middleware ----------------------------------------------------------------------------------------------------


def scope_of(path, kind="http", method="GET"):
    scope = {"type": kind, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [], "root_path": ""}
    more = {"scheme": "http", "server": ("host", 1), "client": ("host", 2), "http_version": "1.1"}
    return {**scope, **more, **({"method": method} if kind == "http" else {})}


def request(app, scope):
    """The label in the context of a request after it."""

    async def receive():
        return {"type": "http.request" if scope["type"] == "http" else "websocket.connect", "body": b""}

    async def send(message):
        pass

    async def main():
        await app(scope, receive, send)
        return wakeloop._core._label.get(None)

    return contextvars.copy_context().run(asyncio.run, main())


class Part:
    """A route, mount or router."""

    def __init__(self, path=None, **fields):
        self.path = path
        vars(self).update(fields)


@pytest.mark.parametrize("leaves_route", [True, False, "twice"], ids=["Starlette 1.0", "before", "a program's mount"])
def test_the_label_is_the_route_once_the_router_has_run(leaves_route):
    seen = []

    def note(scope):
        seen.append(wakeloop._core._label.get(None))

    route = Part("/users/{id}", endpoint=note)
    mount = Part("/api/{version}", routes=[route], app=object())
    router = Part(routes=[mount])

    async def app(scope, receive, send):
        note(scope)
        if scope["type"] == "lifespan":
            return
        scope["router"] = router
        for part, endpoint in (mount, mount.app), (route, note):
            if leaves_route:
                scope["route"] = part
            # A route of FastAPI gives itself, and so may a subclass of Mount.
            given = {"route": part} if leaves_route == "twice" else {}
            scope.update({"endpoint": endpoint, "path_params": {}, **given})
        note(scope)

    wrapped = LabelMiddleware(app)
    assert request(wrapped, scope_of("/api/1/users/7", method="POST")) is None
    assert request(wrapped, scope_of("/api/1/users/7", "websocket")) is None
    assert request(wrapped, {"type": "lifespan"}) is None
    found = ["POST /api/{version}/users/{id}", "WEBSOCKET /api/{version}/users/{id}"]
    assert seen == [None, found[0], None, found[1], None]


class Kept(MutableMapping):
    """A scope that is no dict."""

    def __init__(self, items):
        self.items_ = dict(items)

    def __getitem__(self, key):
        return self.items_[key]

    def __setitem__(self, key, value):
        self.items_[key] = value

    def __delitem__(self, key):
        del self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


@pytest.mark.parametrize("kind", [dict, type("Scope", (dict,), {}), Kept])
def test_what_the_application_writes_into_the_scope_is_seen_outside(kind):
    route, seen = Part("/users/{id}"), []

    async def app(scope, receive, send):
        scope.update({"endpoint": app, "path_params": {"id": "7"}}, state=scope.setdefault("state", {}))
        scope["route"] = route
        seen.append(wakeloop._core._label.get(None))
        scope.setdefault("state")["user"] = "alice"
        scope |= {"more": 1}
        assert scope.pop("server") and scope.pop("server", None) is None
        del scope["client"]
        for missing in (lambda: scope.pop("client"), lambda: scope.__delitem__("client")):
            with pytest.raises(KeyError):
                missing()
        scope["last"] = 2
        assert scope.popitem() == ("last", 2)
        for copied in scope.copy(), copy.copy(scope), dict(scope):
            copied["route"] = Part("/copied")
        assert dict(scope) == dict(given)

    given = kind(scope_of("/users/7"))
    # One middleware in another.
    request(LabelMiddleware(LabelMiddleware(app)), given)
    assert (given["route"], given["endpoint"], given["path_params"]) == (route, app, {"id": "7"})
    assert (given["state"], given["more"]) == ({"user": "alice"}, 1)
    assert not {"server", "client", "last"} & set(given)
    assert seen == ["GET /users/{id}"]

    async def clears(scope, receive, send):
        scope.clear()

    request(LabelMiddleware(clears), given)
    assert not list(given)


def test_a_middleware_around_it_sees_the_route_of_starlette():
    applications = pytest.importorskip("starlette.applications")
    routing = pytest.importorskip("starlette.routing")
    responses = pytest.importorskip("starlette.responses")

    async def endpoint(request):
        request.state.user = "alice"
        return responses.Response("")

    app = applications.Starlette(routes=[routing.Route("/users/{id}", endpoint)])
    app.add_middleware(LabelMiddleware)
    given = scope_of("/users/7")
    request(app, given)
    assert (given["endpoint"], given["path_params"], given["state"]) == (endpoint, {"id": "7"}, {"user": "alice"})


def test_a_peer_cannot_make_labels_by_its_methods():
    routes, seen = [Part("/users/{id}"), Part("/files")], []
    routes[1].methods = {"PROPFIND"}

    async def app(scope, receive, send):
        for scope["route"] in routes:
            seen.append(wakeloop._core._label.get())

    for method in ("DELETE", "PROPFIND", "XYZZY"):
        request(LabelMiddleware(app), scope_of("/users/7", method=method))
    assert seen[0] == "DELETE /users/{id}" and seen[3] == "PROPFIND /files"
    assert {*seen[1:3], *seen[4:]} == {"OTHER /users/{id}", "OTHER /files"}


def test_a_request_without_a_route_keeps_the_label_that_was_set_outside():
    seen = []

    async def app(scope, receive, send):
        seen.append(wakeloop._core._label.get())

    async def outer(scope, receive, send):
        with wakeloop.label("outside"):
            await LabelMiddleware(app)(scope, receive, send)

    request(outer, scope_of("/"))
    assert seen == ["outside"]


def test_the_routes_of_starlette_and_fastapi_are_found():
    applications = pytest.importorskip("starlette.applications")
    fastapi = pytest.importorskip("fastapi")
    routing = pytest.importorskip("starlette.routing")
    seen = []

    async def endpoint(request):
        seen.append(wakeloop._core._label.get(None))
        return fastapi.Response("")

    async def item(id: int):
        seen.append(wakeloop._core._label.get(None))

    router = fastapi.APIRouter()
    router.get("/items/{id}")(item)
    inner = fastapi.FastAPI()
    inner.include_router(router, prefix="/v1")
    nested = routing.Mount("/m/{t}", routes=[routing.Route("/b/{y}", endpoint), routing.Mount("/n", app=inner)])
    app = applications.Starlette(routes=[routing.Route("/a/{x}", endpoint), nested])
    app.add_middleware(LabelMiddleware)
    for path in "/a/1", "/m/z/b/2", "/m/z/n/v1/items/3":
        request(app, scope_of(path))
    request(LabelMiddleware(inner), scope_of("/v1/items/3"))
    found = ["GET /a/{x}", "GET /m/{t}/b/{y}", "GET /m/{t}/n/v1/items/{id}", "GET /v1/items/{id}"]
    assert seen == found
