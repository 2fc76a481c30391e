"""The border between the halves: `wakeloop._support` has what native code calls by name."""

import importlib
import inspect
import re

import pytest

from tests.support.pages import ROOT
from wakeloop import _support

pytestmark = pytest.mark.native

#: A call of a function that takes the name of something in `_support`, up to the name; or a constant with such a name.
NAMED = re.compile(
    r'\b(?:support|call_support|support_function|report|report_exception|end_with|log_in_debug|log_duration)\('
    r'[^";]*?(?:"[^"]* [^"]*"[^";]*?)?"(\w+)"'
    r"|\b(?:REPORT_FATAL|WRITE_AFTER_LOST): &(?:'static )?str = \"(\w+)\""
)


def names(code):
    """Returns the names in `_support` for which a file of Rust asks."""
    code = re.sub(r"//.*", "", code)
    return {one or other for one, other in NAMED.findall(code)}


def test_native_code_asks_for_the_names_of_the_table_and_no_others():
    asked = {name for path in (ROOT / "src").rglob("*.rs") for name in names(path.read_text())}
    assert asked == set(_support.TABLE)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('call_support(core.py(), "one", &[socket])', {"one"}),
        ('core.support("one", &[])?;\nself.report(&exception, "other", &arguments)', {"one", "other"}),
        ('support(py, "one")?.call1((Fallible(fd),))', {"one"}),
        ('const REPORT_FATAL: &\'static str = "one";', {"one"}),
        ('end_with(this, raise_io(error), "Fatal error: what", "one")', {"one"}),
        ('// core.support("none", &[])', set()),
        ('dict.get("none")', set()),
    ],
)
def test_the_check_finds_the_names_in_calls(code, found):
    assert names(code) == found


@pytest.mark.parametrize("name", _support.TABLE)
def test_a_row_has_the_arguments_of_its_function(name):
    function, arguments, when = _support.TABLE[name]
    if isinstance(function, str):
        module, _, attribute = function.rpartition(".")
        function = getattr(importlib.import_module(f"wakeloop.{module}"), attribute)
    assert getattr(_support, name) is function
    assert re.fullmatch(r"[\w(].*\.", when)
    if not (isinstance(function, type) and issubclass(function, Exception)):
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        parameters = inspect.signature(function).parameters.values()
        assert arguments == ", ".join(stars.get(parameter.kind, "") + parameter.name for parameter in parameters)
