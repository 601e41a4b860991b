r"""Predictions of training rows that were left out: every formula, in one place.

Rows are merged (``data/rows.py``): row j stands for :math:`c_j` copies with mean target
:math:`t_j`, within-row sum of squares :math:`q_j` and noise variance :math:`s_j`. Left out is *one
copy* of a row, whose other copies stay, or, if there are groups, the *whole group* of the row. A
row of weight :math:`c \le 1` is left out whole. Three situations:

**From the inverse** :math:`A = (K_\theta + \mathrm{diag}(s / c))^{-1}` of all rows, with
:math:`\alpha = A t` and :math:`\kappa = \mathrm{diag} A` (the exact engine). The copy with
deviation :math:`\delta_i` from the mean of its row has the residual and variance

.. math::

    e_i = \frac{\alpha_j / c_j + \delta_i / s_j}{\kappa'_j}, \qquad
    v_j = \frac1{\kappa'_j}, \qquad
    \kappa'_j = \frac{\kappa_j}{c_j^2} + \frac{c_j - 1}{c_j s_j},

which for c = 1 is the textbook :math:`e = \alpha/\kappa` (Rasmussen & Williams 2006, 5.4.2). For
:math:`c \le 1` it is :math:`e = \alpha/\kappa + \delta`, and one unit of noise is on the
prediction: :math:`v = 1/\kappa + s (1 - 1/c)`. With :math:`S_G = (A_{GG})^{-1}` the residual of a
group is :math:`e_G = S_G \alpha_G` with covariance :math:`S_G`.

**From other rows**, which predict the row as :math:`(\mu, v)` without noise (the neighbour
engine). The :math:`c - 1` copies that stay are an observation of the same point with noise variance
:math:`s / (c - 1)`,

.. math::

    v' = \Big(\frac1v + \frac{c - 1}{s}\Big)^{-1}, \qquad
    e = \frac{v'}{v} (t - \mu) + \Big(1 + \frac{v'}{s}\Big) \delta, \qquad V = v' + s .

**From a Gaussian over function values** that was conditioned on the row (inducing points): it gives
the row the mean :math:`\mu` and the variance r, and the copy's likelihood factor, of precision
:math:`p = \min(c, 1) / s`, is divided out,

.. math::

    e = \frac{t - \mu}{1 - p r}, \qquad v = \frac{r}{1 - p r} + \rho + s ,

where :math:`\rho` is the variance of the function at the row given those function values. For a
group with covariance :math:`R_G` and :math:`F = I - R_G\, \mathrm{diag}(c / s)_G` the residual is
:math:`F^{-1} (t - \mu)_G` and the latent covariance :math:`F^{-1} R_G`.

Targets may have several columns, shape (m, K), that share the matrix: residuals then have K columns
as well. ``engines/batched_problem.py`` (many small problems at once) and
``engines/neighbors/compiled`` implement the formulas separately for speed; tests compare them with
this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.numerics.linalg import Blocks

__all__ = [
    "Heldout",
    "OneCopy",
    "Solved",
    "copies_within",
    "copy_from_others",
    "group_without_factors",
    "leave_out",
    "one_copy",
    "squares_of_copies",
    "without_factor",
]

LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Heldout:
    """Held-out predictions of merged rows.

    The copy with deviation delta from the mean of its row has the residual
    ``residual + slope * delta`` and the variance ``variance``, noise included.
    """

    residual: Tensor
    slope: Tensor
    variance: Tensor

    def subset(self, index: Tensor) -> Heldout:
        """Return the predictions of some rows."""
        return Heldout(self.residual[index], self.slope[index], self.variance[index])

    def sum_of_squares(self, rows: Rows) -> Tensor:
        """Return the weighted sum over the copies of each row of the squared residual."""
        return rows.c * self.residual.square() + self.slope.square() * rows.q


class Solved(Protocol):
    """The quantities of a factorised covariance matrix of all rows that the formulas need."""

    @property
    def alpha(self) -> Tensor:
        """The solution A t, shape (n,) or (n, K)."""

    @property
    def kappa(self) -> Tensor:
        """The diagonal of A, shape (n,)."""

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        """Return the inverses of diagonal blocks of A."""


@dataclass(frozen=True)
class OneCopy:
    """Variance of one copy that is left out, and its derivatives with respect to kappa and s."""

    v: Tensor
    by_kappa: Tensor
    by_s: Tensor


def one_copy(kappa: Tensor, c: Tensor, s: Tensor) -> OneCopy:
    """Return the variance of one copy, predicted from its other copies and all other rows."""
    repeated = c > 1.0
    ratio = (c - 1.0) / c
    # For a tiny weight this is a difference of large numbers, and rounding could put it below the
    # noise variance.
    whole = torch.maximum(1.0 / kappa + s * ratio, s)
    v = torch.where(repeated, 1.0 / (kappa / c.square() + ratio / s), whole)
    by_kappa = torch.where(repeated, -(v / c).square(), -1.0 / kappa.square())
    return OneCopy(v, by_kappa, torch.where(repeated, (v / s).square() * ratio, ratio))


def squares_of_copies(
    alpha: Tensor, kappa: Tensor, c: Tensor, q: Tensor, s: Tensor, v: Tensor
) -> Tensor:
    r"""Return the weighted sum over the copies of each row of the squared held-out residual.

    .. math::

        Q_j = \sum_i w_i e_i^2 =
        \begin{cases}
            v_j^2 (\alpha_j^2 / c_j + q_j / s_j^2) & c_j > 1 \\
            c_j \alpha_j^2 / \kappa_j^2 + q_j & c_j \le 1
        \end{cases}

    All arguments and the result have the same shape (..., n).
    """
    repeated = v.square() * (alpha.square() / c + q / s.square())
    return torch.where(c > 1.0, repeated, c * (alpha / kappa).square() + q)


def leave_out(f: Solved, rows: Rows, s: Tensor) -> Heldout:
    """Return held-out predictions from the inverse: one copy left out, or one group left out.

    Examples
    --------
    >>> import torch
    >>> from twostagegp.data.rows import Rows
    >>> from twostagegp.numerics.objectives import Factored
    >>> one = torch.ones(2, dtype=torch.float64)
    >>> rows = Rows(torch.zeros(2, 1).double(), one, one, 0 * one, 0 * one)
    >>> K = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    >>> A = torch.linalg.inv(K)
    >>> f = Factored(torch.linalg.cholesky(K), A, A @ one)
    >>> leave_out(f, rows, one).residual  # 1 - (1 / 2) * 1
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    c = rows.c
    if rows.groups is not None:
        S = f.block_inverses(rows.blocks())
        variance = S.diagonal() + s * (1.0 - 1.0 / c)
        return Heldout(S @ f.alpha, torch.ones_like(c), variance)
    kappa = f.kappa
    v = one_copy(kappa, c, s).v
    factor = torch.where(c > 1.0, v / c, 1.0 / kappa)
    if f.alpha.ndim == 2:
        factor = factor[:, None]
    return Heldout(factor * f.alpha, torch.where(c > 1.0, v / s, torch.ones_like(s)), v)


