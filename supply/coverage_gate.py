"""Print the share of lines and branches that the tests run, per package, and check the gate.

    make coverage

runs the default tests under coverage.py and then this program on ``build/coverage.json``. Functions
that Numba compiles run as machine code, which coverage.py cannot watch: their lines count as not
run, although tests compare each function with another implementation.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main", "shares", "table"]

_FIELDS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def table(report: Mapping[str, Any]) -> str:
    """Return one row per package, and one for all of them.

    Parameters
    ----------
    report : mapping
        What coverage.py writes as JSON.

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
    packages = _counts(report)
    rows = [f"{'package':<28} {'lines':>7} {'run %':>6} {'branches':>10} {'taken %':>8}"]
    for package, n in packages.items():
        lines, run, branches, taken = (n[field] for field in _FIELDS)
        rows.append(f"{package:<28} {lines:>7} {_share(run, lines):>6} {branches:>10} "
                    f"{_share(taken, branches):>8}")  # fmt: skip
    return "\n".join(rows)


def shares(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return the percentages of lines that were run and of branches that were taken, overall."""
    lines, run, branches, taken = (_counts(report)["all"][field] for field in _FIELDS)
    return 100 * run / lines, 100 * taken / branches


def _counts(report: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return the counts of coverage.py's fields per package, and for "all"."""
    packages: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        parts = Path(name).parent.parts
        package = ".".join(parts[parts.index("twostagegp") :])
        packages.setdefault(package, Counter()).update({k: file["summary"][k] for k in _FIELDS})
    packages = dict(sorted(packages.items()))
    packages["all"] = sum(packages.values(), Counter())
    return packages


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "–"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; exit with an error if a share is below its gate."""
    parser = argparse.ArgumentParser(description="Print coverage per package and check the gate.")
    parser.add_argument("report", type=Path, help="the JSON file that coverage.py wrote")
    parser.add_argument("--lines", type=float, default=0.0, help="least percentage of lines")
    parser.add_argument("--branches", type=float, default=0.0, help="least percentage of branches")
    options = parser.parse_args(arguments)
    report = json.loads(options.report.read_text(encoding="utf-8"))
    print(table(report))
    gates = {"lines": options.lines, "branches": options.branches}
    for (name, gate), share in zip(gates.items(), shares(report), strict=True):
        if share < gate:
            raise SystemExit(f"The tests run {share:.2f} % of the {name}; the gate is {gate} %.")


if __name__ == "__main__":
    main()
