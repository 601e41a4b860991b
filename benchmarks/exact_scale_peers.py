"""GPyTorch's exact GP on a GPU, in its two documented ways, under a cap on seconds.

``cholesky``: dense factorisations in float64. ``cg``: as installed, conjugate gradients with its
preconditioner above 800 rows, in float32 as in its tutorials, predictive variances by LOVE. Both
with one lengthscale per column, zero mean on standardised data, and 50 steps of Adam at 0.1.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpytorch_exact import ExactModel

__all__ = ["GPyTorchOnDevice"]

Array = NDArray[np.float64]
STEPS, LR = 50, 0.1
#: Rows of a prediction at a time.
_CHUNK = 2000


class GPyTorchOnDevice:
    """An estimator around it; training stops at ``cap`` seconds, wherever it is.

    Attributes
    ----------
    steps : int
        Steps of training that were done.
    """

    def __init__(self, way: str, device: str, cap: float) -> None:
        self.way, self.device, self.cap = way, device, cap
        self.dtype = torch.float64 if way == "cholesky" else torch.float32

    def fit(self, X: Array, y: Array) -> GPyTorchOnDevice:
        """Standardise, then maximise the marginal likelihood."""
        begin = time.perf_counter()
        self._X_mean, self._X_scale = X.mean(axis=0), X.std(axis=0)
        self._X_scale[self._X_scale == 0.0] = 1.0
        self._y_mean, self._y_scale = y.mean(), y.std()
        target = (y - self._y_mean) / self._y_scale
        inputs = self._inputs(X)
        base = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[1])
        model = ExactModel(inputs, torch.as_tensor(target).to(inputs), base).to(inputs).train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        self.steps = 0
        with self._settings():
            while self.steps < STEPS and time.perf_counter() - begin < self.cap:
                optimizer.zero_grad()
                loss = -objective(model(inputs), model.train_targets)
                loss.backward()
                optimizer.step()
                self.steps += 1
                if inputs.is_cuda:
                    torch.cuda.synchronize()
        self._model = model
        return self

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return the mean and standard deviation of an observation."""
        model = self._model.eval()
        means, stds = [], []
        with torch.no_grad(), self._settings():
            for part in np.array_split(X, max(1, len(X) // _CHUNK)):
                predicted = model.likelihood.eval()(model(self._inputs(part)))
                means.append(predicted.mean.double().cpu().numpy())
                stds.append(predicted.stddev.double().cpu().numpy())
        mean, std = np.concatenate(means), np.concatenate(stds)
        return self._y_mean + self._y_scale * mean, self._y_scale * std

    def _settings(self) -> ExitStack:
        stack = ExitStack()
        if self.way == "cholesky":
            stack.enter_context(gpytorch.settings.max_cholesky_size(10**9))
        else:
            stack.enter_context(gpytorch.settings.fast_pred_var())
        return stack

    def _inputs(self, X: Array) -> torch.Tensor:
        scaled = (X - self._X_mean) / self._X_scale
        return torch.as_tensor(scaled, dtype=self.dtype, device=self.device)
