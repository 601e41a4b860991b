"""Quantile regression forest of the package quantile-forest, with its default settings.

A hundred trees; the predictive distribution of a row is the empirical one of the training targets,
weighted by how often they share its leaf. The mean is that of the same forest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import quantile_forest

from benchmarks.peers.base import Array, Fitted, Prediction, as_float64, threads

__all__ = ["fit"]


class _Forest(Fitted):
    has_std = False

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: Array) -> Prediction:
        mean = as_float64(self.model.predict(X, quantiles="mean"))
        return Prediction(mean, np.full(len(X), np.nan))

    def quantiles(self, X: Array, levels: Array) -> Array:
        return np.asarray(self.model.predict(X, quantiles=[float(level) for level in levels]))


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Grow the forest."""
    model = quantile_forest.RandomForestQuantileRegressor(random_state=seed, n_jobs=threads())
    return _Forest(model.fit(X, y))
