"""Finds which file of a Rust crate uses which other file, without building the crate.

It reads tokens, not lines, so comments, strings and doc comments never count. Code under a `cfg` that only tests satisfy
is left out. It resolves `use` trees (nested groups, `self`, renames, globs), paths in code such as `crate::x::f()` or
`x::f()`, and re-exports, to the file that defines the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import NamedTuple

Path = tuple[str, ...]

TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*)
    | (?P<comment>/\*)
    | (?P<literal>[bc]?r(?P<hashes>\#*)"(?s:.*?)"(?P=hashes)|[bc]?"(?:\\(?s:.)|[^"\\])*"|b?'(?:\\[^\n]+?|[^'\\\n])')
    | (?P<lifetime>'\w+)
    | (?P<token>(?:r\#)?[A-Za-z_]\w*|\d\w*|::|->|=>|.)
    """,
    re.VERBOSE,
)
CLOSING = {"(": ")", "[": "]", "{": "}"}
ITEMS = set("async const enum extern fn impl macro_rules mod static struct trait type union unsafe use".split())


class Token(NamedTuple):
    text: str
    line: int

    @property
    def is_name(self) -> bool:
        return self.text[0].isalpha() or self.text[0] == "_"


def tokens(text: str) -> Iterator[Token]:
    """The tokens of Rust source without comments, literals and lifetimes."""
    position, line = 0, 1
    while match := TOKEN.match(text, position):
        end = end_of_comment(text, position) if match["comment"] else match.end()
        if match["token"]:
            yield Token(match["token"].removeprefix("r#"), line)
        line += text.count("\n", position, end)
        position = end


