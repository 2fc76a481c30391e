"""The native half of wakeloop. It is private, except for the names that the package re-exports."""

import asyncio
import contextvars
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from io import FileIO
from socket import socket
from types import FrameType, GenericAlias, ModuleType
from typing import Any, Generic, ParamSpec, Self, TypeAlias, TypeVar, TypeVarTuple, Unpack, final, overload

from typing_extensions import Buffer, disjoint_base

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Opened = TypeVar("_Opened")
_P = ParamSpec("_P")
_Ts = TypeVarTuple("_Ts")
_Coroutine: TypeAlias = Coroutine[Any, Any, _T] | Generator[Any, None, _T]
_Data: TypeAlias = bytes | bytearray | memoryview[Any]

__version__: str
#: The profile, target and compiler of the extension module.
__build__: str
#: The package, once for each import in this process.
_packages: list[ModuleType]

#: `socket.socket`, as the module has defined it.
Socket = socket

class RuntimePanic(Exception):
    """A panic in Rust code. The process continues, and the operation did not finish."""

# -- the runtime --------------------------------------------------------------------------------------------

@final
class Operation(Coroutine[Any, Any, _T_co]):
    """An operation on the Rust runtime. sleep(), TcpStream.connect() and spawn_blocking() return one.

    It behaves like a coroutine: a task of any asyncio loop can await it once, and it starts only then. Cancelling the
    task drops the Rust future; the documentation of each function says what may have happened by then. An operation is
    not thread-safe: use it only on the thread of the loop that awaits it. In annotations, write Operation[T], where T
    is the type of the result.

    An operation that opens a stream, a socket or a server can be given to 'async with' without an await. It is closed
    at the end of the block.
    """

    @property
    def __name__(self) -> str:
        """The name of what was called."""
    @property
    def __qualname__(self) -> str:
        """The name of what was called, with that of its class."""
    @property
    def cr_await(self) -> Any:
        """What it waits for: a future, or an object like a coroutine."""
    @property
    def cr_frame(self) -> FrameType | None:
        """A frame that shows its name; None if it is over."""
    @property
    def cr_running(self) -> bool:
        """Whether a step runs."""
    @property
    def cr_suspended(self) -> bool:
        """Whether it was started and is not over."""
    @property
    def cr_state(self) -> str:
        """Its state, as inspect.getcoroutinestate gives it."""
    @property
    def _delay(self) -> float | None:
        """The seconds of a sleep; None for any other operation."""
    @property
    def _wait(self) -> tuple[str, Any]:
        """What its wait is for: one of the kinds of wakeloop.waits, and an object or None."""
    def _waited(self, now: float, /) -> float | None:
        """For how many seconds it has waited, or None. `now` is time.monotonic()."""
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __await__(self) -> Generator[Any, None, _T_co]:
        """The operation itself, which is the iterator that `await` steps."""
    def __iter__(self) -> Generator[Any, None, _T_co]:
        """Implement iter(self)."""
    def __next__(self) -> Any:
        """Implement next(self)."""
    def send(self, value: Any, /) -> Any:
        """Take one step, as a coroutine's send does."""
    def throw(self, type: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """End the wait and raise, as a coroutine's throw does."""
    def close(self) -> None:
        """End the wait."""
    async def __aenter__(self: Operation[AbstractAsyncContextManager[_Opened, Any]]) -> _Opened:
        """The operation itself, if it opens what has to be closed. Awaitable."""
    async def __aexit__(self, *_exception: object) -> None:
        """Close what was opened. Awaitable."""

# -- between loops and threads --------------------------------------------------------------------------------

@disjoint_base
class Queue(Generic[_T]):
    """A first-in, first-out queue between tasks of any event loops, and between them and threads.

    The methods are those of asyncio.Queue, with the same errors. Any thread may call them, and tasks of any asyncio
    loop may await them. Threads that may block use sync_q, which has the methods of queue.Queue. A maxsize of zero or
    less means any number of items.
    """

    def __init__(self, maxsize: int = 0) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    @property
    def maxsize(self) -> int:
        """The largest number of items; zero or less if there is none."""
    @property
    def sync_q(self) -> SyncQueue[_T]:
        """The side for threads that may block, with the methods of queue.Queue."""
    async def put(self, item: _T) -> None:
        """Put an item; wait while the queue is full. A put that is cancelled has put nothing. Raises QueueShutDown.
        Awaitable.
        """
    async def get(self) -> _T:
        """Take the oldest item; wait while there is none. A get that is cancelled has taken nothing. Raises
        QueueShutDown. Awaitable.
        """
    async def join(self) -> None:
        """Wait until task_done() was called for every item that was put. Awaitable."""
    def put_nowait(self, item: _T) -> None:
        """Put an item. Raises asyncio.QueueFull if the queue is full, and QueueShutDown."""
    def get_nowait(self) -> _T:
        """Take the oldest item. Raises asyncio.QueueEmpty if there is none, and QueueShutDown."""
    def task_done(self) -> None:
        """Say that an item that was taken is done with: join() waits for that. Raises ValueError if called more often
        than there were items.
        """
    def shutdown(self, immediate: bool = False) -> None:
        """End the queue: put() raises QueueShutDown from now on, and get() once the queue is empty. If immediate is
        true, the items are dropped, and count as done.
        """
    def qsize(self) -> int:
        """The number of items."""
    def empty(self) -> bool:
        """Whether there is no item."""
    def full(self) -> bool:
        """Whether there are maxsize items."""

@final
class SyncQueue(Generic[_T]):
    """The side of a Queue for threads that may block: the methods of queue.Queue, with the same errors.

    Queue.sync_q returns one. A thread that waits does not hold the GIL, and a signal ends its wait, as that of a
    queue.Queue. Used in the thread of an event loop, a wait blocks the loop.
    """

    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    @property
    def maxsize(self) -> int:
        """The largest number of items; zero or less if there is none."""
    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Put an item; wait while the queue is full, up to timeout seconds if it is not None. Raises queue.Full after
        the timeout, or at once if block is false, and QueueShutDown.
        """
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Take the oldest item; wait while there is none, up to timeout seconds if it is not None. Raises queue.Empty
        after the timeout, or at once if block is false, and QueueShutDown.
        """
    def join(self) -> None:
        """Wait until task_done() was called for every item that was put."""
    def put_nowait(self, item: _T) -> None:
        """Put an item. Raises queue.Full if the queue is full, and QueueShutDown."""
    def get_nowait(self) -> _T:
        """Take the oldest item. Raises queue.Empty if there is none, and QueueShutDown."""
    def task_done(self) -> None:
        """Say that an item that was taken is done with: join() waits for that. Raises ValueError if called more often
        than there were items.
        """
    def shutdown(self, immediate: bool = False) -> None:
        """End the queue: put() raises QueueShutDown from now on, and get() once the queue is empty. If immediate is
        true, the items are dropped, and count as done.
        """
    def qsize(self) -> int:
        """The number of items."""
    def empty(self) -> bool:
        """Whether there is no item."""
    def full(self) -> bool:
        """Whether there are maxsize items."""

@disjoint_base
class Event:
    """A flag that tasks of any event loops, and threads, set and wait for.

    The methods are those of asyncio.Event. Any thread may call them, and tasks of any asyncio loop may await wait().
    Threads that may block use sync_wait().
    """

    def __init__(self) -> None: ...
    def set(self) -> None:
        """Set the flag, and wake all who wait for it."""
    def clear(self) -> None:
        """Reset the flag: wait() waits again."""
    def is_set(self) -> bool:
        """Whether the flag is set."""
    async def wait(self) -> bool:
        """Wait until the flag is set; gives True. Awaitable."""
    def sync_wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is set, up to timeout seconds if it is not None. Returns whether it was set
        in time. In the thread of an event loop this blocks the loop.
        """

@final
class EchoServer:
    """A running echo server."""

    @property
    def host(self) -> str:
        """The address that the server listens on."""
    @property
    def port(self) -> int:
        """The port that the server listens on."""
    def stats(self) -> dict[str, int]:
        """Counts since the start: accepted, open, reads, bytes, errors."""
    def is_serving(self) -> bool:
        """Whether it accepts connections."""
    def close(self) -> None:
        """Stop listening and close every connection. Closing twice is fine."""
    def wait_closed(self) -> Operation[None]:
        """Wait until the server and its connections are closed. Awaitable."""
    async def __aenter__(self) -> EchoServer:
        """The server itself. Awaitable."""
    async def __aexit__(self, *_exception: object) -> None:
        """close() and wait_closed(). Awaitable."""

@final
class TcpStream:
    """A TCP connection that is read and written in whole items. Made by TcpStream.connect and TcpListener.accept.

    One task may read while others write; a second reader is refused with RuntimeError, writers take turns. A read that
    is cancelled takes nothing: the next read, of whatever kind, gets the bytes. A write that is cancelled has sent an
    unknown part. Methods with a name of asyncio's streams do what asyncio's do. Not thread-safe: for use in the thread
    of one event loop.
    """

    @staticmethod
    def connect(
        host: str, port: int, *, timeout: float | None = None, limit: int = 65536
    ) -> Operation[TcpStream]:
        """Connect to host, trying its addresses one after the other, for at most timeout seconds in all. limit, in
        bytes, is the length of the longest line. Awaitable; gives a TcpStream. Raises TimeoutError,
        ConnectionRefusedError or another OSError.
        """
    async def read(self, n: int = -1) -> bytes:
        """Read at least one and at most n bytes; all up to the end of the stream if n is negative. Empty bytes mean the
        end. Awaitable.
        """
    async def readexactly(self, n: int) -> bytes:
        """Read n bytes. Raises asyncio.IncompleteReadError, with what there was, if the stream ends before. Awaitable.
        """
    async def readuntil(self, separator: Buffer | tuple[Buffer, ...] = b"\n") -> bytes:
        """Read up to the separator, which is included; the first to end of a tuple of separators. Raises
        asyncio.IncompleteReadError if the stream ends before, and asyncio.LimitOverrunError if more than the stream's
        limit comes before the separator; the bytes then stay and can be read otherwise. Awaitable.
        """
    async def readline(self) -> bytes:
        """Read a line with its end. The last one may have none; empty bytes mean the end of the stream. Raises
        ValueError for a line that is longer than the stream's limit, and drops it, as asyncio's readline does.
        Awaitable.
        """
    async def read_frame(self, max_size: int = 16777216) -> bytes:
        """Read a frame: its length as four bytes, big-endian and unsigned, then so many bytes, which are returned.
        Raises asyncio.IncompleteReadError if the stream ends before, with partial=b'' if it ends between frames, and
        asyncio.LimitOverrunError if the frame is longer than max_size. Awaitable.
        """
    def at_eof(self) -> bool:
        """Whether a read has found the end of the stream, and everything before it was read."""
    async def write_all(self, *data: Buffer) -> None:
        """Send bytes-like objects, one after the other; done when the system has taken all of them. Several tasks may
        write: what each call sends stays in one piece. Raises BrokenPipeError or ConnectionResetError if the peer is
        gone. Awaitable.
        """
    async def write_frame(self, data: Buffer) -> None:
        """Send data as a frame that read_frame reads. Awaitable."""
    def write_eof(self) -> None:
        """End the sending direction, after the writes that are under way: the peer reads the end of the stream, and can
        still send. Raises OSError if the connection is gone.
        """
    def frames(self, max_size: int = 16777216) -> AsyncIterator[bytes]:
        """Iterate over frames (see read_frame) until the stream ends."""
    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over lines, each with its end; the last one may have none."""
    def close(self) -> None:
        """Close at once. Tasks that wait for it get ConnectionAbortedError. Closing twice is fine."""
    def wait_closed(self) -> Operation[None]:
        """Wait until it is closed. Awaitable."""
    def is_closing(self) -> bool:
        """Whether close() was called."""
    def fileno(self) -> int:
        """The descriptor, or -1 once closed. It is for inspection, not for reading or writing."""
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What asyncio's transports return for the names 'sockname', 'peername' and 'socket'. The socket is for its
        options, not for reading or writing.
        """
    async def __aenter__(self) -> TcpStream:
        """The object itself. Awaitable."""
    async def __aexit__(self, *_exception: object) -> None:
        """close() and wait_closed(). Awaitable."""

@final
class TcpListener:
    """A TCP socket that listens, or one for each address of a name. Made by TcpListener.bind.

    Any number of tasks may accept; a connection goes to one of them. A cancelled accept loses no connection: the next
    accept gets it. Connections that were accepted stay open when the listener is closed. Not thread-safe: for use in
    the thread of one event loop.
    """

    @staticmethod
    def bind(host: str | None, port: int, *, limit: int = 65536) -> Operation[TcpListener]:
        """Listen at every address of host, as asyncio's servers do; None and '' are all interfaces, over IPv4 and IPv6.
        Port 0 is any free port, the same one for each address. limit is the limit of the accepted streams, in bytes.
        Awaitable; gives a TcpListener. Raises OSError if an address is in use, or if none is local.
        """
    def accept(self) -> Operation[TcpStream]:
        """Wait for a connection. Awaitable; gives a TcpStream. Raises ConnectionAbortedError if the listener is closed
        meanwhile, OSError if descriptors run out.
        """
    @property
    def host(self) -> str:
        """The address that it listens on, the first of several."""
    @property
    def port(self) -> int:
        """The port that it listens on."""
    def __aiter__(self) -> TcpListener:
        """Return an awaitable, that resolves in asynchronous iterator."""
    def __anext__(self) -> Operation[TcpStream]:
        """Return a value or raise StopAsyncIteration."""
    def close(self) -> None:
        """Close at once. Tasks that wait for it get ConnectionAbortedError. Closing twice is fine."""
    def wait_closed(self) -> Operation[None]:
        """Wait until it is closed. Awaitable."""
    def is_closing(self) -> bool:
        """Whether close() was called."""
    def fileno(self) -> int:
        """The descriptor, or -1 once closed. It is for inspection, not for reading or writing."""
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What asyncio's transports return for the names 'sockname', 'peername' and 'socket'. The socket is for its
        options, not for reading or writing.
        """
    async def __aenter__(self) -> TcpListener:
        """The object itself. Awaitable."""
    async def __aexit__(self, *_exception: object) -> None:
        """close() and wait_closed(). Awaitable."""

@final
class UdpSocket:
    """A UDP socket. Made by UdpSocket.bind and UdpSocket.connect.

    Any number of tasks may send and receive; a datagram goes to one of them. A cancelled receive loses no datagram: the
    next receive gets it. Not thread-safe: for use in the thread of one event loop.
    """

    @staticmethod
    def bind(host: str, port: int) -> Operation[UdpSocket]:
        """A socket that receives at host and port; port 0 is any free port. Awaitable; gives a UdpSocket. Raises
        OSError if the address is in use or not local.
        """
    @staticmethod
    def connect(host: str, port: int) -> Operation[UdpSocket]:
        """A socket, at any free port, that sends to host and port and receives from there only. Awaitable; gives a
        UdpSocket.
        """
    def send(self, data: Buffer) -> Operation[None]:
        """Send a datagram to the peer of a connected socket. Awaitable. Raises ConnectionRefusedError if the peer
        refused an earlier one.
        """
    def send_to(self, data: Buffer, address: tuple[str, int] | tuple[str, int, int, int]) -> Operation[None]:
        """Send a datagram to address, (host, port). Awaitable."""
    def recv(self) -> Operation[bytes]:
        """Receive a datagram, of any length. Awaitable; gives bytes. Raises ConnectionAbortedError if the socket is
        closed meanwhile.
        """
    def recv_from(self) -> Operation[tuple[bytes, Any]]:
        """As recv; gives (bytes, address of the sender)."""
    @property
    def host(self) -> str:
        """The address that it is bound to."""
    @property
    def port(self) -> int:
        """The port that it is bound to."""
    def close(self) -> None:
        """Close at once. Tasks that wait for it get ConnectionAbortedError. Closing twice is fine."""
    def wait_closed(self) -> Operation[None]:
        """Wait until it is closed. Awaitable."""
    def is_closing(self) -> bool:
        """Whether close() was called."""
    def fileno(self) -> int:
        """The descriptor, or -1 once closed. It is for inspection, not for reading or writing."""
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What asyncio's transports return for the names 'sockname', 'peername' and 'socket'. The socket is for its
        options, not for reading or writing.
        """
    async def __aenter__(self) -> UdpSocket:
        """The object itself. Awaitable."""
    async def __aexit__(self, *_exception: object) -> None:
        """close() and wait_closed(). Awaitable."""

@final
class File:
    """A binary file that tasks read and write. Made by wakeloop.open.

    The methods do what those of io.BufferedReader, io.BufferedWriter and io.BufferedRandom do, and raise what they
    raise. Several tasks may use a file: operations are done one after the other, in the order in which they were
    awaited; only reads by pread run beside each other. A read that is cancelled moves nothing and loses nothing. A
    write that is cancelled has not begun, or will be done as a whole. Not thread-safe: for use in the thread of one
    event loop.
    """

    async def read(self, size: int | None = -1) -> bytes:
        """Read size bytes; fewer only at the end of the file. All up to the end if size is negative or None. Awaitable.
        """
    async def read1(self, size: int | None = -1) -> bytes:
        """Read at least one and at most size bytes, with at most one read of the system. Empty bytes mean the end.
        Awaitable.
        """
    async def peek(self, size: int = 0) -> bytes:
        """The bytes that were read ahead, without moving the position; reads once if there are none. Awaitable."""
    async def readexactly(self, n: int) -> bytes:
        """Read n bytes. Raises asyncio.IncompleteReadError, with what there was, if the file ends before. Awaitable."""
    async def readinto(self, buffer: Buffer) -> int:
        """Read into a writable bytes-like object. Awaitable; gives the number of bytes, which is less than its length
        only at the end of the file.
        """
    async def readline(self, size: int | None = -1) -> bytes:
        """Read a line with its end, or its first size bytes. The last one may have no end; empty bytes mean the end of
        the file. Awaitable.
        """
    async def readlines(self, hint: int | None = -1) -> list[bytes]:
        """Read all lines, or lines of more than hint bytes together. Awaitable; gives a list."""
    async def pread(self, n: int, offset: int) -> bytes:
        """Read n bytes at offset; fewer only at the end of the file. Neither uses nor moves the position. Several may
        run at once. Awaitable.
        """
    async def write(self, data: Buffer) -> int:
        """Write a bytes-like object. Awaitable; gives the number of bytes, which is all of them unless the file was
        opened with buffering=0.
        """
    async def writelines(self, lines: Iterable[Buffer]) -> None:
        """Write bytes-like objects, one after the other. Awaitable."""
    async def pwrite(self, data: Buffer, offset: int) -> int:
        """Write all of data at offset, at once. Neither uses nor moves the position. Awaitable; gives the number of
        bytes.
        """
    async def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position: from the beginning, from where it is (whence=1), or from the end (2). Awaitable; gives the
        new position.
        """
    async def tell(self) -> int:
        """The position in bytes. Awaitable."""
    async def truncate(self, size: int | None = None) -> int:
        """Make the file size bytes long, by default up to the position, which does not move. Awaitable; gives the size.
        """
    async def flush(self) -> None:
        """Give to the system what was written. Awaitable."""
    async def fsync(self) -> None:
        """Flush, and wait until the disk has all data. Awaitable."""
    async def close(self) -> None:
        """Flush and close, after the operations that were awaited before. Closing twice is fine. The file is closed
        even if the flush fails. Awaitable.
        """
    async def sendfile(
        self, transport: Any, offset: int = 0, count: int | None = None, *, fallback: bool = True
    ) -> int:
        """Send the file to a transport, as loop.sendfile does. Afterwards the position is behind what was sent.
        Awaitable; gives the number of bytes.
        """
    def fileno(self) -> int:
        """The descriptor. Raises ValueError if the file is closed."""
    def isatty(self) -> bool:
        """Whether the file is a terminal. Raises ValueError if the file is closed."""
    def readable(self) -> bool:
        """Whether it can be read. Raises ValueError if the file is closed."""
    def writable(self) -> bool:
        """Whether it can be written. Raises ValueError if the file is closed."""
    def seekable(self) -> bool:
        """Whether it has a position that can be moved. Raises ValueError if the file is closed."""
    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
    @property
    def name(self) -> Any:
        """The path or descriptor that was opened."""
    @property
    def mode(self) -> str:
        """The mode, as io names it."""
    @property
    def _raw(self) -> FileIO:
        """The io.FileIO behind it, which must not be read, written or moved while others use the file."""
    async def _end(self) -> int:
        """Flush, and find the end of the file without moving the position. Awaitable; gives the offset."""
    async def _hold(self) -> None:
        """Flush, and keep the turn until _end_turn(). Awaitable."""
    async def _turn(self) -> None:
        """Keep the turn until _end_turn(). Awaitable."""
    def _end_turn(self) -> None:
        """End the turn that _hold has taken."""
    def _inside(self) -> File:
        """The same file, for operations within the turn that _turn has taken."""
    def _is_free(self) -> bool:
        """Whether the file is open, and no operation is under way or waits."""
    def _read_now(self, size: int) -> bytes | None:
        """Read within the turn that _turn() has taken, or return None if that would have to wait."""
    def _dealloc_warn(self, object: object, /) -> None:
        """Issue a ResourceWarning about source, if the file is not closed."""
    async def __aenter__(self) -> File:
        """The file itself. Awaitable."""
    async def __aexit__(self, *_exception: object) -> None:
        """close(). Awaitable."""
    def __aiter__(self) -> File:
        """Iterate over lines, each with its end; the last one may have none."""
    async def __anext__(self) -> bytes:
        """The next line. Awaitable."""

def _open_file(raw: FileIO, regular: bool, capacity: int) -> File:
    """Makes a file of an open io.FileIO. `capacity` is the size of the buffer in bytes, 0 for none."""
def _spend_items(count: int) -> None:
    """Count items that a task has taken without waiting, such as lines of a chunk that was read."""
@overload
def sleep(delay: float) -> Operation[None]:
    """Wait for delay seconds on the Rust runtime, then return result. It never ends early. A cancel removes the timer
    from the heap. With a delay of 0 the other tasks run first, as with asyncio.sleep. Awaitable from any asyncio loop.
    """
@overload
def sleep(delay: float, result: _T) -> Operation[_T]:
    """Wait for delay seconds on the Rust runtime, then return result. It never ends early. A cancel removes the timer
    from the heap. With a delay of 0 the other tasks run first, as with asyncio.sleep. Awaitable from any asyncio loop.
    """
def start_echo_server(host: str, port: int) -> Operation[EchoServer]:
    """Start a TCP echo server on the Rust runtime: accepting, reading and writing happen on its workers, without the
    GIL. Awaitable; gives an EchoServer. Raises OSError if the address cannot be bound.
    """
def spawn_blocking(function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Operation[_T]:
    """Call function(*args, **kwargs) on a thread of the runtime's blocking pool, in a copy of the context of the await.
    Awaitable; gives what the function returns, or raises what it raises.

    Cancelling the awaiting task takes the call out of the queue if it has not begun. A call that has begun runs to its
    end; its result is dropped. Calls that still run when the interpreter exits are not waited for.
    """
def _end_idle_threads() -> None:
    """Ends the idle threads of the pool, as a closed loop of asyncio ends those of its executor. A job of another loop
    runs on. The next job makes a new pool.
    """
def _simulate(active: bool) -> int:
    """Says whether a testing loop runs. `wakeloop.testing` calls this. Returns the number of the run that begins."""
def _monotonic() -> float:
    """The time of the monotonic clock. Tools that replace `time.monotonic` do not know this function."""
def _redirect(function: Callable[..., Any], stand_in: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Lets `stand_in` answer for a built-in function, or nothing. Returns the earlier stand-in.

    Raises ValueError if it is no built-in function, and RuntimeError if another tool has exchanged its C function.
    """
def _runtime_metrics() -> dict[str, Any] | None:
    """The figures of `wakeloop.RuntimeMetrics`, as a dict. None if the runtime has not started yet."""
def configure(*, workers: int) -> None:
    """Set how many worker threads the Rust runtime starts with (default: one per core, or WAKELOOP_WORKERS). Raises
    RuntimeError once it runs, ValueError for less than one.
    """
def demo() -> None:
    """Run the runtime's scheduling demo and print each of its events."""

@final
class Watchdog:
    """The watchdog of this process: see `wakeloop.watchdog`. As a context manager it stops at the end of the block."""

    @property
    def limit(self) -> float:
        """The time in seconds after which a turn is reported."""
    def is_running(self) -> bool:
        """Whether it runs: it was neither stopped nor replaced, and this is no forked child of its process."""
    def stop(self) -> None:
        """Stop it, and wait until it writes nothing more. May be called twice, and from any thread."""
    def __enter__(self) -> Self:
        """The watchdog itself, which runs already."""
    def __exit__(self, *_exception: object) -> None:
        """stop()."""

def start_watchdog(limit: float, fd: int | None, /) -> Watchdog:
    """Start a watchdog in place of the current one. It writes to a duplicate of the descriptor; to standard error if
    that is None. The limit is positive.
    """
def stop_watchdog() -> None:
    """Stop the watchdog of this process, if there is one."""

@final
class Admin:
    """The window into this process: see `wakeloop.admin`. As a context manager it closes at the end of the block."""

    @property
    def limit(self) -> float:
        """How long a turn may last in seconds, until `/livez` says that the process is not alive."""
    @property
    def addresses(self) -> list[str]:
        """The addresses: `unix:PATH`, and `HOST:PORT` if there is a TCP address."""
    def is_open(self) -> bool:
        """Whether it answers: it was neither closed nor replaced, and this is no forked child of its process."""
    def close(self) -> None:
        """Close it, and wait until it has ended. May be called twice, and from any thread."""
    def __enter__(self) -> Self:
        """The window itself, which is open already."""
    def __exit__(self, *_exception: object) -> None:
        """close()."""

@final
class AdminAddress:
    """The address of a window: see `wakeloop.admin`. The name of a host is looked up."""

    def __new__(cls, address: bytes) -> Self: ...

def open_admin(address: AdminAddress, limit: float, /) -> Admin:
    """Open a window in place of the current one, which stays if the new one cannot be opened. The limit is positive.
    One thread calls this at a time.
    """
def finish_questions() -> None:
    """Wait until the window asks nothing of Python, which it does not do again. Called before the interpreter ends."""
def set_readiness(ready: bool, limit: float, /) -> None:
    """Set whether the program is ready, and the longest delay in seconds of a loop that is."""
def _init_c_caller() -> None:
    """Finds out how `_asyncio` calls `call_soon`. The package calls this once, when its Python half is loaded."""
def _forked() -> None:
    """Called by `os.register_at_fork` in every child."""
def _forking() -> None:
    """Called by `os.register_at_fork` before every fork, in the thread that forks. Sends what the running loop has
    written: the child would have a copy of it, and could send it a second time.
    """
def _histogram_bounds() -> list[int]:
    """The bounds between the buckets of `wakeloop.Histogram`, in nanoseconds."""
def _metric_families() -> list[tuple[str, str, str, list[tuple[dict[str, str], Any]]]]:
    """The same for a library: name, kind, help, and for each sample its labels, and its number, or buckets and sum."""
def _metric_tables() -> dict[str, list[tuple[str, str, str]]]:
    """The table of each class of `wakeloop.metrics`: names, kinds and help."""
def _metrics_text() -> str:
    """The metrics of this process in Prometheus' text format. The gauges of loops are as they were last counted."""
def _may_have_settings() -> bool:
    """May one of the environment variables be set?"""
def _seconds(text: str) -> float | None:
    """The seconds of a time, written as in an environment variable, or nothing."""
def _settings() -> dict[str, bool | str | float | int | bytes | None]:
    """The environment variables by their names, None for those that are not set. Raises ValueError for the first that
    means nothing.
    """
def _spin_window() -> int:
    """How long a wait of a new loop, or of the runtime, spins at most, in nanoseconds; 0 if it never does."""
def _add_methods(kind: type[EventLoop]) -> None:
    """Puts the loop's fast methods on `kind`. This is called for the native class, and again for the Python class that
    inherits from it.
    """
def _context_scratch(on: bool) -> bool:
    """Switches the scratch context off or on, for tests: callbacks must behave the same with and without it."""
def is_audited() -> bool:
    """Is there an audit hook?"""

@final
class ForeignInbox:
    """The end of the socket pair that a foreign loop watches."""

    def fileno(self) -> int:
        """The descriptor that the loop watches."""
    def drain(self) -> None:
        """The loop's reader callback: runs all messages."""

@final
class Unpatched:
    """Tells whether classes and modules still have what their packages defined. `unpatched` makes one."""

    def __call__(self, object: object = None, /) -> bool:
        """Call self as a function."""

def _warn_unclosed_with(function: Callable[[Any], None]) -> None:
    """Warns of transports that were not closed with this function."""
def unpatched(parts: tuple[tuple[Any, ...], ...]) -> Unpatched:
    """Return a callable that checks whether classes and modules are unpatched.

    `parts` is a tuple of tuples, each of which has a class or a module, followed by names in it. For a class, the values
    that these names override in its bases are checked too. The callable returns True if every name still has the value
    that its package defined. If it is called with an object, it also checks that the object uses the methods of each of
    the classes of which it is an instance.
    """
def defined_class(module: str, name: str) -> Any:
    """The class that a module defines under a name, also if the program has put something else there before the import.
    """

@disjoint_base
class ClientCount:
    """The number of a server's transports that are not in its set. Each of them has a reference to the set."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    @property
    def counted(self) -> int:
        """How many transports are counted."""
    def name(
        self,
        event_loop: EventLoop,
        named: set[weakref.ref[asyncio.BaseTransport]],
        callback: Callable[[weakref.ref[asyncio.BaseTransport]], object],
    ) -> None:
        """Add weak references to the transports of this loop that are counted here, each with this callback. A
        transport that was added is no longer counted.
        """
    def uncount(self, transport: asyncio.BaseTransport) -> None:
        """Stop counting a transport, if it is counted here."""

# -- the event loop -----------------------------------------------------------------------------------------

@disjoint_base
class EventLoop:
    """The native half of wakeloop.EventLoop."""

    _closed: bool
    _stopping: bool
    _debug: bool
    _thread_id: int | None
    _task_factory: Any

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: Unpack[_Ts], context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call the callback in the next iteration of the loop, in the order of the calls. Returns a Handle."""
    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: Unpack[_Ts], context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """The same as call_soon, for use from other threads. Wakes the loop if it is waiting."""
    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: Unpack[_Ts],
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call the callback after delay seconds, never earlier. Returns a TimerHandle."""
    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: Unpack[_Ts],
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call the callback when loop.time() has reached when. Returns a TimerHandle."""
    def time(self) -> float:
        """Seconds on the monotonic clock, as a float."""
    def stop(self) -> None:
        """Leave run_forever at the end of the current iteration."""
    def is_running(self) -> bool:
        """True while run_forever is active."""
    def is_closed(self) -> bool:
        """True once the loop was closed."""
    def get_debug(self) -> bool:
        """True in debug mode."""
    def create_future(self) -> asyncio.Future[Any]:
        """Create an asyncio.Future of this loop."""
    if sys.version_info >= (3, 13):
        def create_task(
            self,
            coro: _Coroutine[_T],
            *,
            name: object = None,
            context: contextvars.Context | None = None,
            eager_start: bool | None = None,
        ) -> asyncio.Task[_T]:
            """Run a coroutine as a task of this loop."""
    else:
        def create_task(
            self, coro: _Coroutine[_T], *, name: object = None, context: contextvars.Context | None = None
        ) -> asyncio.Task[_T]:
            """Run a coroutine as a task of this loop."""

    async def sock_recv(self, sock: socket, n: int) -> bytes:
        """Receive up to n bytes from a non-blocking socket. Awaitable."""
    async def sock_recv_into(self, sock: socket, buf: Buffer) -> int:
        """Receive into a writable buffer. Awaitable: returns the number of bytes."""
    async def sock_recvfrom(self, sock: socket, bufsize: int) -> tuple[bytes, Any]:
        """Receive a datagram of up to bufsize bytes. Awaitable: returns (data, address)."""
    async def sock_recvfrom_into(self, sock: socket, buf: Buffer, nbytes: int = 0) -> tuple[int, Any]:
        """Receive a datagram into a writable buffer. Awaitable: returns (number of bytes, address)."""
    async def sock_sendall(self, sock: socket, data: Buffer) -> None:
        """Send all the data. Awaitable."""
    async def sock_sendto(self, sock: socket, data: Buffer, address: Any) -> int:
        """Send a datagram to an address. Awaitable: returns the number of bytes."""
    async def sock_accept(self, sock: socket) -> tuple[socket, Any]:
        """Wait for a connection to a listening, non-blocking socket. Awaitable: returns (socket, address)."""
    slow_turn_duration: float
    def _metrics(self) -> dict[str, Any]:
        """The figures of `wakeloop.LoopMetrics`, as a dict."""
    def _reset_histograms(self) -> None:
        """Forget the durations that `metrics()` has counted in histograms. Between two turns or in a callback."""
    def _is_parents(self) -> bool:
        """Is this a forked child that has not taken the loop over from its parent?"""
    def _count(self, queued: int) -> None:
        """Count the gauges of the metrics. So many jobs of the default executor have not begun to run."""
    def _register(self, thread: bytes) -> None:
        """Show the loop to tools under the name of this thread, with a number behind it if another open loop has the
        name.
        """
    def _registered_name(self) -> str | None:
        """The name under which tools see the loop; None if it is closed, or is a parent process's."""
    def _keep_busy_wait(self, nanos: int, text: bytes) -> None:
        """Keep a task or callback for which the loop waits busily, so many nanoseconds after that has begun."""
    def _keep_slow(self, nanos: int, name: bytes, slow: bool) -> None:
        """Keep a callback that took so many nanoseconds: a slow turn, or one that is only long."""
    def _slow_turns(self) -> list[tuple[float, float, str]]:
        """The last slow turns, the latest first: when each ended, how long it took, and its name. Times are in seconds.
        """
    def _time_steps(self, on: bool) -> None:
        """Record from now on when each task ends a step, or no longer. A closed loop records nothing."""
    def _last_step(self, task: Any) -> float | None:
        """When the task has ended its last step, on the clock of time.monotonic(); None if that was not recorded."""
    def _run(self) -> None:
        """The native run_forever. Returns after stop() or `_leave_native_run()`, and raises a fatal error. The caller
        has made asyncio's preparations.
        """
    def _leave_native_run(self) -> None:
        """End the native run after the current turn, because a tool has replaced what an iteration calls."""
    def _look_for_patches(self) -> bool:
        """Look for a replaced clock and for patches again. True if some methods of the loop's class are now others."""
    def _adopt_timers_soon(self) -> None:
        """Let the Python half take over the timers that a program has put into `_scheduled`, before the next poll."""
    def _select(self, timeout: float | None) -> int:
        """Poll once, and queue all callbacks that are due. Returns the number of events. For a `_run_once` written in
        Python.
        """
    def _poll(self, timeout: float | None) -> int:
        """Poll once, and leave events and timers for `_dispatch` and `_wake_timers`. Returns the number of events. For
        a `_run_once` written in Python.
        """
    def _dispatch(self) -> None:
        """Handle the events that `_poll` has found."""
    def _wait(self) -> float | None:
        """How many seconds a `_run_once` written in Python may sleep; None for no limit. Sends buffered writes first.
        """
    def _wake_timers(self) -> None:
        """Move the timers that are due to the ready queue."""
    def _park(self) -> bool:
        """The loop is about to sleep in a selector of the program. From now on the poller's descriptor becomes readable
        when another thread schedules a callback. Returns False if there is a message; then the loop must not sleep.
        """
    def _unpark(self) -> None:
        """The loop no longer sleeps."""
    def _poller_fd(self) -> int | None:
        """The descriptor that is readable when a poll would find something."""
    def _watched_fd(self) -> int | None:
        """The poller's descriptor, for a foreign main loop in which this loop is embedded."""
    def _ready_count(self) -> int:
        """How many handles are in the ready queue."""
    def _ready_next(self) -> Any:
        """Remove the next handle from the ready queue, and return it."""
    def _clear_ready(self) -> None:
        """Drop the ready queue of a loop that is being closed."""
    def _ready_handles(self) -> list[Any]:
        """The handles of the ready queue, which stay in it."""
    def _ready_push(self, handle: Any) -> None:
        """Add a handle to the ready queue, even if it is cancelled."""
    def _timer_handles(self) -> list[Any]:
        """The handles of all timers, ordered by their deadlines. A closed loop has none."""
    def __setattr__(self, name: str, value: Any, /) -> None:
        """Implement setattr(self, name, value)."""
    def __delattr__(self, name: str, /) -> None:
        """Implement delattr(self, name)."""
    def _write_to_self(self) -> None:
        """Wake the loop if it sleeps."""
    def _timer_handle_cancelled(self, _handle: Any) -> None:
        """Do nothing. asyncio's TimerHandle calls this when it is cancelled, and such handles are never in our heap."""
    if sys.version_info >= (3, 15):
        def _add_reader(
            self, fd: Any, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
        ) -> asyncio.Handle:
            """Call the callback whenever the descriptor is readable."""
        def _add_writer(
            self, fd: Any, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
        ) -> asyncio.Handle:
            """Call the callback whenever the descriptor is writable."""
    else:
        def _add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
            """Call the callback whenever the descriptor is readable."""
        def _add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
            """Call the callback whenever the descriptor is writable."""

    def _watches_itself(self, fd: int) -> None:
        """The loop itself watches this descriptor, for signals or for the end of a child process. So it does not make a
        busy loop poll in every turn.
        """
    def _remove_reader(self, fd: Any) -> bool:
        """Stop watching for reading. A listener counts as a reader. True if there was one."""
    def _remove_writer(self, fd: Any) -> bool:
        """Stop watching for writing. True if there was a writer."""
    def _source_of(self, fd: int) -> Any:
        """The native object (transport or listener) that has this descriptor, or None."""
    def _watch_of(self, fd: int) -> tuple[int, Any, Any]:
        """The state of a descriptor for the selector facade: (events, reader handle, writer handle)."""
    def _watched(self) -> list[int]:
        """The watched descriptors."""
    def _close_native(self) -> None:
        """Close the native half. The loop is not running."""
    def _next_deadline(self) -> float | None:
        """When the next timer is due, on the clock of time(). None without a timer."""
    def _awaited_descriptors(self) -> int:
        """How many descriptors the program waits for."""
    def _awaited_operations(self) -> int:
        """How many operations of the runtime will report to this loop."""
    def _sources(self) -> list[Any]:
        """The native transports and listeners that are open."""
    def _chain(self, job: Any, /) -> asyncio.Future[Any]:
        """asyncio.futures.wrap_future(job, loop=self)."""
    def _look_up(
        self, host: Any, port: Any, family: Any, type: Any, proto: Any, flags: Any, may_wait: Callable[[], bool]
    ) -> list[Any] | asyncio.Future[list[Any]] | None:
        """Addresses, a future of them, or None."""
    async def _sock_connected(self, sock: socket) -> int:
        """Wait for a connect that was started. Awaitable: returns SO_ERROR."""
    async def _sock_send_file(
        self, sock: Any, file: int, offset: int, count: int | None
    ) -> tuple[int, Exception | None]:
        """Send the file with this descriptor. Awaitable: returns (number of bytes sent, exception or None)."""


# -- labels -------------------------------------------------------------------------------------------------

_label: contextvars.ContextVar[str | None]

def _label_changed() -> None:
    """The label of the current context has changed. Called by `wakeloop.label`."""

def _counts_labels() -> bool:
    """Does somebody ask for labels? Then a job is passed to an executor with its label."""

def _run_labelled(label: str | None, func: Callable[..., _T], /, *args: object) -> _T:
    """Calls func(*args), a job of an executor, for which the label counts."""

# -- the flight recorder ------------------------------------------------------------------------------------

@final
class Recording:
    """The native half of wakeloop.Recorder: one recording, from its start on."""

    def __new__(cls, size: int, gives_way: bool) -> Recording: ...
    @property
    def active(self) -> bool:
        """Whether events are recorded: it was not stopped, and no other recording has taken its place."""
    def stop(self) -> None:
        """Stop recording. What was recorded stays."""
    def counts(self) -> tuple[int, int]:
        """How many events were recorded, and how many of these were overwritten."""
    def write(
        self, fd: int, number: int, name: str, threads: dict[int, str], details: list[tuple[str, str]]
    ) -> None:
        """Write the trace as JSON to a descriptor. `threads` has the names of threads by their system's numbers."""

def learn_task_fields(
    step: Any, task: Any, name: str, coroutine: Any, qualname: str, partial: Any, function: Any
) -> bool:
    """Finds out where `_asyncio` keeps the names of tasks, in samples of its objects."""

# -- transports ---------------------------------------------------------------------------------------------

@final
class StreamTransport(asyncio.Transport):
    """The transport of a stream socket: TCP, Unix or a connected pair.

    For use in the thread of its loop, as asyncio's transports. Data that does not fit into the socket is kept, and the
    protocol's pause_writing() is called above the high-water mark.
    """

    max_size: int
    _start_tls_compatible: bool
    _sendfile_compatible: Any
    @property
    def _sock(self) -> Any:
        """The socket.socket of the connection, made when it is first asked for; None once closed."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the transport, such as its socket, addresses or pipe."""
    def is_closing(self) -> bool:
        """True if the transport is closing or closed."""
    def close(self) -> None:
        """Stop reading, send pending data, then call connection_lost(None) and close the socket."""
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol, or None after connection_lost."""
    def is_reading(self) -> bool:
        """True unless the transport is closing or paused."""
    def pause_reading(self) -> None:
        """Deliver no data until resume_reading() is called."""
    def resume_reading(self) -> None:
        """Deliver data again."""
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks for pause_writing and resume_writing."""
    def get_write_buffer_size(self) -> int:
        """The number of bytes that are not sent yet."""
    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The (low, high) water marks in bytes."""
    def write(self, data: _Data) -> None:
        """Send bytes. Never blocks."""
    def writelines(self, list_of_data: Iterable[_Data]) -> None:
        """Send several bytes-like objects, in order."""
    def write_eof(self) -> None:
        """Close the write side after pending data was sent."""
    def can_write_eof(self) -> bool:
        """True. A socket can be half-closed."""
    def abort(self) -> None:
        """Close at once. Pending data is lost."""

@final
class DatagramTransport(asyncio.DatagramTransport):
    """The transport of a datagram socket, UDP or Unix. Each sendto() sends one datagram."""

    max_size: int
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the transport, such as its socket, addresses or pipe."""
    def is_closing(self) -> bool:
        """True if the transport is closing or closed."""
    def close(self) -> None:
        """Stop receiving, send pending data, then call connection_lost(None) and close the socket."""
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol, or None after connection_lost."""
    def is_reading(self) -> bool:
        """True unless the transport is closing or paused."""
    def pause_reading(self) -> None:
        """Deliver no data until resume_reading() is called."""
    def resume_reading(self) -> None:
        """Deliver data again."""
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks for pause_writing and resume_writing."""
    def get_write_buffer_size(self) -> int:
        """The number of bytes that are not sent yet."""
    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The (low, high) water marks in bytes."""
    def sendto(self, data: _Data, addr: Any = None) -> None:
        """Send a datagram. Never blocks."""
    def abort(self) -> None:
        """Close at once. Pending data is lost."""

@final
class ReadPipeTransport(asyncio.ReadTransport):
    """The transport of a pipe, socket or terminal that is only read."""

    max_size: int
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the transport, such as its socket, addresses or pipe."""
    def is_closing(self) -> bool:
        """True if the transport is closing or closed."""
    def close(self) -> None:
        """Stop reading, then call connection_lost(None) and close the pipe."""
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol, or None after connection_lost."""
    def is_reading(self) -> bool:
        """True unless the transport is closing or paused."""
    def pause_reading(self) -> None:
        """Deliver no data until resume_reading() is called."""
    def resume_reading(self) -> None:
        """Deliver data again."""

@final
class WritePipeTransport(asyncio.WriteTransport):
    """The transport of a pipe, socket or terminal that is only written."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the transport, such as its socket, addresses or pipe."""
    def is_closing(self) -> bool:
        """True if the transport is closing or closed."""
    def close(self) -> None:
        """Write pending data, then call connection_lost(None) and close the pipe."""
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Use another protocol from now on."""
    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol, or None after connection_lost."""
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks for pause_writing and resume_writing."""
    def get_write_buffer_size(self) -> int:
        """The number of bytes that are not sent yet."""
    def get_write_buffer_limits(self) -> tuple[int, int]:
        """The (low, high) water marks in bytes."""
    def write(self, data: _Data) -> None:
        """Write bytes. Never blocks: data that the pipe does not accept now is written later."""
    def write_eof(self) -> None:
        """Close the pipe once everything pending is written."""
    def can_write_eof(self) -> bool:
        """True. Closing the pipe signals the end of file."""
    def abort(self) -> None:
        """Close at once. Pending data is lost."""

# -- TLS ----------------------------------------------------------------------------------------------------

@disjoint_base
class SSLTransport(asyncio.Transport):
    """The transport that the protocol of a TLS connection writes to."""

    _connection: Any
    _ssl_protocol: Any

    def __init__(self, loop: Any, ssl_protocol: Any) -> None: ...
    def write(self, data: _Data) -> None:
        """Encrypt and send bytes."""
    def writelines(self, list_of_data: Iterable[_Data]) -> None:
        """Encrypt and send several bytes-like objects, in order."""

@disjoint_base
class TlsConnection:
    """The native half of a TLS connection."""

    _loop: Any
    _transport: Any
    _app_protocol: Any
    _sslobj: Any
    _state: Any
    _app_reading_paused: bool
    _app_writing_paused: bool
    _ssl_reading_paused: bool
    _ssl_writing_paused: bool
    _outgoing_high_water: int
    _outgoing_low_water: int
    _incoming_high_water: int
    _incoming_low_water: int

    def __new__(cls, *_args: Any, **_kwargs: Any) -> TlsConnection: ...
    @property
    def engine(self) -> str | None:
        """What encrypts: 'native' or 'sslobject'; None before the handshake begins."""
    def resume_writing(self) -> None:
        """Called when the stream transport has room for more data."""
    def _begin(self, native: bool, make: Callable[[], object]) -> None:
        """Call make, which creates the SSLObject, and choose an engine."""
    def _preload(self, data: Buffer, /) -> None:
        """Store ciphertext that was received before the connection used TLS."""
    def _drop_pending(self) -> None:
        """Drop all data that waits."""
    def _holds_data(self) -> bool:
        """Is there plaintext that was not delivered to a buffered protocol yet?"""
    def _send_last(self) -> None:
        """Send the writes of this turn, before the connection is closed by force."""
    def _append_write_backlog(self, data: Buffer, /) -> None:
        """Add data that is sent later."""
    def _do_read(self) -> None:
        """See asyncio's SSLProtocol."""
    def _do_write(self) -> None:
        """See asyncio's SSLProtocol."""
    def _do_write_now(self) -> None:
        """Send the writes of this turn."""
    def _in_context(self, function: Callable[[], object], /) -> None:
        """Call a function in the connection's context."""
    def _process_outgoing(self) -> None:
        """See asyncio's SSLProtocol."""
    def _get_write_buffer_size(self) -> int:
        """See asyncio's SSLProtocol."""
    def _get_read_buffer_size(self) -> int:
        """See asyncio's SSLProtocol."""

def tls_problem() -> str | None:
    """Why the native engine cannot be used in this process, or None if it can."""

# The functions with which the Python half makes transports.

def make_stream(
    event_loop: EventLoop,
    sock: socket,
    protocol: asyncio.BaseProtocol,
    waiter: asyncio.Future[Any] | None,
    extra: dict[str, Any] | None,
    server: Any,
    context: contextvars.Context | None = None,
) -> StreamTransport:
    """The native half of `_make_socket_transport`."""
def make_datagram(
    event_loop: EventLoop,
    sock: socket,
    protocol: asyncio.BaseProtocol,
    address: Any,
    waiter: asyncio.Future[Any] | None,
    extra: dict[str, Any],
    rules: tuple[bool, int],
) -> DatagramTransport:
    """The native half of `_make_datagram_transport`, for a plain socket of a known family. `extra` has all entries, and
    belongs to the transport. `rules` is (sends_empty, header) for the interpreter's asyncio.
    """
def send_file(
    transport: StreamTransport, file: int, offset: int, count: int | None
) -> asyncio.Future[tuple[int, Exception | None]] | None:
    """Sends a file through a transport, after `_make_empty_waiter` was called and its future has completed. Returns a
    future of (number of bytes sent, exception or `None`). Returns `None` if the transport is not in that state.
    """
def make_read_pipe(
    event_loop: EventLoop,
    pipe: Any,
    protocol: asyncio.BaseProtocol,
    waiter: asyncio.Future[Any] | None,
    extra: dict[str, Any],
) -> ReadPipeTransport:
    """The native half of `_make_read_pipe_transport`. The caller has checked the pipe, and made it non-blocking."""
def make_write_pipe(
    event_loop: EventLoop,
    pipe: Any,
    protocol: asyncio.BaseProtocol,
    waiter: asyncio.Future[Any] | None,
    extra: dict[str, Any],
    notices_close: bool,
) -> WritePipeTransport:
    """The native half of `_make_write_pipe_transport`. The caller has checked the pipe, and made it non-blocking.
    `notices_close` is true for a pipe or a socket.
    """
def feed_readers(protocol: tuple[type, list[str]], reader: tuple[type, list[str]]) -> None:
    """From now on, readers of these classes are fed natively. Each class is passed with the names of its instances'
    attributes. Called by `wakeloop._net.streams`, after it has checked that the methods are the known ones.
    """
def chain_jobs(
    job: tuple[type, list[str], list[str]], states: tuple[str, str, str], copies_at_once: bool, shown: Any
) -> None:
    """Records the classes and functions. Called once, by `wakeloop._loop.executor`, if they are the ones that it knows.
    """
def adopt_streams(reader: type, writer: type, protocol: tuple[type, list[str]]) -> None:
    """Records the classes that `wakeloop._net.streams` has made, and the names of a protocol's attributes. Adds the
    native methods to these classes once more, because CPython calls a native method fastest on instances of the class
    that defines it.
    """
@final
class Connecting:
    """A socket that is connecting. It owns its descriptor until a transport takes it over."""

    @property
    def waiter(self) -> asyncio.Future[None] | None:
        """The future that completes when the socket is connected; None if it is connected."""
    def transport(self, protocol: asyncio.BaseProtocol, waiter: asyncio.Future[None]) -> StreamTransport:
        """Creates a transport, which owns the connection from then on."""
    def close(self) -> None:
        """Closes the socket."""

def connect(event_loop: EventLoop, host: Any, port: Any, family: Any) -> Connecting | None:
    """Begins to connect. Returns None if asyncio's own code has to do it. Raises the errors of `socket()` and
    `connect()`.
    """
def start_listener(
    event_loop: EventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    sock: socket,
    server: Any,
    backlog: int,
    sockname: Any,
    unpatched: Unpatched,
    context: contextvars.Context | None = None,
) -> None:
    """The native half of `_start_serving`, for connections without TLS."""

def accept_rest(event_loop: EventLoop, fd: int) -> None:
    """The native half of `_stop_serving`, which then removes the listener and closes its socket."""

# -- streams ----------------------------------------------------------------------------------------------

@disjoint_base
class StreamReader:
    """The native half of wakeloop.StreamReader."""

    _loop: Any
    _transport: Any
    _exception: Any
    _waiter: Any
    _source_traceback: Any
    _eof: bool
    _paused: bool
    _limit: Any
    _buffer: Any

    def __init__(self, limit: int = 65536, loop: asyncio.AbstractEventLoop | None = None) -> None: ...
    async def read(self, n: int = -1) -> bytes:
        """Read up to n bytes, or until the end if n is negative."""
    async def readexactly(self, n: int) -> bytes:
        """Read n bytes. Raises IncompleteReadError if the stream ends before that."""
    async def readline(self) -> bytes:
        """Read up to and including the next newline."""
    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """Read up to and including the separator."""
    def feed_data(self, data: Any) -> None:
        """Add data to the stream."""
    def at_eof(self) -> bool:
        """True if the stream has ended and everything was read."""
    def exception(self) -> Any:
        """The exception that was set with set_exception(), or None."""
    async def __anext__(self) -> bytes:
        """Return a value or raise StopAsyncIteration."""

@disjoint_base
class StreamWriter:
    """The native half of wakeloop.StreamWriter."""

    _transport: Any
    _protocol: Any
    _reader: Any
    _loop: Any

    @property
    def _complete_fut(self) -> asyncio.Future[None]:
        """A future of the loop that is done. asyncio makes one for each writer and does not use it."""
    def __init__(self, transport: Any, protocol: Any, reader: Any, loop: Any) -> None: ...
    def write(self, data: Any) -> None:
        """Write data. Never blocks."""
    def writelines(self, data: Iterable[Any]) -> None:
        """Write several bytes-like objects, in order."""
    async def drain(self) -> None:
        """Wait until the write buffer has room for more."""
