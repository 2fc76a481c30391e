"""The public names: the list in the support policy, and what `help()`, `inspect` and `repr()` say about them."""

import importlib
import inspect
import pickle
import pkgutil
import re

import pytest

import wakeloop
from tests.support.pages import DOCS

pytestmark = pytest.mark.native

#: They need packages that are not installed everywhere.
OPTIONAL = ("wakeloop.gunicorn", "wakeloop.opentelemetry", "wakeloop.prometheus", "wakeloop.testing.hypothesis")


def members():
    """The public names, and the public members of the classes."""
    for name in [*wakeloop.__all__, "open"]:
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


# -- the list of the support policy ----------------------------------------------------------------------------------


def listed():
    """The names of each public module, as the support policy has them."""
    page = (DOCS / "reference" / "support.md").read_text()
    section = page.split("## Public names")[1].split("\n## ")[0]
    rows = re.findall(r"^- `(wakeloop[\w.]*)`: ((?:.+\n)(?:  .+\n)*)", section, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def module(name):
    return pytest.importorskip(name) if name in OPTIONAL else importlib.import_module(name)


@pytest.mark.parametrize("name", listed())
def test_the_support_policy_lists_what_a_module_exports(name):
    exported = list(getattr(module(name), "__all__", ()))
    # Public, but no name for `import *`, because it is that of a built-in function.
    more = ["open"] if name == "wakeloop" else []
    assert sorted(listed()[name]) == sorted(exported + more)


def test_every_module_without_an_underscore_is_in_the_support_policy():
    found = {each.name for each in pkgutil.walk_packages(wakeloop.__path__, "wakeloop.", onerror=lambda _: None)}
    public = {name for name in found if not re.search(r"\._", name)} | {"wakeloop"}
    # The policy names these as places of what `wakeloop` exports.
    assert public - {"wakeloop.loop", "wakeloop.metrics", "wakeloop.policy"} == set(listed())


def test_import_star_leaves_the_builtin_open_alone():
    names = {}
    exec("from wakeloop import *", names)
    assert "open" not in names and "sleep" in names


@pytest.mark.parametrize("name", listed())
def test_public_classes_show_their_public_module(name):
    classes = {each: kind for each in listed()[name] if isinstance(kind := getattr(module(name), each), type)}
    assert {each: kind.__module__ for each, kind in classes.items()} == dict.fromkeys(classes, name)


@pytest.mark.parametrize("name", listed())
def test_public_classes_are_pickled_by_their_public_names(name):
    kinds = [kind for each in listed()[name] if isinstance(kind := getattr(module(name), each), type)]
    assert [pickle.loads(pickle.dumps(kind)) for kind in kinds] == kinds


def test_snapshots_are_pickled():
    loop = wakeloop.new_event_loop()
    metrics = loop.metrics()
    loop.close()
    slow = wakeloop.SlowCallback("name", 1.0, 2.0)
    assert pickle.loads(pickle.dumps((metrics, slow))) == (metrics, slow)
    assert repr(wakeloop.Histogram) == "<class 'wakeloop.Histogram'>"
