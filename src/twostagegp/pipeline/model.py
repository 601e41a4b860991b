"""What a two-stage fit has learned about one target, and what it predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import CONSTANT_MODEL, AppendedRows
from twostagegp.engines.exact.settings import EXACT_DEFAULTS, ExactSettings
from twostagegp.engines.memory import can_keep_factors
from twostagegp.errors import InputError
from twostagegp.kernels import inverse_lengthscale_shares
from twostagegp.pipeline.calibration.fit import Calibration
from twostagegp.pipeline.calibration.local_scale import Situation
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.pipeline.mean.stacked import StackedMean
from twostagegp.pipeline.variance import ConstantVariance, GPVariance
from twostagegp.search.kernel_search import KernelSearch

__all__ = ["TwoStageFit"]

Array = NDArray[np.float64]


@dataclass
class TwoStageFit:
    """Everything that was learned about one target, in standardised units."""

    mean: StackedMean
    variance: GPVariance | ConstantVariance
    calibration: Calibration
    seconds: dict[str, float]
    n_refits: int
    noise_floor: float
    conditionings: int = 0
    method: tuple[str, str] = ("exact", "asked for")

    @property
    def noise(self) -> float:
        """Calibrated noise variance (of a typical row), never below the floor."""
        return max(self.calibration.factor * self.variance.noise, self.least_noise)

    @property
    def least_noise(self) -> float:
        """The floor in units of sigma squared, of which a law off centre has only a share."""
        # A law with a standard deviation of less than a thousandth of sigma counts as a point.
        return self.noise_floor / max(self.shape.std, 1e-3) ** 2

    @property
    def shape(self) -> Shape:
        """The law of an observation around its mean, in units of sigma."""
        return self.calibration.shape

    @property
    def searches(self) -> tuple[KernelSearch | None, KernelSearch | None]:
        """The searches by the ratio test of mean and variance, where there were any."""
        return self.mean.search, self.variance.search

    def predict_mean(self, X: Tensor) -> Tensor:
        """Prediction of the stack."""
        return self.mean.predict(X)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the function and variance of an observation, each of shape (n,)."""
        mean, latent, factors = self._scaled_parts(X)
        noise = (factors * self.variance.noise).clamp_(min=self.least_noise)
        latent = factors * latent
        return mean, latent, latent + noise

    def covariance(self, X: Tensor) -> Tensor:
        r"""Joint covariance of observations, shape (n, n).

        With the local scale g it is :math:`\sqrt{g(x)}\, C(x, x') \sqrt{g(x')}`, so that its
        diagonal is the variance of each observation and correlations are those of part 2.
        """
        C = self.variance.latent_covariance(X)
        if self.calibration.local is None:  # one factor: nothing else of these rows is needed
            C.mul_(self.calibration.factor).diagonal().add_(self.noise)
            return C
        _, _, factors = self._scaled_parts(X)
        root = factors.sqrt()
        C = C * root[:, None] * root
        C.diagonal().add_((factors * self.variance.noise).clamp_(min=self.least_noise))
        return C

    def _scaled_parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of part 2 without noise, and what the calibration multiplies it by."""
        if self.calibration.local is None:
            latent = self.variance.latent(X)
            return self.mean.predict(X), latent, torch.full_like(latent, self.calibration.factor)
        mean, disagreement = self.mean.predict_with_disagreement(X)
        latent = self.variance.latent(X)
        sigma2 = latent + self.variance.noise
        situation = Situation(_numpy(X), _numpy(mean), _numpy(sigma2), _numpy(disagreement))
        factors = self.calibration.local.factor(situation)
        return mean, latent, torch.as_tensor(factors).to(latent)

    def extended(self, appended: AppendedRows, residuals: Array) -> TwoStageFit:
        """The same hyperparameters, weights and calibration with more rows.

        ``residuals`` are the errors of predictions of the new rows, made without them.
        """
        variance = self.variance
        if isinstance(variance, ConstantVariance):
            raise InputError(CONSTANT_MODEL)
        keep = False
        if self.method[0] == "exact":
            X = appended.data.rows.X
            ridges = sum(isinstance(model, RidgeMean) for model in self.mean.models)
            size = X.element_size()
            keep = can_keep_factors(
                len(X), 1 + ridges, X.device, size, appended.n_before, self._exact_settings
            )
        return replace(
            self,
            mean=self.mean.extended(appended, keep),
            variance=variance.extended(appended, residuals),
        )

    @property
    def _exact_settings(self) -> ExactSettings:
        return getattr(self.variance.posterior, "settings", EXACT_DEFAULTS)  # type: ignore[union-attr]

    def relevance(self, n_features: int) -> Array:
        """Inverse lengthscales of the mean's kernels, weighted as in the stack."""
        share = np.zeros(n_features)
        for weight, model in zip(self.mean.weights, self.mean.models, strict=True):
            if isinstance(model, RidgeMean):
                share += weight * inverse_lengthscale_shares(model.kernel, model.parameters)
        return share


def _numpy(values: Tensor) -> Array:
    return values.double().cpu().numpy()
