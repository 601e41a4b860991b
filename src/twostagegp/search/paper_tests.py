r"""Compute the paper's two quantities per test row: the error ratio and the error bound.

**Ratio** (Algorithm 2). With the kernel row :math:`K_{*X}` of a test row, :math:`K = K_{XX} +
\sigma_\xi^2 I` and noise values :math:`\epsilon`,

.. math::

    \Delta_* = \frac{|\hat m(x_*) - y_*|}{|K_{*X} K^{-1} \epsilon_X - \epsilon_*|} .

Theorem 2 bounds it for the true noise. The algorithm uses the fitted noise,
:math:`\hat\epsilon = y - \hat m(x)`; on the training rows :math:`\hat\epsilon_X = \sigma_\xi^2
\alpha`. As :math:`\sigma_\xi \to 0`, it vanishes there and :math:`\Delta_* \to 1` for any kernel.

**Bound** (Algorithm 5). With the sub-Gaussian noise :math:`\sigma_\xi`, nominal noise variance
:math:`\lambda = \sigma_\xi^2` and :math:`\bar\lambda = \max(1, \lambda)`, Fiedler et al. (2021)
prove :math:`|\hat m(x) - f(x)| \le \beta_n \hat\sigma_n(x)` with probability :math:`1 - \delta` for

.. math::

    \beta_n = B + \frac{\sigma_\xi}{\sqrt\lambda} \sqrt{\log\det\Big(
        \frac{\bar\lambda}{\lambda} K_{XX} + \bar\lambda I \Big) - 2 \log \delta}
    \quad\text{("corrected")},

where :math:`\|f\|_k \le B`. The paper prints standard deviations in place of variances,

.. math::

    \beta_n = B + \frac{1}{\sigma_\xi} \sqrt{\log\det\Big(
        \frac{\bar\sigma_\xi}{\sigma_\xi} K_{XX} + \bar\sigma_\xi I \Big) - 2 \log \delta}
    \quad\text{("printed")},

which grows without bound as the noise falls. A row passes if :math:`|\hat m - y| \le \beta_n
\hat\sigma_n(x) + F_z^{-1}(1 - \delta/2)\, \sigma_\xi`. Each determinant needs one factorisation,
since :math:`\tfrac{\bar a}{a} K + \bar a I = \tfrac{\bar a}{a} (K + a I)`.
"""

from __future__ import annotations

import math

import torch
from scipy.stats import norm
from torch import Tensor

from twostagegp.engines.batched_problem import Block
from twostagegp.numerics.linalg import batch_cholesky, batch_solve

__all__ = ["bound_beta", "error_ratio", "passes_bound", "rkhs_norm"]


def error_ratio(
    block: Block,
    cross: Tensor,
    y: Tensor,
    noise: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    r"""Return :math:`\Delta` of every test row, shape (b, m).

    Parameters
    ----------
    block : Block
        Trained problems.
    cross : Tensor of shape (b, m, n)
        Kernel between test and training rows.
    y : Tensor of shape (b, m)
        Targets of the test rows.
    noise : pair of Tensors of shapes (b, n) and (b, m), optional
        The true noise of training and test rows, if it is known from a simulation; the fitted
        noise by default.
    """
    error = _times(cross, block.alpha) - y
    if noise is None:
        noise = (block.s * block.alpha, -error)
    irreducible = (_times(cross, batch_solve(block.L, noise[0])) - noise[1]).abs()
    # If numerator and denominator vanish, the prediction is as good as the noise permits.
    ratio = error.abs() / irreducible
    return torch.where((irreducible == 0.0) & (error == 0.0), 1.0, ratio)


def rkhs_norm(block: Block) -> Tensor:
    r"""Return the RKHS norm of the fitted mean, :math:`\sqrt{\alpha^\top K_{XX} \alpha}`, (b,).

    It estimates B from below: the smoothed mean has a smaller norm than the function.
    """
    return torch.linalg.vecdot(block.alpha, _times(block.K, block.alpha)).clamp(min=0.0).sqrt()


def bound_beta(block: Block, B: Tensor | float, delta: float, printed: bool) -> Tensor:
    r"""Return :math:`\beta_n` of every problem, shape (b,)."""
    n = block.t.shape[1]
    sd = block.noise.sqrt()
    a, factor = (sd, 1.0 / sd) if printed else (block.noise, torch.ones_like(sd))
    L = block.L
    if printed or block.extras is not None:
        shifted = block.K.clone()
        shifted.diagonal(dim1=-2, dim2=-1).add_(a[:, None])
        L = batch_cholesky(shifted)[0]
    logdet = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    logdet = logdet + n * (a.clamp(min=1.0) / a).log()
    return B + factor * (logdet - 2.0 * math.log(delta)).clamp(min=0.0).sqrt()


def passes_bound(
    error: Tensor, latent_sd: Tensor, beta: Tensor, block: Block, delta: float
) -> Tensor:
    """Return whether each test row's error is within the bound plus the noise, shape (b, m)."""
    noise = float(norm.ppf(1.0 - 0.5 * delta)) * block.noise.sqrt()
    return error.abs() <= beta[:, None] * latent_sd + noise[:, None]


def _times(M: Tensor, v: Tensor) -> Tensor:
    return (M @ v[:, :, None])[:, :, 0]
