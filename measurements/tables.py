"""Numbers as people read them, and Markdown tables of them.

A mean over splits is shown with its spread. ``sd`` (divisor n - 1) says how much one split differs
from another, which is what papers on these tables print; ``se`` = sd / sqrt(n) says how well the
mean itself is known, which is what a comparison with a goal needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

__all__ = ["MISSING", "figure", "markdown_table", "mean_sd", "mean_se", "yes_no"]

MISSING = "–"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns, so that its source can be read too."""
    lines = [list(header), *(list(row) for row in rows)]
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"every row needs {len(header)} cells, as the header has")
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(3, *(len(line[j]) for line in lines)) for j in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    padded = [[cell.ljust(w) for cell, w in zip(line, widths, strict=True)] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in padded)


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number with that many significant digits; small ones as 1.2e-05."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0.0:
        return "0"
    if abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{_decimals(value, digits)}f}"


def mean_sd(values: Sequence[float], digits: int = 3) -> str:
    """Return mean ± standard deviation, the mean with that many significant digits."""
    return _plus_minus(values, _sd(values), digits)


def mean_se(values: Sequence[float], digits: int = 3) -> str:
    """Return mean ± standard error."""
    return _plus_minus(values, _sd(values) / math.sqrt(max(len(values), 1)), digits)


def yes_no(passed: bool | None) -> str:
    """Return a mark for yes or no, and another one for None (not decided)."""
    return MISSING if passed is None else "yes" if passed else "**no**"


def _plus_minus(values: Sequence[float], spread: float, digits: int) -> str:
    if not values:
        return MISSING
    mean = fmean(values)
    if not math.isfinite(spread):
        return figure(mean, digits)
    if 0.0 < abs(mean) < 1e-3:
        return f"{figure(mean, digits)} ± {spread:.0e}"
    decimals = _decimals(mean, digits)
    return f"{mean:.{decimals}f} ± {spread:.{decimals}f}"


def _sd(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else math.nan


def _decimals(value: float, digits: int) -> int:
    if value == 0.0:
        return digits - 1
    return min(max(0, digits - 1 - math.floor(math.log10(abs(value)))), digits + 1)
