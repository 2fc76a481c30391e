"""The Python functions that native code calls by name.

They run where speed does not matter: in errors, in debug mode, and once in a connection's life.
"""

# ruff: noqa: F401
from ._compat import probe_c_caller
from ._debug import (
    accepted,
    callback_took,
    caller_stack,
    check_callback,
    closed_by_peer,
    creation_stack,
    native_took,
    paused_reading,
    received_eof,
    resumed_reading,
)
from ._fallbacks import (
    buffer_limits,
    by_keyword,
    check_socket,
    default_loop,
    inherited_sock_call,
    later,
    new_gate,
    refuse_stream_data,
    skips_piece,
)
from ._files import send_from_file
from ._inheritance import inherit
from ._queues import QueueShutDown
from ._record import slow_turn_recorded
from ._reports import (
    accept_broken,
    accept_by_asyncio,
    accept_exhausted,
    bare_callback_failed,
    callback_failed,
    cannot_watch,
    connect_failed,
    connection_failed,
    fail_waiter,
    fatal_error,
    pipe_write_after_lost,
    protocol_failed,
    read_pipe_failed,
    step_failed,
    write_after_lost,
)
from ._slow import keep_slow, slow_turn
from ._sockets import StreamSocket, accepted_socket, adopt_socket, closed_socket
