"""A fitted two-stage model of one target, and its predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.appending import CONSTANT_MODEL, AppendedRows
from twostagegp.engines.exact.settings import EXACT_DEFAULTS, ExactSettings
from twostagegp.engines.memory import can_keep_factors
from twostagegp.errors import InputError
from twostagegp.pipeline.calibration.fit import Calibration
from twostagegp.pipeline.calibration.local_scale import Situation
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.pipeline.mean.models import RidgeMean
from twostagegp.pipeline.mean.stacked import StackedMean
from twostagegp.pipeline.outside.law import Member, Outside
from twostagegp.pipeline.variance import ConstantVariance, GPVariance
from twostagegp.search.kernel_search import KernelSearch

__all__ = ["LARGEST_SHARE", "TwoStageFit", "above_rounding"]

Array = NDArray[np.float64]

#: Largest share of the variance of an observation that may be variance of the function: a little
#: noise keeps joint covariances invertible.
LARGEST_SHARE = 0.99


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
    #: What is added outside the data; None keeps the prediction of the three parts everywhere.
    outside: Outside | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "largest_latent"}

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

    @cached_property
    def largest_latent(self) -> float:
        """Largest variance of part 2 without noise: at most that of the target, which is 1.

        Residuals between training rows may be explained by a process of any prior variance, and
        far from the rows part 2 has all of it. There the uncertainty of the mean is added instead.
        If variances of held-out rows were larger, the largest of them is the limit.
        """
        if self.outside is None:
            return math.inf
        held = np.asarray(self.variance.heldout_variance, dtype=np.float64)
        return max(1.0, float(held.max()) - self.variance.noise)

    def predict_mean(self, X: Tensor) -> Tensor:
        """Return the prediction of the stack, continued outside the data, shape (n,)."""
        mean = self.mean.predict(X)
        if self.outside is None or not self.outside.has_trends:
            return mean
        return self.outside.moments(X, mean, torch.zeros_like(mean), self.mean.predict)[0]

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, latent variance of part 2 and variance of an observation, each (n,)."""
        mean, disagreement, latent, factors = self._scaled_parts(X)
        noise = (factors * self.variance.noise).clamp_(min=self.least_noise)
        latent = factors * latent
        if self.outside is not None:
            between = disagreement.square()
            mean, added = self.outside.moments(X, mean, between, self.mean.predict)
            latent += added
        return mean, latent, latent + noise

    def function_variance(self, X: Tensor) -> Tensor:
        r"""Return the variance of the function around the mean, without noise, shape (n,).

        That of part 2 tells how errors of single rows differ from place to place, not how much of
        them is noise. The kernel ridges of the stack can tell: with their scaled posterior
        variances :math:`s_j^2 v_j` (:mod:`twostagegp.pipeline.outside.law`) and the disagreement d
        of the stack, it is the variance of the mixture of their posteriors,

        .. math::

            \sum_j w_j s_j^2 v_j(x) + d^2(x) ,

        at least what is added outside the data, and at most 99 % of the variance of an observation.
        Without these members (``calibration=None`` or ``"scale"``) it is that of part 2.
        """
        return self.moments_of_function(X)[1]

    def moments_of_function(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance of the function and variance of an observation, each (n,)."""
        if self.outside is None:
            return self.moments(X)
        mean, disagreement, latent, factors = self._scaled_parts(X)
        between = disagreement.square()
        noise = (factors * self.variance.noise).clamp_(min=self.least_noise)
        mean, added = self.outside.moments(X, mean, between, self.mean.predict)
        within = sum(
            (scale * part.variance(X) for scale, part in self._parts_of_function(self.outside)),
            torch.zeros_like(mean),
        )
        observed = factors * latent + noise + added
        function = torch.maximum(within + between, added)
        return mean, torch.minimum(function, LARGEST_SHARE * observed), observed

    def function_covariance(self, X: Tensor) -> Tensor:
        r"""Return the joint covariance of the function, shape (n, n).

        Its diagonal is :meth:`function_variance`; correlations are those of the mixture,
        :math:`\sum_j w_j s_j^2 C_j(x, x') + \sum_k w_k \delta_k(x) \delta_k(x')` with
        :math:`\delta_k = \hat m_k - \hat m`.
        """
        if self.outside is None:
            return self.covariance(X).diagonal_scatter(self.moments(X)[1])
        C, prior = X.new_zeros(len(X), len(X)), X.new_zeros(len(X))
        for scale, part in self._parts_of_function(self.outside):
            C += scale * part.covariance(X)
            prior += scale * part.prior(X)
        C += self.mean.covariance_between(X)
        own = above_rounding(C.diagonal(), prior)
        C.diagonal().copy_(own)
        size = (self.function_variance(X) / own).sqrt()
        return C * size[:, None] * size

    def _parts_of_function(self, outside: Outside) -> Iterator[tuple[float, RidgeMean | Member]]:
        """Return the leading ridges, on all rows, each with its weight times its scale.

        A ridge whose factor would be made for every prediction is replaced by its member, which
        knows fewer rows: its variance is larger.
        """
        ridges = self.mean.leading_ridges(len(outside.members))
        for (weight, ridge), member in zip(ridges, outside.members, strict=True):
            yield weight * member.scale, ridge if ridge.can_keep_factor else member

    def support(self, X: Tensor) -> Tensor:
        """Return one where training rows are near, down to zero where none is, shape (n,)."""
        if self.outside is None:
            return X.new_ones(len(X))
        return 1.0 - self.outside.depth(X)[0]

    def covariance(self, X: Tensor) -> Tensor:
        r"""Return the joint covariance of observations, shape (n, n).

        With the local scale g it is :math:`\sqrt{g(x)}\, C(x, x') \sqrt{g(x')}`, so that its
        diagonal is the variance of each observation and correlations are those of part 2. Factors
        by the levels of a column are part of g.
        """
        C = self.variance.latent_covariance(X)
        root = (self.largest_latent / C.diagonal().clamp(min=torch.finfo(C.dtype).tiny)).sqrt()
        root = root.clamp(max=1.0)
        C = C * root[:, None] * root
        if self.calibration.local is None and self.calibration.levels is None:  # one factor
            C.mul_(self.calibration.factor).diagonal().add_(self.noise)
            return C
        mean, disagreement, _, factors = self._scaled_parts(X)
        root = factors.sqrt()
        C = C * root[:, None] * root
        C.diagonal().add_((factors * self.variance.noise).clamp_(min=self.least_noise))
        if self.outside is not None:
            between = disagreement.square()
            C += self.outside.covariance(X, mean, between, self.mean.predict)
        return C

    def _scaled_parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return mean and disagreement of the stack, and variance of part 2 with its factors."""
        mean, disagreement, latent, factors = self._parts_of_all_levels(X)
        levels = self.calibration.levels
        if levels is not None:
            factors = factors * torch.as_tensor(levels.at(_numbers(X))).to(latent)
        return mean, disagreement, latent, factors

    def _parts_of_all_levels(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the same without factors by the levels of a column."""
        if self.calibration.local is None:
            latent = self.variance.latent(X)
            factors = torch.full_like(latent, self.calibration.factor)
            return self.mean.predict(X), torch.zeros_like(latent), latent, factors
        mean, disagreement = self.mean.predict_with_disagreement(X)
        latent = self.variance.latent(X).clamp(max=self.largest_latent)
        sigma2 = latent + self.variance.noise
        situation = Situation(_numbers(X), _numbers(mean), _numbers(sigma2), _numbers(disagreement))
        factors = self.calibration.local.factor(situation)
        return mean, disagreement, latent, torch.as_tensor(factors).to(latent)

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
            outside=self._extended_outside(appended),
        )

    def _extended_outside(self, appended: AppendedRows) -> Outside | None:
        if self.outside is None:
            return None
        return self.outside.extended(appended.data.rows, appended.n_before)

    @property
    def _exact_settings(self) -> ExactSettings:
        return getattr(self.variance.posterior, "settings", EXACT_DEFAULTS)  # type: ignore[union-attr]

    def relevance(self, n_features: int) -> Array:
        """Return the inverse lengthscales of the mean's kernels, weighted as in the stack."""
        return self.mean.relevance(n_features)


def above_rounding(variance: Tensor, prior: Tensor) -> Tensor:
    """Return variances that are at least what rounding leaves of a prior variance."""
    return torch.maximum(variance, 100.0 * torch.finfo(prior.dtype).eps * prior)


def _numbers(values: Tensor) -> Array | Tensor:
    """Return float64 numbers for the local scale: an array on a CPU, a tensor on a GPU."""
    values = values.double()
    return values.numpy() if values.device.type == "cpu" else values
