"""A Sphinx extension: every public name has a docstring, and a place on a page of the reference."""

import importlib
import inspect

from sphinx.util import logging

#: The modules whose `__all__` is the public interface, and what is public besides.
MODULES = {"wakeloop": ["open"]}

log = logging.getLogger(__name__)


def setup(app):
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "version": "1"}


def public_names():
    """Yields (full name, object) of everything public, methods and attributes of classes included."""
    for module, more in ((importlib.import_module(name), more) for name, more in MODULES.items()):
        for name in [*module.__all__, *more]:
            thing = getattr(module, name)
            yield f"{module.__name__}.{name}", thing
            if isinstance(thing, type):
                yield from ((f"{module.__name__}.{name}.{each}", member) for each, member in members(thing))


def members(kind):
    """What a class of ours defines by itself or in a private base: what asyncio defines, asyncio documents."""
    ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "wakeloop"]
    names = dict.fromkeys(name for base in ours for name in vars(base) if not name.startswith("_"))
    found = [(name, inspect.getattr_static(kind, name)) for name in names]
    # A slot only stores an attribute that asyncio defines.
    return [(name, member) for name, member in found if not inspect.ismemberdescriptor(member)]


def check(_app, env):
    documented = env.get_domain("py").objects
    for name, thing in public_names():
        if not isinstance(thing, str) and not inspect.getdoc(thing):
            log.warning("%s has no docstring", name)
        if name not in documented:
            log.warning("%s is on no page of the reference", name)
