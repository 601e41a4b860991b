"""GPyTorch's exact Gaussian process, trained as its regression tutorial does.

A scaled RBF or Matérn 5/2 kernel with one lengthscale per column, a constant mean, Adam at 0.1 on
the marginal likelihood. The tutorial takes 50 steps for one column; here there are 150. Columns and
target are standardised, numbers are float64, and every solve is a Cholesky factorisation: the
conjugate gradients that GPyTorch takes above 800 rows are approximate.
"""

from __future__ import annotations

import gpytorch
import torch
from torch import Tensor

from benchmarks.gpytorch_exact import ExactModel, train
from benchmarks.peers.base import Array, Fitted, Prediction, Scaling

__all__ = ["fit_matern", "fit_rbf"]

STEPS = 150
LEARNING_RATE = 0.1
#: Up to so many rows a matrix is factorised; no table here is larger.
CHOLESKY_ROWS = 10**9


class _Exact(Fitted):
    def __init__(self, model: ExactModel, scaling: Scaling) -> None:
        self.model = model.eval()
        self.scaling = scaling

    def predict(self, X: Array) -> Prediction:
        with torch.no_grad(), gpytorch.settings.max_cholesky_size(CHOLESKY_ROWS):
            found = self.model.likelihood(self.model(_tensor(self.scaling.inputs(X))))
            return self.scaling.prediction(found.mean.numpy(), found.variance.numpy())


def fit_rbf(X: Array, y: Array, seed: int) -> Fitted:
    """Fit with an RBF kernel."""
    return _fit(X, y, seed, gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1]))


def fit_matern(X: Array, y: Array, seed: int) -> Fitted:
    """Fit with a Matérn 5/2 kernel."""
    return _fit(X, y, seed, gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=X.shape[1]))


def _fit(X: Array, y: Array, seed: int, base: gpytorch.kernels.Kernel) -> Fitted:
    torch.manual_seed(seed)
    scaling = Scaling.of(X, y)
    with gpytorch.settings.max_cholesky_size(CHOLESKY_ROWS):
        model = train(
            _tensor(scaling.inputs(X)),
            _tensor(scaling.target(y)),
            base,
            STEPS,
            LEARNING_RATE,
            mean=gpytorch.means.ConstantMean(),
            optimizer=torch.optim.Adam,
        )
    return _Exact(model, scaling)


def _tensor(values: Array) -> Tensor:
    return torch.as_tensor(values)
