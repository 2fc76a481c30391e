"""A Sphinx extension: native functions and classes have the signatures of the stub, `_core.pyi`."""

import ast
import re
from pathlib import Path

import wakeloop

STUB = Path(wakeloop.__file__).with_name("_core.pyi")


def setup(app):
    signatures = dict(read(ast.parse(STUB.read_text()).body, ""))

    def from_stub(_app, _what, name, _object, _options, signature, returns):
        # Sphinx expects an answer only where it has found a signature to replace.
        return None if signature is None else signatures.get(name.removeprefix("wakeloop."))

    app.connect("autodoc-process-signature", from_stub)
    app.connect("autodoc-process-docstring", plain_text)
    return {"parallel_read_safe": True, "version": "1"}


def read(statements, prefix):
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + statement.name, written(statement, bool(prefix))
            case ast.ClassDef():
                yield from read(statement.body, f"{statement.name}.")
            case ast.If(body=body, orelse=other):
                yield from read(body + other, prefix)


def written(function, method):
    """The parameters without `self`, and what is returned."""
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    if method and not static:
        del (function.args.posonlyargs or function.args.args)[0]
    returns = ast.unparse(function.returns) if function.returns else None
    return f"({ast.unparse(function.args)})", returns


def plain_text(_app, _what, _name, _thing, _options, lines):
    """Takes `*args` as it is written: our docstrings are plain text with ``literals``."""
    lines[:] = [re.sub(r"``.*?``|\*", lambda found: found[0] if len(found[0]) > 1 else r"\*", line) for line in lines]
