"""What the tasks of a loop wait for: the result of `wakeloop.tasks()`.

Everything is read from outside, and nothing is recorded while the loop runs: the chain of awaits is that of the
coroutines, and what its end waits for is known by the innermost frame of asyncio, by the native awaitable, or by the
future. No code of the program is called, and no reference to its objects is kept except for `TaskInfo.task` and
`TaskInfo.target`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

from . import _core
from ._asyncio import StreamReader, StreamWriter, futures, is_task

__all__ = ("Kind", "State", "TaskFrame", "TaskInfo")

#: What a task does: a step of it runs, it will run in the next turns of the loop, it waits, or it has ended.
State: TypeAlias = Literal["running", "ready", "waiting", "done"]

#: What a task waits for.
Kind: TypeAlias = Literal[
    "timer",
    "socket read",
    "socket write",
    "pipe read",
    "pipe write",
    "connect",
    "accept",
    "close",
    "server",
    "name lookup",
    "lock",
    "event",
    "condition",
    "semaphore",
    "barrier",
    "queue",
    "file",
    "task",
    "task group",
    "gather",
    "wait",
    "process",
    "executor job",
    "runtime operation",
    "future",
]


@dataclasses.dataclass(frozen=True)
class TaskFrame:
    """A place in a function that a task is in. Native functions have the file `<wakeloop>` and the line 0."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{printable(self.file)}", line {self.line}, in {printable(self.function)}'


@dataclasses.dataclass(frozen=True, eq=False)
class TaskInfo:
    """What one task did at the time of `wakeloop.tasks()`. `str()` shows it in several lines, for people.

    The strings contain what the program has put there: names of tasks and functions may have any characters. `str()`
    and `waits_for` escape what is not printable.
    """

    #: The task's name.
    name: str
    #: The qualified name of its coroutine function.
    coroutine: str
    #: "running", "ready" to run, "waiting" or "done".
    state: State
    #: What it waits for, in one or two words; None if it does not wait.
    kind: Kind | None
    #: What it waits for, for people; empty if it does not wait.
    waits_for: str
    #: For how many seconds it has waited; None if nothing is known about that, or if it does not wait.
    seconds: float | None
    #: False if it may have waited for longer than `seconds`.
    exact: bool
    #: The chain of awaits, the innermost function last. A task that runs also has the functions that it has called.
    stack: tuple[TaskFrame, ...]
    #: The task.
    task: asyncio.Task[Any] = dataclasses.field(repr=False)
    #: The object that it waits for: the task, lock, queue, socket, transport or stream; None if it is not known.
    target: Any = dataclasses.field(repr=False, default=None)

    def __str__(self) -> str:
        line = f"{self.name!r} ({printable(self.coroutine)}) {self.state}"
        if self.seconds is not None:
            line += f" for {'' if self.exact else 'at least '}{self.seconds:.1f} s"
        if self.kind is not None:
            line += f": {self.waits_for}"
        return "\n".join([line, *(f"  {frame}" for frame in self.stack)])


def printable(text: str) -> str:
    """The text, with escapes for control characters and the like."""
    return text if text.isprintable() else repr(text)[1:-1]


# -- all tasks of a loop -----------------------------------------------------------------------------------------


#: For each loop, by the ids of tasks: the task, what it was seen to wait for, and since when.
_Seen: TypeAlias = dict[int, tuple["weakref.ref[Any]", "weakref.ref[Any]", float]]
_seen: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Seen] = weakref.WeakKeyDictionary()


def infos(loop: asyncio.AbstractEventLoop) -> list[TaskInfo]:
    """What every task of the loop does: those that wait longest first, those that do not wait last."""
    if loop.is_closed():
        return []
    before, now_seen, futures = _seen.get(loop, {}), _Seen(), _FutureWaits()
    found = [_look(loop, task, before, now_seen, futures) for task in _tasks_of(loop)]
    _seen[loop] = now_seen
    found.sort(key=lambda info: (info.state != "waiting", -(info.seconds or 0.0)))
    return found