def end_of_comment(text: str, start: int) -> int:
    """Where the block comment ends that begins at `start`; they nest."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


class Import(NamedTuple):
    """A leaf of a `use` tree. `name` is what the module calls it, or `*`."""

    name: str
    path: Path
    line: int


class Type(NamedTuple):
    """A struct, enum or union."""

    name: str
    line: int


class Struct(NamedTuple):
    """A struct, and those of its fields that hold a truth value."""

    name: str
    line: int
    bools: list[str]


@dataclass(eq=False)
class Module:
    name: str
    file: File
    parent: Module | None
    children: dict[str, Module] = field(default_factory=dict)
    # The lines that declare the children that have files of their own.
    declared: dict[str, int] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    paths: list[tuple[Path, int]] = field(default_factory=list)
    structs: list[Struct] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)

    @property
    def root(self) -> Module:
        return self.parent.root if self.parent else self

    @property
    def path(self) -> Path:
        return (*self.parent.path, self.name) if self.parent else ("crate",)

    def walk(self) -> Iterator[Module]:
        yield self
        for child in self.children.values():
            yield from child.walk()

    def is_above(self, other: Module) -> bool:
        return other.parent is not None and (other.parent is self or self.is_above(other.parent))


def read_crate(root: File) -> Module:
    """Reads the crate whose root module is the file `root`."""
    crate = Module("crate", root, None)
    Reader(crate, root.parent).read()
    return crate


class Reader:
    """Reads one file into a module, and the files of the modules that it declares."""

    def __init__(self, module: Module, folder: File) -> None:
        self.module = module
        self.folder = folder
        self.tokens = list(tokens(module.file.read_text()))
        self.at = 0

    def word(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].text if 0 <= place < len(self.tokens) else ""

    def is_name(self, ahead: int = 0) -> bool:
        place = self.at + ahead
        return place < len(self.tokens) and self.tokens[place].is_name

    @property
    def line(self) -> int:
        return self.tokens[self.at].line

    def read(self) -> None:
        while self.at < len(self.tokens):
            self.step()

    def step(self) -> None:
        word, starts_path = self.word(), self.word(-1) not in ("::", ".")
        if word == "#" and (self.word(1) == "[" or self.word(1) == "!" and self.word(2) == "["):
            self.attribute()
        elif word == "pub" and self.word(1) == "(" and self.word(2) in ("crate", "self", "super", "in"):
            self.at = self.group_end(self.at + 1)
        elif word == "mod" and self.is_name(1) and self.word(2) in (";", "{"):
            self.child()
        elif word == "use" and self.word(1) != "<":
            self.at += 1
            self.use_tree(())
        elif word in ("struct", "enum", "union") and self.is_name(1) and self.word(2) not in (":", ",", ")", "="):
            self.module.types.append(Type(self.word(1), self.line))
            if word == "struct":
                self.struct()
            else:
                self.at += 2
        elif starts_path and self.is_name() and self.word(1) == "::":
            self.path()
        else:
            self.at += 1

    def group_end(self, start: int) -> int:
        """The place behind the bracket that closes the one at `start`."""
        depth = 0
        for place in range(start, len(self.tokens)):
            depth += (self.tokens[place].text in CLOSING) - (self.tokens[place].text in CLOSING.values())
            if depth == 0:
                return place + 1
        return len(self.tokens)

    def attribute(self) -> None:
        inner = self.word(1) == "!"
        start = self.at + (2 if inner else 1)
        self.at = self.group_end(start)
        words = [token.text for token in self.tokens[start + 1 : self.at - 1]]
        if words == ["macro_export"]:
            name = next(token for token in self.tokens[self.at + 2 :] if token.is_name)
            self.module.root.imports.append(Import(name.text, (*self.module.path, name.text), name.line))
        if words[:1] == ["cfg"] and only_in_tests(words[2:-1]):
            if inner:
                self.at = len(self.tokens)
            else:
                self.skip_item()

    def skip_item(self) -> None:
        """Goes behind the item, statement or field here, and behind the attributes before it."""
        while self.word() == "#":
            self.at = self.group_end(self.at + 1)
        if self.word() == "pub":
            self.at = self.group_end(self.at + 1) if self.word(1) == "(" else self.at + 1
        kind = self.word()
        while self.at < len(self.tokens) and self.word() not in CLOSING.values():
            word = self.word()
            self.at = self.group_end(self.at) if word in CLOSING else self.at + 1
            if word == ";" or word == "{" and kind != "use" or word == "," and kind not in ITEMS:
                return

    def child(self) -> None:
        name, line, has_body = self.word(1), self.line, self.word(2) == "{"
        end = self.group_end(self.at + 2)
        self.at += 3
        if has_body:
            child = Module(name, self.module.file, self.module)
            outer, self.module = self.module, child
            self.folder /= name
            while self.at < end - 1:
                self.step()
            self.folder = self.folder.parent
            self.module = outer
        else:
            file = self.folder / f"{name}.rs"
            if not file.exists():
                file = self.folder / name / "mod.rs"
            child = Module(name, file, self.module)
            Reader(child, self.folder / name).read()
            self.module.declared[name] = line
        self.module.children[name] = child

    def use_tree(self, prefix: Path) -> None:
        path, line = prefix, self.line
        while True:
            word = self.word()
            if word == "{":
                self.at += 1
                while self.word() != "}":
                    self.use_tree(path)
                    self.at += self.word() == ","
                self.at += 1
                return
            self.at += 1
            if word == "*":
                self.module.imports.append(Import("*", path, line))
                return
            if word == "::":
                continue
            if word != "self" or not path:
                path = (*path, word)
            if self.word() == "as":
                self.module.imports.append(Import(self.word(1), path, line))
                self.at += 2
                return
            if self.word() != "::":
                self.module.imports.append(Import(path[-1], path, line))
                return

    def path(self) -> None:
        path, line = [self.word()], self.line
        while self.word(1) == "::" and self.is_name(2):
            self.at += 2
            path.append(self.word())
        self.at += 1
        if len(path) > 1:
            self.module.paths.append((tuple(path), line))

    def struct(self) -> None:
        """Counts the fields; the steps that follow read what their types name."""
        struct = Struct(self.word(1), self.line, [])
        self.at += 2
        place, depth, starts = self.at, 0, ["{", "(", ";"]
        while depth > 0 or self.tokens[place].text not in starts:
            text = self.tokens[place].text
            depth += (text == "<") - (text == ">")
            if text == "where":
                starts = ["{"]
            place += 1
        if self.tokens[place].text != ";":
            for name, kind in fields(self.tokens[place + 1 : self.group_end(place) - 1]):
                if {"bool", "AtomicBool"} & kind and "fn" not in kind:
                    struct.bools.append(name)
        self.module.structs.append(struct)


def only_in_tests(words: list[str]) -> bool:
    """Whether the predicate of a `cfg` holds in tests and fuzz targets only, whatever the other options are."""

    def parse(at: int) -> tuple[bool, int]:
        word, behind = words[at], words[at + 1 : at + 2]
        if behind == ["("]:
            at += 2
            parts = []
            while words[at] != ")":
                part, at = parse(at)
                parts.append(part)
                at += words[at] == ","
            return (any(parts) if word == "all" else word == "any" and parts != [] and all(parts)), at + 1
        # The value of an option is a literal, of which no token is left.
        return word in ("test", "wakeloop_fuzz"), at + (2 if behind == ["="] else 1)

    return parse(0)[0]


def fields(body: list[Token]) -> Iterator[tuple[str, set[str]]]:
    """The fields of a struct: the name or the number, and the words of the type."""
    words: list[str] = []
    depth = number = 0
    for text in [*(token.text for token in body), ","]:
        depth += (text in CLOSING or text == "<") - (text in CLOSING.values() or text == ">")
        if text != "," or depth > 0:
            words.append(text)
        elif words:
            colon = words.index(":") if ":" in words else 0
            yield words[colon - 1] if colon else str(number), set(words[colon:])
            words = []
            number += 1


class Use(NamedTuple):
    """This line of one file uses the other file."""

    user: File
    line: int
    used: File


class Found(NamedTuple):
    """The module where a path ends, whether it is the module itself that is named, and the modules that re-exported it."""

    module: Module
    is_module: bool
    doors: tuple[Module, ...]


def uses(crate: Module) -> Iterator[Use]:
    """Every use of one file by another. A module uses the children that it declares.

    A file below a `mod.rs` that takes a name through it uses that `mod.rs` too: it should name the file that has it.
    """
    for module in crate.walk():
        for name, line in module.declared.items():
            yield Use(module.file, line, module.children[name].file)
        paths = [(path, line, name == "*") for name, path, line in module.imports] if module is not crate else []
        for path, line, is_glob in [*paths, *((path, line, False) for path, line in module.paths)]:
            found = find(module, path)
            if found is None:
                continue
            # A name for a module with children is not a use of its file: the paths that begin with the name show what
            # is used.
            if is_glob or not (found.is_module and found.module.declared):
                yield from use(module, line, found.module)
            for door in found.doors:
                # The crate's root stands for the macros that it exports, which rustc puts there.
                if door is not crate and door.is_above(module):
                    yield from use(module, line, door)


def use(user: Module, line: int, used: Module) -> Iterator[Use]:
    if user.file != used.file:
        yield Use(user.file, line, used.file)


def find(module: Module, path: Path, seen: frozenset[tuple[Module, str]] = frozenset()) -> Found | None:
    """Where the path leads that stands in `module`; None outside the crate."""
    start: Module | None = module
    doors: tuple[Module, ...] = ()
    rest = list(path)
    if rest[0] == "crate":
        start = module.root
        rest.pop(0)
    elif rest[0] in ("self", "super"):
        while rest and rest[0] in ("self", "super"):
            start = start.parent if start and rest.pop(0) == "super" else start
            if rest and rest[0] == "self":
                rest.pop(0)
    elif rest[0] not in module.children:
        found = imported(module, rest.pop(0), seen)
        if found is None or not found.is_module:
            return found
        start = found.module
    if start is None:
        return None
    here = start
    for name in rest:
        if name in here.children:
            here = here.children[name]
            continue
        found = imported(here, name, seen)
        if found is None:
            return Found(here, False, doors)
        doors = (*doors, here, *found.doors)
        if not found.is_module:
            return found._replace(doors=doors)
        here = found.module
    return Found(here, True, doors)


def imported(module: Module, name: str, seen: frozenset[tuple[Module, str]]) -> Found | None:
    """Where the name leads that a `use` in `module` brings."""
    if (module, name) in seen:
        return None
    seen |= {(module, name)}
    for leaf in module.imports:
        if leaf.name == name and (found := find(module, leaf.path, seen)):
            return found
    for leaf in module.imports:
        if leaf.name == "*" and (glob := find(module, leaf.path, seen)) and glob.is_module:
            if name in glob.module.children:
                return Found(glob.module.children[name], True, glob.doors)
            if found := imported(glob.module, name, seen):
                return found
    return None
