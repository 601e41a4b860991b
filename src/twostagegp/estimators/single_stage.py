"""What the single-stage regressors share: one GP whose variance is multiplied by one factor."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.scaling import Prepared
from twostagegp.pipeline.calibration.shape import GAUSSIAN

__all__ = ["GaussianFit", "constant_spread"]

Array = NDArray[np.float64]


class GaussianFit:
    """Moments of a GP with one factor on its variance, from its own variance and covariance."""

    factor: float
    shape = GAUSSIAN
    #: There are no held-out z-scores.
    calibration = None

    @property
    @abstractmethod
    def noise(self) -> float:
        """Calibrated noise variance."""

    @abstractmethod
    def predict_mean(self, X: Tensor) -> Tensor:
        """Return the mean, shape (n,)."""

    @abstractmethod
    def latent_variance(self, X: Tensor) -> Tensor:
        """Return the variance of the function before calibration, shape (n,)."""

    @abstractmethod
    def latent_covariance(self, X: Tensor) -> Tensor:
        """Return the covariance of the function before calibration, shape (n, n)."""

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance of the function and variance of an observation, each (n,)."""
        latent = self.factor * self.latent_variance(X)
        return self.predict_mean(X), latent, latent + self.noise

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint covariance of observations, shape (n, n)."""
        C = self.factor * self.latent_covariance(X)
        C.diagonal().add_(self.noise)
        return C


def constant_spread(data: Prepared, floor: float) -> float:
    """Return the variance of a new observation around the mean of y, at least ``floor``."""
    N = data.rows.total
    t, c, q = data.merged.t, data.merged.c, data.merged.q
    return max(float((c @ t**2 + q.sum()) / max(N - 1.0, 1.0)) * (1.0 + 1.0 / N), floor)
