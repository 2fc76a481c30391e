"""What the structure check demands of the Rust source, and what it says of a tree that breaks it."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from .rust import read_crate, uses

MOST_BOOLS = 3
#: So many types may have the same name, private ones included.
MOST_NAMESAKES = 3
#: How many lines of a file are named that use the same other file.
LINES_SHOWN = 3

#: One file uses another; both names are relative to src.
Edge = tuple[str, str]


def edge(line: str) -> Edge:
    user, used = line.split(" -> ")
    return user, used


def room(file: str) -> str:
    return file.split("/")[0].removesuffix(".rs")


@dataclass
class Rules:
    """structure.toml."""

    floors: dict[str, int]
    beside: list[Edge]
    few_bools: list[str]
    upward: list[Edge]
    cycles: list[Edge]
    bools: list[str]
    attempts: list[str]

    @classmethod
    def read(cls, file: Path) -> Rules:
        data = tomllib.loads(file.read_text())
        known = data["known"]
        from_above = [data["roots"], *data["floors"]]
        return cls(
            floors={room: len(from_above) - place for place, rooms in enumerate(from_above) for room in rooms},
            beside=[edge(line) for line in data["beside"]],
            few_bools=data["few_bools"],
            upward=[edge(line) for line in known["upward"]],
            cycles=[edge(line) for line in known["cycles"]],
            bools=known["bools"],
            attempts=known["attempts"],
        )

    def allows(self, user: str, used: str) -> bool:
        """Whether a room may use another."""
        return user == used or self.floors[user] > self.floors[used] or (user, used) in self.beside


@dataclass
class Source:
    """What the check knows of a tree."""

    lines: dict[Edge, list[int]]
    # By file and name: the line of a struct, and its `bool` fields.
    structs: dict[str, tuple[int, list[str]]]
    # By name: the file and the line of each type that has it.
    types: dict[str, list[str]]

    @classmethod
    def read(cls, src: Path) -> Source:
        crate = read_crate(src / "lib.rs")
        lines: dict[Edge, set[int]] = defaultdict(set)
        for user, line, used in uses(crate):
            lines[user.relative_to(src).as_posix(), used.relative_to(src).as_posix()].add(line)
        structs = {
            f"{module.file.relative_to(src).as_posix()} {struct.name}": (struct.line, struct.bools)
            for module in crate.walk()
            for struct in module.structs
        }
        types: dict[str, list[str]] = defaultdict(list)
        for module in crate.walk():
            for name, line in module.types:
                types[name].append(f"src/{module.file.relative_to(src).as_posix()}:{line}")
        return cls({edge: sorted(lines[edge]) for edge in sorted(lines)}, structs, types)

    @property
    def rooms(self) -> list[str]:
        return sorted({room(file) for edge in self.lines for file in edge})

    def within(self, name: str) -> set[Edge]:
        return {edge for edge in self.lines if room(edge[0]) == room(edge[1]) == name}

    def show(self, edge: Edge) -> str:
        lines = self.lines[edge]
        more = f" and {len(lines) - LINES_SHOWN} more" if len(lines) > LINES_SHOWN else ""
        return f"src/{edge[0]}:{','.join(map(str, lines[:LINES_SHOWN]))}{more} uses src/{edge[1]}"


def a_cycle(edges: set[Edge]) -> list[Edge]:
    """A cycle of these edges; empty if there is none."""
    graph: dict[str, list[str]] = defaultdict(list)
    for user, used in sorted(edges):
        graph[user].append(used)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        files = error.args[1]
        return list(zip(files[1:], files[:-1], strict=True))[::-1]
    return []


def closes_a_cycle(edge: Edge, edges: set[Edge]) -> bool:
    """Whether the edges lead from its end back to its start."""
    reached, found = {edge[1]}, {edge[1]}
    while found:
        found = {used for user, used in edges if user in found} - reached
        reached |= found
    return edge[0] in reached


def uses_own_mod_rs(edge: Edge) -> bool:
    """Whether a file uses a `mod.rs` above it."""
    user, used = edge
    return used.endswith("mod.rs") and user.startswith(used.removesuffix("mod.rs"))


def upward(source: Source, rules: Rules) -> list[Edge]:
    return [edge for edge in source.lines if not rules.allows(room(edge[0]), room(edge[1]))]


def many_bools(source: Source, rules: Rules) -> list[str]:
    return [
        struct
        for struct, (_, bools) in source.structs.items()
        if room(struct) in rules.few_bools and len(bools) > MOST_BOOLS
    ]


def check(src: Path, rules: Rules) -> Iterator[str]:
    """Every violation that is not known, and every known one that is gone."""
    source = Source.read(src)
    if unlisted := [name for name in source.rooms if name not in rules.floors]:
        yield f"without a floor in structure.toml: {', '.join(unlisted)}"
        return

    found = upward(source, rules)
    for edge in found:
        if edge not in rules.upward:
            yield f"upward: {source.show(edge)}"
    yield from gone("upward", [" -> ".join(edge) for edge in rules.upward if edge not in found])

    for name in source.rooms:
        edges = source.within(name)
        edges -= set(rules.cycles)
        while cycle := a_cycle(edges):
            yield f"cycle in {name}:" + "".join(f"\n    {source.show(edge)}" for edge in cycle)
            edges -= set(cycle)
    unneeded = [
        edge
        for edge in rules.cycles
        if edge not in source.lines or not closes_a_cycle(edge, source.within(room(edge[0])))
    ]
    yield from gone("cycles", [" -> ".join(edge) for edge in unneeded])

    structs = many_bools(source, rules)
    for struct in structs:
        if struct not in rules.bools:
            line, bools = source.structs[struct]
            file, name = struct.split()
            yield f"bools: src/{file}:{line} {name} has {len(bools)}, at most {MOST_BOOLS} are allowed: {', '.join(bools)}"
    yield from gone("bools", [struct for struct in rules.bools if struct not in structs])
    yield from namesakes(source)


def namesakes(source: Source) -> Iterator[str]:
    """Names that so many types have that a reader must ask which one is meant."""
    for name, places in sorted(source.types.items()):
        if len(places) > MOST_NAMESAKES:
            yield f"names: {len(places)} types are called {name}, at most {MOST_NAMESAKES} may be: {', '.join(places)}"


def gone(table: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield f'gone: delete "{line}" from known.{table} in structure.toml'


def known(src: Path, rules: Rules) -> str:
    """The lists of known violations that would let the tree pass, as TOML."""
    source = Source.read(src)
    cycles: list[Edge] = []
    for name in source.rooms:
        edges = source.within(name)
        removed = []
        while cycle := a_cycle(edges):
            removed.append(min(cycle, key=lambda edge: (not uses_own_mod_rs(edge), len(source.lines[edge]))))
            edges.discard(removed[-1])
        for edge in removed:
            if not closes_a_cycle(edge, edges):
                edges.add(edge)
            else:
                cycles.append(edge)
    tables = {
        "upward": [" -> ".join(edge) for edge in upward(source, rules)],
        "cycles": [" -> ".join(edge) for edge in sorted(cycles)],
        "bools": many_bools(source, rules),
    }
    return "\n\n".join(
        f"{table} = [\n" + "".join(f'    "{line}",\n' for line in lines) + "]" for table, lines in tables.items()
    )