def _tasks_of(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    registry = asyncio.tasks
    # A WeakSet, which has the second name in Python 3.11.
    scheduled = getattr(registry, "_scheduled_tasks", None) or getattr(registry, "_all_tasks", None)
    refs: Any = getattr(scheduled, "data", None)
    if sys.version_info >= (3, 14) or refs is None:
        return list(asyncio.all_tasks(loop))
    # asyncio iterates the set in Python, and fails if another thread changes it meanwhile, again and again. These
    # copies are made at once. A task that was started eagerly moves to the second set when it first waits.
    found = list(getattr(registry, "_eager_tasks", ()))
    found += (task for ref in list(refs) if (task := ref()) is not None)
    return [task for task in dict.fromkeys(found) if futures._get_loop(task) is loop and not task.done()]


def _look(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], before: _Seen, now_seen: _Seen, futures: _FutureWaits
) -> TaskInfo:
    # The loop may run in another thread. If the task was stepped during the look, look again.
    for _ in range(3):
        future = _waiter(task)
        info = _describe(loop, task, future, futures)
        if _waiter(task) is future:
            break
    if info.state == "waiting" and info.seconds is None:
        return _with_first_sight(info, future, before, now_seen)
    return info


def _with_first_sight(info: TaskInfo, future: Any, before: _Seen, now_seen: _Seen) -> TaskInfo:
    """How long it has waited is not known, but perhaps it was seen to wait for the same future before."""
    now, task = time.monotonic(), info.task
    known = before.get(id(task))
    try:
        if known is None or known[0]() is not task or known[1]() is not future:
            now_seen[id(task)] = (weakref.ref(task), weakref.ref(future), now)
            return info
    except TypeError:  # A future of the program's own class that cannot be referred to weakly.
        return info
    now_seen[id(task)] = known
    return dataclasses.replace(info, seconds=now - known[2])


def _waiter(task: Any) -> Any:
    """The future that a task waits for."""
    return getattr(task, "_fut_waiter", None)


# -- one task ----------------------------------------------------------------------------------------------------


def _describe(loop: Any, task: asyncio.Task[Any], future: Any, futures: _FutureWaits) -> TaskInfo:
    coroutine = task.get_coro()
    links = list(_chain(coroutine))
    found = _frames(links)
    info = TaskInfo(
        name=_name(task),
        coroutine=_qualified_name(coroutine),
        state="waiting",
        kind=None,
        waits_for="",
        seconds=None,
        exact=False,
        stack=found,
        task=task,
    )
    if task.done():
        return dataclasses.replace(info, state="done", stack=())
    if _is_running(loop, task, coroutine):
        return dataclasses.replace(info, state="running", stack=_running_stack(coroutine) or found)
    try:
        if future is None or future.done():
            return dataclasses.replace(info, state="ready")
        wait, seconds = _wait_of(links, future, futures), _seconds(loop, task, links[-1] if links else None)
    except Exception:  # An object of the program's own class is not what it looks like.
        wait, seconds = _Wait("future", _named(future), future), None
    text = printable(wait.text)
    return dataclasses.replace(
        info, kind=wait.kind, waits_for=text, target=wait.target, seconds=seconds, exact=seconds is not None
    )


def _is_running(loop: Any, task: Any, coroutine: Any) -> bool:
    for name in ("cr_running", "gi_running"):
        if hasattr(type(coroutine), name):
            return getattr(coroutine, name) is True
    return asyncio.current_task(loop) is task


def _name(task: Any) -> str:
    try:
        return str(task.get_name())
    except Exception:
        return f"a task without a name at {id(task):#x}"


@dataclasses.dataclass
class _Link:
    """One awaitable of the chain."""

    awaitable: Any
    #: None if it has ended.
    frame: types.FrameType | None
    #: The module and the qualified name of its function. Native ones are in the module "wakeloop".
    function: tuple[str, str]


#: The attributes that an awaitable has for what it awaits, and for its frame, and how the first is read. CPython 3.11
#: and 3.12 look for it in the frame even while that runs, and take anything for an object (`_PyGen_yf`). No other
#: thread runs between the parts of such an expression: a thread gives the GIL away at calls and at jumps back.
_ATTRIBUTES: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("cr_await", "cr_frame", lambda it, _frame: None if it.cr_running else it.cr_await),
    ("gi_yieldfrom", "gi_frame", lambda it, _frame: None if it.gi_running else it.gi_yieldfrom),
    # `ag_running` is true while it waits, too. A frame that runs has a caller.
    ("ag_await", "ag_frame", lambda it, frame: None if frame is None or frame.f_back else it.ag_await),
)

