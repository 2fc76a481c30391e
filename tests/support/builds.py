"""What the interpreter under test was built for, and the marks of tests that need more than it has."""

import sysconfig

import pytest

#: Is this a build of CPython that runs without a GIL?
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

needs_gil = pytest.mark.skipif(FREE_THREADED, reason="a free-threaded build of Python has no GIL")
needs_reader_feed = pytest.mark.skipif(
    FREE_THREADED, reason="asyncio's own readers are fed by Python code on a free-threaded build"
)
needs_ordered_collector = pytest.mark.skipif(
    FREE_THREADED, reason="the collector of a free-threaded build of Python finalizes objects in no order"
)
