"""Folds of few training rows: boosting that keeps nothing back for good.

Boosting needs rows to end it, and a tenth of fifty rows is five. So the rows are split into folds,
one model per fold is trained on the others and ended by that fold, and all models predict together,
as the mixture of their distributions with equal weights. With means m_k and variances s_k² of its K
parts, the mixture has

    m = mean of m_k,    s² = mean of s_k² + mean of (m_k - m)².
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.peers.base import Array, Fitted, Prediction, Split

__all__ = ["FOLDS", "Mixture", "fit_folds", "folds"]

FOLDS = 5


def folds(X: Array, y: Array, seed: int) -> Iterator[Split]:
    """Yield the training rows without one fold, and the fold.

    Examples
    --------
    >>> rows = np.arange(10.0)
    >>> sorted(v for part in folds(rows, rows, 0) for v in part.y_validation.tolist()) == list(rows)
    True
    """
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.array_split(order, FOLDS)
    for k, out in enumerate(parts):
        kept = np.concatenate([part for j, part in enumerate(parts) if j != k])
        yield Split(_rows(X, kept), y[kept], _rows(X, out), y[out])


def _rows(X: Array, index: Array) -> Array:
    return X.iloc[index] if hasattr(X, "iloc") else X[index]


class Mixture(Fitted):
    """The mixture of several models; its quantiles are those of a Gaussian with its moments."""

    def __init__(self, models: Sequence[Fitted]) -> None:
        self.models = models

    def predict(self, X: Array) -> Prediction:
        parts = [model.predict(X) for model in self.models]
        means = np.array([part.mean for part in parts])
        variances = np.array([part.std**2 for part in parts])
        return Prediction(means.mean(axis=0), np.sqrt(variances.mean(axis=0) + means.var(axis=0)))


def fit_folds(fit: Callable[[Split], Fitted], X: Array, y: Array, seed: int) -> Mixture:
    """Fit one model per fold."""
    return Mixture([fit(rows) for rows in folds(X, y, seed)])
