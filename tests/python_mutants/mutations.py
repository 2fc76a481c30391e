"""The mutants of a module: cosmic-ray's operators, two of our own, and what is left out.

A mutant is left out if no test can see it: it changes an annotation, a type for the type checker only, or nothing at
all. Of the operators that replace one binary operator or comparison by any other, the nearest one or two are used: a
test that fails for these fails for the others.
"""

import ast
import re
from collections.abc import Iterable, Iterator

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS, get_operator, operator_names
from cosmic_ray.work_item import MutationSpec

NEAREST = {
    "Eq": ("NotEq",),
    "NotEq": ("Eq",),
    "Lt": ("LtE", "GtE"),
    "LtE": ("Lt", "Gt"),
    "Gt": ("GtE", "LtE"),
    "GtE": ("Gt", "Lt"),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
    "Add": ("Sub",),
    "Sub": ("Add",),
    "Mul": ("Add",),
    "Div": ("Mul",),
    "FloorDiv": ("Mul",),
    "Mod": ("Add",),
    "Pow": ("Mul",),
    "BitOr": ("BitAnd",),
    "BitAnd": ("BitOr",),
    "LShift": ("RShift",),
    "RShift": ("LShift",),
    "USub": (),
    "UAdd": (),
    "Invert": (),
}
Position = tuple[tuple[int, int], tuple[int, int]]


class RemoveStatement(Operator):
    """Replaces a statement by `pass`: a call, an assignment to an attribute or an item, `raise` or `del`."""

    def mutation_positions(self, node: parso.tree.NodeOrLeaf) -> Iterator[Position]:
        if node.parent is not None and node.parent.type == "simple_stmt" and self.can_go(node):
            yield node.start_pos, node.end_pos

    @staticmethod
    def can_go(node: parso.tree.NodeOrLeaf) -> bool:
        if node.type == "expr_stmt":
            # A plain name without its value is an error at once.
            return node.children[0].type in ("power", "atom_expr") or getattr(node.children[1], "value", "=") != "="
        return node.type in ("power", "atom_expr", "raise_stmt", "del_stmt", "yield_expr", "await")

    def mutate(self, node: parso.tree.NodeOrLeaf, index: int) -> parso.tree.NodeOrLeaf:
        return parso.python.tree.Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class ReturnNone(Operator):
    """Returns None instead of a value."""

    def mutation_positions(self, node: parso.tree.NodeOrLeaf) -> Iterator[Position]:
        if node.type == "return_stmt" and node.children[1].get_code().strip() != "None":
            yield node.start_pos, node.end_pos

    def mutate(self, node: parso.tree.NodeOrLeaf, index: int) -> parso.tree.NodeOrLeaf:
        node.children[1] = parso.python.tree.Keyword("None", node.children[1].start_pos, prefix=" ")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class OtherException(Operator):
    """Handles an exception that nothing raises, instead of one that a clause names."""

    def mutation_positions(self, node: parso.tree.NodeOrLeaf) -> Iterator[Position]:
        if node.type == "except_clause":
            yield from ((name.start_pos, name.end_pos) for name in self.names(node))

    @staticmethod
    def names(clause: parso.tree.NodeOrLeaf) -> list[parso.tree.NodeOrLeaf]:
        handled = clause.children[1]
        if handled.type == "atom":
            listed = handled.children[1]
            return listed.children[::2] if listed.type == "testlist_comp" else [listed]
        return [handled]

    def mutate(self, node: parso.tree.NodeOrLeaf, index: int) -> parso.tree.NodeOrLeaf:
        name = self.names(node)[index]
        other = parso.python.tree.Name("FloatingPointError", name.start_pos, prefix=name.get_first_leaf().prefix)
        name.parent.children[name.parent.children.index(name)] = other
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


OPERATOR_PROVIDERS["wakeloop"] = {
    operator.__name__: operator for operator in (RemoveStatement, ReturnNone, OtherException)
}


def is_used(name: str) -> bool:
    name = name.partition("/")[2]
    if name in ("VariableReplacer", "VariableInserter", "ExceptionReplacer"):
        return False  # they want arguments, or know no dotted names
    if match := re.fullmatch(r"Replace(?:Binary|Comparison|Unary)Operator_(\w+?)_(\w+)", name):
        before, after = match.groups()
        return before == "Delete" or after in NEAREST.get(before, ())
    return True


def specifications(module: str, source: str) -> Iterator[MutationSpec]:
    """Every mutation of the module that a test could see."""
    left_out, lines = unseen(source), source.splitlines()
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    nodes = list(ast_nodes(get_ast(source)))
    # Others turn these around.
    turned = {(node.start_pos, node.end_pos) for node in nodes if node.type in ("comparison", "not_test")}
    for name in sorted(filter(is_used, operator_names())):
        operator = get_operator(name)()
        for occurrence, (start, end) in enumerate(p for node in nodes for p in operator.mutation_positions(node)):
            if name == "core/AddNot" and (start, end) in turned:
                continue
            if name == "core/NumberReplacer" and is_unit(lines[start[0] - 1][start[1] : end[1]]):
                continue
            if not any(first <= start and end <= last for first, last in left_out):
                yield MutationSpec(module, name, occurrence, start, end, {}, function_at(functions, start[0]))


def function_at(functions: list[ast.FunctionDef | ast.AsyncFunctionDef], line: int) -> str | None:
    """The name of the innermost function that has this line."""
    around = [node for node in functions if node.lineno <= line <= (node.end_lineno or 0)]
    return max(around, key=lambda node: node.lineno).name if around else None


def is_unit(number: str) -> bool:
    """Whether one more or less is lost in rounding: the nanoseconds of a second."""
    return isinstance(value := ast.literal_eval(number), float) and value >= 1e6


def mutated(source: str, mutation: MutationSpec) -> str | None:
    """The source with the mutation, or nothing if that is the same program, or none."""
    changed = mutate_code(source, get_operator(mutation.operator_name)(), mutation.occurrence)
    try:
        return changed if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)) else None
    except SyntaxError:
        return None


def difference(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, from the first to the last, without indentation."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return " ".join(line.strip() for line in old), " ".join(line.strip() for line in new)


def unseen(source: str) -> list[Position]:
    """The positions of annotations, and of what only a type checker runs."""
    return [position(node) for node in only_for_types(ast.parse(source))]


def position(node: ast.expr | ast.stmt) -> Position:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def only_for_types(tree: ast.AST) -> Iterable[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.FunctionDef(decorator_list=decorators) | ast.AsyncFunctionDef(decorator_list=decorators):
                if node.returns is not None:
                    yield node.returns
                if any("overload" in ast.unparse(decorator) for decorator in decorators):
                    yield node
            case ast.If(test=test) if ast.unparse(test).removeprefix("typing.") == "TYPE_CHECKING":
                yield node
            case ast.Call(func=ast.Name("cast" | "TypeVar" | "ParamSpec"), args=[first, *_]):
                yield first
            case ast.ClassDef(bases=bases):
                yield from (base.slice for base in bases if isinstance(base, ast.Subscript))
            case ast.Assign(value=ast.BinOp(op=ast.BitOr()) as value) if is_type(value):
                yield value


def is_type(node: ast.expr) -> bool:
    """Whether this is a union of types, as far as its spelling tells: `str | None`, `Callable[[], int] | bytes`."""
    match node:
        case ast.BinOp(left=left, right=right, op=ast.BitOr()):
            return is_type(left) and is_type(right)
        case ast.Subscript(value=value):
            return is_type(value)
        case ast.Constant(value=None):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in dir(__builtins__) or (name[:1].isupper() and not name.isupper())
    return False

