r"""Several targets over the same rows, exactly, with as few factorisations as possible.

**Training.** With targets :math:`t_k` and known noise variances :math:`s_k` the objective is the
sum over the targets of those in :mod:`twostagegp.numerics.objectives`,

.. math::

    L(\theta, \sigma^2) = \sum_k L_k\big( K_\theta + \mathrm{diag}((s_k + \sigma^2) / c),\, t_k
        \big) , \qquad W = \sum_k \partial L_k / \partial K ,

so that K and its derivative are evaluated only once. If the noise is common to the targets, one
factorisation serves all of them.

**Conditioning.** With common noise :class:`~twostagegp.engines.exact.engine.ExactPosterior` solves
for all targets at once. If the noise differs by target, let :math:`s_0` be the largest noise of
each row and :math:`I_k` the rows in which target k has less noise. Only in these rows does the
matrix of target k differ from the one with the largest noise,

.. math::

    A_0 = (K_\theta + \mathrm{diag}(s_0 / c))^{-1} , \qquad
    A_k = A_0 + B_k^\top B_k , \qquad B_k = L_k^{-1} A_0[I_k, :] , \qquad
    L_k L_k^\top = \mathrm{diag}\Big( \frac{c}{s_0 - s_k} \Big)_{I_k} - A_0[I_k, I_k] ,

by the matrix inversion lemma. This takes one factorisation of all rows, and one of the rows
:math:`I_k` per target, instead of K factorisations of all rows. In classification :math:`I_k` are
the rows of class k, so that their total number is the number of rows. With :math:`h = A_0 k_x`

.. math::

    v_k(x) = k(x, x) - k_x^\top h - \| L_k^{-1} h_{I_k} \|^2 , \qquad f_k(x) = k_x^\top A_k t_k .
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.settings import EXACT_DEFAULTS
from twostagegp.engines.problem import Problem
from twostagegp.engines.several import split_targets
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.held_out import LOG_2PI, Heldout, copies_within, leave_out
from twostagegp.numerics.linalg import (
    Blocks,
    block_inverses,
    cholesky_inverse,
    cholesky_solve,
    safe_cholesky,
    scaled_gram,
)
from twostagegp.numerics.objectives import Factored
from twostagegp.runtime.cores import raise_if_stopped

__all__ = ["SeveralPosterior", "SeveralProblem"]


@dataclass
class SeveralProblem(Problem):
    """A training problem summed over the targets; ``R`` has shape (m, K)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._targets = split_targets(self.rows)
        self._total = self.rows.total * len(self._targets)

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        raise_if_stopped()
        self.evaluations += 1
        rows, theta, noise = self.rows, parameters[:-1], math.exp(parameters[-1])
        K, saved = self.kernel.evaluate(rows.X, theta)
        # The noise is added to the diagonal and removed again: K is needed without it below.
        diagonal = K.diagonal().clone()
        one_matrix = rows.extra.ndim == 1
        if one_matrix and self.objective == "loo" and (rows.groups is not None or rows.plain):
            value, W, by_noise = self._all_at_once(K, noise)
        else:
            value, W, by_noise = self._one_by_one(K, noise, one_matrix)
        K.diagonal().copy_(diagonal)
        by_theta = self.kernel.gradient(rows.X, theta, K, saved, W)
        return self._per_row(parameters, value, np.append(by_theta, noise * by_noise))

    def _factor(self, K: Tensor) -> Tensor:
        L, jitter = safe_cholesky(K)
        self.jitter = max(self.jitter, jitter)
        return L

    def _all_at_once(self, K: Tensor, noise: float) -> tuple[float, Tensor, float]:
        """Return value, W and the derivative with respect to the noise, for all targets at once."""
        rows = self.rows
        s = noise + rows.extra
        K.diagonal().add_(s / rows.c)
        A = cholesky_inverse(self._factor(K))
        value, W, direct = _joint_loo(A, A @ rows.t, rows, s)
        return value, W, float((W.diagonal() / rows.c).sum()) + direct

    def _one_by_one(self, K: Tensor, noise: float, one_matrix: bool) -> tuple[float, Tensor, float]:
        """Return value, W and the derivative with respect to the noise, target by target.

        With ``one_matrix`` the targets have the same noise and share one factorisation.
        """
        diagonal = K.diagonal().clone()
        W, value, by_noise = torch.zeros_like(K), 0.0, 0.0
        L = A = None
        for k, rows in enumerate(self._targets):
            s = noise + rows.extra
            if L is None or A is None or not one_matrix:
                K.diagonal().copy_(diagonal + s / rows.c)
                L = self._factor(K)
                A = cholesky_inverse(L)
            R = None if self.R is None else self.R[:, k]
            result = self.objective_of(Factored(L, A, cholesky_solve(L, rows.t)), rows, s, R)
            W += result.W
            value += result.value
            by_noise += float((result.W.diagonal() / rows.c + result.g).sum())
        return value, W, by_noise


