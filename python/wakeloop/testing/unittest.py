"""`unittest.IsolatedAsyncioTestCase` on a testing loop."""

from __future__ import annotations

import asyncio
import sys
import unittest
from typing import Any, ClassVar

from ._loop import EventLoop

__all__ = ("IsolatedAsyncioTestCase",)


class IsolatedAsyncioTestCase(unittest.IsolatedAsyncioTestCase):
    """Runs each test on a testing loop of its own. A subclass sets `loop_options`."""

    #: The arguments of `testing.EventLoop`.
    loop_options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def loop_factory(cls) -> EventLoop:
        """Make the loop of a test."""
        return EventLoop(**cls.loop_options)

    if sys.version_info < (3, 13):

        def _setupAsyncioRunner(self) -> None:
            # Python 3.13 and later take the factory from the attribute.
            self._asyncioRunner = asyncio.Runner(debug=True, loop_factory=self.loop_factory)
