"""TLS connections: asyncio's SSLProtocol with a native data path in front.

Code that runs once per connection (handshake, certificates, shutdown, timeouts, log lines) is inherited from the
asyncio of this Python. Code that runs per packet is in ``_core.TlsConnection``. The two share their state through the
attributes that asyncio's code has for it.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from .. import _core
from .._asyncio import SSLProtocol as InheritedProtocol, StreamReaderProtocol, compat, sslproto
from .._loop import settings

try:
    import ssl
except ImportError:  # asyncio supports a CPython without ssl, and so does wakeloop.
    ssl = None  # type: ignore[assignment]

# The methods that the native half replaces or calls. If asyncio has renamed one of these, its own data path is used.
_HOOKS = (
    "_abort",
    "_call_eof_received",
    "_control_app_writing",
    "_control_ssl_reading",
    "_do_flush",
    "_do_handshake",
    "_do_read",
    "_do_shutdown",
    "_do_write",
    "_fatal_error",
    "_get_app_transport",
    "_get_read_buffer_size",
    "_get_write_buffer_size",
    "_on_shutdown_complete",
    "_process_outgoing",
    "_set_app_protocol",
    "_start_shutdown",
    "_write_appdata",
)


def engine() -> str:
    """The engine of new TLS connections in this process: "native", "sslobject" or "asyncio".

    The environment variable WAKELOOP_TLS forces one of them. Raises RuntimeError if that one cannot be used.
    """
    wanted: str = settings.setting("WAKELOOP_TLS") or "auto"
    if wanted == "asyncio":
        return wanted
    if missing := [name for name in _HOOKS if not hasattr(InheritedProtocol, name)]:
        if wanted != "auto":
            raise RuntimeError(f"asyncio's SSLProtocol has no {', '.join(missing)}")
        return "asyncio"
    if wanted == "sslobject":
        return wanted
    problem = _core.tls_problem()
    if problem is None:
        return "native"
    if wanted == "native":
        raise RuntimeError(f"the native TLS engine cannot be used: {problem}")
    return "sslobject"


def check_engine() -> None:
    """Raise RuntimeError if the environment forces an engine that cannot be used."""
    # Without the variable, OpenSSL is not looked for before it is needed.
    if settings.setting("WAKELOOP_TLS") is not None:
        engine()


class SSLTransport(_core.SSLTransport):
    """The transport of the application's protocol: asyncio's, with native writes."""

    def __init__(self, loop: Any, ssl_protocol: SSLProtocol) -> None:
        super().__init__(loop, ssl_protocol)
        self._connection = ssl_protocol

    def close(self) -> None:
        """Send what is pending, shut TLS down, then close the connection."""
        super().close()
        if self._ssl_protocol is None and hasattr(self, "_connection"):
            # After the second close(), asyncio's transport drops its protocol, so that no cycle is left.
            del self._connection

    def get_write_buffer_size(self) -> int:
        """How many bytes could not be sent yet."""
        if self._ssl_protocol is not None:
            self._ssl_protocol._do_write_now()
        return super().get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when pause_writing() and resume_writing() are called."""
        if self._ssl_protocol is not None:
            self._ssl_protocol._do_write_now()
        super().set_write_buffer_limits(high, low)

    def _test__append_write_backlog(self, data: Any) -> None:
        self._ssl_protocol._append_write_backlog(data)


