"""Where to ask a model along one column: a line of numbers or dates, or the levels by name."""

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

#: Points of a line, and distinct numbers up to which there is a point for each instead.
POINTS, FEW = 61, 6
#: Levels of a category that are drawn.
MOST_LEVELS = 20
_DAY = pd.Timedelta(days=1)


@dataclass(frozen=True)
class Grid:
    """Values of one column to ask a model about.

    Attributes
    ----------
    feature, kind : str
    values : list
        In the user's terms.
    positions : array of shape (g,)
        Places on an axis: numbers as they are, dates and durations as days, levels from 0.
    labels : list of str or None
        Names of levels; None where the axis is a line.
    start : Timestamp or None
        The date at position 0.
    seen : array
        Places of the table's own rows, for marks along the axis; empty for levels.
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
    """The grid of one column, over the range of its rows.

    Parameters
    ----------
    name : str
    series : Series
        The rows of the table.
    kind : str
        As :attr:`TableEncoder.rules_` says.
    rule : column rule, optional
        Of the fit: it knows the levels.
    points : int
        Of a line.

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
        if rule.pooled:  # all of them are one to the model
            values, labels = [*values, rule.pooled[0]], [*labels, OTHER]
        if rule.missing:
            values, labels = [*values, None], [*labels, MISSING]
    else:
        values = sorted(known.unique())[:MOST_LEVELS]
        labels = [str(level) for level in values]
    return Grid(name, kind, values, np.arange(float(len(values))), labels=labels)


def _dates(name: str, known: pd.Series, rule: Any, points: int) -> Grid:
    """Dates a whole number of weeks (or days) apart where the week (or day) plays a part.

    So the line shows the trend and the year, and not a beat between the week and the step.
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
