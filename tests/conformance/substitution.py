"""Replaces asyncio's loop by the loop under test, in a process whose code does not know it, and counts the loops
made.

The order of the first lines of `substitute` matters: the loop under test may inherit from asyncio.SelectorEventLoop,
so its module is imported (and captures the genuine class) before the name is replaced.
"""

import collections
import importlib

#: How many loops of which type were created. The code that reports this clears it.
constructed = collections.Counter()


def loop_class(name):
    """Returns the class with a name such as `asyncio`, `wakeloop`, `uvloop` or `package.module:Class`."""
    import asyncio

    if name == "asyncio":
        return asyncio.SelectorEventLoop
    if name == "uvloop":
        name = "uvloop:Loop"
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute or "EventLoop")


def count_constructions(cls):
    """Makes `cls` count its instances, and drop the selector that CPython's tests pass to SelectorEventLoop."""
    original = cls.__init__

    def __init__(self, *args, **kwargs):
        constructed[f"{type(self).__module__}.{type(self).__qualname__}"] += 1
        original(self, *args, **kwargs)

    def without_selector(self, selector=None):
        constructed[f"{type(self).__module__}.{type(self).__qualname__}"] += 1
        original(self)

    import asyncio

    cls.__init__ = __init__ if cls is asyncio.unix_events._UnixSelectorEventLoop else without_selector


def substitute(name):
    """Puts the loop under test wherever asyncio and its tests look for a real event loop."""
    import asyncio
    from asyncio import unix_events

    cls = loop_class(name)
    genuine = unix_events._UnixSelectorEventLoop
    if cls is not genuine and issubclass(cls, genuine):
        # The genuine __init__ runs inside ours: count here only instances of no other class.
        original = genuine.__init__

        def __init__(self, *args, **kwargs):
            if type(self) is genuine:
                constructed[f"{genuine.__module__}.{genuine.__qualname__}"] += 1
            original(self, *args, **kwargs)

        genuine.__init__ = __init__
    else:
        count_constructions(genuine)
    if cls is genuine:
        return cls
    count_constructions(cls)
    for module in (asyncio, unix_events):
        module.SelectorEventLoop = cls
        if hasattr(module, "EventLoop"):
            module.EventLoop = cls
    unix_events._UnixDefaultEventLoopPolicy._loop_factory = cls
    return cls
