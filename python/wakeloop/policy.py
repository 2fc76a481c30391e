"""The event loop policy: how programs that never name a loop get one of ours.

Policies are deprecated since Python 3.14 and go away in 3.16; ``loop_factory`` and ``wakeloop.run`` need
none. Where asyncio has no policies any more, this module still imports, and using the class raises.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING

from .loop import EventLoop

if TYPE_CHECKING:
    _Base = asyncio.DefaultEventLoopPolicy
else:
    # 3.14 warns when the public name is read, and keeps the class under a private one.
    _Base = getattr(asyncio.unix_events, "_UnixDefaultEventLoopPolicy", None)
    if _Base is None:
        _Base = getattr(asyncio.unix_events, "_DefaultEventLoopPolicy", object)


class EventLoopPolicy(_Base):
    """asyncio's default policy with wakeloop's event loop."""

    _loop_factory = EventLoop


def install() -> None:
    """Make wakeloop's loop the one that ``asyncio.run`` and ``asyncio.new_event_loop`` use."""
    with warnings.catch_warnings():
        # The caller asked for a policy by calling this; asyncio's deprecation is about the mechanism.
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(EventLoopPolicy())
