"""The docstrings of the stub `_core.pyi` are those that `help()` shows, so that editors show them too.

    python -m tests.project.stub_docs

writes them into the stub. Native code has the text: in the Rust doc of a function, or in a class's table of methods.
"""

import ast
import inspect
import textwrap
from pathlib import Path

from wakeloop import _core

STUB = Path(__file__).parents[2] / "python/wakeloop/_core.pyi"
WIDTH = 120
#: CPython's text for these says nothing, and an editor would show it in place of that of the class.
CPYTHONS = ("__init__", "__new__", "__class_getitem__")


def entries(statements, owner=_core, prefix=""):
    """Yields (full name, node of the stub, object) of every class, function, method and property."""
    for node in statements:
        name = f"{prefix}{getattr(node, 'name', '')}"
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name not in CPYTHONS:
                found = inspect.getattr_static(owner, node.name)
                yield name, node, getattr(found, "__func__", found)
            case ast.ClassDef():
                kind = getattr(owner, node.name)
                yield name, node, kind
                yield from entries(node.body, kind, f"{name}.")
            case ast.If():
                yield from entries(node.body + node.orelse, owner, prefix)


def native_text(thing):
    """The text of `help()`; empty if there is none."""
    return inspect.cleandoc(thing.__doc__ or "")


def paragraphs(text):
    """The text without regard to where its lines end."""
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def with_texts(source):
    """The source of a stub with the texts of native code."""
    lines = source.splitlines()
    # The last first, so that the line numbers of the others stay.
    for _, node, thing in sorted(entries(ast.parse(source).body), key=lambda entry: entry[1].lineno, reverse=True):
        if not (text := native_text(thing)):
            continue
        literal = _literal(text, " " * (node.col_offset + 4))
        first = node.body[0]
        if ast.get_docstring(node) is not None:
            lines[first.lineno - 1 : first.end_lineno] = literal
        elif isinstance(node, ast.ClassDef):
            lines[node.lineno : node.lineno] = [*literal, ""]
        else:
            signature = lines[first.lineno - 1][: first.col_offset].rstrip()
            lines[first.lineno - 1 : first.end_lineno] = [signature, *literal]
    return "\n".join(lines) + "\n"


def _literal(text, indent):
    text = text.replace("\\", "\\\\")
    if len(line := f'{indent}"""{text}"""') <= WIDTH and "\n" not in text and not text.endswith('"'):
        return [line]
    lines = []
    for paragraph in paragraphs(text):
        marks = '"""' if not lines else ""
        lines += textwrap.wrap(marks + paragraph, WIDTH - len(indent), break_on_hyphens=False) + [""]
    return [f"{indent}{line}".rstrip() for line in [*lines[:-1], '"""']]


if __name__ == "__main__":
    STUB.write_text(with_texts(STUB.read_text()))
