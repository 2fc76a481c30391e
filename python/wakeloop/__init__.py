"""wakeloop: a Rust event loop for asyncio, and a Rust async runtime beside it.

    wakeloop.run(main())                                             # like asyncio.run
    asyncio.run(main(), loop_factory=wakeloop.new_event_loop)        # Python 3.12 and later
    asyncio.set_event_loop_policy(wakeloop.EventLoopPolicy())        # for code that asks the policy
"""

from __future__ import annotations

import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if "WAKELOOP_GIL" in _os.environ:
    # Before the extension module is loaded, which starts without the GIL on free-threaded builds.
    from . import _gil  # noqa: F401

from . import _first_import
from . import _core
from . import _lazy
from ._core import (
    Admin,
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
    Watchdog,
    __version__,
    configure,
    sleep,
    spawn_blocking,
    start_echo_server,
)
from ._loop import settings as _settings
from ._net.streams import (
    StreamReader,
    StreamReaderProtocol,
    StreamWriter,
    open_connection,
    open_unix_connection,
    start_server,
    start_unix_server,
)
from .loop import EventLoop, new_event_loop, run
from .policy import HAS_POLICIES as _HAS_POLICIES
from .policy import install
from .policy import install_if_asked as _install_if_asked

if _TYPE_CHECKING:
    from . import fs as fs
    from . import metrics as metrics
    from . import testing as testing
    from ._asyncio.queues import QueueShutDown
    from ._files import open as open
    from ._files.text import TextFile
    from ._group import EventLoopGroup
    from ._group.servers import GroupServer
    from ._observe.admin import admin, set_ready
    from ._observe.exposition import metrics_text
    from ._observe.labels import label
    from ._observe.record import Recorder, record
    from ._observe.tasks import tasks, track_waits
    from ._observe.watchdog import watchdog
    from .metrics import Histogram, LoopMetrics, RuntimeMetrics, SlowCallback, WorkerMetrics, runtime_metrics

# Without `open`, which is public too: `import *` must not replace the built-in function.
__all__ = [
    "Admin",
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
    "admin",
    "configure",
    "install",
    "label",
    "metrics_text",
    "new_event_loop",
    "open_connection",
    "open_unix_connection",
    "record",
    "run",
    "runtime_metrics",
    "set_ready",
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


#: The public names that are loaded on first use, each with the module that defines it.
_LAZY = {
    "EventLoopGroup": "_group",
    "GroupServer": "_group.servers",
    "Histogram": "metrics",
    "LoopMetrics": "metrics",
    "QueueShutDown": "_asyncio.queues",
    "Recorder": "_observe.record",
    "RuntimeMetrics": "metrics",
    "SlowCallback": "metrics",
    "TextFile": "_files.text",
    "WorkerMetrics": "metrics",
    "admin": "_observe.admin",
    "label": "_observe.labels",
    "metrics_text": "_observe.exposition",
    "open": "_files",
    "record": "_observe.record",
    "runtime_metrics": "metrics",
    "set_ready": "_observe.admin",
    "tasks": "_observe.tasks",
    "track_waits": "_observe.tasks",
    "watchdog": "_observe.watchdog",
}
#: The public modules that are.
_MODULES = ("fs", "metrics", "testing")


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _lazy.load(name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_lazy.load(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})


_core._init_c_caller()
if _first_import.IS_FIRST:
    _os.register_at_fork(before=_core._forking, after_in_child=_core._forked)
_first_import.note(_sys.modules[__name__])
_install_if_asked()
if _settings.asked_at_import("WAKELOOP_RECORD"):
    _lazy.load("_observe.record").start_at_import()
