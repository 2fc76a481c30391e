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


NAMED = [pytest.param(name, value, id=name) for name, value in members() if name != "__version__"]


@pytest.mark.parametrize(("name", "value"), NAMED)
def test_every_public_name_has_a_docstring_without_a_raw_signature(name, value):
    text = inspect.getdoc(value) or ""
    # A sentence, and no call of the function itself.
    assert text and not text.startswith(f"{name.split('.')[-1]}("), text
    assert not any(line.strip() == "--" for line in text.splitlines()), text


@pytest.mark.parametrize(("name", "value"), [case for case in NAMED if callable(case.values[1])])
def test_every_public_function_and_class_has_a_signature(name, value):
    if isinstance(value, type) and issubclass(value, BaseException):
        pytest.skip("CPython's own exceptions have none")
    inspect.signature(value)


def test_native_functions_show_their_parameters():
    assert str(inspect.signature(wakeloop.sleep)) == "(delay, result=None)"
    assert str(inspect.signature(wakeloop.spawn_blocking)) == "(function, /, *args, **kwargs)"
    assert str(inspect.signature(wakeloop.TcpStream.connect)) == "(host, port, *, timeout=None, limit=65536)"
    assert str(inspect.signature(wakeloop.StreamReader)) == "(limit=65536, loop=None)"
