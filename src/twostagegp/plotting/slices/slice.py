"""A slice: predictions along one column, with the other columns at typical values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.errors import InputError
from twostagegp.plotting.slices.answers import Answers
from twostagegp.plotting.slices.grids import POINTS, Grid, make_grid
from twostagegp.plotting.slices.tables import column_kinds, column_rules, typical_row

__all__ = ["Slice", "grid_rows", "make_slices"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Slice:
    """Predictions along one column.

    Attributes
    ----------
    grid : Grid
        The values of the column.
    middle : array of shape (g, k)
        Mean, or probability of each class.
    band : array of shape (g, k, 2)
        Lower and upper ends of the band.
    names : list
        As in :class:`Answers`.
    typical : dict
        The values at which the other columns were held.
    """

    grid: Grid
    middle: Array
    band: Array
    names: list[Any]
    typical: dict[str, Any]


def make_slices(
    answers: Answers, frame: pd.DataFrame, features: Sequence[str], points: int = POINTS
) -> list[Slice]:
    """Return one slice per feature, over the range of the rows of ``frame``.

    Features with only missing values are skipped.

    Parameters
    ----------
    answers : Answers
    frame : DataFrame
        Rows of the user's table, from which the typical values are taken.
    features : sequence of str
        Names of columns.
    points : int
        Number of points of a line.

    Examples
    --------
    >>> from twostagegp import ExactGPRegressor
    >>> X = pd.DataFrame({"size": np.linspace(0, 1, 30), "age": np.tile([1.0, 2.0, 3.0], 10)})
    >>> answers = Answers(ExactGPRegressor().fit(X, X["size"]))
    >>> [one.middle.shape for one in make_slices(answers, X, ["size", "age"])]
    [(61, 1), (3, 1)]
    """
    model = answers.model
    kinds = column_kinds(model)
    unknown = [name for name in features if name not in kinds]
    if unknown:
        known = ", ".join(repr(name) for name in list(kinds)[:20])
        raise InputError(f"there is no column {unknown[0]!r}; the columns are {known}.")
    rules = column_rules(model)
    typical = typical_row(frame, kinds)
    slices = []
    for name in features:
        grid = make_grid(name, frame[name], kinds[name], rules[name], points)
        if len(grid.values) == 0:
            continue
        rows = grid_rows(frame, typical, {name: grid.values})
        slices.append(Slice(grid, answers.middle(rows), answers.band(rows), answers.names, typical))
    return slices


def grid_rows(
    frame: pd.DataFrame, typical: dict[str, Any], varied: dict[str, list[Any]]
) -> pd.DataFrame:
    """Return rows of typical values, except for the varied columns, with the frame's dtypes.

    Integers become floats, because a grid contains numbers between them.
    """
    n = len(next(iter(varied.values())))
    columns = {}
    for name in frame.columns:
        values = varied.get(name, [typical[name]] * n)
        dtype = frame[name].dtype
        if isinstance(dtype, pd.CategoricalDtype):
            columns[name] = pd.Series(values, dtype=object)
        elif pd.api.types.is_bool_dtype(dtype) and None not in values:
            columns[name] = pd.Series(values, dtype=bool)
        elif pd.api.types.is_numeric_dtype(dtype):
            columns[name] = pd.Series(values, dtype=np.float64)
        else:
            columns[name] = pd.Series(values)
    return pd.DataFrame(columns, columns=frame.columns)
