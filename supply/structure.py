"""Count files, constants, private accesses and lines, before the package was rebuilt and now.

    python -m supply.structure

counts in the working tree and in the commit ``BEFORE``, prints one table and writes it between
the markers of ``ARCHITECTURE.md``:

- files that ``fit`` and ``predict`` pass through (`supply.passed_files`),
- module constants: names in capitals that are bound to numbers at the top of a module,
- private accesses across packages: ``object._name`` outside the package that defines ``_name``,
  and imports of a private name from another package,
- lines per package.

The counts are signposts, not limits: shorter is not simpler.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Counts", "constants", "count", "main", "private_accesses", "table"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- begin counts -->\n", "<!-- end counts -->"
#: The last commit before the packages were rebuilt.
BEFORE = "f3b6f3f"
_CAPITALS = re.compile(r"_*[A-Z][A-Z0-9_]*")
_PRIVATE = re.compile(r"_(?!_)\w+")


@dataclass(frozen=True)
class Counts:
    """The counts of one version of the package.

    Attributes
    ----------
    passed : mapping of str to int
        From ``"fit, exact"`` and so on to a number of files.
    constants, private : int
    lines : mapping of str to int
        From a package, or ``"top folder"``, to the lines of its files.
    """

    passed: Mapping[str, int]
    constants: int
    private: int
    lines: Mapping[str, int]


def constants(source: str) -> list[str]:
    """Return the names in capitals that a module binds to numbers.

    A tuple, list, set or dict of numbers counts as one constant.

    Examples
    --------
    >>> constants("FEW, MANY = 3, 1 << 30; STEPS = (1, -2); NAME = 'x'; small = 1")
    ['FEW', 'MANY', 'STEPS']
    """
    found: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in _bound(target, node.value)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = list(_bound(node.target, node.value))
        else:
            continue
        found += [name for name, value in pairs if _CAPITALS.fullmatch(name) and _numeric(value)]
    return found


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name that an assignment binds, with its value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, below in zip(target.elts, value.elts, strict=True):
            yield from _bound(part, below)


def _numeric(value: ast.expr) -> bool:
    """Return whether an expression is made of numbers alone."""
    allowed = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.List, ast.Set, ast.Dict)
    skipped = (ast.operator, ast.unaryop, ast.expr_context)
    nodes = [node for node in ast.walk(value) if not isinstance(node, skipped)]
    numbers = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return (
        all(isinstance(node, allowed) for node in nodes)
        and bool(numbers)
        and all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    )


def private_accesses(sources: Mapping[str, str]) -> list[str]:
    """Return the private accesses from one package to another, as ``"file:line name"``.

    Parameters
    ----------
    sources : mapping of str to str
        The text of each file by its path inside the package.

    Examples
    --------
    >>> sources = {"a/x.py": "class A:\\n    _n: int", "b/y.py": "a._n\\nself._n\\na._other"}
    >>> private_accesses(sources)
    ['b/y.py:1 _n']
    """
    trees = {path: ast.parse(text) for path, text in sources.items()}
    homes: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for name in _defined(tree):
            homes.setdefault(name, set()).add(_package(path))
    return [
        f"{path}:{line} {name}"
        for path, tree in trees.items()
        for name, line in _used(tree)
        if name in homes and _package(path) not in homes[name]
    ]


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _is_own(node.value)
        ):
            name = node.attr
        else:
            continue
        if _PRIVATE.fullmatch(name):
            yield name


def _used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the private names that a module takes from other objects or modules, with lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _is_own(node.value):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno) for name in names if _PRIVATE.fullmatch(name))


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _package(path: str) -> str:
    """Return the package of a file; a module of the top folder is a package by itself."""
    return path.split("/")[0]


def count(root: Path) -> Counts:
    """Count in the working tree ``root``; fits are observed by the program of this tree."""
    package = root / "src" / "twostagegp"
    files = sorted(package.rglob("*.py"))
    sources = {p.relative_to(package).as_posix(): p.read_text(encoding="utf-8") for p in files}
    lines: Counter[str] = Counter()
    for path, text in sources.items():
        lines[_package(path) if "/" in path else "top folder"] += len(text.splitlines())
    done = subprocess.run(
        [sys.executable, str(ROOT / "supply" / "passed_files.py")],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    passed = {
        f"{call}, {method}": len(names)
        for method, calls in json.loads(done.stdout).items()
        for call, names in calls.items()
    }
    n_constants = sum(len(constants(text)) for text in sources.values())
    return Counts(passed, n_constants, len(private_accesses(sources)), lines)


def table(before: Counts, now: Counts) -> str:
    """Return both counts as a table in Markdown.

    Examples
    --------
    >>> before = Counts({"fit, exact": 29}, 364, 40, {"top folder": 900})
    >>> now = Counts({"fit, exact": 18}, 12, 0, {"top folder": 90, "engines": 700})
    >>> print(table(before, now))
    | counted | before | now |
    |---|---:|---:|
    | files passed through: fit, exact | 29 | 18 |
    | module constants | 364 | 12 |
    | private accesses across packages | 40 | 0 |
    | lines, all packages | 900 | 790 |
    | lines, top folder | 900 | 90 |
    | lines, `engines` | – | 700 |
    """
    rows: list[tuple[str, int | str, int | str]] = [
        *(
            (f"files passed through: {call}", n, now.passed[call])
            for call, n in before.passed.items()
        ),
        ("module constants", before.constants, now.constants),
        ("private accesses across packages", before.private, now.private),
        ("lines, all packages", sum(before.lines.values()), sum(now.lines.values())),
    ]
    for name in sorted({*before.lines, *now.lines}, key=lambda name: (name != "top folder", name)):
        shown = name if name == "top folder" else f"`{name}`"
        rows.append((f"lines, {shown}", before.lines.get(name, "–"), now.lines.get(name, "–")))
    head = ["| counted | before | now |", "|---|---:|---:|"]
    return "\n".join([*head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def main() -> None:
    """Count, print the table and write it into ``ARCHITECTURE.md``."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        git = ["git", "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", tree, BEFORE], cwd=ROOT, check=True)
        try:
            before = count(tree)
        finally:
            subprocess.run([*git, "remove", "--force", tree], cwd=ROOT, check=True)
    shown = table(before, count(ROOT))
    print(shown)
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{shown}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
