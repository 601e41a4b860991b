r"""Training objectives: the value and its derivative with respect to the matrix.

With :math:`K = K_\theta + \mathrm{diag}(s / c)` (noise variances :math:`s_j`, row weights
:math:`c_j`, see ``data/rows.py``), :math:`A = K^{-1}`, :math:`\alpha = A t` and
:math:`\kappa = \mathrm{diag} A`, every objective L returns

* its value,
* :math:`W = \partial L / \partial K` (symmetric), and
* :math:`g_j = \partial L / \partial s_j`, the part of it that does not pass through K,

so that the derivative with respect to a kernel parameter is
:math:`\langle W, \partial K / \partial \theta \rangle` and that with respect to the noise is
:math:`\sum_j (W_{jj} / c_j + g_j)\, \partial s_j`. All cost one Cholesky, one inverse and at most
one symmetric product. For a function of :math:`\alpha` and :math:`\kappa`,

.. math::

    W = -\mathrm{sym}\big( (A\, \partial_\alpha L)\, \alpha^\top \big)
        - A\, \mathrm{diag}(\partial_\kappa L)\, A .

Every W is thus the sum of a few terms (:class:`Slope`). :func:`terms` returns them without forming
the matrix, for problems that are too large to hold it in memory.

Held-out residuals and variances are those of :mod:`twostagegp.numerics.held_out`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.numerics.held_out import LOG_2PI, Solved, copies_within, one_copy
from twostagegp.numerics.linalg import Blocks, block_inverses, scaled_gram

__all__ = [
    "Factored",
    "Inverse",
    "Slope",
    "Terms",
    "heldout_variance",
    "loo_density",
    "nll",
    "terms",
]


class Inverse(Solved, Protocol):
    """The quantities of a factorised K that the objectives need.

    The inverse itself need not be held in memory.
    """

    def half_log_determinant(self) -> Tensor:
        """Return half the logarithm of the determinant of K."""

    def solve(self, v: Tensor) -> Tensor:
        """Return A v for a vector v."""


@dataclass(frozen=True)
class Factored:
    """A factorisation of K with its inverse."""

    L: Tensor
    A: Tensor
    alpha: Tensor

    @property
    def kappa(self) -> Tensor:
        return self.A.diagonal()

    def half_log_determinant(self) -> Tensor:
        """Return half the logarithm of the determinant of K."""
        return self.L.diagonal().log().sum()

    def solve(self, v: Tensor) -> Tensor:
        """Return A v for a vector v."""
        return self.A @ v

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        """Return the inverses of diagonal blocks of A."""
        return block_inverses(self.A, blocks)


@dataclass(frozen=True)
class Slope:
    r"""The terms of dL/dK,

    .. math::

        W = a A + A B A - \mathrm{sym}(u \alpha^\top) .

    Attributes
    ----------
    inverse : float
        a.
    inner : Tensor of shape (n,), Blocks or None
        B, diagonal or block-diagonal.
    outer : Tensor of shape (n,) or None
        u.
    """

    inverse: float = 0.0
    inner: Tensor | Blocks | None = None
    outer: Tensor | None = None

    def times_inner(self, V: Tensor) -> Tensor:
        """Return B V for V of shape (n, m)."""
        assert self.inner is not None
        return self.inner[:, None] * V if isinstance(self.inner, Tensor) else self.inner @ V

    def dense(self, A: Tensor, alpha: Tensor) -> Tensor:
        """Return W, shape (n, n)."""
        if self.inner is None:
            W = self.inverse * A
        elif isinstance(self.inner, Tensor):
            W = scaled_gram(A, self.inner)
        else:
            W = self.inner.left(A) @ A
        if self.outer is not None:
            _subtract_symmetric_outer(W, self.outer, alpha)
        return W


@dataclass(frozen=True)
class Terms:
    """Value of an objective, the terms of dL/dK, and the part of dL/ds that bypasses K."""

    value: float
    slope: Slope
    g: Tensor

    def dense(self, f: Factored) -> Objective:
        """Return the objective with dL/dK as a matrix."""
        return Objective(self.value, self.slope.dense(f.A, f.alpha), self.g)


@dataclass(frozen=True)
class Objective:
    """Value, dL/dK and the part of dL/ds that bypasses K."""

    value: float
    W: Tensor
    g: Tensor


def terms(name: str, f: Inverse, rows: Rows, s: Tensor, R: Tensor | None = None) -> Terms:
    """Return the terms of the objective ``name``: "nll", "loo" or "heldout", which needs R."""
    if name == "nll":
        return _nll(f, rows, s)
    if name == "loo":
        return _loo_density(f, rows, s)
    assert R is not None
    return _heldout_variance(f, rows, s, R)


def nll(f: Factored, rows: Rows, s: Tensor) -> Objective:
    r"""Return the negative log likelihood of all rows,

    .. math::

        L = \tfrac12 t^\top \alpha + \tfrac12 \log\det K
            + \tfrac12 \sum_j \Big[ \frac{q_j}{s_j} + (c_j - 1) \log s_j + \log c_j \Big]
            + \tfrac12 \textstyle\sum_j c_j \log 2\pi, \qquad
        W = \tfrac12 (A - \alpha \alpha^\top).
    """
    return _nll(f, rows, s).dense(f)


def _nll(f: Inverse, rows: Rows, s: Tensor) -> Terms:
    value = float(0.5 * rows.t @ f.alpha + f.half_log_determinant())
    slope = Slope(inverse=0.5, outer=0.5 * f.alpha)
    if rows.plain:
        return Terms(value + 0.5 * len(rows) * LOG_2PI, slope, torch.zeros_like(s))
    within, direct = copies_within(rows.c, rows.q, s)
    return Terms(value + 0.5 * float(within.sum()), slope, direct)


def loo_density(f: Factored, rows: Rows, s: Tensor) -> Objective:
    r"""Return the negative log density of every row (or group) predicted from the others.

    .. math::

        L = \tfrac12 \sum_j \frac{Q_j}{v_j} + c_j \log v_j + c_j \log 2\pi, \qquad
        Q_j = \sum_i w_i e_i^2 =
        \begin{cases}
            v_j^2 (\alpha_j^2 / c_j + q_j / s_j^2) & c_j > 1 \\
            c_j \alpha_j^2 / \kappa_j^2 + q_j & c_j \le 1
        \end{cases}

    with the residuals and variances of :func:`~twostagegp.numerics.held_out.leave_out`.
    """
    return _loo_density(f, rows, s).dense(f)


def _loo_density(f: Inverse, rows: Rows, s: Tensor) -> Terms:
    if rows.groups is not None:
        return _group_density(f, rows, s)
    if rows.plain:
        return _plain_loo_density(f, s)
    c, q, repeated = rows.c, rows.q, rows.c > 1.0
    held = one_copy(f.kappa, c, s)
    v = held.v
    b = torch.where(repeated, v.square() / c, c / f.kappa.square())  # Q = b alpha^2 + ...
    Q = b * f.alpha.square() + torch.where(repeated, (v / s).square() * q, q)
    value = 0.5 * (Q / v + c * v.log() + c * LOG_2PI).sum()
    # by_v has the derivative of Q / v as well: Q / v is proportional to v for repeated rows and to
    # 1 / v for others. The remaining derivatives of Q follow.
    by_v = 0.5 * (c / v + torch.where(repeated, Q, -Q) / v.square())
    by_Q_kappa = torch.where(repeated, torch.zeros_like(c), -b * f.alpha.square() / (f.kappa * v))
    by_Q_s = torch.where(repeated, -q * v / s**3, torch.zeros_like(c))
    inner = -(by_v * held.by_kappa + by_Q_kappa)
    slope = Slope(inner=inner, outer=f.solve(b * f.alpha / v))
    return Terms(float(value), slope, by_v * held.by_s + by_Q_s)


def _plain_loo_density(f: Inverse, s: Tensor) -> Terms:
    r"""Return the textbook form, for weights that are all one: with :math:`e = \alpha / \kappa`,

    .. math::

        L = \tfrac12 \sum_j \alpha_j e_j - \log \kappa_j + \log 2\pi, \qquad
        W = \tfrac12 A\, \mathrm{diag}(e^2 + 1/\kappa)\, A - \mathrm{sym}((A e) \alpha^\top).
    """
    kappa = f.kappa
    e = f.alpha / kappa
    value = 0.5 * (f.alpha @ e - kappa.log().sum() + len(kappa) * LOG_2PI)
    slope = Slope(inner=0.5 * (e.square() + 1.0 / kappa), outer=f.solve(e))
    return Terms(float(value), slope, torch.zeros_like(s))


def heldout_variance(f: Factored, rows: Rows, s: Tensor, R: Tensor) -> Objective:
    r"""Return the negative log density of given held-out residuals under held-out *variances*.

    .. math::

        L = \tfrac12 \sum_j \frac{R_j}{v_j} + c_j \log v_j + c_j \log 2\pi,

    where :math:`R_j` is the sum of squares of the held-out residuals of row j's copies, from
    another model, and :math:`v_j` the held-out variance of this GP. The target of ``rows`` is not
    used: a GP's variance depends on X and :math:`\theta` only. This is the objective of the second
    stage.
    """
    return _heldout_variance(f, rows, s, R).dense(f)


def _heldout_variance(f: Inverse, rows: Rows, s: Tensor, R: Tensor) -> Terms:
    if rows.groups is not None:
        return _group_variance(f, rows, s, R)
    held = one_copy(f.kappa, rows.c, s)
    v = held.v
    value = 0.5 * (R / v + rows.c * (v.log() + LOG_2PI)).sum()
    by_v = 0.5 * (rows.c / v - R / v.square())
    return Terms(float(value), Slope(inner=-by_v * held.by_kappa), by_v * held.by_s)


def _subtract_symmetric_outer(W: Tensor, u: Tensor, v: Tensor) -> None:
    """Subtract sym(u v^T) from W in place."""
    W.addr_(u, v, alpha=-0.5).addr_(v, u, alpha=-0.5)


def _group_density(f: Inverse, rows: Rows, s: Tensor) -> Terms:
    r"""Return the negative log of the joint density of each group, predicted from the others.

    .. math::

        L = \sum_G \tfrac12 e_G^\top S_G^{-1} e_G + \tfrac12 \log\det S_G + \text{within}, \quad
        W = -\mathrm{sym}((A e) \alpha^\top)
            + \tfrac12 \sum_G A_{:G} (e_G e_G^\top + S_G) A_{G:} .

    The copies within merged rows contribute the same terms as in :func:`nll`.
    """
    S = f.block_inverses(rows.blocks())
    e = S @ f.alpha
    value = 0.5 * e @ f.alpha + 0.5 * S.logdet()
    inner = S.map(lambda G, S_G: (e[G][:, :, None] * e[G][:, None, :] + S_G).mul_(0.5))
    within, direct = copies_within(rows.c, rows.q, s)
    slope = Slope(inner=inner, outer=f.solve(e))
    return Terms(float(value + 0.5 * within.sum()), slope, direct)


def _group_variance(f: Inverse, rows: Rows, s: Tensor, R: Tensor) -> Terms:
    r"""Return :func:`heldout_variance` for groups: :math:`v_j = (S_G)_{jj} + s_j (1 - 1/c_j)`,

    .. math::

        L = \tfrac12 \sum_j \frac{R_j}{v_j} + c_j \log v_j, \quad
        w_j = -\tfrac12 \frac{R_j}{v_j^2} + \tfrac12 \frac{c_j}{v_j}, \quad
        W = \sum_G A_{:G} S_G\, \mathrm{diag}(w_G)\, S_G A_{G:} .
    """
    spread = 1.0 - 1.0 / rows.c
    S = f.block_inverses(rows.blocks())
    v = S.diagonal() + s * spread
    value = 0.5 * (R / v + rows.c * (v.log() + LOG_2PI)).sum()
    w = -0.5 * R / v.square() + 0.5 * rows.c / v
    inner = S.map(lambda G, S_G: (S_G * w[G][:, None, :]) @ S_G)
    return Terms(float(value), Slope(inner=inner), w * spread)
