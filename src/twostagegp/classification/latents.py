r"""K latent regressions over the same rows: one kernel matrix serves all of them.

With targets :math:`t_k` and noise variances :math:`s_k` of every class the training objective is
the sum over the classes of those in :mod:`twostagegp.numerics.objectives`,

.. math::

    L(\theta, \sigma^2) = \sum_k L_k\big( K_\theta + \mathrm{diag}((s_k + \sigma^2) / c),\, t_k
        \big) , \qquad W = \sum_k \partial L_k / \partial K ,

so that K is evaluated, and its derivative asked for, once. Where all classes have the same noise
one factorisation serves all as well.

**The constant.** Targets are less their mean over all rows, inputs as well. A model without a
constant that is asked to predict rows which it has not seen would still know them through these
means: what the other rows lack to a mean of zero is what was left out, and with more columns than
rows a linear model can read it off. So a constant of wide prior variance is part of every kernel of
a mean, and held-out predictions are honest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows, group_blocks
from twostagegp.engines.problem import ObjectiveName, Problem
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics.linalg import block_inverses, cholesky_solve, safe_cholesky, scaled_gram
from twostagegp.numerics.objectives import Factored

__all__ = ["CONSTANT", "LatentEngine", "LatentProblem", "LatentRows"]

#: Prior variance of the constant, for targets of unit variance.
CONSTANT = 10.0


@dataclass(frozen=True)
class LatentRows:
    """Distinct rows with a target for every class.

    Attributes
    ----------
    X : Tensor of shape (m, d)
    T : Tensor of shape (m, K)
    c : Tensor of shape (m,)
        Weight: how many rows it stands for.
    extra : Tensor of shape (m, K) or (m, 1)
        Known noise variances; one column where all classes have the same.
    groups : Tensor of shape (m,) or None
    """

    X: Tensor
    T: Tensor
    c: Tensor
    extra: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_classes(self) -> int:
        return int(self.T.shape[1])

    @property
    def total(self) -> float:
        """Total weight over all classes."""
        return float(self.c.sum()) * self.n_classes

    def of(self, k: int) -> Rows:
        """The rows of one latent regression."""
        extra = self.extra[:, min(k, self.extra.shape[1] - 1)]
        return Rows(self.X, self.T[:, k], self.c, torch.zeros_like(self.c), extra, self.groups)

    def blocks(self) -> list[Tensor] | None:
        """Row numbers of each group, None without groups."""
        return None if self.groups is None else group_blocks(self.groups)

    def subset(self, index: Tensor | NDArray[np.int64]) -> LatentRows:
        index = torch.as_tensor(index, device=self.X.device)
        groups = None if self.groups is None else self.groups[index]
        return LatentRows(self.X[index], self.T[index], self.c[index], self.extra[index], groups)


@dataclass
class LatentProblem(Problem):
    """A training problem summed over the classes; ``R`` has shape (m, K)."""

    latents: LatentRows = field(kw_only=True)
    constant: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._total = self.latents.total
        self._classes = [self.latents.of(k) for k in range(self.latents.n_classes)]

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        self.evaluations += 1
        latents, theta, noise = self.latents, parameters[:-1], math.exp(parameters[-1])
        covariance, saved = self.kernel.evaluate(latents.X, theta)
        K = covariance + self.constant
        one_matrix = latents.extra.shape[1] == 1
        if (
            one_matrix
            and self.objective == "loo"
            and (latents.groups is not None or self.rows.plain)
        ):
            value, W, by_noise = self._all_at_once(K, noise)
        else:
            value, W, by_noise = self._one_by_one(K, noise, one_matrix)
        by_theta = self.kernel.gradient(latents.X, theta, covariance, saved, W)
        gradient = np.append(by_theta, noise * by_noise)
        if self.use_prior:
            penalty, slope = self._prior(parameters)
            value, gradient = value + penalty, gradient + slope
        return value / self._total, gradient / self._total

    def _factor(self, K: Tensor) -> Tensor:
        L, jitter = safe_cholesky(K)
        self.jitter = max(self.jitter, jitter)
        return L

    def _all_at_once(self, K: Tensor, noise: float) -> tuple[float, Tensor, float]:
        """Value, W and the derivative by the noise, from one matrix and one formula."""
        latents = self.latents
        s = noise + self.rows.extra
        K.diagonal().add_(s / latents.c)
        A = torch.cholesky_inverse(self._factor(K))
        value, W, direct = _joint_loo(A, A @ latents.T, self.rows, s)
        return value, W, float((W.diagonal() / latents.c).sum()) + direct

    def _one_by_one(self, K: Tensor, noise: float, one_matrix: bool) -> tuple[float, Tensor, float]:
        """The same, class by class; where all have the same noise one factorisation serves."""
        diagonal = K.diagonal().clone()
        W, value, by_noise = torch.zeros_like(K), 0.0, 0.0
        L = A = None
        for k, rows in enumerate(self._classes):
            s = noise + rows.extra
            if L is None or A is None or not one_matrix:
                K.diagonal().copy_(diagonal + s / rows.c)
                L = self._factor(K)
                A = torch.cholesky_inverse(L)
            R = None if self.R is None else self.R[:, k]
            result = self._objective_of(Factored(L, A, cholesky_solve(L, rows.t)), rows, s, R)
            W += result.W
            value += result.value
            by_noise += float((result.W.diagonal() / rows.c + result.g).sum())
        return value, W, by_noise


def _joint_loo(A: Tensor, alpha: Tensor, rows: Rows, s: Tensor) -> tuple[float, Tensor, float]:
    r"""Sum over classes of leave-one-out (leave-group-out) densities with one matrix.

    With :math:`E = S \alpha`, S the inverse of the diagonal (of the diagonal blocks) of A,

    .. math::

        L = \tfrac12 \langle E, \alpha \rangle + \tfrac K2 \log\det S + \tfrac K2 n \log 2\pi ,
        \qquad W = \tfrac12 A\, \mathrm{blockdiag}(E E^\top + K S)\, A
            - \mathrm{sym}((A E) \alpha^\top) .

    Returns the value, W, and the derivative by a common noise other than through the matrix.
    """
    n, classes = alpha.shape
    log_2pi = math.log(2.0 * math.pi)
    if rows.groups is None:
        S = 1.0 / A.diagonal()
        E = S[:, None] * alpha
        value = 0.5 * float((E * alpha).sum() + classes * (S.log().sum() + n * log_2pi))
        W = scaled_gram(A, 0.5 * (E.square().sum(1) + classes * S))
        direct = 0.0
    else:
        blocks = block_inverses(A, rows.blocks())
        E = blocks @ alpha
        inner = blocks.map(lambda G, S_G: E[G] @ E[G].transpose(1, 2) + classes * S_G)
        W = inner.left(A).mul_(0.5) @ A
        within = (rows.c - 1.0) * s.log() + rows.c.log() + rows.c * log_2pi
        value = 0.5 * float((E * alpha).sum() + classes * (blocks.logdet() + within.sum()))
        direct = 0.5 * classes * float(((rows.c - 1.0) / s).sum())
    U = A @ E
    W -= 0.5 * (U @ alpha.T + alpha @ U.T)
    return value, W, direct


@dataclass(frozen=True)
class LatentEngine:
    """Rows that pose training problems, for :mod:`twostagegp.training.ladder`."""

    latents: LatentRows
    noise_floor: float = 1e-6
    constant: float = 0.0

    @property
    def rows(self) -> LatentRows:
        return self.latents

    def subset(self, index: NDArray[np.int64]) -> LatentEngine:
        return replace(self, latents=self.latents.subset(index))

    def problem(
        self, kernel: Kernel, objective: ObjectiveName, R: Tensor | None = None
    ) -> LatentProblem:
        return LatentProblem(
            kernel,
            self.latents.of(0),
            objective,
            R,
            self.noise_floor,
            latents=self.latents,
            constant=self.constant,
        )
