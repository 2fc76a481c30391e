"""What `help()` and `inspect` say about every public name."""

import inspect

import pytest

import wakeloop

pytestmark = pytest.mark.native


def members():
    """The public names, and the public members of the classes."""
    for name in wakeloop.__all__:
        value = getattr(wakeloop, name)
        yield name, value
        if isinstance(value, type):
            for member in vars(value):
                # The names of `__slots__` are asyncio's attributes, without a text of their own there too.
                if not member.startswith("_") and not inspect.ismemberdescriptor(vars(value)[member]):
                    yield f"{name}.{member}", getattr(value, member)


NAMED = {name: value for name, value in members() if name != "__version__"}


def test_every_public_name_has_a_docstring_without_a_raw_signature():
    wrong = []
    for name, value in NAMED.items():
        text = inspect.getdoc(value) or ""
        # A text, which does not begin with a call of the function itself.
        if not text or text.startswith(f"{name.split('.')[-1]}(") or "--" in map(str.strip, text.splitlines()):
            wrong.append(name)
    assert len(NAMED) > 90 and wrong == []


def has_signature(value):
    try:
        inspect.signature(value)
    except ValueError:
        # CPython's own exceptions have none.
        return isinstance(value, type) and issubclass(value, BaseException)
    return True


def test_every_public_function_and_class_has_a_signature():
    called = {name: value for name, value in NAMED.items() if callable(value)}
    assert len(called) > 80 and [name for name, value in called.items() if not has_signature(value)] == []


def test_native_functions_show_their_parameters():
    assert str(inspect.signature(wakeloop.sleep)) == "(delay, result=None)"
    assert str(inspect.signature(wakeloop.spawn_blocking)) == "(function, /, *args, **kwargs)"
    assert str(inspect.signature(wakeloop.TcpStream.connect)) == "(host, port, *, timeout=None, limit=65536)"
    assert str(inspect.signature(wakeloop.StreamReader)) == "(limit=65536, loop=None)"
