"""Lets the loop's class inherit what programs have patched on the classes of asyncio.

`wakeloop.EventLoop` hides methods of asyncio's classes behind its own. On asyncio's loop a patch of such a method counts.
So while there is one, our class has the patch in the place of its own method: whoever calls the method, calls the patch,
and where there is none, nothing has to be asked. A method also gives way to asyncio's version if that calls another
method of the loop that is patched: `call_soon_threadsafe` while `_write_to_self` is.

A patch may call asyncio's function, with our loop as `self`. That works, because our loop has the private attributes
that asyncio's functions use (`_ready`, `_scheduled`, `_selector`, `_csock`).

`inherit` is called when a loop is created, when it begins to run, before a callback is scheduled between two runs, and
when the time is needed and the loop's class or the module `time` have changed. So a patch that is made before a run
counts in that run, one of `time` counts at once, and any other counts from the next run on at the latest. What takes
its place on our class asks asyncio's classes each time (`_Inherited`), so no patch outlives its removal.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .. import _core
from .._asyncio import SelectorEventLoop
from .._asyncio.compat import HANDLES, TRANSPORTS, makes_handles, names_within, runs_without_handles
from . import LoopState

#: Methods of ours that call asyncio's, which may be a patch. The native `time` does so while anything of it is patched.
_COOPERATIVE = frozenset(
    {"close", "set_default_executor", "add_signal_handler", "remove_signal_handler", "time", "_stop_serving"}
)

#: Methods of ours that call the same methods of the loop as asyncio's, where they have the same to do.
_ALIKE = frozenset({"run_forever", "_run_once", "_make_self_pipe", "_close_self_pipe"})

#: Methods that native code calls as Python code does, or about which it asks. (Sockets have a `close` too, and `os` a
#: `sendfile`.)
_ASKED = frozenset({"time", "call_at", "close", "sendfile", "call_exception_handler", "default_exception_handler"})

#: Stand for the methods of asyncio's handles, and for `Handle._run`, which native handles call.
_HANDLES, _RUN = "Handle", "Handle._run"

#: What asyncio's methods bring about, beside the methods that they name.
_CONSEQUENCES: dict[str, set[str]] = {
    "call_soon": {_HANDLES},
    "call_soon_threadsafe": {_HANDLES},
    "call_at": {_HANDLES, "_timer_handle_cancelled"},
    "_add_reader": {_HANDLES},
    "_add_writer": {_HANDLES},
    # The future that waits for the job calls these.
    "run_in_executor": {"call_soon_threadsafe", "create_future", "_write_to_self"},
    **{
        name: {_RUN, *(called for method in methods for called in names_within(method, sys.modules[method.__module__]))}
        for name, methods in TRANSPORTS.items()
    },
}
# asyncio's `_sendfile_native` takes the socket of one of asyncio's transports.
_CONSEQUENCES["_make_socket_transport"] |= {"_sendfile_native", "_sock_sendfile_native", "sock_sendfile"}
# asyncio's TLS has the same transports. Ours works with ours only.
_CONSEQUENCES["_make_ssl_transport"] = {"_make_socket_transport", *_CONSEQUENCES["_make_socket_transport"]}

_HANDLE_CHECKS: dict[str, Callable[[], bool]] = {_HANDLES: makes_handles, _RUN: runs_without_handles}

_MISSING: Any = object()


def _first(classes: Iterable[type], name: str) -> Any:
    """The value of a name in the first of these classes that defines it."""
    return next((vars(kind)[name] for kind in classes if name in vars(kind)), _MISSING)


def _values(classes: Iterable[type]) -> dict[str, Any]:
    """The value of each name in the first of these classes that defines it."""
    found: dict[str, Any] = {}
    for kind in reversed(list(classes)):
        found.update(vars(kind))
    return found


def _is_known(value: Any) -> bool:
    """Whether asyncio or wakeloop have defined a function. (`__module__` would be wrong: functools.wraps copies it.)"""
    if not isinstance(value, types.FunctionType):
        return False
    return str(value.__globals__.get("__name__")).partition(".")[0] in ("asyncio", "wakeloop")


class _Inherited:
    """Stands on our class for a method of asyncio's, and is what asyncio's classes have there when it is asked for.

    So a patch that is made, replaced or taken away in a run counts at once, without a look.
    """

    def __init__(self, classes: Iterable[type], name: str) -> None:
        self._classes, self._name = classes, name

    def __get__(self, loop: object, kind: type | None = None) -> Any:
        found = _first(self._classes, self._name)
        if found is _MISSING:
            raise AttributeError(self._name)
        get = getattr(type(found), "__get__", None)
        return found if get is None else get(found, loop, kind)


class Inheritance:
    """The methods of asyncio that a class of loops hides, and those in their place while they are patched."""

    def __init__(self, kind: type) -> None:
        split = kind.__mro__.index(SelectorEventLoop)
        self._kind = kind
        self._asyncios = kind.__mro__[split:-1]
        values, ours = _values(self._asyncios), _values(kind.__mro__[:split])
        #: asyncio's methods, each with its code. A patch that is older than this is none of them.
        self._originals = {
            name: (value, value.__code__) if _is_known(value) else (None, None)
            for name, value in values.items()
            if callable(value) and not name.startswith("__")
        }
        #: Our methods that hide one of asyncio's.
        self._natives = {name: ours[name] for name in self._originals.keys() & ours.keys() - _COOPERATIVE}
        self._own = {name: vars(kind).get(name, _MISSING) for name in self._natives}
        self._calls = {name: self._called_by(name) for name in self._natives.keys() - _ALIKE}
        relevant = {"_process_events"}.union(self._natives, *self._calls.values())
        #: May a loop of exactly this class skip the look? Only these methods can make one of ours give way, or have to
        #: be called in each iteration.
        self.is_plain = _core.unpatched(((kind, *(relevant & self._originals.keys())), *HANDLES))
        #: What this has put on the class and on its subclasses.
        self._put: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary({kind: {}})

    def _called_by(self, name: str) -> set[str]:
        """The methods of the loop that asyncio's version calls, itself or through methods that we do not hide."""
        found, rest = set(_CONSEQUENCES.get(name, ())), [name]
        while rest:
            function, _ = self._originals[rest.pop()]
            called = names_within(function, sys.modules.get(getattr(function, "__module__", "")))
            called = (called & self._originals.keys()) - found
            found |= called
            rest += [each for each in called if each.startswith("_") and each not in self._natives]
        return found - _ASKED

    def look(self, kind: type) -> bool:
        """Looks for patches. Returns whether some methods of this class of loops are now others than before."""
        ours = self._kind
        handles = {name for name, unpatched in _HANDLE_CHECKS.items() if not unpatched()}
        patched = handles | {name for name in self._originals if self._is_patched(name)}
        affected = self._affected(patched, self._replaced(ours, (ours,)))
        is_changed = self._set(ours, affected)
        if kind is not ours:
            overridden = self._replaced(kind, kind.__mro__[: kind.__mro__.index(ours)])
            is_changed |= self._set(kind, self._affected(set(), overridden) - affected)
        return is_changed

    def _is_patched(self, name: str) -> bool:
        """Whether the program has put something else in the place of asyncio's method."""
        original, code = self._originals[name]
        found = _first(self._asyncios, name)
        return found is not original or getattr(found, "__code__", None) is not code

    def _replaced(self, kind: type, classes: tuple[type, ...]) -> set[str]:
        """The methods that the program has put on these classes, of which `kind` is the first."""
        found = {name: _first(classes, name) for name in self._originals}
        put = self._put.get(kind, {})
        return {
            name
            for name, value in found.items()
            if not any(value is one for one in (_MISSING, self._natives.get(name), put.get(name)))
            and not _is_known(value)
        }

    def _affected(self, patched: set[str], replaced: set[str]) -> set[str]:
        """Our methods that give way because of patches, but not those that the program has replaced on our classes."""
        found = patched | replaced
        while rest := {name for name, calls in self._calls.items() if name not in found and calls & found}:
            found |= rest
        return (found & self._natives.keys()) - replaced

    def _set(self, kind: type, names: set[str]) -> bool:
        """Puts asyncio's methods, or their patches, on a class. Puts our own there again where they are no more."""
        put = self._put.setdefault(kind, {})
        before = dict(put)
        for name in before.keys() - names:
            found = vars(kind).get(name, _MISSING)
            own = self._own[name] if kind is self._kind else _MISSING
            if found is put[name]:
                delattr(kind, name) if own is _MISSING else setattr(kind, name, own)
            if found is put[name] or found is own:
                del put[name]
        for name in names:
            put.setdefault(name, _Inherited(self._asyncios, name))
            if vars(kind).get(name) is not put[name]:
                setattr(kind, name, put[name])
        return before != put


_covered: list[Inheritance] = []


def cover(kind: type) -> Callable[[], bool]:
    """Lets a class of loops, and its subclasses, inherit patches from now on.

    Returns the question whether a loop of exactly this class has nothing to inherit, and nothing to give back.
    """
    inheritance = Inheritance(kind)
    _covered.append(inheritance)
    return inheritance.is_plain


def inherit(loop: LoopState) -> type | None:
    """Looks for patches. Returns the covered class if some methods of the loop's class are now others than before."""
    kind = type(loop)
    for inheritance in _covered:
        if kind is inheritance._kind and inheritance.is_plain():
            return None
        # Perhaps an iteration is to call something else. The loop looks for that before its next native run.
        loop._leave_native_run()
        if issubclass(kind, inheritance._kind) and inheritance.look(kind):
            return inheritance._kind
    return None
