"""CatBoost with early stopping, for the mean alone and with its own uncertainty.

Settings are CatBoost's defaults, which its documentation says need little tuning; the learning rate
is chosen by the library from the number of rows and of iterations. A tenth of the training rows
ends the boosting, and the best iteration on it is kept.
"""

from __future__ import annotations

from typing import Any

import catboost
import numpy as np

from benchmarks.peers.base import Array, Fitted, Prediction, Split, as_float64, threads

__all__ = ["fit_rmse", "fit_uncertainty"]

MAX_ITERATIONS = 5000
#: Iterations without a better validation score before the boosting ends.
PATIENCE = 100


class _Mean(Fitted):
    """One width for all rows: the root mean squared residual of the validation rows."""

    def __init__(self, model: Any, rows: Split) -> None:
        self.model = model
        residual = rows.y_validation - as_float64(model.predict(rows.X_validation))
        self.std = float(np.sqrt(np.mean(residual**2)))

    def predict(self, X: Array) -> Prediction:
        return Prediction(as_float64(self.model.predict(X)), np.full(len(X), self.std))


class _MeanAndVariance(Fitted):
    """Two trees at once: the mean and the variance of the noise."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: Array) -> Prediction:
        both = self.model.predict(X, prediction_type="RMSEWithUncertainty")
        return Prediction(as_float64(both[:, 0]), np.sqrt(as_float64(both[:, 1])))


def fit_rmse(X: Array, y: Array, seed: int) -> Fitted:
    """Fit the mean by squared error: CatBoost for accuracy."""
    rows = Split.of(X, y, seed)
    return _Mean(_boost(rows, "RMSE", seed), rows)


def fit_uncertainty(X: Array, y: Array, seed: int) -> Fitted:
    """Fit mean and variance by the Gaussian likelihood, as its tutorial on uncertainty does."""
    return _MeanAndVariance(_boost(Split.of(X, y, seed), "RMSEWithUncertainty", seed))


def _boost(rows: Split, loss: str, seed: int) -> Any:
    model = catboost.CatBoostRegressor(
        loss_function=loss,
        iterations=MAX_ITERATIONS,
        random_seed=seed,
        thread_count=threads(),
        allow_writing_files=False,
        verbose=False,
    )
    return model.fit(
        rows.X,
        rows.y,
        eval_set=(rows.X_validation, rows.y_validation),
        early_stopping_rounds=PATIENCE,
        use_best_model=True,
    )
