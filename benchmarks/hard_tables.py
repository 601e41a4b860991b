"""Named, seeded tables on which regressors and classifiers break.

A table is drawn row by row from one law and then parted into training rows and new rows, so that
the coverage of intervals at the new rows says something about the model. Where it does not (a
handful of rows, training rows with an added outlier, a target that the other rows say nothing
about), ``judged`` is False. The laws are in :mod:`benchmarks.hard_inputs` (unusual X)
and :mod:`benchmarks.hard_targets` (unusual y).

    python -m benchmarks.hard_tables    # list them
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.hard_inputs import INPUTS
from benchmarks.hard_recipe import Array, Recipe
from benchmarks.hard_targets import TARGETS

__all__ = ["NEW_ROWS", "TABLES", "HardTable", "classes", "hard_table", "main"]

#: Rows of each table that no model is trained on.
NEW_ROWS = 200

TABLES: Mapping[str, Recipe] = {**INPUTS, **TARGETS}


@dataclass(frozen=True)
class HardTable:
    """Training rows and new rows of one law.

    Attributes
    ----------
    name : str
    seed : int
    X : array of shape (n, d)
    y : array of shape (n,)
    X_new : array of shape (NEW_ROWS, d)
    y_new : array of shape (NEW_ROWS,)
    judged : bool
        Whether the coverage of intervals at the new rows says something about a model.
    """

    name: str
    seed: int
    X: Array
    y: Array
    X_new: Array
    y_new: Array
    judged: bool


def hard_table(name: str, seed: int = 0) -> HardTable:
    """Draw a table of :data:`TABLES`.

    Examples
    --------
    >>> table = hard_table("rows 5")
    >>> table.X.shape, table.y.shape, table.X_new.shape, table.judged
    ((5, 2), (5,), (200, 2), False)
    """
    recipe = TABLES[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    X, y = recipe.draw(rng, recipe.n + NEW_ROWS)
    order = rng.permutation(len(y))
    train, new = order[: recipe.n], order[recipe.n :]
    X_train, y_train = X[train].copy(), y[train].copy()
    if recipe.spoil is not None:
        X_train, y_train = recipe.spoil(rng, X_train, y_train)
    return HardTable(name, seed, X_train, y_train, X[new], y[new], recipe.judged)


def classes(table: HardTable, n_classes: int = 2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return class labels of a table: which of several equally frequent ranges the target is in.

    Ties of the target stay together, so that a target of two values has two classes whatever their
    frequencies, and a constant target one.

    Examples
    --------
    >>> labels, new = classes(hard_table("rows 40"), 3)
    >>> np.unique(labels).tolist(), len(new)
    ([0, 1, 2], 200)
    """
    values = np.unique(table.y)
    if len(values) <= n_classes:
        edges = values[1:]
    else:
        edges = np.quantile(table.y, np.arange(1, n_classes) / n_classes, method="higher")
        edges = np.unique(np.maximum(edges, values[1]))  # no row is below the first edge: no class
    return np.searchsorted(edges, table.y, "right"), np.searchsorted(edges, table.y_new, "right")


def main() -> int:
    """Print the names and sizes; returns 0."""
    for name, recipe in TABLES.items():
        table = hard_table(name)
        n, d = table.X.shape
        print(f"{name:32} {n:4d} x {d:<4d} {'' if recipe.judged else 'coverage not judged'}")
    print(f"{len(TABLES)} tables, of {sum(r.judged for r in TABLES.values())} coverage is judged")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
