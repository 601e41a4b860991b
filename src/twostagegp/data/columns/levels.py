"""The levels of one column of the user's table, found again in standardised inputs.

A model sees standardised numbers, not the user's values. A level is the combination of numbers that
one column has become: for a category the zeros and ones of its columns, for a boolean, a count or
an ordered category one number. Rare levels that the encoding has pooled are one level, and missing
values are another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.columns.categories import CategoryColumn
from twostagegp.data.columns.choice import Column
from twostagegp.data.columns.encoder import TableEncoder
from twostagegp.data.scaling import Prepared
from twostagegp.errors import InputError

__all__ = ["Levels", "find_column", "learn_levels"]

Array = NDArray[np.float64]

#: Largest difference of a number from that of a level, as a share of the smallest difference
#: between two levels: rounding to float32 changes numbers by less.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Levels:
    """The levels of a column in the training rows.

    Attributes
    ----------
    column : str
        Name of the column.
    labels : list of str
        Name of each of the L levels.
    positions : integer array of shape (k,)
        The standardised inputs that the column has become.
    codes : array of shape (L, k)
        Their values in each level.
    """

    column: str
    labels: list[str]
    positions: NDArray[np.int64]
    codes: Array

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _reach(self) -> float:
        """Largest difference from a level's numbers that counts as rounding."""
        if len(self) < 2:
            return _ROUNDING
        apart = np.abs(self.codes[:, None] - self.codes).max(-1)
        return _ROUNDING * float(apart[~np.eye(len(self), dtype=bool)].min())

    def numbers(self, X: Any) -> Any:
        """Return the level number of each standardised row; -1 for a level not seen in training.

        Parameters
        ----------
        X : array or Tensor of shape (..., d)

        Returns
        -------
        number : integer array or Tensor of shape (...)

        Examples
        --------
        >>> levels = Levels("kind", ["a", "b"], np.array([1]), np.array([[-1.0], [2.0]]))
        >>> levels.numbers(np.array([[7.0, 2.0], [7.0, -1.0], [7.0, 0.5]]))
        array([ 1,  0, -1])
        """
        part: Any = None
        number: Any = None
        codes: Any = self.codes
        where: Any = np.where
        if isinstance(X, Tensor):
            where, codes = torch.where, torch.as_tensor(self.codes, device=X.device)
            part = X[..., torch.as_tensor(self.positions, device=X.device)].double()
            number = torch.full(part.shape[:-1], -1, device=X.device)
        else:
            part = X[..., self.positions]
            number = np.full(part.shape[:-1], -1, dtype=np.int64)
        for k, code in enumerate(codes):
            number = where((abs(part - code) <= self._reach).all(-1), k, number)
        return number


def find_column(column: Any, names: Sequence[str], named: bool) -> int:
    """Return the number of a column that is given by its name or number.

    Parameters
    ----------
    column : str or int
    names : sequence of str
        Names of the columns of the table.
    named : bool
        Whether the columns have names of their own, as in a data frame.

    Examples
    --------
    >>> find_column("age", ["sex", "age"], True), find_column(0, ["sex", "age"], True)
    (1, 0)
    >>> find_column("Age", ["sex", "age"], True)
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: calibrate_by='Age' is no column of X; the columns are 'sex',
    'age'.
    """
    if isinstance(column, Integral):
        if 0 <= int(column) < len(names):
            return int(column)
        raise InputError(
            f"calibrate_by={column}: X has {len(names)} columns; use a number from 0 to "
            f"{len(names) - 1}."
        )
    if not named:
        raise InputError(
            f"calibrate_by={column!r}: X has no column names; use the number of a column, from 0 "
            f"to {len(names) - 1}, or a data frame."
        )
    if column not in names:
        listed = ", ".join(repr(name) for name in names[:20])
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise InputError(
            f"calibrate_by={column!r} is no column of X; the columns are {listed}{more}."
        )
    return list(names).index(column)


def learn_levels(
    column: int,
    names: Sequence[str],
    encoder: TableEncoder | None,
    data: Prepared,
    most: int,
    named: bool = True,
) -> Levels:
    """Return the levels of a column in the training rows.

    Parameters
    ----------
    column : int
        Number of the column in the user's table.
    names : sequence of str
        Names of the user's columns.
    encoder : TableEncoder or None
        What became of the columns; None if they stayed as they are.
    data : Prepared
        The training rows.
    most : int
        Largest number of levels.
    named : bool
        Whether the columns have names of their own, as in a data frame.
    """
    rule = None if encoder is None else encoder.rules_[column]
    begin, width = column, 1
    if encoder is not None and rule is not None:
        begin = sum(len(each.names) for each in encoder.rules_[:column])
        width = len(rule.names)
        # How common a level is does not tell which one it is.
        width -= int(isinstance(rule, CategoryColumn) and rule.frequency)
    encoded = data.scaling.columns
    positions = np.flatnonzero((encoded >= begin) & (encoded < begin + width))
    codes = np.unique(data.merged.X[:, positions], axis=0)
    if isinstance(rule, CategoryColumn):  # so that the level of the first column comes first
        codes = codes[::-1].copy()
    if len(codes) > most:
        given, of_x = (
            (repr(names[column]), f"X[{names[column]!r}]")
            if named
            else (
                str(column),
                f"X[:, {column}]",
            )
        )
        raise InputError(
            f"calibrate_by={given}: the column has {len(codes)} distinct values, but intervals are "
            f"calibrated by at most {most} levels. Use a column of categories, or add one to X "
            f"with a few bins of this one: pandas.qcut({of_x}, 5, labels=False)."
        )
    values = np.zeros((len(codes), len(encoder.names) if encoder else len(names)))
    used = encoded[positions]
    values[:, used] = codes * data.scaling.x_scale[positions] + data.scaling.x_mean[positions]
    own = values[:, begin : begin + (width if rule is None else len(rule.names))]
    labels = ["all rows"] if len(codes) == 1 else _labels(rule, own)
    return Levels(names[column], labels, positions, codes)


def _labels(rule: Column | None, values: Array) -> list[str]:
    """Return the levels in the user's words, from their encoded numbers."""
    given = values[:, 0] if rule is None else rule.decode(values)
    return [_words(value) for value in np.asarray(given, dtype=object)]


def _words(value: Any) -> str:
    if pd.isna(value):
        return "(missing)"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
