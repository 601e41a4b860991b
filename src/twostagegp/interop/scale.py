r"""The local scale of the calibration as a torch module: the formulas of ``local_scale.py``.

.. math::

    g(x) = e^{\sum_j a_j \hat s_j(x) + c} + b

The kernel ridges among the :math:`\hat s_j` are differentiable. Boosted trees are piecewise
constant: g jumps at their thresholds, and elsewhere their gradient is zero. So do factors by the
levels of a column (``calibrate_by``), by which g is multiplied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from twostagegp.interop.kernels import exact_kernel
from twostagegp.kernels.gpytorch import dense
from twostagegp.pipeline.calibration.by_level import LevelFactors
from twostagegp.pipeline.calibration.local_scale import (
    FARTHEST,
    TINY,
    LocalScale,
    ScaleRidge,
    ScaleTrees,
)

__all__ = ["ScaleModule"]


class _RidgeModule(torch.nn.Module):
    """A :class:`ScaleRidge` with gradients."""

    Z: Tensor
    alpha: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(self, ridge: ScaleRidge, device: torch.device) -> None:
        super().__init__()
        posterior = ridge.posterior
        self.on_inputs = ridge.on_inputs
        self.kernel = exact_kernel(posterior.kernel, posterior.parameters[:-1]).to(device)
        self.register_buffer("Z", posterior.rows.X.double().to(device))
        self.register_buffer("alpha", posterior.alpha.double().to(device))
        centre, spread = ridge.feature_scaling
        self.register_buffer("centre", torch.as_tensor(centre, device=device))
        self.register_buffer("spread", torch.as_tensor(spread, device=device))
        self.t_mean, self.t_spread = ridge.target_scaling

    def forward(self, X: Tensor, derived: Tensor) -> Tensor:
        F = X
        if not self.on_inputs:
            F = ((derived - self.centre) / self.spread).clamp(-FARTHEST, FARTHEST)
            F = torch.where(self.spread > TINY, F, torch.zeros_like(F))
        K = dense(self.kernel, F, self.Z.expand(*F.shape[:-2], *self.Z.shape))
        return self.t_mean + self.t_spread * (K @ self.alpha)


class _TreesModule(torch.nn.Module):
    """A :class:`ScaleTrees` as a module, piecewise constant."""

    def __init__(self, trees: ScaleTrees) -> None:
        super().__init__()
        self.trees = trees.model.model

    def forward(self, X: Tensor, derived: Tensor) -> Tensor:
        columns = torch.cat([X, derived], dim=-1).detach()
        flat = self.trees.predict(columns.reshape(-1, columns.shape[-1]).cpu().numpy())
        return torch.as_tensor(flat).to(X).reshape(X.shape[:-1])


class ScaleModule(torch.nn.Module):
    """A fitted :class:`LocalScale` with gradients in x."""

    a: Tensor

    def __init__(
        self, local: LocalScale, device: torch.device, by_level: LevelFactors | None = None
    ) -> None:
        super().__init__()
        self.by_level = by_level
        members: list[Any] = []
        for member in local.members:
            if isinstance(member, ScaleRidge):
                members.append(_RidgeModule(member, device))
            else:
                assert isinstance(member, ScaleTrees)
                members.append(_TreesModule(member))
        self.members = torch.nn.ModuleList(members)
        self.register_buffer("a", torch.as_tensor(local.combination.a, device=device))
        self.b, self.c = local.combination.b, local.combination.c
        self.overall, self.largest, self.uses_mean = local.overall, local.largest, local.uses_mean

    @property
    def has_jumps(self) -> bool:
        """Whether one of the models consists of trees or levels have factors of their own."""
        return self.by_level is not None or any(
            isinstance(member, _TreesModule) for member in self.members
        )

    def forward(self, X: Tensor, mean: Tensor, variance: Tensor, spread: Tensor) -> Tensor:
        """Return g, shape (..., q).

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
            Standardised inputs.
        mean, variance, spread : Tensors of shape (..., q)
            Prediction, variance of part 2 including the noise, variance between the models of the
            stack.
        """
        log_variance = variance.clamp(min=TINY**2).log()
        derived = log_variance.unsqueeze(-1)
        if self.uses_mean:
            disagreement = 0.5 * spread.clamp(min=TINY**2).log()
            derived = torch.stack([mean, log_variance, disagreement], dim=-1)
        exponent = torch.full_like(mean, self.c)
        for weight, member in zip(self.a, self.members, strict=True):
            exponent = exponent + weight * member(X, derived)
        g = exponent.clamp(-40.0, 40.0).exp() + self.b
        beyond = -torch.expm1(-(log_variance - self.largest).clamp(min=0.0))
        g = g + beyond * (self.overall - g).clamp(min=0.0)
        return g if self.by_level is None else g * self.by_level.at(X.detach()).to(g)
