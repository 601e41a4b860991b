"""How much of the package the tests run through, lines and branches, by package.

    make coverage

runs the default tests under coverage.py and prints this table from ``build/coverage.json``. What
numba compiles (``twostagegp/compiled``) runs as machine code, which no tracer sees: its lines count
as not run, although tests compare each function with another implementation.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["main", "table"]

_FIELDS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def table(report: Mapping[str, Any]) -> str:
    """A row a package, and one for all.

    Examples
    --------
    >>> summary = {
    ...     "num_statements": 8,
    ...     "covered_lines": 6,
    ...     "num_branches": 4,
    ...     "covered_branches": 3,
    ... }
    >>> print(table({"files": {"src/twostagegp/engines/choice.py": {"summary": summary}}}))
    package                        lines  run %   branches  taken %
    twostagegp.engines                 8   75.0          4     75.0
    all                                8   75.0          4     75.0
    """
    packages: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        parts = Path(name).parent.parts
        package = ".".join(parts[parts.index("twostagegp") :])
        packages.setdefault(package, Counter()).update({k: file["summary"][k] for k in _FIELDS})
    packages = dict(sorted(packages.items()))
    packages["all"] = sum(packages.values(), Counter())
    rows = [f"{'package':<28} {'lines':>7} {'run %':>6} {'branches':>10} {'taken %':>8}"]
    for package, n in packages.items():
        lines, run, branches, taken = (n[field] for field in _FIELDS)
        rows.append(f"{package:<28} {lines:>7} {_share(run, lines):>6} {branches:>10} "
                    f"{_share(taken, branches):>8}")  # fmt: skip
    return "\n".join(rows)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "–"


def main() -> None:
    """Print the table of the report that the argument names."""
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
