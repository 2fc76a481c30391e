"""The event loop policy, by which programs that do not choose a loop get wakeloop's.

Policies are deprecated since Python 3.14 and gone in 3.16; ``loop_factory`` and ``wakeloop.run`` need none. This module
alone knows whether asyncio has them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from typing import TYPE_CHECKING

from .loop import EventLoop

HAS_POLICIES = hasattr(asyncio.events, "set_event_loop_policy")

if HAS_POLICIES:
    if TYPE_CHECKING:
        _Base = asyncio.DefaultEventLoopPolicy
    else:
        # Since 3.14 reading the public name warns.
        _Base = asyncio.unix_events._UnixDefaultEventLoopPolicy

    class EventLoopPolicy(_Base):
        """asyncio's default policy with wakeloop's event loop. Python 3.16 and later have no policies."""

        __module__ = "wakeloop"
        _loop_factory = EventLoop


def install_if_asked() -> None:
    """Install the loop if the environment asks for it: WAKELOOP is set, and not to 0.

    Where the package is installed, this happens when asyncio is imported (see `_wakeloop_startup`). The first loop
    refuses another value than 0 and 1.
    """
    value = os.environ.get("WAKELOOP", "").strip()
    if HAS_POLICIES and not sys.flags.ignore_environment and value not in ("", "0"):
        install()


def install() -> None:
    """Make wakeloop's loop the one that ``asyncio.run`` and ``asyncio.new_event_loop`` use.

    Raises RuntimeError where asyncio has no event loop policies: on Python 3.16 and later.
    """
    if not HAS_POLICIES:
        raise RuntimeError(
            "asyncio has no event loop policies here: use asyncio.run(main(), loop_factory=wakeloop.new_event_loop)"
        )
    with warnings.catch_warnings():
        # The caller has asked for a policy by calling this function, so asyncio's warning about policies is not useful.
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(EventLoopPolicy())