class SSLProtocol(_core.TlsConnection, InheritedProtocol):
    """The protocol of a stream transport that carries TLS."""

    # The size of asyncio's receive buffer, which is not used here.
    max_size = 0

    def __init__(self, native: bool, loop: Any, *args: Any, **kwargs: Any) -> None:
        self._loop = loop
        self._begin(native, functools.partial(super().__init__, loop, *args, **kwargs))
        # This is not used either, and asyncio's deque takes 700 bytes.
        self._write_backlog = []

    def _get_app_transport(self) -> SSLTransport:
        if self._app_transport is None:
            if self._app_transport_created:
                raise RuntimeError("Creating SSLTransport twice")
            self._app_transport = SSLTransport(self._loop, self)
            self._app_transport_created = True
        transport: SSLTransport = self._app_transport
        return transport

    def _set_app_protocol(self, app_protocol: Any) -> None:
        self._app_protocol = app_protocol

    def _read_later(self) -> None:
        self._loop.call_soon(self._do_read)

    # asyncio's code calls the application's protocol also in tasks that close the transport or resume its reading, and
    # in callbacks that these schedule. All of it belongs in the connection's context.

    def _call_eof_received(self, *args: Any) -> None:
        self._in_context(functools.partial(super()._call_eof_received, *args))

    def _control_app_writing(self, *args: Any) -> None:
        if self._app_writing_paused:
            self._in_context(functools.partial(super()._control_app_writing, *args))
        else:
            # As asyncio's transports, it pauses the application in the context of the code that writes.
            super()._control_app_writing(*args)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drops pending data, and ends the connection as asyncio does."""
        self._drop_pending()
        super().connection_lost(exc)

    def _abort(self, *args: Any) -> None:
        self._send_last()
        super()._abort(*args)

    def _do_shutdown(self) -> None:
        if self._holds_data() and not self._eof_received:
            # The data waits for a buffered protocol that has paused. asyncio leaves it in the SSLObject, which raises this.
            error = ssl.SSLError(
                ssl.SSL_ERROR_SSL,
                "[SSL: APPLICATION_DATA_AFTER_CLOSE_NOTIFY] application data after close notify (_ssl.c)",
            )
            error.library, error.reason = "SSL", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"
            self._on_shutdown_complete(error)
            return
        super()._do_shutdown()


def is_context(value: object) -> bool:
    """Is it an ssl.SSLContext, as asyncio asks? truststore and others put a class of their own under that name."""
    return ssl is not None and isinstance(value, ssl.SSLContext)


def make_protocol(*args: Any, **kwargs: Any) -> Any:
    """Makes a protocol that puts TLS on a stream transport, with the engine of this process."""
    chosen = engine()
    if chosen == "asyncio" or not compat.makes_tls_protocols():
        # The program may have put a class of its own there.
        return sslproto.SSLProtocol(*args, **kwargs)
    return SSLProtocol(chosen == "native", *args, **kwargs)


async def upgrade(
    loop: Any,
    transport: Any,
    protocol: Any,
    sslcontext: Any,
    server_side: bool,
    server_hostname: str | None,
    **timeouts: float | None,
) -> Any:
    """Does the work of loop.start_tls() for one of wakeloop's stream transports."""
    waiter = loop.create_future()
    ssl_protocol = make_protocol(
        loop, protocol, sslcontext, waiter, server_side, server_hostname, call_connection_made=False, **timeouts
    )
    # Nothing may reach the TLS protocol before its connection_made().
    transport.pause_reading()
    if server_side:
        keep_read_ahead(protocol, ssl_protocol)
    transport.set_protocol(ssl_protocol)
    steps = [
        loop.call_soon(ssl_protocol.connection_made, transport),
        loop.call_soon(transport.resume_reading),
    ]
    try:
        await waiter
    except BaseException:
        transport.close()
        for step in steps:
            step.cancel()
        # The traceback of the exception refers to this frame.
        del waiter
        raise
    return ssl_protocol._app_transport


def keep_read_ahead(protocol: Any, ssl_protocol: Any) -> None:
    """Passes to TLS the bytes that a stream reader holds when TLS begins: they are TLS data of the peer."""
    if not isinstance(protocol, StreamReaderProtocol):
        return
    reader: Any = getattr(protocol, "_stream_reader", None)
    if reader is not None and reader._buffer:
        if isinstance(ssl_protocol, SSLProtocol):
            ssl_protocol._preload(reader._buffer)
        else:
            ssl_protocol._incoming.write(reader._buffer)
        reader._buffer.clear()
