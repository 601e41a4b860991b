"""The peer: GPyTorch's exact GP as its documentation would have a user set it up.

``ScaleKernel(RBFKernel())``, or another base kernel, with zero mean on standardised data, float64,
AdamW with 100 steps at 0.1. Above 800 rows GPyTorch as installed leaves the Cholesky factorisation
for conjugate gradients, which are several times cheaper, but approximate: they land elsewhere. With
``cholesky`` the limit is raised, so that both sides solve the same problem exactly.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ExactModel", "GPyTorchExact", "train", "train_to_the_end"]

Array = NDArray[np.float64]


class ExactModel(gpytorch.models.ExactGP):
    """A scaled base kernel, constant noise, and zero mean unless another is given."""

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        base: gpytorch.kernels.Kernel,
        mean: gpytorch.means.Mean | None = None,
    ) -> None:
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ZeroMean() if mean is None else mean
        self.covar_module = gpytorch.kernels.ScaleKernel(base)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Return the prior at X."""
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


def train(
    X: Tensor,
    y: Tensor,
    base: gpytorch.kernels.Kernel,
    steps: int = 100,
    lr: float = 0.1,
    mean: gpytorch.means.Mean | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> ExactModel:
    """Maximise the marginal likelihood, in the precision and on the device of X."""
    model = ExactModel(X, y, base, mean).to(X).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    stepper = optimizer(model.parameters(), lr=lr)
    for _ in range(steps):
        stepper.zero_grad()
        loss = -objective(model(X), y)
        loss.backward()
        stepper.step()
    return model


def train_to_the_end(model: ExactModel, steps: int = 200) -> None:
    """Train further from the current parameters until the likelihood no longer improves."""
    (X,), y = model.train_inputs, model.train_targets
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=steps, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -objective(model(X), y)
        value.backward()
        return value

    optimizer.step(loss)


class GPyTorchExact:
    """An estimator around it, in the user's units."""

    def __init__(self, cholesky: bool = True, steps: int = 100, lr: float = 0.1) -> None:
        self.cholesky = cholesky
        self.steps = steps
        self.lr = lr

    def fit(self, X: Array, y: Array) -> GPyTorchExact:
        """Standardise, then maximise the marginal likelihood."""
        self._X_mean, self._X_scale = X.mean(axis=0), X.std(axis=0)
        self._X_scale[self._X_scale == 0.0] = 1.0
        self._y_mean, self._y_scale = y.mean(), y.std()
        inputs, target = self._inputs(X), torch.as_tensor((y - self._y_mean) / self._y_scale)
        with self._solver():
            base = gpytorch.kernels.RBFKernel()
            self._model = train(inputs, target, base, self.steps, self.lr)
        return self

    def predict(self, X: Array, return_std: bool = True) -> tuple[Array, Array]:
        """Return mean and standard deviation of an observation, always both."""
        self._model.eval()
        with torch.no_grad(), self._solver():
            predicted = self._model.likelihood.eval()(self._model(self._inputs(X)))
            mean, std = predicted.mean.numpy(), predicted.stddev.numpy()
        return self._y_mean + self._y_scale * mean, self._y_scale * std

    def _solver(self) -> AbstractContextManager[object]:
        return gpytorch.settings.max_cholesky_size(10**9) if self.cholesky else nullcontext()

    def _inputs(self, X: Array) -> Tensor:
        return torch.as_tensor((X - self._X_mean) / self._X_scale)
