"""The test rows and a regressor's predictions for them, computed once for the whole report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.checks import check_finite
from twostagegp.errors import InputError
from twostagegp.estimators.prediction import mean_and_sigma
from twostagegp.pipeline.calibration.law import Law, Laws
from twostagegp.plotting.slices.tables import as_given, model_frame

__all__ = [
    "TargetPredictions",
    "TestRows",
    "predict_rows",
    "read_rows",
    "row_labels",
    "sample_rows",
]

Array = NDArray[np.float64]

#: Number of test rows predicted at a time.
_CHUNK = 1 << 14


@dataclass(frozen=True)
class TestRows:
    """The test table in the user's columns.

    Attributes
    ----------
    frame : DataFrame
    labels : list of str
        The name of each row: its index in a data frame, otherwise its number, starting at 0.
    y : array
        Outcomes, shape (n, p), or class labels, shape (n,).
    targets : list of str
        Names of the targets.
    """

    frame: pd.DataFrame
    labels: list[str]
    y: NDArray[Any]
    targets: list[str]

    __test__ = False  # pytest would otherwise collect the class because of its name


@dataclass(frozen=True)
class TargetPredictions:
    """Outcomes of one target and their predictive distributions."""

    name: str
    y: Array
    mean: Array
    sigma: Array
    law: Law

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def std(self) -> Array:
        return self.sigma * self.law.shape.std

    @property
    def z(self) -> Array:
        return (self.y - self.mean) / self.sigma

    @property
    def pit(self) -> Array:
        return np.clip(self.laws.pit(self.y), 0.0, 1.0)

    @property
    def residual(self) -> Array:
        return self.y - self.mean

    @property
    def laws(self) -> Laws:
        return self.law.at(self.mean, self.sigma)

    def ends(self, level: float) -> Array:
        """Return the ends of the central interval of Z, for targets without weighted values."""
        return self.law.shape.ppf(np.array([0.5 - level / 2.0, 0.5 + level / 2.0]))

    def intervals(self, levels: Sequence[float]) -> Iterator[Array]:
        """Yield the central intervals of many levels, computed together, ten at a time."""
        for first in range(0, len(levels), 10):
            some = np.asarray(levels[first : first + 10])
            ends = self.laws.quantiles(np.concatenate([0.5 - some / 2.0, 0.5 + some / 2.0]))
            for k in range(len(some)):
                yield ends[:, [k, len(some) + k]]

    def interval(self, level: float) -> Array:
        return next(self.intervals([level]))

    def inside(self, level: float) -> NDArray[np.bool_]:
        return self.within(self.interval(level))

    def within(self, interval: Array) -> NDArray[np.bool_]:
        """Return which outcomes lie in their intervals, of shape (n, 2)."""
        low, high = interval.T
        flags: NDArray[np.bool_] = (low <= self.y) & (self.y <= high)
        return flags


def read_rows(model: Any, X: Any, y: Any, classes: bool) -> TestRows:
    """Check the test rows and return them with the column names of the fit."""
    frame = model_frame(model, X)
    outcome = y.to_numpy() if isinstance(y, pd.DataFrame | pd.Series) else np.asarray(y)
    if len(frame) == 0 or len(outcome) != len(frame):
        raise InputError(
            f"X has {len(frame)} rows and y has {len(outcome)}; give at least one test row, and "
            "one outcome per row."
        )
    labels = row_labels(X, len(frame))
    if classes:
        if outcome.ndim != 1:
            raise InputError(f"y has shape {outcome.shape}; give one label per row, shape (n,).")
        return TestRows(frame, labels, outcome, [_name(y, "class")])
    values = outcome.astype(np.float64).reshape(len(outcome), -1)
    check_finite(values, "y")
    p = len(model.fitted_.targets)
    if values.shape[1] != p:
        raise InputError(
            f"y has {values.shape[1]} column(s), but the model has {p} target(s); "
            "give one column per target."
        )
    if isinstance(y, pd.DataFrame):
        names = [str(name) for name in y.columns]
    else:
        names = [_name(y, "the target")] if p == 1 else [f"target {j + 1}" for j in range(p)]
    return TestRows(frame, labels, values, names)


def _name(y: Any, default: str) -> str:
    name = getattr(y, "name", None)
    return default if name is None else str(name)


def row_labels(X: Any, n: int) -> list[str]:
    """Return the name of each row: its index in a data frame, otherwise its number."""
    if isinstance(X, pd.DataFrame):
        return [str(label) for label in X.index]
    return [str(i) for i in range(n)]


def predict_rows(model: Any, rows: TestRows) -> tuple[list[TargetPredictions], float, list[str]]:
    """Return the predictions of every target, the seconds they took, and the warnings raised."""
    parts, begin = [], time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for first in range(0, len(rows.frame), _CHUNK):
            part = as_given(model, rows.frame.iloc[first : first + _CHUNK])
            parts.append(mean_and_sigma(model, part))
    seconds = time.perf_counter() - begin
    mean, sigma = (np.concatenate(column) for column in zip(*parts, strict=True))
    predicted = [
        TargetPredictions(name, rows.y[:, j], mean[:, j], sigma[:, j], law)
        for j, (name, law) in enumerate(zip(rows.targets, model.fitted_.laws, strict=True))
    ]
    return predicted, seconds, list(dict.fromkeys(str(each.message) for each in caught))


def sample_rows(n: int, most: int) -> NDArray[np.int64]:
    """Return the sorted indices of all n rows, or of a random sample of ``most`` (seed 0)."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])
