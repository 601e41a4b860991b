r"""Measure the evidence against a fitted Gaussian process, one number per cause of misfit.

All are functions of one factorisation at the fitted parameters: :math:`A = K^{-1}`,
:math:`\alpha = A t`, :math:`\kappa = \mathrm{diag} A` and the leave-one-out z-scores
:math:`z_i = \alpha_i / \sqrt{\kappa_i}`, which are standard normal (not independent) if the
model is correct. Larger values are evidence for the cause; ``bootstrap.py`` decides by simulation
how large they must be.

**Trend left over.** With :math:`H = (1, x)` and :math:`K_a = a K_\theta + \mathrm{diag}(s)`, twice
the gain in log likelihood by a linear mean, fitted by generalised least squares, and a process that
may be smaller with it,

.. math::

    G = \max_{a \in \{1, 0.3, 0.1\}}
        \big[ t^\top A t + \log\det K \big] - \big[ t^\top P_a t + \log\det K_a \big], \qquad
    P_a = K_a^{-1} - K_a^{-1} H (H^\top K_a^{-1} H)^{-1} H^\top K_a^{-1},

taken to the power 1/3 to make it nearly normal. A process fitted without a mean is too large,
because it has to explain the trend; with :math:`a = 1` alone this would hide the trend.

**Too smooth, too rough.** Let :math:`c_{ij}` be the correlations of the kernel and
:math:`u = -\log c`. The family :math:`c_\gamma = \exp(-u^\gamma)` makes a kernel rougher at short
distances for :math:`\gamma < 1` and smoother for :math:`\gamma > 1` (it leads from the rbf to the
Matérn-1/2 and back), and needs only the matrix. Its direction at :math:`\gamma = 1` is
:math:`D = -\partial K / \partial \gamma = K \circ (u \log u)`. So that a trend is not taken for
roughness, it is projected out by :math:`P = P_1`, and the remaining sum of squares is scaled to its
expectation: with q columns in H the score of the likelihood in direction D, in units of its
standard deviation, is

.. math::

    T = \frac{\tfrac12 \rho\, t^\top P D P t - \tfrac12 \mathrm{tr}(P D)}
             {\sqrt{\tfrac12 \mathrm{tr}(A D A D)}}, \qquad \rho = \frac{n - q}{t^\top P t},

positive for a kernel that is too smooth, negative for one that is too rough.

**Noise not constant.** With :math:`h_i = (x_i, \|x_i\|^2, \hat m_i, \hat m_i^2)`, centred and
scaled, the share :math:`R^2` of the variance of :math:`|z|` that a linear regression on h explains:
:math:`n R^2`, a chi-squared variable with as many degrees of freedom as columns, to the power 1/3.

**Heavy tails.** The logarithm of the kurtosis of z divided by the size that the regression above
predicts, so that noise of changing size is not taken for heavy tails.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twostagegp.engines.batched_problem import Block
from twostagegp.numerics.linalg import batch_cholesky

__all__ = ["CAUSES", "evidence", "rougher_direction", "smoothness_score", "trend_gain"]

CAUSES = ("too smooth", "too rough", "noise not constant", "heavy tails", "trend left over")
#: Ridge of the small regressions, relative to a unit diagonal: columns may be collinear.
_RIDGE = 1e-8
#: Factors on the variance of the process that are tried together with a trend.
_SHRINKAGE = (0.3, 0.1)
#: Bounds on the size of |z| that the regression predicts, relative to the mean.
_SIZE_BOUNDS = (0.2, 5.0)


def evidence(block: Block, X: Tensor) -> Tensor:
    """Return the evidence for each of ``CAUSES``, shape (b, 5).

    Parameters
    ----------
    block : Block
        Problems at their fitted parameters.
    X : Tensor of shape (1, n, d) or (b, n, d)
    """
    n, d = X.shape[1:]
    if d > n // 4:
        X = X[:, :, :0]  # too many columns for a regression on so few rows
    ones = torch.ones(*X.shape[:2], 1, dtype=X.dtype, device=X.device)
    H = torch.cat([ones, X], dim=2)
    smooth = smoothness_score(block, H)
    h = _noise_regressors(block, X)
    z = block.alpha / block.kappa.sqrt()
    share, size = _explained(h, z.abs())
    kurtosis = _kurtosis(z / size)
    return torch.stack(
        [
            smooth,
            -smooth,
            (n * share).clamp(min=0.0).pow(1.0 / 3.0),
            kurtosis.log(),
            trend_gain(block, H).clamp(min=0.0).pow(1.0 / 3.0),
        ],
        dim=1,
    )


def smoothness_score(block: Block, H: Tensor) -> Tensor:
    """Return the standardised score T (see the module), shape (b,); H is (b or 1, n, q)."""
    n, q = H.shape[1:]
    D = rougher_direction(block.K)
    Q = _trend_factor(block.A, H)
    alpha = block.alpha - (Q @ (Q.mT @ block.t[:, :, None]))[:, :, 0]
    scale = (n - q) / torch.linalg.vecdot(block.t, alpha).clamp(min=1e-300)
    fit = scale * torch.linalg.vecdot(alpha, (D @ alpha[:, :, None])[:, :, 0])
    AD = block.A @ D
    trace = AD.diagonal(dim1=-2, dim2=-1).sum(-1) - (Q * (D @ Q)).sum((-2, -1))
    information = 0.5 * (AD * AD.mT).sum((-2, -1))
    return (0.5 * fit - 0.5 * trace) / information.clamp(min=1e-300).sqrt()


def rougher_direction(K: Tensor) -> Tensor:
    """Return D = -dK/d(gamma) at gamma = 1, which makes the process rougher, shape (b, n, n)."""
    scale = K.diagonal(dim1=-2, dim2=-1)
    product = (scale[:, :, None] * scale[:, None, :]).sqrt()
    u = -(K / product).clamp(min=1e-300, max=1.0).log()
    return torch.where(u > 0.0, K * u * u.clamp(min=1e-300).log(), 0.0)


def _trend_factor(A: Tensor, H: Tensor) -> Tensor:
    """Return Q with Q Q^T = A H (H^T A H)^{-1} H^T A, shape (b, n, q)."""
    AH = A @ H
    C, _ = batch_cholesky(_with_ridge(H.mT @ AH))
    return torch.linalg.solve_triangular(C, AH.mT, upper=False).mT


def _with_ridge(G: Tensor) -> Tensor:
    """Return G with a slightly larger diagonal, and ones where the diagonal is zero."""
    d = G.diagonal(dim1=-2, dim2=-1)
    return G + torch.diag_embed(torch.where(d > 0.0, _RIDGE * d, 1.0))


def trend_gain(block: Block, H: Tensor) -> Tensor:
    """Return twice the gain in log likelihood by a linear mean, shape (b,)."""
    without = _likelihood_terms(block.L, block.t, None)
    gains = [without - _likelihood_terms(block.L, block.t, H)]
    for share in _SHRINKAGE:
        K = share * block.K
        K.diagonal(dim1=-2, dim2=-1).add_(block.s)
        L, fine = batch_cholesky(K)
        gain = without - _likelihood_terms(L, block.t, H)
        gains.append(torch.where(fine, gain, 0.0))
    return torch.stack(gains).amax(0)


def _likelihood_terms(L: Tensor, t: Tensor, H: Tensor | None) -> Tensor:
    """Return t^T K^{-1} t + log det K, with t projected off the span of H, shape (b,)."""
    white = torch.linalg.solve_triangular(L, t[:, :, None], upper=False)
    size = white.square().sum((-2, -1))
    if H is not None:
        V = torch.linalg.solve_triangular(L, H.expand(len(t), -1, -1), upper=False)
        C, _ = batch_cholesky(_with_ridge(V.mT @ V))
        part = torch.linalg.solve_triangular(C, V.mT @ white, upper=False)
        size = size - part.square().sum((-2, -1))
    return size + 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _noise_regressors(block: Block, X: Tensor) -> Tensor:
    """Return inputs, their squared length, the fitted mean and its square, standardised."""
    m = (block.t - block.s * block.alpha)[:, :, None]
    shared = torch.cat([X, X.square().sum(2, keepdim=True)], dim=2).expand(len(m), -1, -1)
    h = torch.cat([shared, m, m.square()], dim=2)
    h = h - h.mean(1, keepdim=True)
    return h / h.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)


def _explained(h: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share of the variance of v that h explains, (b,), and v's predicted size.

    The size has mean one and shape (b, n).
    """
    mean = v.mean(1, keepdim=True)
    centred = v - mean
    G = _with_ridge(h.mT @ h / h.shape[1])
    moment = (h.mT @ centred[:, :, None])[:, :, 0] / h.shape[1]
    slope = torch.linalg.solve(G, moment)
    share = torch.linalg.vecdot(moment, slope) / centred.square().mean(1).clamp(min=1e-300)
    size = 1.0 + (h @ slope[:, :, None])[:, :, 0] / mean.clamp(min=1e-300)
    return share, size.clamp(*_SIZE_BOUNDS)


def _kurtosis(z: Tensor) -> Tensor:
    centred = z - z.mean(1, keepdim=True)
    return centred.pow(4).mean(1) / centred.square().mean(1).square().clamp(min=1e-300)
