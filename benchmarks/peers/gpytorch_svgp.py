"""GPyTorch's stochastic variational Gaussian process.

Its tutorial on large data: 500 inducing points that are trained too, a full Cholesky variational
distribution, minibatches of 1024 rows, Adam with 0.01, float32. The tutorial trains for four
epochs, as a demonstration; here there are 20, and more on a table so small that 20 epochs make
fewer than 2000 steps. Inducing points start at k-means centres, the kernel is Matérn 5/2 with one
lengthscale per column.
"""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from benchmarks.peers.base import Array, Fitted, Prediction, Scaling

__all__ = ["fit"]

INDUCING_POINTS = 500
BATCH_ROWS = 1024
EPOCHS = 20
MIN_STEPS = 2000
LEARNING_RATE = 0.01


class _Model(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: Tensor) -> None:
        distribution = CholeskyVariationalDistribution(len(inducing))
        super().__init__(VariationalStrategy(self, inducing, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=inducing.shape[1])
        self.covar_module = gpytorch.kernels.ScaleKernel(base)

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


class _Variational(Fitted):
    def __init__(
        self, model: _Model, likelihood: gpytorch.likelihoods.GaussianLikelihood, scaling: Scaling
    ) -> None:
        self.model = model.eval()
        self.likelihood = likelihood.eval()
        self.scaling = scaling

    def predict(self, X: Array) -> Prediction:
        with torch.no_grad():
            parts = [
                self.likelihood(self.model(rows))
                for rows in _float32(self.scaling.inputs(X)).split(BATCH_ROWS)
            ]
        mean = torch.cat([part.mean for part in parts]).numpy()
        return self.scaling.prediction(mean, torch.cat([p.variance for p in parts]).numpy())


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Maximise the evidence lower bound over minibatches."""
    torch.manual_seed(seed)
    scaling = Scaling.of(X, y)
    inputs, target = _float32(scaling.inputs(X)), _float32(scaling.target(y))
    model = _Model(_centres(scaling.inputs(X), seed)).train()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().train()
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=LEARNING_RATE)
    batches = math.ceil(len(y) / BATCH_ROWS)
    for _ in range(max(EPOCHS, math.ceil(MIN_STEPS / batches))):
        for rows in torch.randperm(len(y)).split(BATCH_ROWS):
            optimizer.zero_grad()
            loss = -bound(model(inputs[rows]), target[rows])
            loss.backward()
            optimizer.step()
    return _Variational(model, likelihood, scaling)


def _centres(X: Array, seed: int) -> Tensor:
    n = min(INDUCING_POINTS, len(np.unique(X, axis=0)))
    means = MiniBatchKMeans(n, batch_size=BATCH_ROWS, n_init=1, random_state=seed)
    return _float32(means.fit(X).cluster_centers_)


def _float32(values: Array) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
