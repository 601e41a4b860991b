"""Tables of single test rows: the least and the most certain ones, with their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.report.wording import cell, number

__all__ = ["MOST_INPUTS", "case_table", "regression_cases"]

#: Largest number of inputs shown in a table of cases, the most important first.
MOST_INPUTS = 12


def case_table(
    caption: str,
    heads: Sequence[str],
    facts: Sequence[Sequence[tuple[str, float | None]]],
    inputs: pd.DataFrame,
) -> dict[str, Any]:
    """Return a table for the template: per row some facts, then its inputs.

    Parameters
    ----------
    caption : str
    heads : sequence of str
        Column headings of the facts.
    facts : sequence of rows
        Each row is a sequence of pairs (text, number to sort by).
    inputs : DataFrame
        The inputs of the same rows, with the columns in the order in which to show them.
    """
    shown = inputs.iloc[:, :MOST_INPUTS]
    rows = []
    for k, fact in enumerate(facts):
        values = [(cell(value), _sort_key(value)) for value in shown.iloc[k]]
        rows.append([*fact, *values])
    return {
        "caption": caption,
        "heads": [*heads, *(str(name) for name in shown.columns)],
        "n_facts": len(heads),
        "rows": rows,
    }


def _sort_key(value: Any) -> float | None:
    """Return the number by which a cell is sorted, or None to sort by its text."""
    if isinstance(value, pd.Timestamp):
        return float(value.value)
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value) if np.isfinite(float(value)) else None
    return None


def regression_cases(
    target: Any, labels: list[str], inputs: pd.DataFrame, which: NDArray[np.int64], caption: str
) -> dict[str, Any]:
    """Return a table of some rows: half the 95 % interval, prediction, outcome and inputs."""
    ends = target.interval(0.95)
    facts = []
    for i in which:
        half = float(ends[i, 1] - ends[i, 0]) / 2.0
        outside = not ends[i, 0] <= target.y[i] <= ends[i, 1]
        facts.append(
            [
                (labels[i], None),
                (f"± {number(half)}", half),
                (number(target.mean[i]), float(target.mean[i])),
                (number(target.y[i]) + (" (outside)" if outside else ""), float(target.y[i])),
            ]
        )
    heads = ("row", "95 % interval", "predicted", "observed")
    return case_table(caption, heads, facts, inputs.iloc[which])
