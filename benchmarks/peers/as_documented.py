"""scikit-learn's and GPyTorch's exact Gaussian processes on the table as it is.

The other modules of this package standardise columns and target before a library sees them. Here
nothing is done to the numbers, as in the libraries' own first examples: scikit-learn with a
constant, a Matérn 3/2 and white noise at their default starts and bounds; GPyTorch with the
regression tutorial's model (float32, constant mean, scaled RBF) and its loop, 50 steps of Adam at
0.1.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel

from benchmarks.gpytorch_exact import ExactModel, train
from benchmarks.peers.base import Array, Fitted, Prediction, as_float64

__all__ = ["fit_gpytorch", "fit_sklearn"]

STEPS, LEARNING_RATE = 50, 0.1


class _Sklearn(Fitted):
    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, X: Array) -> Prediction:
        return Prediction(*self.model.predict(X, return_std=True))


def fit_sklearn(X: Array, y: Array, seed: int) -> Fitted:
    """Fit scikit-learn with the documented kernel for noisy data."""
    kernel = 1.0 * Matern(nu=1.5) + WhiteKernel()
    return _Sklearn(GaussianProcessRegressor(kernel, random_state=seed).fit(X, y))


class _GPyTorch(Fitted):
    def __init__(self, model: ExactModel) -> None:
        self.model = model.eval()

    def predict(self, X: Array) -> Prediction:
        with torch.no_grad():
            found = self.model.likelihood.eval()(self.model(_tensor(X)))
            variance = as_float64(found.variance.numpy())
            return Prediction(as_float64(found.mean.numpy()), np.sqrt(variance))


def fit_gpytorch(X: Array, y: Array, seed: int) -> Fitted:
    """Fit GPyTorch with the tutorial's model and loop."""
    torch.manual_seed(seed)
    model = train(
        _tensor(X),
        _tensor(y),
        gpytorch.kernels.RBFKernel(),
        STEPS,
        LEARNING_RATE,
        mean=gpytorch.means.ConstantMean(),
        optimizer=torch.optim.Adam,
    )
    return _GPyTorch(model)


def _tensor(values: Array) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
