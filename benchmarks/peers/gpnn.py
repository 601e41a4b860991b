"""GPNN of Allison et al. 2023, written after the method and the settings of its official program.

Inputs are whitened by their principal components and divided by √d, the target is standardised. The
hyperparameters of an isotropic RBF kernel come from ten random blocks of 300 rows: Adam on the sum
of their negative log likelihoods. A thousand other rows, which are never used as neighbours, then
give ``mean((y - m)² / s²)``, by which outputscale and noise are multiplied. A prediction is an
exact Gaussian process on the nearest training rows.

It predicts as the official program does, point by point: one search for the neighbours and one
GPyTorch model per row, so that its speed is the one that a user of that program gets. One setting
differs: 50 neighbours where the official default is 400, as the other neighbour methods here have
50.
"""

from __future__ import annotations

from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from benchmarks.peers.base import Array, Fitted, Prediction

__all__ = ["GPNN", "Hyperparameters", "Whitening", "fit"]

NEIGHBOURS = 50
BLOCK_ROWS = 300
MAX_BLOCKS = 10
ADAM_STEPS = 200
LEARNING_RATE = 0.1
MIN_NOISE = 1e-6
RECALIBRATION_ROWS = 1000
#: Of a table too small for a thousand rows, at most this share is taken.
MAX_RECALIBRATION_SHARE = 0.2
#: Added to the variances of the principal components before they are divided by.
WHITENING_JITTER = 1e-5


@dataclass(frozen=True)
class Hyperparameters:
    """Of an isotropic RBF kernel and its noise; the last two are variances."""

    lengthscale: float
    outputscale: float
    noise: float

    def recalibrated(self, factor: float) -> Hyperparameters:
        """Multiply both variances; the noise stays above the bound that it was estimated with."""
        noise = max(factor * self.noise, 1.001 * MIN_NOISE)
        return Hyperparameters(self.lengthscale, factor * self.outputscale, noise)


@dataclass(frozen=True)
class Whitening:
    """Uncorrelated inputs of variance 1/d, and a standardised target."""

    X_mean: Array
    matrix: Array
    y_mean: float
    y_scale: float

    @classmethod
    def of(cls, X: Array, y: Array) -> Whitening:
        """Measure the whitening on the training rows."""
        X_mean = X.mean(axis=0)
        covariance = (X - X_mean).T @ (X - X_mean) / len(X)
        directions, variances, _ = np.linalg.svd(covariance)
        matrix = directions / np.sqrt(variances + WHITENING_JITTER) / np.sqrt(X.shape[1])
        return cls(X_mean, matrix, float(y.mean()), float(y.std()) or 1.0)

    def inputs(self, X: Array) -> Array:
        """Return whitened inputs."""
        return (X - self.X_mean) @ self.matrix

    def target(self, y: Array) -> Array:
        """Return the standardised target."""
        return (y - self.y_mean) / self.y_scale


class _ExactGP(gpytorch.models.ExactGP):
    def __init__(
        self, X: Tensor, y: Tensor, likelihood: gpytorch.likelihoods.GaussianLikelihood
    ) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, X: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))


class GPNN(Fitted):
    """A fitted GPNN.

    Parameters
    ----------
    X, y : array
        Training rows in the user's units.
    whitening : Whitening
    hyperparameters : Hyperparameters
    neighbours : int
    """

    def __init__(
        self,
        X: Array,
        y: Array,
        whitening: Whitening,
        hyperparameters: Hyperparameters,
        neighbours: int = NEIGHBOURS,
    ) -> None:
        self.whitening = whitening
        self.hyperparameters = hyperparameters
        self._X, self._y = whitening.inputs(X), whitening.target(y)
        self._near = NearestNeighbors(n_neighbors=min(neighbours, len(y))).fit(self._X)
        self._likelihood = _likelihood()

    def predict(self, X: Array) -> Prediction:
        """Predict with one search and one small model per row, as the official program does."""
        inputs = self.whitening.inputs(X)
        mean, variance = np.empty(len(X)), np.empty(len(X))
        for i in range(len(X)):
            mean[i], variance[i] = self._predict_one(inputs[i : i + 1])
        y_mean, y_scale = self.whitening.y_mean, self.whitening.y_scale
        return Prediction(y_mean + y_scale * mean, y_scale * np.sqrt(variance))

    def _predict_one(self, x: Array) -> tuple[float, float]:
        rows = self._near.kneighbors(x, return_distance=False).ravel()
        model = _ExactGP(
            torch.from_numpy(self._X[rows]), torch.from_numpy(self._y[rows]), self._likelihood
        ).double()
        model.covar_module.base_kernel.lengthscale = self.hyperparameters.lengthscale
        model.covar_module.outputscale = self.hyperparameters.outputscale
        model.likelihood.noise = self.hyperparameters.noise
        found = model.eval()(torch.from_numpy(x))
        return found.mean.item(), found.variance.item() + self.hyperparameters.noise


def fit(X: Array, y: Array, seed: int) -> Fitted:
    """Whiten, estimate on blocks, recalibrate on rows that were kept back."""
    order = np.random.default_rng(seed).permutation(len(y))
    kept = min(RECALIBRATION_ROWS, int(MAX_RECALIBRATION_SHARE * len(y)))
    recalibration, train = order[:kept], order[kept:]
    X_train, y_train = X[train], y[train]
    whitening = Whitening.of(X_train, y_train)
    model = GPNN(X_train, y_train, whitening, estimate(X_train, y_train, whitening))
    if kept:
        found = model.predict(X[recalibration])
        factor = float(np.mean(((y[recalibration] - found.mean) / found.std) ** 2))
        model.hyperparameters = model.hyperparameters.recalibrated(factor)
    return model


def estimate(X: Array, y: Array, whitening: Whitening) -> Hyperparameters:
    """Estimate one set of hyperparameters for all blocks, as if they were independent."""
    size = min(BLOCK_ROWS, len(y))
    n = min(len(y) // size, MAX_BLOCKS) * size
    blocks = list(
        zip(
            torch.from_numpy(whitening.inputs(X[:n])).split(size),
            torch.from_numpy(whitening.target(y[:n])).split(size),
            strict=True,
        )
    )
    likelihood = _likelihood()
    model = _ExactGP(*blocks[0], likelihood).double().train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(ADAM_STEPS):
        optimizer.zero_grad()
        with gpytorch.settings.debug(False):  # it would insist on the rows of the first block
            loss = -sum(objective(model(inputs), target) for inputs, target in blocks)
        loss.backward()
        optimizer.step()
    return Hyperparameters(
        model.covar_module.base_kernel.lengthscale.item(),
        model.covar_module.outputscale.item(),
        likelihood.noise.item(),
    )


def _likelihood() -> gpytorch.likelihoods.GaussianLikelihood:
    constraint = gpytorch.constraints.GreaterThan(MIN_NOISE)
    return gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint).double()
