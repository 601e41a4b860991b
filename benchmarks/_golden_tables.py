"""Generated tables of the golden fits: the same numbers in every run, from fixed seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = [
    "Table",
    "classes",
    "constant_target",
    "frame",
    "groups_of",
    "noise_of",
    "numbers",
    "pasted",
    "repeated",
    "two_targets",
    "weights_of",
]

Array = NDArray[np.float64]

#: Rows at which every model is asked for its predictions.
NEW_ROWS = 20


@dataclass(frozen=True)
class Table:
    """Training rows ``X``, ``y``, and rows ``X_new``, ``y_new`` to predict."""

    X: Any
    y: Any
    X_new: Any
    y_new: Any

    @property
    def unit(self) -> float:
        """Standard deviation of the target, the smallest of several; 1 for labels and constants."""
        y = np.asarray(self.y)
        if y.dtype.kind != "f":
            return 1.0
        return float(np.std(y, axis=0).min()) or 1.0


def _split(X: Any, y: Any, n: int) -> Table:
    return Table(X[:n], y[:n], X[n:], y[n:])


def _surface(X: Array) -> Array:
    return np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]


def _noise(X: Array, rng: np.random.Generator) -> Array:
    """Return noise whose standard deviation grows with the second column."""
    return (0.15 + 0.1 * (X[:, 1] + 2.0)) * rng.normal(size=len(X))


def numbers(n: int, seed: int = 0) -> Table:
    """Return three numeric columns, the last of which is independent of the target."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, size=(n + NEW_ROWS, 3))
    return _split(X, 5.0 + 3.0 * (_surface(X) + _noise(X, rng)), n)


def two_targets(n: int) -> Table:
    """Return a table with two targets."""
    table = numbers(n)
    others = [np.column_stack([y, X[:, 0] * y]) for X, y in _both(table)]
    return replace(table, y=others[0], y_new=others[1])


def _both(table: Table) -> list[tuple[Any, Any]]:
    return [(table.X, table.y), (table.X_new, table.y_new)]


def repeated(n: int) -> Table:
    """Return a table in which a quarter of the rows repeat another row's inputs, not its target."""
    table = numbers(n)
    X = table.X.copy()
    X[n // 2 : n // 2 + n // 4] = X[: n // 4]
    return replace(table, X=X)


def pasted(n: int) -> Table:
    """Return a table that contains every row twice, inputs and target."""
    table = numbers(n)
    return replace(table, X=np.tile(table.X, (2, 1)), y=np.tile(table.y, 2))


def constant_target(n: int) -> Table:
    """Return a table whose target is the same number in every row."""
    table = numbers(n)
    return replace(table, y=np.full(n, 3.5), y_new=np.full(NEW_ROWS, 3.5))


def frame(n: int) -> Table:
    """Return a data frame with numbers, categories, text, booleans, dates and gaps."""
    table = numbers(n)
    rng = np.random.default_rng(7)
    m = n + NEW_ROWS
    X = np.concatenate([table.X, table.X_new])
    columns = pd.DataFrame({"length": X[:, 0], "width": X[:, 1]})
    columns.loc[rng.random(m) < 0.15, "width"] = np.nan
    colour = rng.integers(0, 3, size=m)
    columns["colour"] = pd.Categorical(np.array(["red", "green", "blue"])[colour])
    columns["site"] = np.array(["north", "south"])[rng.integers(0, 2, size=m)]
    columns["open"] = rng.random(m) < 0.5
    days = rng.integers(0, 700, size=m)
    columns["day"] = pd.Timestamp("2021-03-01") + pd.to_timedelta(days, unit="D")
    y = np.concatenate([table.y, table.y_new]) + colour + 0.002 * days
    return Table(columns.iloc[:n], y[:n], columns.iloc[n:], y[n:])


def classes(n: int, k: int) -> Table:
    """Return numeric inputs with the labels of k classes."""
    table = numbers(n)
    names = np.array(["ash", "birch", "cedar"][:k])
    limits = np.quantile(table.y, np.arange(1, k) / k)
    return replace(
        table,
        y=names[np.searchsorted(limits, table.y)],
        y_new=names[np.searchsorted(limits, table.y_new)],
    )


def weights_of(table: Table) -> Array:
    """Return counts from 0 to 3, one per training row."""
    return np.random.default_rng(1).integers(0, 4, size=len(table.X)).astype(np.float64)


def groups_of(table: Table) -> NDArray[np.int64]:
    """Return labels of groups of four rows or more, one label per training row."""
    n = len(table.X)
    return np.random.default_rng(2).integers(0, n // 4, size=n)


def noise_of(table: Table) -> Array:
    """Return known noise variances, one per training row."""
    return np.random.default_rng(3).uniform(0.0, 0.5, size=len(table.X))
