"""asyncio's streams over the native core: which of their methods native code may stand in for."""

from __future__ import annotations

import types

from . import _core
from ._inherited import streams

# What the methods refer to that src/transport/reader_feed.rs stands in for. An asyncio that refers to anything
# else does something else: it is left alone.
_KNOWN = {
    "StreamReaderProtocol.data_received": {"_stream_reader", "feed_data"},
    "StreamReaderProtocol._stream_reader": {"_stream_reader_wr"},
    "StreamReader.feed_data": {
        *("_eof", "_buffer", "extend", "_wakeup_waiter", "_transport", "_paused", "len", "_limit"),
        *("pause_reading", "NotImplementedError"),
    },
    "StreamReader._wakeup_waiter": {"_waiter", "cancelled", "set_result"},
}


def _is_known(name: str) -> bool:
    """Is this asyncio's own function, and the one we know?"""
    owner, method = name.split(".")
    found = vars(getattr(streams, owner)).get(method)
    function = found.fget if isinstance(found, property) else found
    return (
        isinstance(function, types.FunctionType)
        and function.__globals__ is vars(streams)
        and function.__code__.co_qualname == name
        and {*function.__code__.co_names} == _KNOWN[name]
    )


#: Readers of asyncio's own class are fed by native code.
FEEDS_READERS = all(map(_is_known, _KNOWN))
if FEEDS_READERS:
    _core.feed_readers(streams.StreamReaderProtocol, streams.StreamReader)