#: Awaitables of CPython that have no such attribute. They refer to what they await, or to the generator that they step.
_WRAPPERS = {"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper"}
_STEPPED = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


def _is_wrapper(kind: type) -> bool:
    return kind.__module__ == "builtins" and kind.__name__ in _WRAPPERS


#: More links than any program has, for one whose awaitables refer to each other in a circle.
_LONGEST = 10_000


def _chain(awaitable: Any) -> Iterator[_Link]:
    for _ in range(_LONGEST):
        kind = type(awaitable)
        # The class is asked, so that no `__getattr__` of the program is called.
        names = next((names for names in _ATTRIBUTES if hasattr(kind, names[0])), None)
        if names is not None:
            frame = getattr(awaitable, names[1], None)
            yield _Link(awaitable, frame, ("", "") if frame is None else (_module(frame), frame.f_code.co_qualname))
            awaitable = names[2](awaitable, frame)
        elif _is_wrapper(kind):
            held = gc.get_referents(awaitable)
            awaitable = next((each for each in held if type(each) in _STEPPED or _is_wrapper(type(each))), None)
        else:
            return


def _module(frame: types.FrameType) -> str:
    # A program may give any object to `exec` as the name, or a subclass of dict as the globals.
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def stack(coroutine: Any) -> tuple[TaskFrame, ...]:
    """The chain of awaits of a coroutine that is suspended, the innermost function last."""
    return _frames(_chain(coroutine))


def _frames(links: Iterable[_Link]) -> tuple[TaskFrame, ...]:
    return tuple(_frame_of(link.frame) for link in links if link.frame is not None)


def _frame_of(frame: types.FrameType) -> TaskFrame:
    return TaskFrame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname)


def _qualified_name(coroutine: Any) -> str:
    if coroutine is None:  # A task that was started eagerly, and ended at once.
        return ""
    try:
        # No `__getattr__` of the program is called.
        name = object.__getattribute__(coroutine, "__qualname__")
    except Exception:
        name = None
    return name if isinstance(name, str) else type(coroutine).__qualname__


def _running_stack(coroutine: Any) -> tuple[TaskFrame, ...]:
    """The functions of a coroutine that runs in some thread, and what they have called."""
    outermost = getattr(coroutine, "cr_frame", None)
    frame: types.FrameType | None = None
    threads = sys._current_frames()
    try:
        for frame in threads.values():
            frames = []
            while frame is not None:
                if _module(frame) not in _OWN_MODULES:
                    frames.append(_frame_of(frame))
                if frame is outermost:
                    return tuple(reversed(frames))
                frame = frame.f_back
        return ()
    finally:
        # One of the frames is that of this function. The cycle would keep the variables of all callers alive.
        threads.clear()
        del frame, outermost


#: The functions that make the list do not appear in it.
_OWN_MODULES = {__name__, "wakeloop._observe.tasks"}


# -- for how long ------------------------------------------------------------------------------------------------


def _seconds(loop: Any, task: asyncio.Task[Any], last: _Link | None) -> float | None:
    """For how many seconds a task has waited, if anything knows that."""
    now = time.monotonic()
    recorded = getattr(loop, "_last_step", None)
    since = recorded(task) if recorded is not None else None
    if since is not None:
        return max(0.0, now - float(since))
    if last is None:
        return None
    if last.function == ("asyncio.tasks", "sleep"):
        delay, handle = _local(last, "delay"), _local(last, "h")
        if isinstance(delay, (int, float)) and handle is not None:
            return max(0.0, float(loop.time() - handle.when() + delay))
    if _is_native(last.awaitable):
        waited: float | None = last.awaitable._waited(now)
        return waited
    return None


# -- what it waits for -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Wait:
    kind: Kind
    text: str
    target: Any = None


def _wait_of(links: list[_Link], future: Any, futures: _FutureWaits) -> _Wait:
    # The functions of asyncio, and our own, at the end of the chain: from the innermost to the first of the program.
    found: _Wait | None = None
    for link in reversed(links):
        module = link.function[0]
        if module.partition(".")[0] not in ("asyncio", "wakeloop"):
            break
        if _is_native(link.awaitable):
            found = _native_wait(link)
        elif link.function == ("asyncio.tasks", "wait_for"):
            # In Python 3.11 it waits for a future of its own, and a task of it for what it was given.
            awaited = _local(link, "fut") if sys.version_info < (3, 12) and found is None else None
            found = futures.wait(awaited) if asyncio.isfuture(awaited) else found
        elif (known := _KNOWN.get(link.function)) is not None and (found is None or link.function in _COMPOSED):
            found = known(link)
    return found or futures.wait(future)


