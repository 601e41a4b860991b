"""CatBoost with early stopping, for the mean alone and with its own uncertainty.

Settings are CatBoost's defaults, which its documentation says need little tuning; the learning rate
is chosen by the library from the number of rows and of iterations. A tenth of the training rows
ends the boosting, and the best iteration on it is kept. For few rows there is one model per fold
instead (:mod:`benchmarks.peers.folds`), which takes data frames as they are: CatBoost reads
categories and gaps itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import catboost
import numpy as np

from benchmarks.peers.base import Array, Fitted, Prediction, Split, as_float64, threads
from benchmarks.peers.encoding import MISSING, is_frame, split_columns
from benchmarks.peers.folds import fit_folds

__all__ = ["fit_few_rows", "fit_rmse", "fit_uncertainty"]

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


def fit_few_rows(X: Any, y: Array, seed: int) -> Fitted:
    """Fit mean and variance on each fold's training rows."""
    categories = split_columns(X)[1] if is_frame(X) else []

    def prepared(rows: Any) -> Any:
        kinds = {name: rows[name].astype(object).fillna(MISSING).astype(str) for name in categories}
        return rows.assign(**kinds) if categories else rows

    class Prepared(_MeanAndVariance):
        def predict(self, X: Any) -> Prediction:
            return super().predict(prepared(X))

    return fit_folds(
        lambda rows: Prepared(_boost(rows, "RMSEWithUncertainty", seed, categories)),
        prepared(X),
        y,
        seed,
    )


def _boost(rows: Split, loss: str, seed: int, categories: Sequence[str] = ()) -> Any:
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
        cat_features=list(categories) or None,
        use_best_model=True,
    )
