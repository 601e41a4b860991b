r"""The parts of a fitted model as torch modules, differentiable in x, in standardised units.

.. math::

    \hat m(x) = \sum_k w_k \hat m_k(x), \qquad
    \hat m_k(x) = k_x^\top \alpha_k, \qquad
    C(x, x') = k(x, x') - k_x^\top (K + N)^{-1} k_{x'}

Kernel ridge and the constant are differentiable. Any other regressor has values only, and
computing its gradient is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twostagegp.data.scaling import Prepared
from twostagegp.engines.exact.engine import ExactPosterior
from twostagegp.engines.exact.settings import ExactSettings
from twostagegp.errors import InputError, MemoryBudgetError
from twostagegp.estimators.base import BaseGPRegressor
from twostagegp.estimators.exact_gp import SingleStageFit
from twostagegp.interop.kernels import Standardise, exact_kernel
from twostagegp.interop.scale import ScaleModule
from twostagegp.kernels.gpytorch import dense
from twostagegp.pipeline.mean.models import ConstantMean, MeanModel, RidgeMean
from twostagegp.pipeline.mean.stacked import StackedMean
from twostagegp.pipeline.model import TwoStageFit, above_rounding
from twostagegp.pipeline.outside.law import Member, Outside, depth_of
from twostagegp.pipeline.variance import ConstantVariance, GPVariance

__all__ = ["KernelPosterior", "Parts", "StackModule", "parts_of"]


class KernelPosterior(torch.nn.Module):
    """A zero-mean GP conditioned on rows, like :class:`ExactPosterior`, with gradients in x.

    Parameters
    ----------
    posterior : ExactPosterior
    with_factor : bool
        Keep the Cholesky factor, which is needed for variances.
    """

    Z: Tensor
    alpha: Tensor
    L: Tensor

    def __init__(self, posterior: ExactPosterior, with_factor: bool) -> None:
        super().__init__()
        self.kernel = exact_kernel(posterior.kernel, posterior.parameters[:-1])
        self.kernel.to(posterior.rows.X.device)
        self.register_buffer("Z", posterior.rows.X.double())
        self.register_buffer("alpha", posterior.alpha.double())
        if with_factor:
            _check_memory(posterior.L, posterior.settings)
            self.register_buffer("L", posterior.L.double())

    def cross(self, Z: Tensor) -> Tensor:
        """Return the covariance with the training rows, shape (..., q, n)."""
        return dense(self.kernel, Z, self.Z.expand(*Z.shape[:-2], *self.Z.shape))

    def forward(self, Z: Tensor) -> Tensor:
        """Return the posterior mean, shape (..., q)."""
        return self.cross(Z) @ self.alpha

    def covariance(self, Z: Tensor) -> Tensor:
        """Return the posterior covariance, shape (..., q, q)."""
        V = self._whitened(Z)
        return dense(self.kernel, Z, Z) - V @ V.mT

    def variance(self, Z: Tensor) -> Tensor:
        """Return the posterior variance, shape (..., q)."""
        prior = torch.as_tensor(self.kernel(Z, diag=True))
        return (prior - self._whitened(Z).square().sum(-1)).clamp(min=0.0)

    def _whitened(self, Z: Tensor) -> Tensor:
        """Return the rows of K_xX L^-T, shape (..., q, n), by one solve for all batches."""
        K = self.cross(Z)
        flat = K.reshape(-1, K.shape[-1])
        V = torch.linalg.solve_triangular(self.L, flat.mT, upper=False)
        return V.mT.reshape(K.shape)


def _check_memory(L: Tensor, settings: ExactSettings) -> None:
    """Raise if a float32 factor would not fit into memory as float64."""
    available = settings.free_bytes(L.device)
    needed = 0 if L.dtype == torch.float64 else 8 * L.numel()
    if available is not None and needed > available:
        raise MemoryBudgetError(
            f"the factor of {len(L)} distinct rows is {str(L.dtype).removeprefix('torch.')}; as "
            f"float64 it needs {needed / 2**30:.1f} GiB, but only {available / 2**30:.1f} GiB are "
            f"free on {L.device}. Convert a model that is fitted to a random subset of at most "
            f"{math.isqrt(available // 8)} rows, or use predict of this model."
        )


class ConstantModule(torch.nn.Module):
    """A constant function."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, Z: Tensor) -> Tensor:
        return torch.full(Z.shape[:-1], self.value, dtype=Z.dtype, device=Z.device)


