"""Functions that look at functions find in ours what they find in those of asyncio, aiofiles and anyio."""

import asyncio
import functools
import inspect
import pickle
import pydoc
import typing
import weakref
from unittest import mock

import aiofiles
import aiofiles.os
import aiofiles.ospath
import aiofiles.tempfile
import aiofiles.threadpool.binary
import aiofiles.threadpool.text
import anyio
import pytest

import wakeloop
import wakeloop.fs

pytestmark = [pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning")]

READER = aiofiles.threadpool.binary.AsyncBufferedReader
TEXT = aiofiles.threadpool.text.AsyncTextIOWrapper
LOOP = asyncio.SelectorEventLoop


async def coroutine_function(self):
    """The counterpart of what no other package has: `pread`, `write_frame` and the like return coroutines too."""


async def asynchronous_generator(self):
    """The counterpart of `walk`."""
    yield


#: By the name of ours: what does the same in another package.
COUNTERPARTS = {
    "sleep": asyncio.sleep,
    "spawn_blocking": asyncio.to_thread,
    "open": aiofiles.open,
    "open_connection": asyncio.open_connection,
    "open_unix_connection": asyncio.open_unix_connection,
    "start_server": asyncio.start_server,
    "start_unix_server": asyncio.start_unix_server,
    "start_echo_server": asyncio.start_server,
    "run": asyncio.run,
    "new_event_loop": asyncio.new_event_loop,
    "EchoServer.wait_closed": asyncio.Server.wait_closed,
    "EchoServer.__aenter__": asyncio.Server.__aenter__,
    "EchoServer.__aexit__": asyncio.Server.__aexit__,
    "EchoServer.close": asyncio.Server.close,
    "Event.wait": asyncio.Event.wait,
    "Event.set": asyncio.Event.set,
    **{f"Queue.{name}": getattr(asyncio.Queue, name) for name in ("get", "put", "join")},
    **{f"Queue.{name}": getattr(asyncio.Queue, name) for name in ("get_nowait", "put_nowait", "task_done", "qsize")},
    **{
        f"StreamReader.{name}": getattr(asyncio.StreamReader, name)
        for name in ("read", "readline", "readexactly", "readuntil", "__anext__", "__aiter__", "at_eof", "feed_data")
    },
    **{
        f"StreamWriter.{name}": getattr(asyncio.StreamWriter, name)
        for name in ("drain", "wait_closed", "start_tls", "write", "writelines", "close")
    },
    **{
        f"File.{name}": getattr(READER, name)
        for name in (
            *("read", "read1", "peek", "readinto", "readline", "readlines", "write", "writelines", "seek", "tell"),
            *("truncate", "flush", "close", "__aiter__", "__anext__", "fileno"),
        )
    },
    **{f"File.{name}": coroutine_function for name in ("readexactly", "pread", "pwrite", "fsync", "sendfile")},
    **{
        f"TextFile.{name}": getattr(TEXT, name)
        for name in (
            *("read", "readline", "readlines", "write", "writelines", "seek", "tell", "truncate", "flush", "close"),
            *("__aiter__", "__anext__", "fileno"),
        )
    },
    "TextFile.__aenter__": anyio.AsyncFile.__aenter__,
    "TextFile.__aexit__": anyio.AsyncFile.__aexit__,
    "File.__aenter__": anyio.AsyncFile.__aenter__,
    "File.__aexit__": anyio.AsyncFile.__aexit__,
    "TcpStream.connect": asyncio.open_connection,
    **{
        f"TcpStream.{name}": getattr(asyncio.StreamReader, name)
        for name in ("read", "readexactly", "readuntil", "readline", "at_eof")
    },
    "TcpStream.read_frame": coroutine_function,
    "TcpStream.write_all": anyio.abc.SocketStream.send,
    "TcpStream.write_frame": coroutine_function,
    "TcpStream.wait_closed": asyncio.StreamWriter.wait_closed,
    "TcpStream.close": asyncio.StreamWriter.close,
    "TcpStream.__aenter__": anyio.abc.SocketStream.__aenter__,
    "TcpStream.__aexit__": anyio.abc.SocketStream.__aexit__,
    "TcpListener.bind": anyio.create_tcp_listener,
    "TcpListener.accept": LOOP.sock_accept,
    "TcpListener.__anext__": asyncio.StreamReader.__anext__,
    "TcpListener.wait_closed": asyncio.Server.wait_closed,
    "TcpListener.__aenter__": asyncio.Server.__aenter__,
    "TcpListener.__aexit__": asyncio.Server.__aexit__,
    "UdpSocket.bind": anyio.create_udp_socket,
    "UdpSocket.connect": anyio.create_connected_udp_socket,
    "UdpSocket.send": anyio.abc.UDPSocket.send,
    "UdpSocket.send_to": anyio.abc.UDPSocket.sendto,
    "UdpSocket.recv": anyio.abc.UDPSocket.receive,
    "UdpSocket.recv_from": anyio.abc.UDPSocket.receive,
    "UdpSocket.wait_closed": anyio.abc.UDPSocket.aclose,
    "UdpSocket.__aenter__": anyio.abc.UDPSocket.__aenter__,
    "UdpSocket.__aexit__": anyio.abc.UDPSocket.__aexit__,
    "fs.open": aiofiles.open,
    **{
        f"fs.{name}": getattr(aiofiles.os, name)
        for name in (
            *("access", "link", "listdir", "makedirs", "mkdir", "readlink", "remove", "removedirs", "rename", "renames"),
            *("replace", "rmdir", "scandir", "stat", "statvfs", "symlink", "unlink"),
        )
    },
    **{
        f"fs.{name}": getattr(aiofiles.ospath, name)
        for name in ("exists", "getsize", "isdir", "isfile", "islink", "ismount", "samefile")
    },
    **{
        f"fs.{name}": getattr(anyio.Path, name)
        for name in ("chmod", "lstat", "read_bytes", "read_text", "touch", "write_bytes", "write_text")
    },
    "fs.realpath": anyio.Path.resolve,
    **{
        f"fs.{name}": coroutine_function
        for name in (
            *("chown", "copy", "copy2", "copyfile", "copytree", "disk_usage", "glob", "lexists", "move", "rmtree"),
            *("copymode", "copystat", "mkdtemp", "truncate", "utime"),
        )
    },
    "fs.walk": asynchronous_generator,
    "fs.TemporaryFile": aiofiles.tempfile.TemporaryFile,
    "fs.NamedTemporaryFile": aiofiles.tempfile.NamedTemporaryFile,
    "fs.TemporaryDirectory": aiofiles.tempfile.TemporaryDirectory,
    **{
        f"EventLoop.{name}": getattr(LOOP, name)
        for name in dir(LOOP)
        if not name.startswith("_") and callable(getattr(LOOP, name))
    },
}


def found(name):
    return functools.reduce(getattr, name.split("."), wakeloop)


def static(name):
    """The attribute of the class or the module itself."""
    owner, _, last = name.rpartition(".")
    return inspect.getattr_static(functools.reduce(getattr, filter(None, owner.split(".")), wakeloop), last)


def signature(function):
    """The signature; None for functions of `os` whose signature CPython itself cannot read."""
    try:
        return inspect.signature(function)
    except ValueError as error:
        assert "builtin has invalid signature" in str(error)
        return None


NAMES = sorted(COUNTERPARTS)
COROUTINES = [name for name in NAMES if inspect.iscoroutinefunction(COUNTERPARTS[name])]


def test_every_public_function_that_can_be_awaited_has_a_counterpart_here():
    missing = []
    for owner in ("", *(name for name in wakeloop.__all__ if isinstance(found(name), type)), "fs"):
        space = found(owner) if owner else wakeloop
        for last in vars(space) if owner != "fs" and owner else space.__all__:
            name = f"{owner}.{last}" if owner else last
            is_private = last.startswith("_") and last not in ("__aenter__", "__aexit__", "__anext__")
            text = inspect.getdoc(getattr(space, last)) or ""
            if not is_private and name not in COUNTERPARTS and ("Awaitable" in text or last.startswith("__a")):
                missing.append(name)
    # An Operation is what others return. Those of the group and its server are written in Python.
    assert [name for name in missing if not name.startswith(("Operation.", "EventLoopGroup", "GroupServer"))] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_coroutine_function_if_its_counterpart_is(name):
    ours, theirs = found(name), COUNTERPARTS[name]
    for function in (inspect.iscoroutinefunction, asyncio.iscoroutinefunction, inspect.isasyncgenfunction):
        assert function(ours) == function(theirs)
        assert function(functools.partial(ours)) == function(functools.partial(theirs))
    # `unittest.mock` looks at what is wrapped. What ours wrap there are functions of `os`, as in aiofiles.
    if not name.startswith("fs."):
        assert inspect.iscoroutinefunction(inspect.unwrap(static(name))) == inspect.iscoroutinefunction(theirs)


@pytest.mark.parametrize("name", COROUTINES)
def test_a_bound_method_is_a_coroutine_function_too(name):
    owner, _, last = name.rpartition(".")
    if not isinstance(getattr(wakeloop, owner, None), type) or isinstance(static(name), staticmethod):
        pytest.skip("not a method")
    bound = static(name).__get__(object(), object)
    assert inspect.ismethod(bound) and inspect.iscoroutinefunction(bound) and asyncio.iscoroutinefunction(bound)
    assert inspect.iscoroutinefunction(functools.partial(bound))
    assert bound.__name__ == last and bound.__func__ is static(name)


@pytest.mark.parametrize("name", COROUTINES)
def test_tools_see_a_function(name):
    ours = found(name)
    assert inspect.isroutine(ours) and callable(ours)
    assert "async" in pydoc.render_doc(ours) and "(" in pydoc.render_doc(ours)
    assert inspect.getdoc(ours) or name.rpartition(".")[2].startswith("__") or inspect.isfunction(ours)
    assert ours.__name__ == name.rpartition(".")[2] and ours.__qualname__.rpartition(".")[2] == ours.__name__
    assert weakref.ref(ours)() is ours
    assert pickle.loads(pickle.dumps(ours)) is ours
    if name not in ("fs.copy",):
        typing.get_type_hints(ours, localns=dict.fromkeys(("StrPath", "ReadableBuffer", "AnyStr"), typing.Any))


@pytest.mark.parametrize("name", COROUTINES)
def test_wraps_copies_what_it_copies_of_a_coroutine_function(name):
    ours = found(name)

    @functools.wraps(ours)
    def plain(*args):
        pass

    @functools.wraps(ours)
    async def coroutine(*args):
        pass

    assert not inspect.iscoroutinefunction(plain) and not asyncio.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(coroutine)
    assert signature(plain) == signature(ours)
    assert (plain.__name__, plain.__qualname__, plain.__module__) == (ours.__name__, ours.__qualname__, ours.__module__)
    assert plain.__doc__ == ours.__doc__ and plain.__wrapped__ is ours


@pytest.mark.parametrize("name", COROUTINES)
def test_a_mock_of_it_can_be_awaited(name):
    ours = found(name)
    if signature(ours) is not None:
        assert asyncio.iscoroutinefunction(mock.create_autospec(ours))
    with mock.patch(f"wakeloop.{name}") as patched:
        assert isinstance(patched, mock.AsyncMock)

    async def awaited():
        patched = mock.AsyncMock(spec=ours, return_value=3)
        return await patched()

    assert asyncio.run(awaited()) == 3


@pytest.mark.parametrize("kind", ["Queue", "Event", "File", "TcpStream", "TcpListener", "UdpSocket", "StreamReader"])
@pytest.mark.parametrize("make", [mock.AsyncMock, mock.MagicMock, mock.create_autospec])
def test_a_mock_of_a_class_has_coroutine_functions(kind, make):
    class_ = getattr(wakeloop, kind)
    made = make(class_) if make is mock.create_autospec else make(spec=class_)
    methods = [name.rpartition(".")[2] for name in COROUTINES if name.startswith(f"{kind}.")]
    plain = [name.rpartition(".")[2] for name in NAMES if name.startswith(f"{kind}.") and name not in COROUTINES]
    assert methods
    for name in methods:
        if not name.startswith("__"):
            assert inspect.iscoroutinefunction(getattr(made, name)) or inspect.isawaitable(getattr(made, name)())
    if make is not mock.AsyncMock:
        assert not any(isinstance(getattr(made, name), mock.AsyncMock) for name in plain if not name.startswith("__"))


AWAITED = {
    "Queue.get": lambda: wakeloop.Queue().get(),
    "Event.wait": lambda: wakeloop.Event().wait(),
    "sleep": lambda: wakeloop.sleep(10),
    "asyncio.Queue.get": lambda: asyncio.Queue().get(),
}


@pytest.mark.parametrize("name", AWAITED)
def test_what_it_returns_is_taken_where_a_coroutine_is(run, runtime, name):
    make = AWAITED[name]

    async def main():
        coroutine = make()
        assert inspect.isawaitable(coroutine) and asyncio.iscoroutine(coroutine)
        tasks = [asyncio.create_task(coroutine), asyncio.ensure_future(make()), asyncio.gather(make())]
        tasks += [asyncio.create_task(asyncio.wait_for(make(), 10)), asyncio.shield(make())]
        await asyncio.sleep(0)
        assert asyncio.isfuture(tasks[0]) and not any(task.done() for task in tasks)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(make(), 0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001), asyncio.TaskGroup() as group:
                group.create_task(make())

    run(main())


LOOP_METHODS = sorted(name.rpartition(".")[2] for name in NAMES if name.startswith("EventLoop."))


@pytest.mark.parametrize("name", LOOP_METHODS)
def test_a_bound_method_of_a_loop_is_referred_to_weakly(loop, name):
    bound = getattr(loop, name)
    assert weakref.WeakMethod(bound)() == bound
    assert bound.__self__ is loop and bound.__name__ == name and inspect.ismethod(bound)
    assert bound == getattr(loop, name) and hash(bound) == hash(getattr(loop, name))