def _joint_loo(A: Tensor, alpha: Tensor, rows: Rows, s: Tensor) -> tuple[float, Tensor, float]:
    r"""Return the sum over targets of negative log leave-one-out (leave-group-out) densities.

    With :math:`E = S \alpha`, S the inverse of the diagonal (of the diagonal blocks) of A,

    .. math::

        L = \tfrac12 \langle E, \alpha \rangle + \tfrac K2 \log\det S + \tfrac K2 n \log 2\pi ,
        \qquad W = \tfrac12 A\, \mathrm{blockdiag}(E E^\top + K S)\, A
            - \mathrm{sym}((A E) \alpha^\top) .

    Also returns W, and the part of the derivative with respect to the noise that bypasses the
    matrix.
    """
    n, K = alpha.shape
    if rows.groups is None:
        S = 1.0 / A.diagonal()
        E = S[:, None] * alpha
        value = 0.5 * float((E * alpha).sum() + K * (S.log().sum() + n * LOG_2PI))
        W = scaled_gram(A, 0.5 * (E.square().sum(1) + K * S))
        direct = 0.0
    else:
        blocks = block_inverses(A, rows.blocks())
        E = blocks @ alpha
        inner = blocks.map(lambda G, S_G: E[G] @ E[G].transpose(1, 2) + K * S_G)
        W = inner.left(A).mul_(0.5) @ A
        within, by_s = copies_within(rows.c, rows.q, s)
        value = 0.5 * float((E * alpha).sum() + K * (blocks.logdet() + within.sum()))
        direct = K * float(by_s.sum())
    U = A @ E
    W -= 0.5 * (U @ alpha.T + alpha @ U.T)
    return value, W, direct


@dataclass(frozen=True)
class _OneTarget:
    """The inverse A_k of one target, as held-out predictions need it."""

    A: Tensor
    B: Tensor
    alpha: Tensor

    @property
    def kappa(self) -> Tensor:
        return self.A.diagonal() + self.B.square().sum(0)

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        return block_inverses(self.A, blocks, plus=self.B)


