"""The fit of a single-stage regressor: one GP, or a constant, and one factor on the variance."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.scaling import Prepared
from twostagegp.pipeline.calibration.shape import GAUSSIAN

__all__ = ["GaussianFit", "constant_spread"]

Array = NDArray[np.float64]


class GaussianFit:
    """Moments of a GP at fixed hyperparameters; without a posterior, those of a constant.

    Attributes
    ----------
    posterior : Posterior or None
        None if the table does not determine a GP: too few rows, or nothing that varies.
    factor : float
        Calibration factor of the variance.
    """

    posterior: Any
    factor: float
    shape = GAUSSIAN
    #: There are no held-out z-scores.
    calibration = None

    @property
    @abstractmethod
    def noise(self) -> float:
        """Calibrated noise variance."""

    def inputs(self, X: Tensor) -> Tensor:
        """Return standardised inputs as the posterior expects them."""
        return X

    def predict_mean(self, X: Tensor) -> Tensor:
        """Return the mean, shape (n,)."""
        if self.posterior is None:
            return X.new_zeros(len(X))
        mean: Tensor = self.posterior.mean(self.inputs(X))
        return mean

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance of the function and variance of an observation, each (n,)."""
        latent = X.new_zeros(len(X))
        if self.posterior is not None:
            latent = self.factor * self.posterior.variance(self.inputs(X))
        return self.predict_mean(X), latent, latent + self.noise

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of observations, shape (n, n)."""
        C = X.new_zeros(len(X), len(X))
        if self.posterior is not None:
            C = self.factor * self.posterior.covariance(self.inputs(X))
        C.diagonal().add_(self.noise)
        return C

    def moments_of_function(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance of the function and variance of an observation, each (n,)."""
        return self.moments(X)

    def function_covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of the function, shape (n, n)."""
        C = self.covariance(X)
        C.diagonal().sub_(self.noise)
        return C

    def support(self, X: Tensor) -> Tensor:
        """Return ones, shape (n,): the posterior variance itself grows away from the rows."""
        return X.new_ones(len(X))


def constant_spread(data: Prepared, floor: float) -> float:
    """Return the variance of a new observation around the mean of y, at least ``floor``."""
    N = data.rows.total
    t, c, q = data.merged.t, data.merged.c, data.merged.q
    return max(float((c @ t**2 + q.sum()) / max(N - 1.0, 1.0)) * (1.0 + 1.0 / N), floor)
