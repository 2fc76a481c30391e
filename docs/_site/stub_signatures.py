"""A Sphinx extension: signatures and attributes have types, also where Python cannot ask for them.

autodoc finds the annotations of Python functions. Those of native ones are in the stub, `_core.pyi`, and those of functions
that are copies of asyncio's in a branch for type checkers. asyncio's own methods have none. A function whose signature has
no types is a warning.
"""

import ast
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

import wakeloop
from wakeloop import metrics

PACKAGE = Path(wakeloop.__file__).parent
STUBS = (PACKAGE / "_core.pyi", PACKAGE / "_net" / "streams.py")
TLS = "ssl_handshake_timeout: float | None = None, ssl_shutdown_timeout: float | None = None"
CONNECTED = "Callable[[StreamReader, StreamWriter], Awaitable[None] | None]"
#: Inherited from asyncio, and documented here.
INHERITED = {
    "EventLoop.create_unix_connection": (
        "(protocol_factory: Callable[[], asyncio.BaseProtocol], path: str | None = None, *, ssl: bool | ssl.SSLContext | None"
        f" = None, sock: socket.socket | None = None, server_hostname: str | None = None, {TLS})",
        "tuple[asyncio.Transport, asyncio.BaseProtocol]",
    ),
    "EventLoop.create_unix_server": (
        "(protocol_factory: Callable[[], asyncio.BaseProtocol], path: str | None = None, *, sock: socket.socket | None = None,"
        f" backlog: int = 100, ssl: ssl.SSLContext | None = None, {TLS}, start_serving: bool = True)",
        "asyncio.Server",
    ),
    "StreamReader": ("(limit: int = 65536, loop: asyncio.AbstractEventLoop | None = None)", None),
    "StreamWriter": (
        "(transport: asyncio.WriteTransport, protocol: asyncio.BaseProtocol, reader: StreamReader | None,"
        " loop: asyncio.AbstractEventLoop)",
        None,
    ),
    "StreamReaderProtocol": (
        f"(stream_reader: StreamReader, client_connected_cb: {CONNECTED} | None = None,"
        " loop: asyncio.AbstractEventLoop | None = None)",
        None,
    ),
    "StreamReaderProtocol.connection_made": ("(transport: asyncio.BaseTransport)", "None"),
}

log = logging.getLogger(__name__)


def setup(app):
    signatures, attributes = {}, {}
    for path in STUBS:
        read(ast.parse(path.read_text()).body, "", signatures, attributes)
    signatures |= INHERITED

    def from_stub(_app, _what, name, _object, _options, signature, returns):
        # Sphinx expects an answer only where it has found a signature to replace.
        return None if signature is None else signatures.get(name.removeprefix("wakeloop."))

    def add_types(_app, domain, kind, content):
        if domain == "py" and kind in ("function", "method"):
            for signature in content.parent.findall(addnodes.desc_signature):
                if not list(signature.findall(addnodes.desc_returns)):
                    log.warning("the signature of %s has no types", signature.get("fullname"))
        for signature in content.parent.findall(addnodes.desc_signature) if kind in ("attribute", "property") else ():
            # The value of a default is not the attribute's.
            for each in [each for each in signature.findall(addnodes.desc_annotation) if each.astext().startswith(" =")]:
                signature.remove(each)
            kind_of = attributes.get(signature.get("fullname"))
            if kind_of is not None and ":" not in signature.astext():
                signature += addnodes.desc_annotation("", "", nodes.Text(f": {kind_of}"))

    # autodoc reads the comments on attributes in the source of the module that a class names.
    for kind in vars(metrics).values():
        if isinstance(kind, type) and kind.__module__ == "wakeloop":
            kind.__module__ = metrics.__name__

    app.connect("autodoc-process-signature", from_stub)
    app.connect("autodoc-process-docstring", plain_text)
    app.connect("object-description-transform", add_types)
    return {"parallel_read_safe": True, "version": "2"}


def read(statements, prefix, signatures, attributes):
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if is_property(statement):
                attributes[prefix + statement.name] = ast.unparse(statement.returns)
            case ast.FunctionDef(name="__init__"):
                signatures[prefix.removesuffix(".")] = (written(statement, True)[0], None)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                signatures[prefix + statement.name] = written(statement, bool(prefix))
            case ast.AnnAssign(target=ast.Name(name)):
                attributes[prefix + name] = ast.unparse(statement.annotation)
            case ast.ClassDef():
                read(statement.body, f"{statement.name}.", signatures, attributes)
            case ast.If(test=ast.Name("TYPE_CHECKING"), body=body):
                read(body, prefix, signatures, attributes)
            case ast.If(body=body, orelse=other):
                read(body + other, prefix, signatures, attributes)


def is_property(function):
    return any(isinstance(each, ast.Name) and each.id == "property" for each in function.decorator_list)


def written(function, method):
    """The parameters without `self`, and what is returned."""
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    if method and not static:
        del (function.args.posonlyargs or function.args.args)[0]
    returns = ast.unparse(function.returns) if function.returns else None
    return f"({ast.unparse(function.args).replace('ClientConnected', CONNECTED)})", returns


def plain_text(_app, _what, _name, _thing, _options, lines):
    """Takes `*args` as it is written: our docstrings are plain text with ``literals``."""
    lines[:] = [re.sub(r"``.*?``|\*", lambda found: found[0] if len(found[0]) > 1 else r"\*", line) for line in lines]