def _local(link: _Link, name: str) -> Any:
    """A variable of a function of asyncio."""
    # Until Python 3.12 this stores a copy of all variables in the frame, which keeps them alive until the function
    # returns. So it is used only for functions whose variables live as long anyway.
    return link.frame.f_locals.get(name) if link.frame is not None else None


def _of(kind: Kind, what: str, detail: Callable[[Any], str] = lambda _: "") -> Callable[[_Link], _Wait]:
    """A method of an object of asyncio."""

    def wait(link: _Link) -> _Wait:
        it = _local(link, "self")
        return _Wait(kind, f"{what} of {_named(it)}{_tried(detail, it)}", it)

    return wait


def _named(it: Any) -> str:
    return f"{type(it).__qualname__} at {id(it):#x}"


def _tried(detail: Callable[[Any], str], it: Any) -> str:
    """What a function can find out about an object, whose class may be the program's."""
    try:
        found = detail(it)
    except Exception:
        return ""
    return f" ({found})" if found else ""


def _waiters(it: Any) -> str:
    count = len(it._waiters or ())
    return f"{count} waiting" if count > 1 else ""


def _sleep(link: _Link) -> _Wait:
    delay, handle, loop = _local(link, "delay"), _local(link, "h"), _local(link, "loop")
    text = f"sleep of {delay:g} s" if isinstance(delay, (int, float)) else "sleep"
    if handle is not None and loop is not None:
        text += f", due in {max(0.0, handle.when() - loop.time()):.1f} s"
    return _Wait("timer", text)


def _wait_call(link: _Link) -> _Wait:
    awaited = _local(link, "fs") or ()
    done = sum(each.done() for each in awaited)
    return _Wait("wait", f"wait() for {len(awaited)} futures, {done} of them done")


def _to_thread(link: _Link) -> _Wait:
    function = getattr(_local(link, "func"), "__qualname__", None)
    return _Wait("executor job", f"to_thread({function})" if isinstance(function, str) else "to_thread()")


def _lookup(link: _Link) -> _Wait:
    host = _local(link, "host")
    return _Wait("name lookup", f"getaddrinfo({host!r})" if type(host) is str else "getaddrinfo()")


def _connect(link: _Link) -> _Wait:
    # Variables of this function, such as a socket that was closed, must not live longer than they do without us.
    host, port = (_local(link, "host"), _local(link, "port")) if sys.version_info >= (3, 13) else (None, None)
    return _Wait("connect", f"connection to {_address((host, port))}" if host is not None else "connection to a server")


def _socket_call(link: _Link) -> _Wait:
    name = link.function[1].rpartition(".")[2]
    sock = _local(link, "sock")
    return _Wait(_CALLS[name], f"{name} on {_socket_ends(sock)}", sock)


def _stream_read(link: _Link) -> _Wait:
    return _on_transport("read", "read", _local(link, "self"))


def _drain(link: _Link) -> _Wait:
    # The protocol of a stream or of a program.
    return _on_transport("write", "drain", _local(link, "self"))


def _process(link: _Link) -> _Wait:
    transport = _local(link, "self")
    return _Wait("process", f"end of process {getattr(transport, '_pid', None)}", transport)