class SeveralPosterior:
    """One zero-mean GP per target over the same rows, with known noise that differs by target.

    Predictions have one column per target: mean and variance of shape (n, K), covariance (n, n, K).

    Parameters
    ----------
    kernel : Kernel
    parameters : array
        (theta, log noise variance), common to the targets.
    rows : Rows
        Rows with t and extra of shape (m, K).
    """

    kernel: Kernel
    parameters: Vector
    rows: Rows
    noise: float
    jitter: float
    alpha: Tensor
    _A: Tensor | None
    _factors: list[Tensor] | None

    def __init__(self, kernel: Kernel, parameters: Vector, rows: Rows) -> None:
        self.kernel, self.parameters, self.rows = kernel, parameters, rows
        self.noise = math.exp(parameters[-1])
        self.rebuild_factor()
        parts = [self._times(k, rows.t[:, k]) for k in range(rows.t.shape[1])]
        self.alpha = torch.stack(parts, dim=1)

    @cached_property
    def _largest(self) -> Tensor:
        """Largest known noise of each row."""
        return self.rows.extra.amax(1)

    @cached_property
    def less_noise(self) -> list[Tensor]:
        """For each target, the numbers of the rows in which it has less than the largest noise."""
        less = self.rows.extra < self._largest[:, None]
        return [torch.nonzero(column)[:, 0] for column in less.T]

    def rebuild_factor(self) -> None:
        """Compute the inverse and the factors from rows and hyperparameters."""
        rows = self.rows
        K, _ = self.kernel.evaluate(rows.X, self.parameters[:-1])
        K.diagonal().add_((self._largest + self.noise) / rows.c)
        L, self.jitter = safe_cholesky(K)
        del K
        self._A = cholesky_inverse(L)
        del L
        self._factors = []
        for k, less in enumerate(self.less_noise):
            D = -self._A[less[:, None], less]
            D.diagonal().add_(rows.c[less] / (self._largest - rows.extra[:, k])[less])
            self._factors.append(safe_cholesky(D)[0] if len(less) else D)

    @property
    def A(self) -> Tensor:
        """The inverse of the covariance with the largest noise of each row."""
        assert self._A is not None, "drop_factor() was called"
        return self._A

    @property
    def factors(self) -> list[Tensor]:
        """The factors L_k."""
        assert self._factors is not None, "drop_factor() was called"
        return self._factors

    def drop_factor(self) -> None:
        self._A = self._factors = None

    def _times(self, k: int, t: Tensor) -> Tensor:
        """Return A_k t."""
        u, less = self.A @ t, self.less_noise[k]
        inner = torch.cholesky_solve(u[less, None], self.factors[k])
        return u + self.A[:, less] @ inner[:, 0]

    def heldout(self, index: Tensor | None = None) -> Heldout:
        parts = []
        for k, rows in enumerate(split_targets(self.rows)):
            A = self.A
            B = torch.linalg.solve_triangular(self.factors[k], A[self.less_noise[k]], upper=False)
            one = _OneTarget(A, B, self.alpha[:, k])
            parts.append(leave_out(one, rows, self.noise + rows.extra))
        held = Heldout(
            torch.stack([part.residual for part in parts], dim=1),
            torch.stack([part.slope for part in parts], dim=1),
            torch.stack([part.variance for part in parts], dim=1),
        )
        return held if index is None else held.subset(index)

    def mean(self, X: Tensor) -> Tensor:
        return torch.cat([self._cross(part) @ self.alpha for part in self._chunks(X)])

    def variance(self, X: Tensor) -> Tensor:
        found = []
        for part in self._chunks(X):
            k = self._cross(part)
            h = k @ self.A
            shared = self.kernel.diagonal(part, self.parameters[:-1]) - (k * h).sum(1)
            v = torch.empty(len(part), len(self.less_noise), dtype=k.dtype, device=k.device)
            for j, (less, L) in enumerate(zip(self.less_noise, self.factors, strict=True)):
                u = torch.linalg.solve_triangular(L, h[:, less].T, upper=False)
                v[:, j] = shared - u.square().sum(0)
            found.append(v.clamp_(min=0.0))
        return torch.cat(found)

    def covariance(self, X: Tensor) -> Tensor:
        k = self._cross(X)
        h = k @ self.A
        shared = self.kernel.cross(X, X, self.parameters[:-1]) - k @ h.T
        parts = []
        for less, L in zip(self.less_noise, self.factors, strict=True):
            u = torch.linalg.solve_triangular(L, h[:, less].T, upper=False)
            parts.append(shared - u.T @ u)
        return torch.stack(parts, dim=2)

    def extended(self, rows: Rows, changed: Tensor) -> SeveralPosterior:
        """Condition on more rows at the same hyperparameters; no factor is reused."""
        return SeveralPosterior(self.kernel, self.parameters, rows)

    def _cross(self, X: Tensor) -> Tensor:
        return self.kernel.cross(X, self.rows.X, self.parameters[:-1])

    def _chunks(self, X: Tensor) -> Iterator[Tensor]:
        entries = EXACT_DEFAULTS.prediction_entries(X.device)
        yield from torch.split(X, max(1, entries // max(1, len(self.rows))))
