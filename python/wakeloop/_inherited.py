"""What wakeloop uses of CPython's asyncio beyond its public interface, in one place and with types.

typeshed leaves private names out. The modules are `Any` here; the methods that our loop calls on itself, or
overrides, are declared on a class that exists for type checkers alone. `tests/test_hooks.py` looks for each of
them in the interpreter at hand.
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
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:

    class SelectorEventLoop(asyncio.SelectorEventLoop):
        _current_handle: Any

        def _asyncgen_finalizer_hook(self, agen: Any) -> None: ...
        def _asyncgen_firstiter_hook(self, agen: Any) -> None: ...
        def _check_callback(self, callback: object, method: str) -> None: ...
        def _check_closed(self) -> None: ...
        def _check_running(self) -> None: ...
        def _check_thread(self) -> None: ...
        async def _ensure_resolved(self, address: Any, **options: Any) -> list[Any]: ...
        def _child_watcher_callback(self, pid: int, returncode: int, transp: Any) -> None: ...
        def _make_datagram_transport(
            self, sock: Any, protocol: Any, address: Any = None, waiter: Any = None, extra: Any = None, **kwargs: Any
        ) -> Any: ...
        async def _make_subprocess_transport(self, *args: Any, **kwargs: Any) -> Any: ...
        def _make_socket_transport(
            self, sock: Any, protocol: Any, waiter: Any = None, *, extra: Any = None, server: Any = None, **kwargs: Any
        ) -> Any: ...
        def _make_ssl_transport(
            self, rawsock: Any, protocol: Any, sslcontext: Any, waiter: Any = None, **kwargs: Any
        ) -> Any: ...
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

    class SSLProtocol(asyncio.BufferedProtocol):
        _app_transport: Any
        _app_transport_created: bool
        _eof_received: bool
        _incoming: Any
        _write_backlog: Any

        def __init__(self, loop: Any, *args: Any, **kwargs: Any) -> None: ...
        def _abort(self, *args: Any) -> None: ...
        def _do_shutdown(self) -> None: ...
        def _on_shutdown_complete(self, shutdown_exc: Exception | None) -> None: ...

else:
    SelectorEventLoop = asyncio.SelectorEventLoop
    SSLProtocol = asyncio.sslproto.SSLProtocol

#: Methods of asyncio's loop that ours stand in for, as they are at import. What programs and their tests put in the
#: place of one of them, on asyncio's class, is called instead of ours.
asyncios: Any = types.SimpleNamespace(
    **{
        name: getattr(asyncio.SelectorEventLoop, name)
        for name in (
            "_make_datagram_transport",
            "_make_socket_transport",
            "_make_ssl_transport",
            "_run_once",
            "create_connection",
            "getaddrinfo",
            "getnameinfo",
            "run_in_executor",
        )
    }
)


def names_within(function: Any, module: Any) -> set[str]:
    """All names that a module's own function refers to, itself and in the functions within; empty for any other."""
    if not isinstance(function, types.FunctionType) or function.__globals__ is not vars(module):
        return set()
    nested = [const for const in function.__code__.co_consts if isinstance(const, types.CodeType)]
    return {name for code in [function.__code__, *nested] for name in code.co_names}
