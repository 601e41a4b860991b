"""A fitted two-stage model of one target, and its predictions."""

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
    """The three fitted parts for one target, in standardised units."""

    mean: StackedMean
    variance: GPVariance | ConstantVariance
    calibration: Calibration
    seconds: dict[str, float]
    n_refits: int
    noise_floor: float
    conditionings: int = 0
    method: tuple[str, str] = ("exact", "asked for")
    foretold_seconds: float | None = None

    @property
    def noise(self) -> float:
        """Calibrated noise variance of a typical row, at least ``least_noise``."""
        return max(self.calibration.factor * self.variance.noise, self.least_noise)

    @property
    def least_noise(self) -> float:
        """Noise floor divided by the shape's variance, which is below one if its mean is not 0."""
        # Standard deviations below a thousandth of sigma count as a thousandth.
        return self.noise_floor / max(self.shape.std, 1e-3) ** 2

    @property
    def shape(self) -> Shape:
        """Distribution of an observation around its mean, in units of sigma."""
        return self.calibration.shape

    @property
    def searches(self) -> tuple[KernelSearch | None, KernelSearch | None]:
        """Kernel searches by the ratio test, of the mean and of the variance; None without one."""
        return self.mean.search, self.variance.search

    def predict_mean(self, X: Tensor) -> Tensor:
        """Return the prediction of the stack, shape (n,)."""
        return self.mean.predict(X)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean, the variance of the function and that of an observation, each (n,)."""
        mean, latent, factors = self._scaled_parts(X)
        noise = (factors * self.variance.noise).clamp_(min=self.least_noise)
        latent = factors * latent
        return mean, latent, latent + noise

    def covariance(self, X: Tensor) -> Tensor:
        r"""Return the joint covariance of observations, shape (n, n).

        With the local scale g it is :math:`\sqrt{g(x)}\, C(x, x') \sqrt{g(x')}`, so that its
        diagonal is the variance of each observation and correlations are those of part 2.
        """
        C = self.variance.latent_covariance(X)
        if self.calibration.local is None:  # one factor for all rows
            C.mul_(self.calibration.factor).diagonal().add_(self.noise)
            return C
        _, _, factors = self._scaled_parts(X)
        root = factors.sqrt()
        C = C * root[:, None] * root
        C.diagonal().add_((factors * self.variance.noise).clamp_(min=self.least_noise))
        return C

    def _scaled_parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean, the variance of part 2 without noise, and its calibration factors."""
        if self.calibration.local is None:
            latent = self.variance.latent(X)
            return self.mean.predict(X), latent, torch.full_like(latent, self.calibration.factor)
        mean, disagreement = self.mean.predict_with_disagreement(X)
        latent = self.variance.latent(X)
        sigma2 = latent + self.variance.noise
        situation = Situation(_numbers(X), _numbers(mean), _numbers(sigma2), _numbers(disagreement))
        factors = self.calibration.local.factor(situation)
        return mean, latent, torch.as_tensor(factors).to(latent)

    def extended(self, appended: AppendedRows, residuals: Array) -> TwoStageFit:
        """Return the model with more rows and the same hyperparameters, weights and calibration.

        ``residuals`` are errors of predictions of the new rows, made before they were added.
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
        """Return the inverse lengthscales of the mean's kernels, weighted as in the stack."""
        share = np.zeros(n_features)
        for weight, model in zip(self.mean.weights, self.mean.models, strict=True):
            if isinstance(model, RidgeMean):
                share += weight * inverse_lengthscale_shares(model.kernel, model.parameters)
        return share


def _numbers(values: Tensor) -> Array | Tensor:
    """Return float64 numbers for the local scale: an array on a CPU, a tensor on a GPU."""
    values = values.double()
    return values.numpy() if values.device.type == "cpu" else values
