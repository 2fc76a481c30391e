"""wakeloop: a Rust event loop for asyncio, and a Rust async runtime beside it.

    wakeloop.run(main())                                             # like asyncio.run
    asyncio.run(main(), loop_factory=wakeloop.new_event_loop)        # Python 3.12 and later
    asyncio.set_event_loop_policy(wakeloop.EventLoopPolicy())        # for code that asks the policy
"""

from __future__ import annotations

import importlib as _importlib
import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if "WAKELOOP_GIL" in _os.environ:
    # Before the extension module is loaded, which starts without the GIL on free-threaded builds.
    from . import _gil  # noqa: F401

from . import _first_import
from . import _core
from ._core import (
    EchoServer,
    Event,
    File,
    Operation,
    Queue,
    RuntimePanic,
    SyncQueue,
    TcpListener,
    TcpStream,
    UdpSocket,
    __version__,
    configure,
    sleep,
    spawn_blocking,
    start_echo_server,
)
from ._asyncio.queues import QueueShutDown
from ._files import open as open
from ._files.text import TextFile
from ._group import EventLoopGroup
from ._group.servers import GroupServer
from ._net.streams import (
    StreamReader,
    StreamReaderProtocol,
    StreamWriter,
    open_connection,
    open_unix_connection,
    start_server,
    start_unix_server,
)
from ._observe.exposition import metrics_text
from ._observe.publish import publish
from ._observe.record import Recorder, record
from ._observe.record import start_at_import as _record_at_import
from ._observe.tasks import tasks, track_waits
from ._observe.watchdog import Watchdog, watchdog
from .loop import EventLoop, new_event_loop, run
from .metrics import Histogram, LoopMetrics, RuntimeMetrics, SlowCallback, WorkerMetrics, runtime_metrics
from .policy import HAS_POLICIES as _HAS_POLICIES
from .policy import install
from .policy import install_if_asked as _install_if_asked

# Without `open`, which is public too: `import *` must not replace the built-in function.
__all__ = [
    "EchoServer",
    "Event",
    "EventLoop",
    "EventLoopGroup",
    "File",
    "GroupServer",
    "Histogram",
    "LoopMetrics",
    "Operation",
    "Queue",
    "QueueShutDown",
    "Recorder",
    "RuntimeMetrics",
    "RuntimePanic",
    "SlowCallback",
    "StreamReader",
    "StreamReaderProtocol",
    "StreamWriter",
    "SyncQueue",
    "TcpListener",
    "TcpStream",
    "TextFile",
    "UdpSocket",
    "Watchdog",
    "WorkerMetrics",
    "__version__",
    "configure",
    "install",
    "metrics_text",
    "new_event_loop",
    "open_connection",
    "open_unix_connection",
    "publish",
    "record",
    "run",
    "runtime_metrics",
    "sleep",
    "spawn_blocking",
    "start_echo_server",
    "start_server",
    "start_unix_server",
    "tasks",
    "track_waits",
    "watchdog",
]

if _HAS_POLICIES:
    from .policy import EventLoopPolicy  # noqa: F401

    __all__ += ["EventLoopPolicy"]


def __getattr__(name: str) -> _Any:
    # Loaded on first use.
    if name in ("fs", "testing"):
        return _importlib.import_module(f"wakeloop.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if _TYPE_CHECKING:
    from . import fs as fs
    from . import testing as testing

_core._init_c_caller()
if _first_import.IS_FIRST:
    _os.register_at_fork(before=_core._forking, after_in_child=_core._forked)
_first_import.note(_sys.modules[__name__])
_install_if_asked()
_record_at_import()
