"""GPBoost's Gaussian process with a Vecchia approximation.

Covariance and number of neighbours are what its documentation shows for Gaussian processes: a
Matérn covariance with smoothness 1.5, 20 neighbours to fit and, as is its default, twice as many to
predict, random order, L-BFGS on the likelihood. Columns and target are standardised, because one
range parameter for all columns needs comparable units. On few rows the exact process takes
no longer than the approximation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gpboost

from benchmarks.peers.base import Array, Fitted, Prediction, Scaling, threads

__all__ = ["fit", "fit_ard", "fit_exact", "fit_exact_ard"]

NUM_NEIGHBORS = 20
VECCHIA: Mapping[str, Any] = {"gp_approx": "vecchia", "num_neighbors": NUM_NEIGHBORS}
EXACT: Mapping[str, Any] = {"gp_approx": "none"}
SMOOTHNESS = 1.5


class _Vecchia(Fitted):
    def __init__(self, model: Any, scaling: Scaling) -> None:
        self.model = model
        self.scaling = scaling

    def predict(self, X: Array) -> Prediction:
        found = self.model.predict(
            gp_coords_pred=self.scaling.inputs(X), predict_var=True, predict_response=True
        )
        return self.scaling.prediction(found["mu"], found["var"])


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Fit with one range parameter for all columns."""
    return _fit(X, y, seed, "matern")


def fit_ard(X: Array, y: Array, seed: int) -> Fitted:
    """Fit with one range parameter per column, which takes many times longer."""
    return _fit(X, y, seed, "matern_ard")


def fit_exact(X: Array, y: Array, seed: int) -> Fitted:
    """Fit without the approximation."""
    return _fit(X, y, seed, "matern", EXACT)


def fit_exact_ard(X: Array, y: Array, seed: int) -> Fitted:
    """Fit with one range parameter per column and without the approximation."""
    return _fit(X, y, seed, "matern_ard", EXACT)


def _fit(
    X: Array, y: Array, seed: int, covariance: str, approximation: Mapping[str, Any] = VECCHIA
) -> Fitted:
    scaling = Scaling.of(X, y)
    model = gpboost.GPModel(
        gp_coords=scaling.inputs(X),
        cov_function=covariance,
        cov_fct_shape=SMOOTHNESS,
        **approximation,
        likelihood="gaussian",
        seed=seed,
        num_parallel_threads=threads(),
    )
    model.fit(y=scaling.target(y))
    return _Vecchia(model, scaling)
