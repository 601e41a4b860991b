"""LightGBM with early stopping, and split-conformal intervals whose width depends on the row.

The trees predict a mean only, so the uncertainty is added as is common in practice. A tenth of the
training rows is kept back; it ends the boosting, and the absolute residuals on it train two small
models of the local width, one on each half, each scored on the other half. The interval is the
conformal quantile of ``|r| / width`` times the width; the standard deviation is the width scaled so
that the squared residuals in its units have mean 1.

The settings are those that the documentation recommends for accuracy: a small learning rate with
many rounds, stopped early, and more leaves than the default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np

from benchmarks.peers.base import LEVEL, Array, Fitted, Prediction, Split, as_float64, threads

__all__ = ["fit"]

LEARNING_RATE = 0.05
NUM_LEAVES = 63
MAX_ROUNDS = 5000
#: Rounds without a better validation score before the boosting ends.
PATIENCE = 100

# The width is learned from a twentieth of the rows, so its model is small and not stopped early.
WIDTH_ROUNDS = 100
WIDTH_LEAVES = 15
#: A width is at least this share of the median absolute residual: trees may predict 0 and below.
WIDTH_FLOOR = 0.05


@dataclass(frozen=True)
class _Conformal(Fitted):
    mean: Any
    widths: list[Any]
    floor: float
    std_factor: float
    interval_factor: float

    def predict(self, X: Array) -> Prediction:
        return Prediction(as_float64(self.mean.predict(X)), self.std_factor * self._width(X))

    def interval(self, X: Array) -> Array:
        mean, half = as_float64(self.mean.predict(X)), self.interval_factor * self._width(X)
        return np.column_stack([mean - half, mean + half])

    def calls(self) -> Mapping[str, Callable[[Array], object]]:
        return {"predict": self.mean.predict, "conformal interval": self.interval}

    def _width(self, X: Array) -> Array:
        return np.mean([_width(model, X, self.floor) for model in self.widths], axis=0)


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Boost the mean, then the width on the rows that were kept back."""
    rows = Split.of(X, y, seed)
    data = lightgbm.Dataset(rows.X, rows.y)
    mean = lightgbm.train(
        _settings(NUM_LEAVES, seed),
        data,
        num_boost_round=MAX_ROUNDS,
        valid_sets=[lightgbm.Dataset(rows.X_validation, rows.y_validation, reference=data)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    X_kept = rows.X_validation
    error = np.abs(rows.y_validation - as_float64(mean.predict(X_kept)))
    floor = WIDTH_FLOOR * float(np.median(error)) or np.finfo(np.float64).tiny
    halves = np.array_split(np.arange(len(error)), 2)
    widths = [
        lightgbm.train(
            _settings(WIDTH_LEAVES, seed),
            lightgbm.Dataset(X_kept[half], error[half]),
            num_boost_round=WIDTH_ROUNDS,
        )
        for half in halves
    ]
    # The rows are in random order already, so the halves are too.
    ratio = np.concatenate(
        [
            error[half] / _width(model, X_kept[half], floor)
            for model, half in zip(widths, reversed(halves), strict=True)
        ]
    )
    return _Conformal(
        mean, widths, floor, float(np.sqrt(np.mean(ratio**2))), conformal_quantile(ratio, LEVEL)
    )


def conformal_quantile(scores: Array, level: float) -> float:
    """Return the ⌈(n + 1) level⌉-th smallest score, or the largest if there are too few scores.

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 20.0), 0.95)
    19.0
    >>> conformal_quantile(np.arange(1.0, 101.0), 0.95)
    96.0
    """
    rank = min(int(np.ceil((len(scores) + 1) * level)), len(scores))
    return float(np.sort(scores)[rank - 1])


def _settings(leaves: int, seed: int) -> dict[str, Any]:
    return {
        "objective": "regression",
        "learning_rate": LEARNING_RATE,
        "num_leaves": leaves,
        "seed": seed,
        "num_threads": threads(),
        "verbose": -1,
    }


def _width(model: Any, X: Array, floor: float) -> Array:
    return np.maximum(as_float64(model.predict(X)), floor)