def copy_from_others(
    v: Tensor, c: Tensor, s: Tensor, with_group: bool
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return :math:`v'/v`, the slope :math:`1 + v'/s` and :math:`V = v' + s` of one copy.

    Parameters
    ----------
    v : Tensor of shape (n,)
        Latent variance given other rows.
    with_group : bool
        Whether all copies are left out together, as groups are: then the ratio and the slope are
        one, and V = v + s.
    """
    repeated = (c > 1.0) & (not with_group)
    one = torch.ones_like(v)
    v = torch.where(repeated, torch.maximum(v, 1e-12 * s), v)
    safe = torch.where(repeated, v, one)  # autograd: no infinite derivative in unused entries
    u = 1.0 / (1.0 / safe + (c - 1.0).clamp(min=0.0) / s)
    ratio = torch.where(repeated, u / safe, one)
    slope = torch.where(repeated, 1.0 + u / s, one)
    return ratio, slope, torch.where(repeated, u, v) + s


def without_factor(t: Tensor, mu: Tensor, r: Tensor, rest: Tensor, c: Tensor, s: Tensor) -> Heldout:
    """Return held-out predictions from a Gaussian conditioned on every row; all shapes (n,)."""
    kept = 1.0 - r * c.clamp(max=1.0) / s
    slope = torch.where(c > 1.0, 1.0 / kept, torch.ones_like(c))
    return Heldout((t - mu) / kept, slope, r / kept + rest + s)


def group_without_factors(R: Tensor, e: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Return residuals and latent covariance of a group, from a Gaussian conditioned on it.

    Parameters
    ----------
    R : Tensor of shape (g, g)
        Covariance of the group's function values under that Gaussian.
    e : Tensor of shape (g,)
        Target minus the mean of the function values.
    precision : Tensor of shape (g,)
        c / s.
    """
    F = torch.eye(len(R), dtype=R.dtype, device=R.device) - R * precision
    return torch.linalg.solve(F, e), torch.linalg.solve(F, R)


def copies_within(c: Tensor, q: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return what the copies within rows add to twice the negative log density, and to dL/ds.

    .. math::

        \frac{q_j}{s_j} + (c_j - 1) \log s_j + \log c_j + c_j \log 2\pi , \qquad
        \frac12 \Big( \frac{c_j - 1}{s_j} - \frac{q_j}{s_j^2} \Big) .
    """
    within = q / s + (c - 1.0) * s.log() + c.log() + c * LOG_2PI
    return within, 0.5 * ((c - 1.0) / s - q / s.square())
