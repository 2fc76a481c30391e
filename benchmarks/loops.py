"""The event loops under test, by name.

A name is a module with ``new_event_loop()``. ``asyncio`` is the selector loop of the standard library, and
``uvloop+aiofastnet`` is uvloop with aiofastnet's transports, the fastest TLS on uvloop.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from collections.abc import Callable

from baseline import BASELINE, baseline_program

KNOWN = ("asyncio", "uvloop", "uvloop+aiofastnet", "rloop", "rsloop", "zuvloop", "wakeloop")
REFERENCE = "uvloop"

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def factory(name: str) -> LoopFactory:
    """The function that makes loops of this name; ImportError where the loop is not installed."""
    if name not in KNOWN:
        raise ValueError(f"unknown loop {name!r}: choose from {', '.join(KNOWN)}")
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    if name == "uvloop+aiofastnet":
        patch = importlib.import_module("aiofastnet").patch_loop
        inner = factory("uvloop")
        return lambda: patch(inner())
    module = importlib.import_module(name)
    if not hasattr(module, "new_event_loop"):
        raise ImportError(f"{name} at {module.__file__} has no event loop: it is not built")
    made: LoopFactory = module.new_event_loop
    return made


def version(name: str) -> str:
    """The version of this loop, for the results file."""
    if name == "asyncio":
        return "standard library"
    if name == BASELINE:
        return "an epoll loop without Python"
    return ", ".join(map(importlib.metadata.version, name.split("+")))


def split(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Which of these loops can be imported here, and why the others cannot."""
    present, missing = [], {}
    for name in names:
        try:
            baseline_program() if name == BASELINE else factory(name)
        except ImportError as error:
            missing[name] = str(error)
        else:
            present.append(name)
    return present, missing
