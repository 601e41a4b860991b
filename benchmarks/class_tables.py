"""Random training and test rows of public classification tables.

Four tables come with scikit-learn: iris, wine, breast cancer and digits. The others are regression
tables of :mod:`benchmarks.many_tables`, with categories and gaps as they are: their classes are
zero and positive where the target is a count with many zeros, otherwise the thirds or halves of the
target's distribution.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import many_tables

__all__ = ["SHIPPED", "TABLES", "ClassDraw", "draw", "load"]

Codes = NDArray[np.int64]

#: Tables of scikit-learn, with the names of their loaders.
SHIPPED: Mapping[str, str] = {
    "iris": "load_iris",
    "wine classes": "load_wine",
    "breast cancer": "load_breast_cancer",
    "digits": "load_digits",
}
#: Regression tables, with the number of classes; 0: zero and positive.
CUT: Mapping[str, int] = {
    **{"affairs": 0, "doctorvisits": 0, "psid1976": 0},
    **{"birthwt": 2, "carseats": 2, "hitters": 2, "houseprices": 2, "salaries": 2, "wage": 2},
    **{"energy": 2, "flights": 2, "protein": 2},
    **{"concrete": 3, "diamonds": 3, "kin8nm": 3, "pol": 3, "quakes": 3},
}
TABLES = (*SHIPPED, *CUT)


@dataclass(frozen=True)
class ClassDraw:
    """Training rows and other rows with their classes; the inputs are arrays or data frames."""

    X: Any
    codes: Codes
    X_test: Any
    codes_test: Codes


@lru_cache(maxsize=2)
def load(name: str) -> tuple[Any, Codes]:
    """Return inputs, an array or a data frame, and classes of a table.

    Examples
    --------
    >>> X, codes = load("iris")
    >>> X.shape, np.bincount(codes).tolist()
    ((150, 4), [50, 50, 50])
    """
    if name in SHIPPED:
        from sklearn import datasets

        X, codes = getattr(datasets, SHIPPED[name])(return_X_y=True)
        return X, codes.astype(np.int64)
    X, y = many_tables.load(name)
    if CUT[name] == 0:
        return X, (y > 0.0).astype(np.int64)
    cuts = np.quantile(y, np.arange(1, CUT[name]) / CUT[name])
    return X, np.digitize(y, cuts).astype(np.int64)


def draw(name: str, rows: int, number: int, test_rows: int = 1000) -> ClassDraw:
    """Return ``rows`` random training rows, at most 70 % of the table, and other rows."""
    X, codes = load(name)
    order = np.random.default_rng([number, rows, zlib.crc32(name.encode())]).permutation(len(codes))
    rows = min(rows, int(0.7 * len(codes)))
    train, test = order[:rows], order[rows : rows + test_rows]
    take = many_tables.take
    return ClassDraw(take(X, train), codes[train], take(X, test), codes[test])
