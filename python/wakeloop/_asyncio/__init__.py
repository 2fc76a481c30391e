"""The private parts of CPython's asyncio that wakeloop uses, in one place and with types.

typeshed leaves private names out. The modules are `Any` here. The methods that our loop calls on itself, or overrides,
are declared on a class that exists for type checkers alone. `tests/compat/test_hooks.py` checks that this Python has
each of them.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.constants
import asyncio.events
import asyncio.format_helpers
import asyncio.futures
import asyncio.selector_events
import asyncio.sslproto
import asyncio.streams
import asyncio.transports
import asyncio.trsock
import asyncio.unix_events
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

from .. import _core

base_events: Any = asyncio.base_events
constants: Any = asyncio.constants
events: Any = asyncio.events
format_helpers: Any = asyncio.format_helpers
futures: Any = asyncio.futures
selector_events: Any = asyncio.selector_events
sslproto: Any = asyncio.sslproto
streams: Any = asyncio.streams
transports: Any = asyncio.transports
trsock: Any = asyncio.trsock
unix_events: Any = asyncio.unix_events

# The classes as asyncio defines them: the program may have put something else under these names before the import.
BaseEventLoop: Any = _core.defined_class("asyncio.base_events", "BaseEventLoop")
BaseTransport: Any = _core.defined_class("asyncio.transports", "BaseTransport")
Handle: Any = _core.defined_class("asyncio.events", "Handle")
SelectorSocketTransport: Any = _core.defined_class("asyncio.selector_events", "_SelectorSocketTransport")
TimerHandle: Any = _core.defined_class("asyncio.events", "TimerHandle")

if TYPE_CHECKING:
    AbstractEventLoop = asyncio.AbstractEventLoop
    StreamReader = asyncio.StreamReader
    StreamReaderProtocol = asyncio.StreamReaderProtocol
    StreamWriter = asyncio.StreamWriter

    class SelectorEventLoop(asyncio.SelectorEventLoop):
        _asyncgens: Any
        _current_handle: Any

        def _asyncgen_finalizer_hook(self, agen: Any) -> None: ...
        def _asyncgen_firstiter_hook(self, agen: Any) -> None: ...
        def _check_callback(self, callback: object, method: str) -> None: ...
        def _check_closed(self) -> None: ...
        def _check_running(self) -> None: ...
        def _check_thread(self) -> None: ...
        def _ensure_fd_no_transport(self, fd: Any) -> None: ...
        async def _ensure_resolved(self, address: Any, **options: Any) -> list[Any]: ...
        def _child_watcher_callback(self, pid: int, returncode: int, transp: Any) -> None: ...
        def _make_datagram_transport(
            self, sock: Any, protocol: Any, address: Any = None, waiter: Any = None, extra: Any = None
        ) -> Any: ...
        def _make_read_pipe_transport(self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None) -> Any: ...
        async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any: ...
        def _make_socket_transport(
            self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None, **kwargs: Any
        ) -> Any: ...
        def _make_ssl_transport(
            self, rawsock: Any, protocol: Any, sslcontext: Any, waiter: Any = None, **kwargs: Any
        ) -> Any: ...
        def _make_write_pipe_transport(self, pipe: Any, protocol: Any, waiter: Any = None, extra: Any = None) -> Any: ...
        def _process_events(self, event_list: Iterable[Any]) -> None: ...
        def _read_from_self(self) -> None: ...
        def _run_forever_cleanup(self) -> None: ...
        def _run_forever_setup(self) -> None: ...
        def _run_once(self) -> None: ...
        async def _sendfile_native(self, transp: Any, file: Any, offset: int, count: int | None) -> int: ...
        def _set_coroutine_origin_tracking(self, enabled: bool) -> None: ...
        async def _sock_sendfile_native(self, sock: Any, file: Any, offset: int, count: int | None) -> int: ...
        def _sock_sendfile_update_filepos(self, fileno: int, offset: int, *total_sent: int) -> None: ...
        def _start_serving(
            self, protocol_factory: Callable[[], Any], sock: Any, *args: Any, **kwargs: Any
        ) -> None: ...
        def _stop_serving(self, sock: Any) -> None: ...

    class SSLProtocol(asyncio.BufferedProtocol):
        _app_transport: Any
        _app_transport_created: bool
        _eof_received: bool
        _incoming: Any
        _write_backlog: Any

        def __init__(self, loop: Any, *args: Any, **kwargs: Any) -> None: ...
        def _abort(self, *args: Any) -> None: ...
        def _call_eof_received(self, *args: Any) -> None: ...
        def _control_app_writing(self, *args: Any) -> None: ...
        def _do_shutdown(self) -> None: ...
        def _on_shutdown_complete(self, shutdown_exc: Exception | None) -> None: ...

else:
    AbstractEventLoop = _core.defined_class("asyncio.events", "AbstractEventLoop")
    StreamReader = _core.defined_class("asyncio.streams", "StreamReader")
    StreamReaderProtocol = _core.defined_class("asyncio.streams", "StreamReaderProtocol")
    StreamWriter = _core.defined_class("asyncio.streams", "StreamWriter")
    SelectorEventLoop = asyncio.SelectorEventLoop
    if not isinstance(SelectorEventLoop, type):
        SelectorEventLoop = _core.defined_class("asyncio.unix_events", "_UnixSelectorEventLoop")
    SSLProtocol = _core.defined_class("asyncio.sslproto", "SSLProtocol")


def is_task(value: Any) -> TypeGuard[asyncio.Task[Any]]:
    """Whether it is a task of any class: programs put other classes under the name of asyncio's."""
    return asyncio.isfuture(value) and hasattr(value, "get_coro")
