"""Tables of single rows: the least and the most certain ones, with their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.report.words import cell, number

__all__ = ["MOST_INPUTS", "case_table", "regression_cases"]

#: Inputs shown in a table of cases, the most important first.
MOST_INPUTS = 12


def case_table(
    caption: str,
    heads: Sequence[str],
    facts: Sequence[Sequence[tuple[str, float | None]]],
    inputs: pd.DataFrame,
) -> dict[str, Any]:
    """A table for the template: some facts, then the inputs of each row.

    Parameters
    ----------
    caption : str
    heads : sequence of str
        Of the facts.
    facts : sequence of rows of (text, number to sort by)
    inputs : DataFrame
        One row for each of the facts, columns in the order in which to show them.
    """
    shown = inputs.iloc[:, :MOST_INPUTS]
    rows = []
    for k, fact in enumerate(facts):
        values = [(cell(value), _key(value)) for value in shown.iloc[k]]
        rows.append([*fact, *values])
    return {
        "caption": caption,
        "heads": [*heads, *(str(name) for name in shown.columns)],
        "n_facts": len(heads),
        "rows": rows,
    }


def _key(value: Any) -> float | None:
    """What a cell is sorted by; None sorts by its text."""
    if isinstance(value, pd.Timestamp):
        return float(value.value)
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value) if np.isfinite(float(value)) else None
    return None


def regression_cases(
    one: Any, labels: list[str], inputs: pd.DataFrame, which: NDArray[np.int64], caption: str
) -> dict[str, Any]:
    """Predicted, observed and half the 95 % interval of some rows."""
    ends = one.interval(0.95)
    facts = []
    for i in which:
        half = float(ends[i, 1] - ends[i, 0]) / 2.0
        out = not ends[i, 0] <= one.y[i] <= ends[i, 1]
        facts.append(
            [
                (labels[i], None),
                (f"± {number(half)}", half),
                (number(one.mean[i]), float(one.mean[i])),
                (number(one.y[i]) + (" (outside)" if out else ""), float(one.y[i])),
            ]
        )
    heads = ("row", "95 % interval", "predicted", "observed")
    return case_table(caption, heads, facts, inputs.iloc[which])
