"""Finds second chances in tests: loops in which one good attempt of several is enough.

A test that passes at the second attempt hides a fault that shows itself now and then. These count as loops of attempts:

- a `for` loop over a fixed number of rounds, or over a list of constants, that a `break` or `return` leaves early;
- `any(... for _ in range(N))`, and Rust's `(0..N).any(...)`;
- a `while` loop whose condition counts attempts, tries or retries, or counts results and looks at the last one;
- a marker that runs a failed test again.

A loop that waits for something is written as `while not condition:`, and ends by the time limit of its test. What must
be measured several times is a test of `make measure`, which compares a statistic of all rounds with a bound.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .rust import CLOSING, Token, tokens

ATTEMPTS = re.compile(r"attempts?|try|tries|retry|retries|times|rounds", re.IGNORECASE)
COUNTED = re.compile(r"\b(attempts?|tries|retr(y|ies))\b", re.IGNORECASE)
MARKERS = {"flaky", "rerun"}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def attempts(tests: Path, allowed: Iterable[str] = ()) -> Iterator[str]:
    """The loops of attempts below a folder that are not allowed, and the allowed ones that are gone."""
    found = set()
    for file in sorted([*tests.rglob("*.py"), *tests.rglob("*.rs")]):
        name = file.relative_to(tests.parent).as_posix()
        in_file = in_python if file.suffix == ".py" else in_rust
        for line, function in in_file(file.read_text()):
            place = f"{name} {function}"
            found.add(place)
            if place not in allowed:
                yield f"attempts: {name}:{line} {function} is satisfied with one good attempt of several"
    for place in allowed:
        if place not in found:
            yield f'gone: delete "{place}" from known.attempts in structure.toml'


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """The lines of such loops, and the function that each is in."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.For, ast.AsyncFor, ast.While, ast.Call, ast.Attribute)) and is_attempts(child):
                yield child.lineno, function or "module"
            # What a function defines inside counts as a part of it.
            named = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""
            yield from walk(child, function or named)

    yield from walk(ast.parse(text), "")


def is_attempts(node: ast.AST) -> bool:
    match node:
        case ast.For(target, rounds, body) | ast.AsyncFor(target, rounds, body):
            return is_fixed(target, rounds) and ends_early(body, False)
        case ast.While(test):
            compared = [ast.unparse(part) for part in ast.walk(test) if isinstance(part, ast.Compare)]
            counted = re.findall(r"\blen\((\w+)\) < \d+", " ".join(compared))
            looked_at = any(f"{name}[-1]" in text for name in counted for text in compared)
            return looked_at or any(COUNTED.search(text) for text in compared)
        case ast.Call(ast.Name("any"), [ast.GeneratorExp(_, [ast.comprehension(target, rounds)])]):
            return is_fixed(target, rounds)
        case ast.Attribute(ast.Attribute(_, "mark"), marker):
            return marker in MARKERS
    return False


def is_fixed(target: ast.expr, rounds: ast.expr) -> bool:
    """Whether a loop runs a fixed number of rounds, of which each does the same."""
    match rounds:
        case ast.Call(ast.Name("range"), [count]):
            return is_unused(target) and all(
                name == "self" or name.isupper() or ATTEMPTS.fullmatch(name.strip("_"))
                for name in re.findall(r"[^\W\d]\w*", ast.unparse(count))
            )
        case ast.Tuple(items) | ast.List(items):
            return all(isinstance(item, ast.Constant) and isinstance(item.value, (int, float)) for item in items)
    return False


def is_unused(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and (target.id.startswith("_") or bool(ATTEMPTS.fullmatch(target.id)))


def ends_early(body: Iterable[ast.AST], in_a_loop: bool) -> bool:
    for node in body:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not in_a_loop):
            return True
        if isinstance(node, FUNCTIONS):
            continue
        if ends_early(ast.iter_child_nodes(node), in_a_loop or isinstance(node, LOOPS)):
            return True
    return False


def in_rust(text: str) -> Iterator[tuple[int, str]]:
    """The same for Rust."""
    all_tokens = list(tokens(text))
    words = [token.text for token in all_tokens]
    function = "module"
    for place, token in enumerate(all_tokens):
        if token.text == "fn":
            function = words[place + 1]
        elif token.text == "any" and words[place + 1 : place + 2] == ["("] and is_range(words, place):
            yield token.line, function
        elif token.text == "for" and words[place + 1 : place + 3] == ["_", "in"]:
            start = next((at for at in range(place, len(words)) if words[at] == "{"), len(words))
            if ".." in "".join(words[place:start]) and leaves_block(all_tokens, start):
                yield token.line, function


def is_range(words: list[str], place: int) -> bool:
    """Whether the method that is named here is one of a range."""
    if words[place - 2 : place] != [")", "."]:
        return False
    depth = 0
    for at in range(place - 2, -1, -1):
        depth += (words[at] == ")") - (words[at] == "(")
        if depth == 0:
            return ".." in "".join(words[at:place])
    return False


def leaves_block(all_tokens: list[Token], start: int) -> bool:
    """Whether `break` or `return` stands in the block that begins here, outside of closures and inner loops."""
    depth, inner = 0, []
    for at in range(start, len(all_tokens)):
        text = all_tokens[at].text
        if text in ("loop", "while", "for"):
            inner.append(depth)
        elif text in CLOSING:
            depth += 1
        elif text in CLOSING.values():
            depth -= 1
            if depth == 0:
                return False
            if text == "}" and inner and inner[-1] == depth:
                inner.pop()
        elif text == "return" or (text == "break" and not inner):
            return True
    return False