#: The functions of asyncio, of all versions, in which a task waits.
_KNOWN: dict[tuple[str, str], Callable[[_Link], _Wait]] = {
    ("asyncio.tasks", "sleep"): _sleep,
    ("asyncio.tasks", "_wait"): _wait_call,
    ("asyncio.tasks", "as_completed.<locals>._wait_for_one"): lambda _: _Wait("wait", "as_completed()"),
    ("asyncio.tasks", "_AsCompletedIterator._wait_for_one"): lambda _: _Wait("wait", "as_completed()"),
    ("asyncio.taskgroups", "TaskGroup._aexit"): _of("task group", "tasks", lambda it: f"{len(it._tasks)} left"),
    ("asyncio.taskgroups", "TaskGroup.__aexit__"): _of("task group", "tasks", lambda it: f"{len(it._tasks)} left"),
    ("asyncio.locks", "Lock.acquire"): _of("lock", "acquire", _waiters),
    ("asyncio.locks", "Event.wait"): _of("event", "wait", _waiters),
    ("asyncio.locks", "Condition.wait"): _of("condition", "wait", _waiters),
    ("asyncio.locks", "Semaphore.acquire"): _of("semaphore", "acquire", _waiters),
    ("asyncio.locks", "Barrier.wait"): _of("barrier", "wait", lambda it: f"{it._count} of {it._parties} there"),
    ("asyncio.queues", "Queue.get"): _of("queue", "get"),
    ("asyncio.queues", "Queue.put"): _of("queue", "put"),
    ("asyncio.queues", "Queue.join"): _of("queue", "join", lambda it: f"{it._unfinished_tasks} unfinished"),
    ("asyncio.streams", "StreamReader._wait_for_data"): _stream_read,
    ("asyncio.streams", "FlowControlMixin._drain_helper"): _drain,
    ("asyncio.streams", "StreamWriter.wait_closed"): lambda link: _on_transport("close", "close", _local(link, "self")),
    ("asyncio.base_subprocess", "BaseSubprocessTransport._wait"): _process,
    ("asyncio.base_events", "BaseEventLoop.subprocess_exec"): lambda _: _Wait("process", "start of a process"),
    ("asyncio.base_events", "BaseEventLoop.subprocess_shell"): lambda _: _Wait("process", "start of a process"),
    ("asyncio.base_events", "Server.serve_forever"): _of("server", "end"),
    ("asyncio.base_events", "Server.wait_closed"): _of("server", "end"),
    ("asyncio.base_events", "BaseEventLoop.getaddrinfo"): _lookup,
    ("asyncio.base_events", "BaseEventLoop.getnameinfo"): lambda _: _Wait("name lookup", "getnameinfo()"),
    ("asyncio.base_events", "BaseEventLoop.create_connection"): _connect,
    ("asyncio.unix_events", "_UnixSelectorEventLoop.create_unix_connection"): lambda _: _Wait("connect", "connection"),
    ("asyncio.threads", "to_thread"): _to_thread,
    ("wakeloop.loop", "EventLoop.getaddrinfo"): _lookup,
    ("wakeloop.loop", "EventLoop.create_connection"): _connect,
} | {
    ("asyncio.selector_events", f"BaseSelectorEventLoop.{name}"): _socket_call
    for name in (
        *("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"),
        *("sock_sendall", "sock_sendto", "sock_accept", "sock_connect"),
    )
}

#: These wait by another one of the functions above.
_COMPOSED = {
    ("asyncio.locks", "Barrier.wait"),
    ("asyncio.queues", "Queue.join"),
    ("asyncio.tasks", "as_completed.<locals>._wait_for_one"),
    ("asyncio.tasks", "_AsCompletedIterator._wait_for_one"),
    ("asyncio.threads", "to_thread"),
}


class _FutureWaits:
    """The names of waits for futures. Each future is asked once: many tasks may wait for one, and asking it takes
    time for each of its callbacks.
    """

    def __init__(self) -> None:
        #: By the ids of the futures. It keeps them alive, so that no other one gets the id.
        self._known: dict[int, tuple[Any, _Wait]] = {}

    def wait(self, future: Any) -> _Wait:
        known = self._known.get(id(future))
        if known is None:
            known = self._known[id(future)] = future, self._ask(future)
        return known[1]

    def _ask(self, future: Any) -> _Wait:
        if is_task(future):
            return _Wait("task", f"task {future.get_name()!r}", future)
        if isinstance(children := getattr(future, "_children", None), list):
            done = sum(child.done() for child in children)
            return _Wait("gather", f"gather() of {len(children)} futures, {done} of them done", future)
        for callback, *_ in getattr(future, "_callbacks", None) or ():
            chained = _is_function(callback, "_chain_future.<locals>._call_check_cancel")
            if chained or type(callback).__name__ == "ExecutorFuture":
                return _Wait("executor job", "job of an executor", future)
            if _is_function(callback, "shield.<locals>._outer_done_callback"):
                variables = dict(zip(callback.__code__.co_freevars, callback.__closure__ or (), strict=True))
                wait = self.wait(variables["inner"].cell_contents)
                return _Wait(wait.kind, f"shield() of {wait.text}", wait.target)
        text = _named(future)
        if traceback := getattr(future, "_source_traceback", None):  # In debug mode.
            text += f", made at {traceback[-1].filename}:{traceback[-1].lineno}"
        return _Wait("future", text, future)


