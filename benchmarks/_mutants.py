"""Small faults to put into a module, one at a time.

A mutant is the syntax tree of a module with one node replaced: a sum by a difference, ``<`` by
``<=``, a number by its double, a call of a chain by what it was called on. Tests that pass with the
fault in place have not noticed it. Where a fault could only change a message (``raise``), a type,
an assertion or a documentation string, none is made.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType

__all__ = ["Mutant", "Source", "sample", "variants"]

_BINARY: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Div(),
    ast.Mod: ast.FloorDiv(),
    ast.Pow: ast.Mult(),
    ast.BitAnd: ast.BitOr(),
    ast.BitOr: ast.BitAnd(),
}
#: The boundary moved, and the opposite.
_COMPARISONS: dict[type[ast.cmpop], tuple[ast.cmpop, ...]] = {
    ast.Lt: (ast.LtE(), ast.GtE()),
    ast.LtE: (ast.Lt(), ast.Gt()),
    ast.Gt: (ast.GtE(), ast.LtE()),
    ast.GtE: (ast.Gt(), ast.Lt()),
    ast.Eq: (ast.NotEq(),),
    ast.NotEq: (ast.Eq(),),
    ast.Is: (ast.IsNot(),),
    ast.IsNot: (ast.Is(),),
    ast.In: (ast.NotIn(),),
    ast.NotIn: (ast.In(),),
}
_PAIRS = (
    ("min", "max"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("sum", "mean"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
)
_NAMES = {**dict(_PAIRS), **{b: a for a, b in _PAIRS}}
#: Links of a chain that are dropped, beside those that work in place (``mul_``).
_LINKS = frozenset(
    ["abs", "clamp", "clone", "copy", "exp", "log", "neg", "nan_to_num", "sqrt", "square"]
)
_UNITS = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return),
    *(ast.expr, ast.arguments),
)
_NEVER = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
_TYPES = ("annotation", "returns", "decorator_list", "bases")
#: A wrong axis is nearly always an error of shapes.
_AXES = ("axis", "dim", "dim1", "dim2")


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes
    ----------
    name : str
        What tells it apart from the others of its module: place, code before and after.
    first, last : int
        Lines of the code around it; 0 and 0 where it is outside of every function.
    """

    name: str
    first: int
    last: int
    owner: ast.AST
    field: str
    index: int | None
    new: ast.AST


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is replaced by.

    Examples
    --------
    >>> tree = ast.parse("a - min(b, 2) < 1.5", mode="eval").body
    >>> [ast.unparse(other) for node in ast.walk(tree) for other in variants(node)]
    ['a - min(b, 2) <= 1.5', 'a - min(b, 2) >= 1.5', 'a + min(b, 2)', '3.0', 'max(b, 2)', '3']
    """
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        yield ast.BinOp(node.left, _BINARY[type(node.op)], node.right)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARISONS[type(node.ops[0])]:
            yield ast.Compare(node.left, [other], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)
    elif isinstance(node, ast.Return) and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.AugAssign):
        yield ast.Pass()
        if type(node.op) in _BINARY:
            yield ast.AugAssign(node.target, _BINARY[type(node.op)], node.value)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(2.0 * value if value else 1.0)


def _other_calls(call: ast.Call) -> Iterator[ast.AST]:
    function = call.func
    if isinstance(function, ast.Name) and function.id in _NAMES:
        yield ast.Call(ast.Name(_NAMES[function.id], ast.Load()), call.args, call.keywords)
    if not isinstance(function, ast.Attribute):
        return
    name, on = function.attr, function.value
    if name in _NAMES:
        other = ast.Attribute(on, _NAMES[name], ast.Load())
        yield ast.Call(other, call.args, call.keywords)
    in_place = name.endswith("_") and not name.startswith("_")
    if in_place or (name in _LINKS and not _is_module(on)):
        yield on


def _is_none(value: ast.AST | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "math", "torch")


class Source:
    """A module's tree, and every mutant of it in the order of the text."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self._seen: Counter[str] = Counter()
        self.mutants = list(self._below(self.tree, "", None, False))

    def _below(
        self, node: ast.AST, place: str, unit: ast.AST | None, inside: bool
    ) -> Iterator[Mutant]:
        for field, index, child in _children(node):
            if _is_left_alone(child, place):
                continue
            # A fault is shown within its statement, or its part of the head of a longer one.
            around = unit or (child if isinstance(child, _UNITS) else None)
            if around is not None:
                yield from self._of(node, field, index, child, place, around, inside)
            where, within = place, inside
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                where = f"{place}.{child.name}" if place else child.name
                within = inside or isinstance(child, ast.FunctionDef)
            yield from self._below(child, where, around, within)

    def _of(
        self, owner: ast.AST, field: str, index: int | None, node: ast.AST,
        place: str, unit: ast.AST, inside: bool,
    ) -> Iterator[Mutant]:  # fmt: skip
        others = list(variants(node))
        if isinstance(owner, ast.Expr):  # to drop the last link is to drop the statement
            others = [other for other in others if isinstance(other, ast.Call)]
        if field == "test" and isinstance(node, ast.Name | ast.Attribute | ast.Call):
            others.append(ast.UnaryOp(ast.Not(), node))
        if isinstance(owner, ast.Slice) and not isinstance(node, ast.Constant):
            others.append(ast.BinOp(node, ast.Add(), ast.Constant(1)))
        # What stands in the head of a function is run when the module is imported.
        inside = inside and not isinstance(unit, ast.arguments)
        first, last = (unit.lineno, unit.end_lineno) if inside else (0, 0)  # type: ignore[attr-defined]
        for new in others:
            mutant = Mutant("", first, last, owner, field, index, ast.copy_location(new, node))
            ast.fix_missing_locations(mutant.new)
            before = ast.unparse(unit)
            if unit is node:
                after = ast.unparse(new)
            else:
                with self._changed(mutant):
                    after = ast.unparse(unit)
            name = f"{place or 'module'}: {before} → {after}"
            self._seen[name] += 1
            count = self._seen[name]
            name += f" ({count})" if count > 1 else ""
            yield Mutant(name, first, last, owner, field, index, mutant.new)

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        old = getattr(mutant.owner, mutant.field)
        if mutant.index is None:
            setattr(mutant.owner, mutant.field, mutant.new)
            yield
            setattr(mutant.owner, mutant.field, old)
        else:
            kept, old[mutant.index] = old[mutant.index], mutant.new
            yield
            old[mutant.index] = kept

    def compiled(self, mutant: Mutant, path: str) -> CodeType:
        """The module with the fault."""
        with self._changed(mutant):
            return compile(self.tree, path, "exec")


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in _TYPES:
            continue
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield field, index, item


def _is_left_alone(node: ast.AST, place: str) -> bool:
    if isinstance(node, _NEVER) or (isinstance(node, ast.keyword) and node.arg in _AXES):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Assign) and not place:
        # Names of types and __all__; numbers are written in capitals.
        target = node.targets[0]
        return isinstance(target, ast.Name) and target.id.upper() != target.id
    return False


def sample(mutants: list[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """Some of the mutants; which ones depends on each name alone, and so survives other edits."""

    def draw(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    chosen = {m.name for m in sorted(mutants, key=draw)[:count]}
    return [m for m in mutants if m.name in chosen]
