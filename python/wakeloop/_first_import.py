"""One copy of the package's modules in a process, however often the package is imported.

A test that takes `wakeloop` out of `sys.modules`, or replaces `sys.modules` for a while, imports it a second time. Much of
the state belongs to the process: the native classes, the recorder, the watchdog, the loops that are known. So a later
import uses the modules of the first one. Only the namespace of the package itself is made anew.

The package imports this before any other of its modules.
"""

from __future__ import annotations

import sys
import types

from . import _core


def _restore(package: types.ModuleType) -> None:
    """Puts the modules of a package where an import finds them."""
    parent = sys.modules[package.__name__]
    for name, module in list(vars(package).items()):
        path = f"{package.__name__}.{name}"
        if not isinstance(module, types.ModuleType) or module.__name__ != path:
            continue
        if path not in sys.modules or module is _first_core:
            sys.modules[path] = module
            setattr(parent, name, module)
        if sys.modules[path] is module:
            _restore(module)


def restore() -> None:
    """Puts the modules of all copies of the package where an import finds them."""
    for package in _packages:
        if package.__name__ in sys.modules:
            _restore(package)


#: The namespaces of the package, one for each import so far.
_packages: list[types.ModuleType] = getattr(_core, "_packages", [])
_first_core = getattr(_packages[0], "_core", None) if _packages else None
#: Nothing of the package was imported in this process before.
IS_FIRST = not _packages


def note(package: types.ModuleType) -> None:
    """The package is imported, or loaded again."""
    if package not in _packages:
        _packages.append(package)
    _core._packages = _packages


restore()