def _is_function(callback: Any, name: str) -> bool:
    return type(callback) is types.FunctionType and callback.__qualname__ == name


# -- native awaitables -------------------------------------------------------------------------------------------


def _is_native(awaitable: Any) -> bool:
    """Is it one of the native coroutines, which say themselves what they wait for?"""
    return type(awaitable).__module__ in ("wakeloop", "wakeloop._core") and hasattr(type(awaitable), "_wait")


def _native_wait(link: _Link) -> _Wait:
    name: str = link.awaitable.__qualname__
    last = name.rpartition(".")[2]
    kind, target = link.awaitable._wait
    if _has_class(target, StreamReader, StreamWriter):
        return _on_transport("write" if kind == "socket write" else "read", name, target)
    if kind == "timer":
        delay = link.awaitable._delay
        left = delay - (link.awaitable._waited(time.monotonic()) or 0.0)
        return _Wait(kind, f"{name} of {delay:g} s, due in {max(0.0, left):.1f} s")
    if target is None:
        return _Wait(kind, name)
    match kind:
        case "queue" | "event":
            return _Wait(kind, f"{last} of {_named(target)}", target)
        case "file":
            return _Wait(kind, f"{name} on {_tried(_file, target).strip(' ()') or _named(target)}", target)
    if isinstance(target, _core.TcpStream):
        return _Wait(kind, f"{name} on {_transport_ends(target)}", target)
    return _Wait(kind, f"{last} on {_socket_ends(target)}", target)


def _file(file: Any) -> str:
    return repr(file.name)


def _has_class(it: object, *classes: type) -> bool:
    # `isinstance` would ask the program's objects for their `__class__`.
    return issubclass(type(it), classes)


_CALLS: dict[str, Kind] = {
    "sock_connect": "connect",
    "sock_accept": "accept",
    **dict.fromkeys(("sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into"), "socket read"),
    **dict.fromkeys(("sock_sendall", "sock_sendto"), "socket write"),
}


# -- sockets and transports --------------------------------------------------------------------------------------


def _on_transport(what: Literal["read", "write", "close"], name: str, owner: Any) -> _Wait:
    """A wait of a stream, or of the protocol of one."""
    transport = getattr(owner, "_transport", None)
    is_pipe = transport is not None and transport.get_extra_info("pipe") is not None
    kind: Kind
    if what == "read":
        kind = "pipe read" if is_pipe else "socket read"
    elif what == "write":
        kind = "pipe write" if is_pipe else "socket write"
    else:
        kind = "close"
    return _Wait(kind, f"{name} on {_transport_ends(transport)}", transport)


def _transport_ends(transport: Any) -> str:
    """The descriptor and the addresses of a transport or of a TcpStream."""
    if transport is None:
        return "a closed connection"
    try:
        own, peer = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        return _ends(_descriptor(transport), own, peer)
    except Exception:
        return _named(transport)


def _descriptor(transport: Any) -> int | None:
    # Over TLS, the transport below. Asking for `get_extra_info("socket")` could make a socket object.
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    for it, name in ((below, "_sock_fd"), (transport, "_sock_fd"), (transport, "_fileno")):
        if isinstance(fd := getattr(it, name, None), int):
            return fd
    fd = transport.fileno() if hasattr(transport, "fileno") else None
    return fd if isinstance(fd, int) else None


def _socket_ends(sock: Any) -> str:
    if sock is None:
        return "a closed socket"
    fd = own = peer = None
    try:
        fd = sock.fileno()
        own = sock.getsockname()
        peer = sock.getpeername()
    except OSError:  # It is closed, or not connected.
        pass
    except Exception:
        return _named(sock)
    return _ends(fd, own, peer)


def _ends(fd: int | None, own: Any, peer: Any) -> str:
    text = "descriptor" if fd is None else f"descriptor {fd}"
    if own or peer:
        text += f" ({' -> '.join(_address(end) for end in (own, peer) if end)})"
    return text


def _address(address: Any) -> str:
    match address:
        case [str(host), int(port), *_]:
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return repr(address)