class _ValueOnly(torch.autograd.Function):
    """A prediction without a derivative: backward raises an error instead of returning zeros."""

    @staticmethod
    def forward(ctx: Any, Z: Tensor, predict: Any, label: str) -> Tensor:
        ctx.label = label
        flat = predict(Z.detach().reshape(-1, Z.shape[-1]))
        return torch.as_tensor(flat.reshape(Z.shape[:-1]))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise InputError(
            f"the mean contains {ctx.label}, which has no gradient. Optimise without gradients "
            "(botorch.optim.optimize_acqf_discrete, or MaxPosteriorSampling over candidates), or "
            "fit a mean that consists of kernel models, such as mean='stack'."
        )


class PredictionModule(torch.nn.Module):
    """Predictions of a mean model without derivatives, such as a scikit-learn regressor."""

    def __init__(self, model: MeanModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, Z: Tensor) -> Tensor:
        apply: Any = _ValueOnly.apply
        return torch.as_tensor(apply(Z, self.model.predict, self.model.label))


class StackModule(torch.nn.Module):
    """A weighted mean of models."""

    weights: Tensor

    def __init__(self, mean: StackedMean, device: torch.device) -> None:
        super().__init__()
        kept = [k for k, weight in enumerate(mean.weights) if weight > 0.0]
        self.models = torch.nn.ModuleList(_mean_module(mean.models[k]) for k in kept)
        self.register_buffer("weights", torch.as_tensor(mean.weights[kept], device=device))

    def forward(self, Z: Tensor) -> Tensor:
        return self.with_spread(Z)[0]

    def with_spread(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the weighted variance between the models, each of shape (..., q)."""
        mean, steps = self.with_steps(Z)
        return mean, steps.square().sum(-1)

    def with_steps(self, Z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and each model's distance times the root of its weight, (..., q, k)."""
        each = torch.stack([model(Z) for model in self.models], dim=-1)
        mean = each @ self.weights
        return mean, (each - mean.unsqueeze(-1)) * self.weights.sqrt()


def _mean_module(model: MeanModel) -> torch.nn.Module:
    if isinstance(model, RidgeMean) and isinstance(model.posterior, ExactPosterior):
        return KernelPosterior(model.posterior, with_factor=False)
    if isinstance(model, ConstantMean):
        return ConstantModule(model.value)
    return PredictionModule(model)


class FunctionModule(torch.nn.Module):
    """Mean and covariance of the function, inside and outside the data, with gradients.

    The formulas are those of :meth:`TwoStageFit.function_covariance` and
    :mod:`twostagegp.pipeline.outside.law`.
    """

    def __init__(self, mean: StackedMean, outside: Outside) -> None:
        super().__init__()
        self.law = outside.in_double_precision()
        ridges = mean.leading_ridges(len(outside.members))
        self.scales = [
            weight * member.scale
            for (weight, _), member in zip(ridges, outside.members, strict=True)
        ]
        self.ridges = torch.nn.ModuleList(
            KernelPosterior(posterior_of(ridge, member), with_factor=True)
            for (_, ridge), member in zip(ridges, outside.members, strict=True)
        )
        self.members = torch.nn.ModuleList(
            KernelPosterior(member.posterior, with_factor=True) for member in outside.members
        )

    def continued(
        self, Z: Tensor, mean: Tensor, between: Tensor, stack: StackModule
    ) -> tuple[Tensor, Tensor]:
        """Return the mean, continued outside the data, and the added variance, each (..., q)."""
        excesses, priors = [], []
        for module, member in zip(self.members, self.law.members, strict=True):
            assert isinstance(module, KernelPosterior)
            excesses.append(member.excess(module.variance(Z)))
            priors.append(torch.as_tensor(module.kernel(Z, diag=True)))
        rho = depth_of(self.law.members, excesses, priors)
        result = self.law.continued(Z, mean, between, stack, rho, excesses)
        return result.mean, result.added

    def covariance(self, Z: Tensor, steps: Tensor, added: Tensor, largest: Tensor) -> Tensor:
        """Return the covariance of the function, shape (..., q, q).

        ``steps`` are those of the stack; the variance of the function is at least ``added`` and at
        most ``largest``.
        """
        C, prior = steps @ steps.mT, torch.zeros_like(added)
        for scale, ridge in zip(self.scales, self.ridges, strict=True):
            assert isinstance(ridge, KernelPosterior)
            C = C + scale * ridge.covariance(Z)
            prior = prior + scale * torch.as_tensor(ridge.kernel(Z, diag=True))
        own = above_rounding(C.diagonal(dim1=-2, dim2=-1), prior)
        C = C.diagonal_scatter(own, dim1=-2, dim2=-1)
        root = (torch.minimum(torch.maximum(own, added), largest) / own).sqrt()
        return C * root.unsqueeze(-1) * root.unsqueeze(-2)


def posterior_of(ridge: RidgeMean, member: Member) -> ExactPosterior:
    """Return the posterior, with its factor, that tells the variance of the function."""
    posterior = ridge.with_factor() if ridge.can_keep_factor else member.posterior
    assert isinstance(posterior, ExactPosterior)
    return posterior


@dataclass
class Parts:
    """The model of one target, in standardised units.

    Attributes
    ----------
    mean : module that maps (..., q, d) to (..., q)
    source : ExactPosterior
        The GP whose variance is used; its rows are the training rows.
    gp : KernelPosterior
        The same GP as a module.
    noise, floor : float
        Noise variance of the GP, and lower bound of the calibrated noise variance.
    factor : float
        Factor of the variances if it is the same for all rows, otherwise its median.
    local : ScaleModule or None
        The factor as a function of x if it depends on x.
    function : FunctionModule or None
        Mean and covariance of the function, if they are not those of part 2.
    largest_latent : float
        Largest variance of part 2 without noise.
    standardise : Standardise
    data : Prepared
    width : int
        Number of columns of the user's inputs.
    single_stage : bool
        Whether mean and variance come from the same GP.
    """

    mean: torch.nn.Module
    source: ExactPosterior
    gp: KernelPosterior
    noise: float
    floor: float
    factor: float
    local: ScaleModule | None
    function: FunctionModule | None
    largest_latent: float
    standardise: Standardise
    data: Prepared
    width: int
    single_stage: bool

    @property
    def train_inputs(self) -> Tensor:
        """Return the distinct training rows in the user's units."""
        return self.standardise.back(self.gp.Z, self.width)


def parts_of(estimator: Any) -> list[Parts]:
    """Return the parts of every target of a fitted regressor; raise if it has no exact GP."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator, "fitted_")
    assert isinstance(estimator, BaseGPRegressor)
    return [_parts(estimator, each.data, each.fit) for each in estimator.fitted_.targets]


def _parts(estimator: BaseGPRegressor, data: Prepared, fit: Any) -> Parts:
    source = _posterior(fit)
    if source is None:
        raise _unsupported_model_error(estimator, data, fit)
    device = source.rows.X.device
    gp = KernelPosterior(source, with_factor=True)
    standardise = Standardise(data.scaling, device)
    width = len(data.scaling.columns) + len(data.constant_columns)
    if isinstance(fit, SingleStageFit):
        return Parts(
            gp,
            source,
            gp,
            fit.noise,
            0.0,
            fit.factor,
            None,
            None,
            math.inf,
            standardise,
            data,
            width,
            True,
        )
    local = None
    calibration = fit.calibration
    if calibration.local is not None:
        local = ScaleModule(calibration.local, device, calibration.levels)
    elif calibration.levels is not None:
        column = calibration.levels.levels.column
        raise InputError(
            f"the model has calibration='scale' and calibrate_by={column!r}, which an exported "
            "model cannot have together. Fit with calibration='local', or without calibrate_by."
        )
    function = None if fit.outside is None else FunctionModule(fit.mean, fit.outside)
    return Parts(
        StackModule(fit.mean, device),
        source,
        gp,
        float(fit.variance.noise),
        fit.noise_floor,
        calibration.factor,
        local,
        function,
        fit.largest_latent,
        standardise,
        data,
        width,
        False,
    )


def _posterior(fit: Any) -> ExactPosterior | None:
    """Return the exact GP of a fit, or None if it has none."""
    posterior = None
    if isinstance(fit, SingleStageFit):
        posterior = fit.posterior
    elif isinstance(fit, TwoStageFit) and isinstance(fit.variance, GPVariance):
        posterior = fit.variance.posterior  # type: ignore[assignment]
    return posterior if isinstance(posterior, ExactPosterior) else None


def _unsupported_model_error(estimator: BaseGPRegressor, data: Prepared, fit: Any) -> InputError:
    m, d = len(data.rows), len(data.scaling.columns)
    constant = isinstance(fit, TwoStageFit) and isinstance(fit.variance, ConstantVariance)
    if isinstance(fit, SingleStageFit) or constant:
        return InputError(
            f"the model is a constant, fitted to {m} distinct rows with {d} varying columns, so "
            "that there is no Gaussian process to convert. Fit to at least 3 distinct rows, at "
            "least one varying column and a varying target."
        )
    method = fit.method[0] if isinstance(fit, TwoStageFit) else "neighbors"
    return InputError(
        f"{type(estimator).__name__} was fitted with method={method!r}: its predictions use "
        f"neighbours or inducing points, not an exact GP on all {m} rows. Fit "
        "TwoStageGPRegressor(method='exact'), to a random subset of the rows if there are too many."
    )
