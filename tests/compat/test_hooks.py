"""The interface between the native loop and the Python half that it inherits from asyncio.

The inherited half uses private names. These tests fail if a new Python renames one, or if a native name hides a
cooperative override of the Unix loop.
"""

import asyncio
import asyncio.unix_events
import inspect
import re
import sys

import pytest

pytestmark = pytest.mark.native

BASE = asyncio.base_events.BaseEventLoop
SELECTOR = asyncio.selector_events.BaseSelectorEventLoop
UNIX = asyncio.unix_events._UnixSelectorEventLoop

#: The names that the native class replaces. Each must exist in asyncio, or nothing is replaced.
REPLACED = [
    "run_forever", "call_soon", "call_later", "call_at", "call_soon_threadsafe", "time", "create_future", "create_task",
    "_add_reader", "_remove_reader", "_add_writer", "_remove_writer", "_make_socket_transport", "_make_ssl_transport",
    "_start_serving", "_write_to_self", "_make_self_pipe", "_close_self_pipe", "_run_once", "_process_events",
    "_add_callback", "_add_callback_signalsafe", "_timer_handle_cancelled", "_ensure_fd_no_transport", "_stop_serving",
    "_make_datagram_transport", "_make_read_pipe_transport", "_make_write_pipe_transport", "_make_subprocess_transport",
    "_check_closed", "_check_running", "_check_thread", "_check_callback", "_set_coroutine_origin_tracking",
    "_asyncgen_firstiter_hook", "_asyncgen_finalizer_hook", "_accept_connection", "_accept_connection2",
    "_ensure_resolved", "_read_from_self", "_sendfile_native", "_sock_sendfile_native", "_sock_sendfile_update_filepos",
]  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_asyncio_still_has_the_hook(name):
    assert callable(getattr(UNIX, name, None)), f"asyncio of {sys.version_info[:2]} renamed {name}"


def test_run_forever_of_asyncio_is_split_since_3_13():
    assert hasattr(BASE, "_run_forever_setup") is (sys.version_info >= (3, 13))
    assert hasattr(BASE, "_run_forever_cleanup") is (sys.version_info >= (3, 13))


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("_make_socket_transport", ["sock", "protocol", "waiter", "extra", "server"]),
        ("_make_datagram_transport", ["sock", "protocol", "address", "waiter", "extra"]),
        ("_sendfile_native", ["transp", "file", "offset", "count"]),
        ("_sock_sendfile_native", ["sock", "file", "offset", "count"]),
        ("_start_serving", ["protocol_factory", "sock", "sslcontext", "server", "backlog", "ssl_handshake_timeout", "ssl_shutdown_timeout"]),
    ],
)  # fmt: skip
def test_the_hook_takes_the_arguments_we_know(name, parameters):
    known = list(inspect.signature(getattr(SELECTOR, name)).parameters)[1:]
    assert known[: len(parameters)] == parameters and set(known) - set(parameters) <= {"context"}


def test_the_native_class_defines_no_cooperative_method(loop):
    """These call super() through the Unix loop. A native definition before it in the method order would stop that
    chain.
    """
    native = next(cls for cls in type(loop).__mro__ if cls.__module__.endswith("_core") or cls.__name__ != "EventLoop")
    kind = type(loop)
    before = kind.__mro__[1 : kind.__mro__.index(UNIX)]
    cooperative = {"__init__", "close", "_stop_serving", "_process_self_data", "add_signal_handler", "remove_signal_handler"}
    for cls in before:
        assert not cooperative & set(vars(cls)), (cls, native)


def test_the_native_class_comes_first(loop):
    for name in ("call_soon", "call_later", "call_at", "call_soon_threadsafe", "time", "create_future"):
        owner = next(cls for cls in type(loop).__mro__ if name in vars(cls))
        assert not owner.__module__.startswith("asyncio."), f"{name} is still asyncio's"


def test_the_transports_have_the_attributes_that_inherited_code_uses(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        assert isinstance(transport, asyncio.transports._FlowControlMixin)
        assert transport._start_tls_compatible is True
        assert transport._sendfile_compatible is asyncio.constants._SendfileMode.TRY_NATIVE
        assert transport._sock_fd == transport.get_extra_info("socket").fileno() and transport._loop is loop
        assert transport._protocol_paused is False
        assert callable(transport._force_close)
        assert "Transport" in type(transport).__name__ and not type(transport).__module__.startswith("asyncio.")
        transport.abort()
        server.close()
        await asyncio.sleep(0.01)

    run(main())


def test_a_python_run_once_drives_the_native_loop(loop):
    """nest_asyncio and test tools call `_run_once` themselves, with `_ready` and our selector."""
    seen = []
    loop.call_soon(seen.append, "soon")
    loop.call_later(0.001, seen.append, "later")
    while len(seen) < 2:
        loop._run_once()
    assert seen == ["soon", "later"]


def test_asyncio_still_has_what_the_native_data_path_of_tls_replaces():
    from asyncio import sslproto

    from wakeloop._net import tls

    missing = [name for name in tls._HOOKS if not callable(getattr(sslproto.SSLProtocol, name, None))]
    assert not missing, f"asyncio of {sys.version_info[:2]} renamed {missing}: TLS runs without its native data path"
    members = ["UNWRAPPED", "DO_HANDSHAKE", "WRAPPED", "FLUSHING", "SHUTDOWN"]
    assert [member.name for member in sslproto.SSLProtocolState] == members
    # The attributes that both halves share. asyncio's __init__ sets each of them.
    shared = [name for name in vars(tls._core.TlsConnection) if re.fullmatch(r"_[a-z]\w*", name)]
    data = [name for name in shared if not callable(getattr(tls._core.TlsConnection, name))]
    used = set(sslproto.SSLProtocol.__init__.__code__.co_names).union(
        *[getattr(sslproto.SSLProtocol, name).__code__.co_names for name in tls._HOOKS],
        sslproto.SSLProtocol._set_write_buffer_limits.__code__.co_names,
        sslproto.SSLProtocol._set_read_buffer_limits.__code__.co_names,
    )
    assert data and set(data) <= used
