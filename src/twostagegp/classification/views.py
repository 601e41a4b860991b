r"""Views of a table: how its columns are scaled before distances are taken.

Columns of an ordinary table have different units and are standardised one by one. Columns of an
embedding have no units: a column with a larger standard deviation matters more, and standardising
would give the many columns of small variance the same influence as the few of large variance. So
wide tables get three views, among which held-out log loss decides:

- *columns*: every column is centred and divided by its own standard deviation;
- *common*: every column is centred, and all are divided by one number;
- *unit*: every row is divided by its length first, so that a linear kernel depends on the cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostagegp.data.scaling import standardise_columns

__all__ = ["View", "make_views"]

Array = NDArray[np.float64]

#: Scaled values are clipped at this absolute value, so that distances stay finite.
_FAR = 1e12


@dataclass(frozen=True)
class View:
    """One way to scale a table.

    Examples
    --------
    >>> X = np.array([[0.0, 0.0], [2.0, 20.0]])
    >>> columns, common, unit = make_views(X, np.ones(2), ["a", "b"], many_columns=1)[0]
    >>> columns(X).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> common(X).round(2).tolist()
    [[-0.14, -1.41], [0.14, 1.41]]
    """

    name: str
    columns: NDArray[np.int64]
    centre: Array
    scale: Array
    unit: bool = False

    def __call__(self, X: Array) -> Array:
        """Return the scaled table, shape (n, number of columns in use)."""
        Z = X[:, self.columns]
        if self.unit:
            Z = _unit_rows(Z)
        with np.errstate(over="ignore"):
            Z = (Z - self.centre) / self.scale
        return np.clip(Z, -_FAR, _FAR)


def _unit_rows(Z: Array) -> Array:
    # Divided by the largest entry first, since its square might overflow.
    largest = np.abs(Z).max(1, initial=0.0, keepdims=True)
    Z = Z / np.where(largest > 0.0, largest, 1.0)
    length = np.sqrt((Z**2).sum(1, keepdims=True))
    return Z / np.where(length > 0.0, length, 1.0)


def make_views(
    X: Array, weight: Array, names: Sequence[str], many_columns: int = 30
) -> tuple[list[View], list[str]]:
    """Return the views of a table, and the names of its constant columns.

    Parameters
    ----------
    X : array of shape (m, d)
    weight : array of shape (m,)
    many_columns : int
        A table with more columns may be an embedding, and gets all three views.
    """
    columns, mean, scale, constant = standardise_columns(X, weight, names)
    d = len(columns)
    views = [View("columns", columns, mean, scale)]
    if d > many_columns:
        common = np.full(d, float(np.sqrt(np.mean(scale**2))))
        views.append(View("common", columns, mean, common))
        U = _unit_rows(X[:, columns])
        share = weight / weight.sum()
        centre = share @ U
        spread = float(np.sqrt(np.mean(share @ (U - centre) ** 2)))
        views.append(View("unit", columns, centre, np.full(d, max(spread, 1e-12)), unit=True))
    return views, constant
