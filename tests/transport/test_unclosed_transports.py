"""Transports that nobody has closed, or that are closed after their loop: what is warned of, and where."""

import asyncio
import contextlib
import gc
import linecache
import re
import socket
import sys
import warnings

import pytest


def test_a_transport_dropped_unclosed_warns(loop_factory):
    sock, peer = socket.socketpair()
    loop = loop_factory()
    transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=sock))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    with pytest.warns(ResourceWarning, match=r"unclosed transport <.* fd=\d+>$"):
        del transport, loop, _
        gc.collect()
    sock.close()
    peer.close()


KINDS = ["stream", "datagram", "read pipe", "write pipe"]


async def left_open(kind):
    """Returns a transport of a kind, and the other end of it."""
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM)
    make = {"stream": connected, "datagram": bound, "read pipe": read, "write pipe": written}[kind]
    transport, _ = await make(ours)
    await asyncio.sleep(0)
    return transport, theirs


@pytest.mark.parametrize("kind", KINDS)
def test_the_warning_of_an_unclosed_transport_is_at_the_place_of_asyncios(loop_factory, kind):
    """Filters name the module: `ignore::ResourceWarning:asyncio.selector_events`."""
    module = asyncio.unix_events if "pipe" in kind else asyncio.selector_events
    loop = loop_factory()
    transport, theirs = loop.run_until_complete(left_open(kind))
    loop.close()
    with theirs, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "unclosed transport", ResourceWarning, rf"{re.escape(module.__name__)}\Z")
        del transport, loop
        gc.collect()
    [warning] = [warning for warning in caught if "unclosed transport" in str(warning.message)]
    assert warning.filename == module.__file__
    assert "_warn(f" in linecache.getline(warning.filename, warning.lineno)


@pytest.mark.parametrize("kind", KINDS)
def test_a_warning_of_an_unclosed_transport_that_is_an_error_is_one_of_its_del(loop_factory, kind, monkeypatch):
    loop, told = loop_factory(), []
    transport, theirs = loop.run_until_complete(left_open(kind))
    loop.close()
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append((args.err_msg, args.object)))
    with theirs, warnings.catch_warnings():
        warnings.filterwarnings("error", "unclosed transport")
        warnings.filterwarnings("ignore", "unclosed <socket")
        del transport, loop
        gc.collect()
    [(message, source)] = told
    if sys.version_info >= (3, 14):
        assert source is None and re.match(r"Exception ignored while calling deallocator <.*__del__", message)
    else:
        assert message is None and source.__name__ == "__del__"


async def connected(sock):
    return await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=sock)


async def bound(sock):
    return await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, sock=sock)


async def read(sock):
    return await asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, sock)


async def written(sock):
    return await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, sock)


@contextlib.contextmanager
def left_open_on_purpose():
    """For what is deleted inside: collects it without warnings about what is still open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.mark.parametrize(
    ("open_one", "end"),
    [(connected, "close"), (connected, "abort"), (bound, "close"), (bound, "abort"), (read, "close"), (written, "close"), (written, "abort")],
)
def test_closing_a_transport_after_its_loop_is_a_runtime_error_once(loop_factory, open_one, end):
    sock, peer = socket.socketpair(type=socket.SOCK_DGRAM if open_one is bound else socket.SOCK_STREAM)
    loop = loop_factory()
    transport, _ = loop.run_until_complete(open_one(sock))
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        getattr(transport, end)()
    assert transport.is_closing()
    transport.close()
    if open_one not in (read, written):  # asyncio's pipes raise at each abort
        transport.abort()
    with left_open_on_purpose():
        del transport, loop, _
    sock.close()
    peer.close()


def test_a_transport_with_unsent_data_can_be_closed_after_its_loop(loop_factory):
    sock, peer = socket.socketpair()
    loop = loop_factory()
    transport, _ = loop.run_until_complete(connected(sock))
    transport.write(bytes(10_000_000))
    loop.close()
    transport.close()
    assert transport.is_closing() and transport.get_write_buffer_size() > 0
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        transport.abort()
    with left_open_on_purpose():
        del transport, loop, _
    sock.close()
    peer.close()
