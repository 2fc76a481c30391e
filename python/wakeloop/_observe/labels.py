"""Labels: names for what a program does, by which the window splits the processor time of its loops.

Native code splits it (`src/kernel/observe/labels.rs`); here the label is set.
"""

from __future__ import annotations

from contextvars import Token
from typing import final

from .. import _core

__all__ = ("label",)

_variable = _core._label


@final
class label:
    """A context manager that labels what the block does: ``with wakeloop.label("GET /users"):``.

    ``/labels`` of the window (:func:`admin`) splits the CPU time of the loops, and of their blocking jobs, by these
    labels. The label is a context
    variable: it holds across ``await``, and for the tasks and callbacks that the block starts. A label inside of
    another one takes its place until its block ends; None stands for no label. Choose names of which there are few: a
    loop counts a thousand of them, and further ones together, and of each the first 200 characters are kept.

    A block that ends in another context than it began in changes nothing there. An asynchronous generator that is left
    early ends so: close it with ``contextlib.aclosing``.

    Raises TypeError if the name is neither a string nor None, and RuntimeError if the same object is entered twice. In
    a thread without a loop or a job it does nothing else than set the variable.
    """

    __module__ = "wakeloop"
    __slots__ = ("_name", "_token")

    def __init__(self, name: str | None, /) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a string or None was expected, not {type(name).__qualname__}")
        self._name = name
        self._token: Token[str | None] | None = None

    def __enter__(self) -> None:
        if self._token is not None:
            raise RuntimeError("this label was entered already; make another one")
        self._token = _variable.set(self._name)
        _core._label_changed()

    def __exit__(self, *_exception: object) -> None:
        token = self._token
        if token is not None:
            try:
                _variable.reset(token)
            except ValueError:
                # The block ends in another context than it began in: its generator or coroutine is closed by somebody
                # else. The label of that context is none of ours.
                return
            _core._label_changed()

    def __repr__(self) -> str:
        return f"wakeloop.label({self._name!r})"


def relabel(name: str) -> None:
    """Changes the label of the current context."""
    _variable.set(name)
    _core._label_changed()


def current() -> str | None:
    """The label of the current context."""
    return _variable.get(None)
