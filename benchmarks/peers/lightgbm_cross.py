"""LightGBM with cross-conformal intervals, for few training rows.

The rows are split into K folds. Model k is trained without fold k; the number of rounds, common to
all, has the least mean squared error on the folds that were left out. With μ_k(i) the model that
has not seen row i and r_i = y_i - μ_k(i)(x_i), the predictive distribution of a new row x is the
empirical one of

    μ_k(i)(x) + r_i,    i = 1, …, n,

and its τ quantile the ⌈(n + 1) τ⌉-th smallest of them for τ above one half, and the mirror image
below: the CV+ intervals of Barber et al. (2021) and their one-sided versions. For levels that n
rows cannot vouch for, whose interval would be unbounded, the outermost value is taken. The mean is
that of the K models.
"""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np

from benchmarks.peers.base import Array, Fitted, Prediction, as_float64, threads
from benchmarks.peers.folds import FOLDS

__all__ = ["fit"]

LEARNING_RATE = 0.05
MAX_ROUNDS = 2000
#: Rounds without a better score on the folds before the boosting ends.
PATIENCE = 50
#: The default of 20 allows hardly a split on fifty rows.
MIN_ROWS_IN_LEAF = 5


class _Cross(Fitted):
    has_std = False

    def __init__(self, models: list[Any], rounds: int, folds: list[Array], y: Array, X: Array):
        self.models = models
        self.rounds = rounds
        self.fold_of = np.empty(len(y), dtype=np.intp)
        for k, out in enumerate(folds):
            self.fold_of[out] = k
        self.residual = y - self._means(X)[np.arange(len(y)), self.fold_of]

    def predict(self, X: Array) -> Prediction:
        means = self._means(X).mean(axis=1)
        return Prediction(means, np.full(len(X), np.nan))

    def quantiles(self, X: Array, levels: Array) -> Array:
        values = np.sort(self._means(X)[:, self.fold_of] + self.residual, axis=1)
        return values[:, _ranks(np.asarray(levels), len(self.residual))]

    def facts(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def _means(self, X: Array) -> Array:
        found = [as_float64(m.predict(X, num_iteration=self.rounds)) for m in self.models]
        return np.column_stack(found)


def _ranks(levels: Array, n: int) -> Array:
    """Return the places of the quantiles among n sorted values, outwards of the exact place.

    Examples
    --------
    >>> _ranks(np.array([0.05, 0.5, 0.95]), 39)
    array([ 1, 19, 37])
    """
    # Rounding: 40 · 0.95 is a little more than 38.
    upper = np.ceil((n + 1) * levels - 1e-9) - 1
    lower = np.floor((n + 1) * levels + 1e-9) - 1
    return np.clip(np.where(levels > 0.5, upper, lower), 0, n - 1).astype(np.intp)


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Boost on all folds at once."""
    parts = np.array_split(np.random.default_rng(seed).permutation(len(y)), FOLDS)
    everything = np.arange(len(y))
    found = lightgbm.cv(
        {
            "objective": "regression",
            "learning_rate": LEARNING_RATE,
            "min_data_in_leaf": MIN_ROWS_IN_LEAF,
            "seed": seed,
            "num_threads": threads(),
            "verbose": -1,
        },
        lightgbm.Dataset(X, y, params={"min_data_in_leaf": MIN_ROWS_IN_LEAF, "verbose": -1}),
        num_boost_round=MAX_ROUNDS,
        folds=[(np.setdiff1d(everything, out), out) for out in parts],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        return_cvbooster=True,
    )
    together = found["cvbooster"]
    return _Cross(together.boosters, together.best_iteration, parts, y, X)
