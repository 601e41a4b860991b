r"""A fitted regressor as a GPyTorch ``ExactGP``.

The posterior variance of a Gaussian process does not depend on the targets. A zero-mean GP that is
conditioned on residuals of zero therefore has the posterior mean zero and the posterior variance of
part 2. Added to the fitted mean,

.. math::

    f \sim \mathrm{GP}\big( \hat m,\; s_y^2\, k \big), \qquad
    y_i = \hat m(x_i) \ \text{at the training rows},

this is the model before the local calibration: its posterior mean is :math:`\hat m(x)` and its
posterior variance is :math:`\hat\sigma^2(x)`. A single-stage model keeps its own targets.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from twostagegp.interop.kernels import Standardise, UnitsKernel
from twostagegp.interop.parts import KernelPosterior, Parts, StackModule, parts_of
from twostagegp.interop.scale import ScaleModule

__all__ = ["FittedGP", "FittedMean", "LocalFactor", "WeightedNoiseLikelihood", "as_gpytorch"]


class FittedMean(Mean):
    """The fitted mean in the user's units; differentiable if it consists of kernel models."""

    def __init__(
        self, mean: torch.nn.Module, standardise: Standardise, y_mean: float, y_scale: float
    ) -> None:
        super().__init__()
        self.mean = mean
        self.standardise = standardise
        self.y_mean, self.y_scale = y_mean, y_scale

    def forward(self, x: Tensor) -> Tensor:
        return self.y_mean + self.y_scale * torch.as_tensor(self.mean(self.standardise(x)))


class LocalFactor(torch.nn.Module):
    """The factor g(x) by which the local calibration multiplies variances at x, shape (..., q)."""

    def __init__(
        self,
        scale: ScaleModule,
        mean: StackModule,
        gp: KernelPosterior,
        noise: float,
        standardise: Standardise,
    ) -> None:
        super().__init__()
        self.scale, self.mean, self.gp, self.noise = scale, mean, gp, noise
        self.standardise = standardise

    def forward(self, X: Tensor) -> Tensor:
        Z = self.standardise(X)
        mean, spread = self.mean.with_spread(Z)
        return torch.as_tensor(self.scale(Z, mean, self.gp.variance(Z) + self.noise, spread))


class WeightedNoiseLikelihood(GaussianLikelihood):
    """Gaussian noise whose variance differs between the training rows and new rows.

    A training row that represents c merged rows and has a known extra noise variance has the
    variance (noise + extra) / c; a new row has the variance ``noise``.

    Parameters
    ----------
    train_inputs : Tensor of shape (n, d)
    train_noise : Tensor of shape (n,)
    """

    train_inputs: Tensor
    train_noise: Tensor

    def __init__(self, train_inputs: Tensor, train_noise: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("train_inputs", train_inputs)
        self.register_buffer("train_noise", train_noise)

    def _shaped_noise_covar(self, base_shape: torch.Size, *params: Any, **kwargs: Any) -> Any:
        given = params[0] if params else None
        given = given[0] if isinstance(given, list | tuple) and given else given
        if isinstance(given, Tensor) and torch.equal(given, self.train_inputs):
            return DiagLinearOperator(self.train_noise)
        return super()._shaped_noise_covar(base_shape, *params, **kwargs)


class FittedGP(gpytorch.models.ExactGP):
    """An ``ExactGP`` at the hyperparameters of a fit.

    Matrices are always factorised: GPyTorch's approximations for more than 800 rows are off.
    Parameters have ``requires_grad=False`` and must not be trained: the targets of a two-stage
    model are the values of its fitted mean, not the observed ones.

    Attributes
    ----------
    local_factor : LocalFactor or None
        The local scale of the calibration, which is not part of the covariance.
    """

    def __init__(
        self,
        train_inputs: Tensor,
        train_targets: Tensor,
        likelihood: GaussianLikelihood,
        mean_module: Mean,
        covar_module: UnitsKernel,
        local_factor: LocalFactor | None = None,
    ) -> None:
        super().__init__(train_inputs, train_targets, likelihood)
        self.mean_module = mean_module
        self.covar_module = covar_module
        self.local_factor = local_factor

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        settings = gpytorch.settings
        with ExitStack() as stack:
            stack.enter_context(settings.max_cholesky_size(1 << 40))
            stack.enter_context(settings.fast_computations(False, False, False))
            return super().__call__(*args, **kwargs)


def as_gpytorch(estimator: Any, chunk_numbers: int = 1 << 22) -> FittedGP | list[FittedGP]:
    """Return a fitted regressor as a GPyTorch model, or as a list with one model per target.

    ``chunk_numbers`` is the largest number of differences of rows held in memory while targets are
    computed: 32 MiB by default.
    """
    models = [_exact_gp(parts, chunk_numbers) for parts in parts_of(estimator)]
    return models[0] if estimator.fitted_.is_1d else models


def _exact_gp(parts: Parts, chunk_numbers: int) -> FittedGP:
    scaling = parts.data.scaling
    X = parts.train_inputs
    factor = scaling.y_scale**2 * (parts.factor if parts.local is None else 1.0)
    covar = UnitsKernel(parts.gp.kernel, parts.standardise, factor)
    local = None
    if parts.single_stage:
        mean = ConstantMean().double()
        mean.constant = torch.tensor(scaling.y_mean, dtype=torch.float64)
        targets = scaling.y_mean + scaling.y_scale * parts.source.rows.t.double()
    else:
        mean = FittedMean(parts.mean, parts.standardise, scaling.y_mean, scaling.y_scale)
        targets = _evaluate_in_chunks(mean, X, chunk_numbers)
        if parts.local is not None:
            assert isinstance(parts.mean, StackModule)
            local = LocalFactor(parts.local, parts.mean, parts.gp, parts.noise, parts.standardise)
    model = FittedGP(X, targets, _likelihood(parts, X, factor), mean, covar, local)
    model.to(X.device).requires_grad_(False)
    return model.eval()


def _evaluate_in_chunks(mean: Mean, X: Tensor, chunk_numbers: int) -> Tensor:
    """Return the mean at many rows, in chunks: a kernel may store all differences of two rows."""
    size = max(1, chunk_numbers // max(1, X.numel()))
    with torch.no_grad():
        return torch.cat([torch.as_tensor(mean(part)) for part in torch.split(X, size)])


def _likelihood(parts: Parts, X: Tensor, factor: float) -> GaussianLikelihood:
    """Return the likelihood; weights, known noise and jitter change the noise of training rows."""
    positive = Positive(transform=torch.exp, inv_transform=torch.log)
    rows, jitter = parts.source.rows, parts.source.jitter
    # If a constant factor would reduce the noise below its floor, only new rows get the floor. The
    # training rows keep the scaled noise, so that the variance remains that of part 2 times factor.
    noise = max(factor * parts.noise, user_noise_floor(parts) if parts.local is None else 0.0)
    plain = bool((rows.c == 1.0).all()) and not bool(rows.extra.any()) and jitter == 0.0
    if plain and noise == factor * parts.noise:
        likelihood = GaussianLikelihood(noise_constraint=positive).double()
    else:
        train_noise = factor * ((parts.noise + rows.extra.double()) / rows.c.double() + jitter)
        likelihood = WeightedNoiseLikelihood(X, train_noise, noise_constraint=positive).double()
    likelihood.noise = torch.tensor(noise, dtype=torch.float64)
    return likelihood


def user_noise_floor(parts: Parts) -> float:
    """Return the noise floor in the user's units."""
    return parts.floor * parts.data.scaling.y_scale**2
