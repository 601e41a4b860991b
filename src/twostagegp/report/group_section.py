"""Coverage by group: do intervals hold within the levels of a column?

The column that the model was calibrated by comes first, then categories, booleans and ordered
categories, those that change the prediction most before the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from twostagegp import metrics
from twostagegp.data.checks import seen_columns
from twostagegp.data.columns.levels import find_column
from twostagegp.plotting.slices.tables import NAMED_KINDS, column_kinds
from twostagegp.report.predictions import TargetPredictions, TestRows
from twostagegp.report.wording import cell, count, number, percent

__all__ = ["calibrated_column", "group_tables"]

#: Most columns with a table, and most groups of a table; rarer levels are one group.
_COLUMNS, _GROUPS = 3, 12
#: Name of the group of rarer levels.
_OTHERS = "(rarer levels)"


def calibrated_column(model: Any) -> str | None:
    """Return the name of the column that intervals were calibrated by, if there is one."""
    column = getattr(model, "calibrate_by", None)
    if column is None:
        return None
    names = seen_columns(model)
    return names[find_column(column, names, hasattr(model, "feature_names_in_"))]


def group_tables(
    model: Any, target: TargetPredictions, rows: TestRows, order: Sequence[tuple[str, float]]
) -> list[dict[str, Any]]:
    """Return a table of the coverage of 95 % intervals by group for each of a few columns.

    ``order`` are the columns with their effects, the largest first.
    """
    by, kinds = calibrated_column(model), column_kinds(model)
    named = [name for name, _ in order if kinds[name] in NAMED_KINDS and name != by]
    columns = ([] if by is None else [by]) + named
    made: list[dict[str, Any]] = []
    for name in columns:
        groups = _groups(rows.frame[name])
        if groups.nunique() > 1 and len(made) < _COLUMNS:
            made.append(_table(name, groups, target, name == by))
    return made


def _groups(column: pd.Series) -> pd.Series:
    """Return the group of each row, a text; the order of the groups is that of the levels."""
    words = column.map(cell, na_action=None).astype(object)
    common = words.value_counts()
    if len(common) > _GROUPS:
        kept = set(common.index[: _GROUPS - 1])
        words = words.where(words.isin(kept), _OTHERS)
    in_order = column.dropna().sort_values().map(cell).astype(object).unique()
    present = set(words)
    first = [word for word in in_order if word in present]
    levels = [*first, *sorted(present - set(first))]
    return pd.Series(pd.Categorical(words, levels), index=column.index)


def _table(
    name: str, groups: pd.Series, target: TargetPredictions, is_calibrated: bool
) -> dict[str, Any]:
    interval = target.interval(0.95)
    found = metrics.coverage_by_group(target.y, interval, groups=groups)
    half = np.diff(interval, axis=1)[:, 0] / 2.0
    entries = []
    for k, group in enumerate(found.groups):
        verdict = "as expected"
        if found.outside[k]:
            verdict = "too narrow" if found.coverage[k] < found.low[k] else "wider than necessary"
        entries.append(
            {
                "group": group,
                "rows": count(int(found.rows[k])),
                "share": percent(found.coverage[k], 1),
                "low": percent(found.low[k], 1),
                "high": percent(found.high[k], 1),
                "verdict": verdict,
                "width": f"± {number(float(np.median(half[groups == group])))}",
            }
        )
    return {"column": name, "rows": entries, "text": _text(found, name, is_calibrated)}


def _text(found: metrics.GroupCoverage, name: str, is_calibrated: bool) -> str:
    outside = int(found.outside.sum())
    if outside == 0:
        return f"The 95 % intervals hold in every group of {name}, as far as chance can tell."
    verb = "lies" if outside == 1 else "lie"
    text = (
        f"{outside} of {len(found.groups)} groups of {name} {verb} outside of what chance allows."
    )
    if is_calibrated:
        return (
            f"{text} The model was calibrated by this column: these rows seem to differ from the "
            "training rows, or the groups had few of them."
        )
    return f"{text} Fit with calibrate_by={name!r} to give each group intervals of its own width."
