"""The border between the two halves: everything of Python that native code calls by name.

`TABLE` is all of it. Native code looks a name up in this module at each call, where speed does not matter: in errors,
in debug mode, and once in a connection's life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _lazy
from ._asyncio import compat, parameters
from ._loop import debug, executor, fallbacks, inheritance, reports
from ._net import sockets
from ._observe import slow

#: The names, what they stand for, the arguments, and when native code calls it. A text is the place of what is loaded
#: when it is first asked for.
TABLE: dict[str, tuple[Callable[..., Any] | str, str, str]] = {
    # -- once in a process
    "probe_c_caller": (compat.probe_c_caller, "stub", "The package is loaded."),
    "default_loop": (fallbacks.default_loop, "", "A StreamReader is made without a loop."),
    # -- methods in the place of asyncio's
    "asyncios_parameters": (parameters.asyncios_parameters, "kind, name", "A program looks at a native method."),
    "stand_in": (parameters.stand_in, "kind, name", "A native method refuses its arguments."),
    # -- the loop
    "by_keyword": (
        fallbacks.by_keyword,
        "loop, method, *args, **kwargs",
        "A fast method gets keywords it does not take.",
    ),
    "later": (fallbacks.later, "self, delay, callback, *args, context", "call_later, and call_at is overridden."),
    "inherit": (inheritance.inherit, "loop", "The methods of a loop's class may have changed."),
    "run_nothing": (fallbacks.run_nothing, "", "The loop has waited for a while, before Python 3.15."),
    "new_gate": (fallbacks.new_gate, "", "A thread cancels a handle that runs."),
    "count_gauges": (executor.count_gauges, "loop", "A thread without the GIL has asked for the gauges."),
    "keep_slow": (slow.keep_slow, "loop, nanos, work, slow", "A callback took long."),
    "keep_busy_wait": (slow.keep_busy_wait, "loop, nanos, callback", "A loop runs a callback again and again."),
    "slow_turn": (slow.slow_turn, "loop, seconds, work, unreported", "A turn took long, and is to be logged."),
    "slow_turn_recorded": ("_observe.record.slow_turn_recorded", "", "A turn took long while the flight recorder runs."),
    # -- debug mode
    "check_callback": (debug.check_callback, "loop, callback, method, check_thread", "A callback is scheduled."),
    "watcher_stack": (debug.watcher_stack, "", "A descriptor is watched."),
    "creation_stack": (debug.creation_stack, "", "A StreamReader is made."),
    "callback_took": (debug.callback_took, "loop, seconds, handle", "A callback took long."),
    "native_took": (debug.native_took, "loop, seconds, transport, protocol", "An event took long."),
    "accepted": (debug.accepted, "server, conn, peer", "A connection was accepted."),
    "received_eof": (debug.received_eof, "transport", "The peer has ended its side."),
    "paused_reading": (debug.paused_reading, "transport", "pause_reading() was called."),
    "resumed_reading": (debug.resumed_reading, "transport", "resume_reading() was called."),
    "closed_by_peer": (debug.closed_by_peer, "transport", "The other end of a pipe was closed."),
    # -- arguments that native code leaves to asyncio
    "buffer_limits": (fallbacks.buffer_limits, "high, low", "set_write_buffer_limits() is called."),
    "shown_buffer": (fallbacks.shown_buffer, "pieces, in_pieces", "A program looks into a transport's _buffer."),
    "bool_as_descriptor": (fallbacks.bool_as_descriptor, "", "add_reader() or add_writer() gets a bool, since 3.13."),
    "check_socket": (fallbacks.check_socket, "loop, sock", "sock_*() gets no plain socket, or in debug mode."),
    "inherited_sock_call": (
        fallbacks.inherited_sock_call,
        "loop, name, *args",
        "sock_*() gets no plain socket, after the check.",
    ),
    "refuse_stream_data": (fallbacks.refuse_stream_data, "transport, data", "write() gets what is not bytes-like."),
    "skips_piece": (fallbacks.skips_piece, "item", "writelines() gets an item that is not bytes-like."),
    # -- sockets and files
    "adopt_socket": (sockets.adopt_socket, "fd, proto, family, kind", "A native transport is asked for its socket."),
    "accepted_socket": (sockets.accepted_socket, "listener, fd", "A connection was accepted, with a hook or a log."),
    "closed_socket": (sockets.closed_socket, "family, proto, kind", "A closed transport is asked for its socket."),
    "StreamSocket": (sockets.StreamSocket, "sock, transport", "get_extra_info('socket') of a stream."),
    "send_from_file": ("_files.send_from_file", "file, transport, offset, count, fallback", "File.sendfile()."),
    "QueueShutDown": ("_asyncio.queues.QueueShutDown", "", "The queue was shut down. The class is raised."),
    # -- reports: errors that asyncio gives to the loop's exception handler, to a future or to the log
    "callback_failed": (reports.callback_failed, "loop, handle, exception", "A callback has raised."),
    "bare_callback_failed": (
        reports.bare_callback_failed,
        "loop, handle, exception",
        "A callback without a handle has raised.",
    ),
    "step_failed": (
        reports.step_failed,
        "loop, transport, step, context, exception, *args",
        "A transport's call of its protocol, which asyncio schedules, has raised.",
    ),
    "protocol_failed": (
        reports.protocol_failed,
        "loop, transport, protocol, exception, message",
        "pause_writing() or resume_writing() has raised.",
    ),
    "fatal_error": (
        reports.fatal_error,
        "loop, transport, protocol, exception, message",
        "An error ends a transport.",
    ),
    "read_pipe_failed": (
        reports.read_pipe_failed,
        "loop, transport, protocol, exception, message",
        "An error ends a read pipe.",
    ),
    "cannot_watch": (reports.cannot_watch, "loop, transport, context, exception", "The poller refuses a file."),
    "write_after_lost": (reports.write_after_lost, "lost", "Writes to a lost connection."),
    "pipe_write_after_lost": (reports.pipe_write_after_lost, "lost", "Writes to a lost pipe."),
    "fail_waiter": (reports.fail_waiter, "waiter, error", "A future of sendfile() fails."),
    "connect_failed": (reports.connect_failed, "waiter, code, address", "A connection cannot be made."),
    "connection_failed": (
        reports.connection_failed,
        "loop, exception, protocol",
        "An accepted connection gets no transport.",
    ),
    "accept_exhausted": (
        reports.accept_exhausted,
        "loop, factory, sock, server, backlog, exception",
        "accept() finds no descriptor or memory.",
    ),
    "accept_broken": (
        reports.accept_broken,
        "loop, sock, exception",
        "accept() fails with an error that does not pass.",
    ),
    "accept_by_asyncio": (
        reports.accept_by_asyncio,
        "loop, factory, sock, server, backlog",
        "A listening socket is left to asyncio.",
    ),
}

globals().update({name: function for name, (function, _, _) in TABLE.items() if not isinstance(function, str)})


def __getattr__(name: str) -> Any:
    place = TABLE[name][0] if name in TABLE else None
    if not isinstance(place, str):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = place.rpartition(".")
    value = globals()[name] = getattr(_lazy.load(module), attribute)
    return value
