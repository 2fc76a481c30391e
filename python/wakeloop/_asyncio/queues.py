"""The exception of a queue that was shut down."""

from __future__ import annotations

import asyncio
import queue
import sys

if sys.version_info >= (3, 13):

    class QueueShutDown(asyncio.QueueShutDown, queue.ShutDown):
        """Raised by put() of a queue that was shut down, and by get() once it is empty.

        It is asyncio.QueueShutDown and queue.ShutDown at once, on Python 3.13 and later, which have them.
        """

else:

    class QueueShutDown(Exception):
        """Raised by put() of a queue that was shut down, and by get() once it is empty.

        It is asyncio.QueueShutDown and queue.ShutDown at once, on Python 3.13 and later, which have them.
        """


QueueShutDown.__module__ = "wakeloop"
