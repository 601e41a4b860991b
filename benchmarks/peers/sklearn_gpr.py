"""scikit-learn's GaussianProcessRegressor on a random subset of the rows.

It is exact and stores the derivative of the kernel matrix by every parameter, so some two thousand
rows are its practical limit here; more rows than that are left out at random. An RBF or a Matérn
5/2 kernel with one lengthscale per column, a constant and white noise, one restart, as in its own
examples on noisy data.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, WhiteKernel

from benchmarks.peers.base import Array, Fitted, Prediction, Scaling

__all__ = ["fit", "fit_matern"]

MAX_ROWS = 2000
RESTARTS = 1
LENGTHSCALE_BOUNDS = (1e-2, 1e3)
NOISE = (0.1, (1e-6, 1e1))
#: Rows predicted at a time.
CHUNK = 2000


class _Exact(Fitted):
    def __init__(self, model: Any, scaling: Scaling) -> None:
        self.model = model
        self.scaling = scaling

    def predict(self, X: Array) -> Prediction:
        parts = [
            self.model.predict(self.scaling.inputs(X[begin : begin + CHUNK]), return_std=True)
            for begin in range(0, len(X), CHUNK)
        ]
        mean, std = (np.concatenate(part) for part in zip(*parts, strict=True))
        return self.scaling.prediction(mean, std**2)

    def calls(self) -> Mapping[str, Callable[[Array], object]]:
        model, inputs = self.model, self.scaling.inputs
        return {
            "predict": lambda X: model.predict(inputs(X)),
            "predict, return_std": lambda X: model.predict(inputs(X), return_std=True),
        }


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Fit the rows that it can hold, with an RBF kernel."""
    return _fit(X, y, seed, RBF(_start(X), LENGTHSCALE_BOUNDS))


def fit_matern(X: Array, y: Array, seed: int) -> Fitted:
    """Fit the rows that it can hold, with a Matérn 5/2 kernel."""
    return _fit(X, y, seed, Matern(_start(X), LENGTHSCALE_BOUNDS, nu=2.5))


def _start(X: Array) -> Array:
    """Return initial lengthscales of √d, the distance of rows; the search fails from 1."""
    d = X.shape[1]
    return np.full(d, np.sqrt(d))


def _fit(X: Array, y: Array, seed: int, base: Kernel) -> Fitted:
    kept = np.random.default_rng(seed).permutation(len(y))[:MAX_ROWS]
    scaling = Scaling.of(X[kept], y[kept])
    kernel = ConstantKernel(1.0) * base + WhiteKernel(*NOISE)
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=RESTARTS, random_state=seed)
    with warnings.catch_warnings():
        # A parameter at its bound, or a search that ends early: the result is used as it is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(scaling.inputs(X[kept]), scaling.target(y[kept]))
    return _Exact(model, scaling)
