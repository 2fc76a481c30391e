"""Streams: whether native code can replace asyncio's methods, and wakeloop's own StreamReader and StreamWriter.

The classes inherit from a native half first and from asyncio's class second: methods that are not native are asyncio's
own, on the same attributes. The functions that make them are asyncio's too, with wakeloop's classes in the place of
asyncio's. They work on any asyncio loop, and are fast on wakeloop's.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .. import _core
from .._asyncio import (
    StreamReader as InheritedReader,
    StreamReaderProtocol as InheritedProtocol,
    StreamWriter as InheritedWriter,
    streams,
)
from .._asyncio.compat import names_within

# The names that the methods refer to that native code replaces. A method that refers to other names does something
# else, and native code does not replace it.
_KNOWN = {
    "StreamReaderProtocol.data_received": {"_stream_reader", "feed_data"},
    "StreamReaderProtocol._stream_reader": {"_stream_reader_wr"},
    "StreamReader.feed_data": {
        *("_eof", "_buffer", "extend", "_wakeup_waiter", "_transport", "_paused", "len", "_limit"),
        *("pause_reading", "NotImplementedError"),
    },
    "StreamReader._wakeup_waiter": {"_waiter", "cancelled", "set_result"},
    "FlowControlMixin._drain_helper": {
        *("_connection_lost", "ConnectionResetError", "_paused", "_loop", "create_future"),
        *("_drain_waiters", "append", "remove"),
    },
    "StreamWriter.drain": {
        *("_reader", "exception", "_transport", "is_closing", "sleep", "_protocol", "_drain_helper"),
    },
}


def _is_known(name: str) -> bool:
    """Is this asyncio's own function, and the version that native code replaces?"""
    owner, method = name.split(".")
    found = vars(getattr(streams, owner)).get(method)
    function = found.fget if isinstance(found, property) else found
    return (
        isinstance(function, types.FunctionType)
        and function.__code__.co_qualname == name
        and names_within(function, streams) == _KNOWN[name]
    )


#: Native code does the work that asyncio's streams do per message.
STANDS_IN = all(map(_is_known, _KNOWN))

# The attributes of the instances. Those that native code uses come first.
_READER = ["_eof", "_buffer", "_limit", "_waiter", "_loop", "_exception", "_transport", "_paused", "_source_traceback"]
_PROTOCOL = [
    *("_stream_reader_wr", "_paused", "_connection_lost", "_loop", "_drain_waiters", "_source_traceback"),
    *("_strong_reader", "_reject_connection", "_task", "_transport", "_client_connected_cb", "_over_ssl"),
    *("_closed", "_stream_writer"),
]


class StreamReader(_core.StreamReader, InheritedReader):
    """asyncio.StreamReader, with the methods that run per message in native code."""

    __module__ = "wakeloop"


class StreamWriter(_core.StreamWriter, InheritedWriter):
    """asyncio.StreamWriter, with the methods that run per message in native code."""

    __module__ = "wakeloop"


class StreamReaderProtocol(InheritedProtocol):
    """The protocol between a StreamReader and its transport."""

    __module__ = "wakeloop"


def _ours(function: Any, doc: str | None = None) -> Any:
    """A copy of asyncio's function that makes objects of our classes."""
    copy = types.FunctionType(
        function.__code__, _NAMES, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = "wakeloop"
    copy.__doc__ = doc
    return copy


_NAMES = {
    **vars(streams),
    "StreamReader": StreamReader,
    "StreamWriter": StreamWriter,
    "StreamReaderProtocol": StreamReaderProtocol,
}

if TYPE_CHECKING:
    ClientConnected = Callable[[StreamReader, StreamWriter], Awaitable[None] | None]

    async def open_connection(
        host: str | None = None, port: int | str | None = None, *, limit: int = 65536, **kwds: Any
    ) -> tuple[StreamReader, StreamWriter]: ...

    async def start_server(
        client_connected_cb: ClientConnected,
        host: str | list[str] | None = None,
        port: int | str | None = None,
        *,
        limit: int = 65536,
        **kwds: Any,
    ) -> asyncio.Server: ...

    async def open_unix_connection(
        path: Any = None, *, limit: int = 65536, **kwds: Any
    ) -> tuple[StreamReader, StreamWriter]: ...

    async def start_unix_server(
        client_connected_cb: ClientConnected, path: Any = None, *, limit: int = 65536, **kwds: Any
    ) -> asyncio.Server: ...

elif STANDS_IN:
    StreamReaderProtocol.connection_made = _ours(streams.StreamReaderProtocol.connection_made)
    open_connection = _ours(
        streams.open_connection, "Connect, and return (reader, writer); see asyncio.open_connection."
    )
    start_server = _ours(
        streams.start_server, "Serve client_connected_cb(reader, writer); see asyncio.start_server."
    )
    open_unix_connection = _ours(
        streams.open_unix_connection,
        "Connect to a Unix socket, and give (reader, writer); see asyncio.open_unix_connection.",
    )
    start_unix_server = _ours(
        streams.start_unix_server,
        "Serve client_connected_cb(reader, writer) on a Unix socket; see asyncio.start_unix_server.",
    )
    _core.feed_readers((streams.StreamReaderProtocol, _PROTOCOL), (streams.StreamReader, _READER))
    _core.adopt_streams(StreamReader, StreamWriter, (StreamReaderProtocol, _PROTOCOL))
else:
    open_connection, start_server = asyncio.open_connection, asyncio.start_server
    open_unix_connection, start_unix_server = asyncio.open_unix_connection, asyncio.start_unix_server
