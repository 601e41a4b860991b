"""Grids along one column: equally spaced numbers or dates, or the levels of a category."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.columns.categories import MISSING, OTHER, CategoryColumn
from twostagegp.data.columns.times import DateColumn
from twostagegp.plotting.slices.tables import NAMED_KINDS

__all__ = ["POINTS", "Grid", "make_grid"]

Array = NDArray[np.float64]

#: Number of points of a line; and number of distinct values up to which each has its own point.
POINTS, FEW = 61, 6
#: Largest number of category levels that are drawn.
MOST_LEVELS = 20
_DAY = pd.Timedelta(days=1)


@dataclass(frozen=True)
class Grid:
    """Values of one column at which a model is evaluated.

    Attributes
    ----------
    feature, kind : str
        Name and kind of the column.
    values : list
        The values as they occur in the user's table.
    positions : array of shape (g,)
        Positions on an axis: numbers as they are, dates and durations in days, levels 0, 1, ….
    labels : list of str or None
        Names of the levels; None if the values form a line.
    start : Timestamp or None
        The date at position 0.
    seen : array
        Positions of the rows of the table, for marks along the axis; empty for levels.
    """

    feature: str
    kind: str
    values: list[Any]
    positions: Array
    labels: list[str] | None = None
    start: Any = None
    seen: Array = field(default_factory=lambda: np.zeros(0))


def make_grid(
    name: str, series: pd.Series, kind: str, rule: Any = None, points: int = POINTS
) -> Grid:
    """Return the grid of one column, over the range of its rows.

    Parameters
    ----------
    name : str
    series : Series
        The rows of the table.
    kind : str
        Kind of the column, as in :attr:`TableEncoder.rules_`.
    rule : column rule, optional
        Rule by which the fit encodes the column; it holds the levels.
    points : int
        Number of points of a line.

    Examples
    --------
    >>> grid = make_grid("size", pd.Series(np.linspace(0.0, 6.0, 50)), "number", points=3)
    >>> grid.values
    [0.0, 3.0, 6.0]
    """
    known = series.dropna()
    if kind in NAMED_KINDS:
        return _levels(name, known, kind, rule)
    if kind == "date":
        return _dates(name, known, rule, points)
    if kind == "duration":
        days = _days(pd.Series(pd.to_timedelta(known)))
        at = np.linspace(days.min(), days.max(), points)
        return Grid(name, kind, list(pd.to_timedelta(at, unit="D")), at, seen=days)
    numbers = known.to_numpy(dtype=np.float64) if kind == "number" else np.zeros(0)
    distinct = np.unique(numbers)
    if len(distinct) <= FEW:
        return Grid(
            name, kind, distinct.tolist(), np.arange(float(len(distinct))),
            labels=[f"{value:.4g}" for value in distinct],
        )  # fmt: skip
    at = np.linspace(distinct[0], distinct[-1], points)
    return Grid(name, kind, at.tolist(), at, seen=numbers)


def _levels(name: str, known: pd.Series, kind: str, rule: Any) -> Grid:
    values: list[Any]
    if kind == "boolean":
        values, labels = [False, True], ["false", "true"]
    elif kind == "ordered category":
        values = list(rule.levels)[:MOST_LEVELS]
        labels = [str(level) for level in values]
    elif isinstance(rule, CategoryColumn):
        values = list(rule.levels)[:MOST_LEVELS]
        labels = [str(level) for level in values]
        if rule.pooled:  # the model does not distinguish pooled levels: one represents them all
            values, labels = [*values, rule.pooled[0]], [*labels, OTHER]
        if rule.missing:
            values, labels = [*values, None], [*labels, MISSING]
    else:
        values = sorted(known.unique())[:MOST_LEVELS]
        labels = [str(level) for level in values]
    return Grid(name, kind, values, np.arange(float(len(values))), labels=labels)


def _dates(name: str, known: pd.Series, rule: Any, points: int) -> Grid:
    """Return a grid of dates.

    If the model uses the day of the week (or the time of day), the dates are a whole number of
    weeks (or days) apart. Otherwise the line would show an artificial oscillation between this
    cycle and the step of the grid.
    """
    if isinstance(known.dtype, pd.PeriodDtype):
        known = known.dt.to_timestamp()
    dates = pd.Series(pd.to_datetime(known))
    first, last = dates.min(), dates.max()
    span = max((last - first) / _DAY, 1e-9)
    step = span / (points - 1)
    cycles = rule.cycles if isinstance(rule, DateColumn) else []
    for cycle, period in (("week", 7.0), ("day", 1.0)):
        if cycle in cycles and step > period / 2.0:
            step = period * max(1.0, round(step / period))
            break
    at = np.arange(0.0, span + 0.5 * step, step)
    values = list(first + pd.to_timedelta(at, unit="D"))
    return Grid(name, "date", values, at, start=first, seen=_days(dates - first))


def _days(durations: Any) -> Array:
    return np.asarray(durations / _DAY, dtype=np.float64)
