r"""A training problem on a few thousand rows of a CPU, in memory that is used again.

The value and the derivatives are those of :class:`~twostagegp.engines.problem.Problem`. What
differs is where the numbers are: K is replaced by its factor, the factor by the inverse A, and
only one triangle of each symmetric matrix is computed. With

.. math::

    W = \frac{\partial L}{\partial K} = a A + A B A - \mathrm{sym}(u \alpha^\top), \qquad
    K_y = K + \mathrm{diag}(s / c),

the derivative with respect to the logarithm of the outputscale needs no matrix,

.. math::

    \langle W, K \rangle = \langle W, K_y \rangle - \sum_j W_{jj} s_j / c_j , \qquad
    \langle W, K_y \rangle = a n + \mathrm{tr}(B A) - u^\top t .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.problem import Problem
from twostagegp.kernels import Kernel, NamedKernel, Vector
from twostagegp.kernels.in_place import InPlaceKernel
from twostagegp.numerics import lapack, objectives
from twostagegp.numerics.linalg import (
    JITTERS,
    Blocks,
    block_inverses,
    not_finite,
    not_positive_definite,
    scaled_gram_,
)
from twostagegp.numerics.objectives import Slope
from twostagegp.runtime.cores import raise_if_stopped

__all__ = ["DenseProblem", "factorise_", "fits_in_place"]

Array = NDArray[np.float64]


def fits_in_place(kernel: Kernel, rows: Rows) -> bool:
    """Return whether K(X, X) can be evaluated and factorised in one array."""
    X = rows.X
    usual = X.device.type == "cpu" and X.dtype == torch.float64
    return usual and InPlaceKernel.fits(kernel) and lapack.available()


def factorise_(covariance: InPlaceKernel, theta: Vector, on_diagonal: Array, K: Array) -> float:
    r"""Write the upper factor U of :math:`K(X, X) + \mathrm{diag}(s)` into K; return the jitter.

    At most three jitter steps are tried, as by :func:`~twostagegp.numerics.linalg.safe_cholesky`.
    What K holds below its diagonal is meaningless afterwards.

    Parameters
    ----------
    covariance : InPlaceKernel
        The kernel over the rows X.
    theta : array
        The kernel's parameters.
    on_diagonal : array of shape (n,)
        Noise variances s.
    K : array of shape (n, n)
    """
    jitter, scale = 0.0, 1.0
    for relative in (0.0, *JITTERS):
        covariance.evaluate(theta, K)
        diagonal = np.einsum("ii->i", K)
        diagonal += on_diagonal
        scale = float(diagonal.mean())
        jitter = relative * scale
        diagonal += jitter
        if lapack.cholesky_(K) and np.isfinite(diagonal).all():
            return jitter
        covariance.evaluate(theta, K)
        bad = int((~np.isfinite(K[np.triu_indices(len(K))])).sum())
        bad += int((~np.isfinite(on_diagonal)).sum())
        if bad:
            raise not_finite(len(K), torch.float64, bad)
    raise not_positive_definite(len(K), torch.float64, jitter, scale)


@dataclass(frozen=True)
class _Inverse:
    """The inverse A, both triangles, with what was computed before it took the factor's place."""

    A: Tensor
    alpha: Tensor
    half_log: float

    @property
    def kappa(self) -> Tensor:
        return self.A.diagonal()

    def half_log_determinant(self) -> Tensor:
        return torch.tensor(self.half_log, dtype=torch.float64)

    def solve(self, v: Tensor) -> Tensor:
        return self.A @ v

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        return block_inverses(self.A, blocks)


@dataclass(frozen=True)
class _Diagonal:
    """What the value of an objective needs: the diagonal of the inverse, not the inverse."""

    kappa: Tensor
    alpha: Tensor
    half_log: float

    def half_log_determinant(self) -> Tensor:
        return torch.tensor(self.half_log, dtype=torch.float64)

    def solve(self, v: Tensor) -> Tensor:
        return v  # only slopes need a solution, and they are not used

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        raise NotImplementedError  # groups need the inverse


@dataclass
class DenseProblem(Problem):
    """One training problem: named kernel, rows with one target on a CPU, objective."""

    @staticmethod
    def fits(kernel: Kernel, rows: Rows) -> bool:
        """Return whether this class can evaluate a problem."""
        return not rows.several and fits_in_place(kernel, rows)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.kernel, NamedKernel)
        n = len(self.rows)
        self._covariance = InPlaceKernel(self.kernel, np.ascontiguousarray(self.rows.X.numpy()))
        # Zeros: the lower triangle is scaled together with the upper one, and stray bytes there may
        # be signalling NaNs.
        self._K = np.zeros((n, n))
        self._W = np.zeros((n, n)) if self.objective != "nll" else self._K
        self._t = np.ascontiguousarray(self.rows.t.numpy())

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        rows, noise = self.rows, math.exp(parameters[-1])
        s = noise + rows.extra
        on_diagonal = (s / rows.c).numpy()
        jitter = self._factorise(parameters, on_diagonal)
        f = self._invert()
        terms = objectives.terms(self.objective, f, rows, s, self.R)
        # These need A, which W may replace.
        trace = self._trace(terms.slope, f)
        W = self._slope(terms.slope, f)
        diagonal = W.diagonal().copy()  # the kernel overwrites W
        gradient = np.empty(len(parameters))
        gradient[: self.kernel.lengthscale_slots] = self._covariance.gradient(W)
        gradient[-2] = trace - float(diagonal @ (on_diagonal + jitter))
        gradient[-1] = noise * float((diagonal / rows.c.numpy()).sum() + terms.g.sum())
        return self._per_row(parameters, terms.value, gradient)

    def value(self, parameters: Vector) -> float:
        """Return the value alone, for a third of the arithmetic (n^3 / 3 to 2 n^3 / 3)."""
        rows = self.rows
        by_rows = self.objective != "nll"
        if by_rows and rows.groups is not None:
            return super().value(parameters)
        s = math.exp(parameters[-1]) + rows.extra
        self._factorise(parameters, (s / rows.c).numpy())
        U = self._K
        half_log = float(np.log(U.diagonal()).sum())
        alpha = lapack.solve_factored(U, self._t)
        kappa = lapack.inverse_diagonal_(U) if by_rows else alpha  # the likelihood has none
        f = _Diagonal(torch.from_numpy(kappa), torch.from_numpy(alpha), half_log)
        value = objectives.terms(self.objective, f, rows, s, self.R).value
        return self._per_row(parameters, value, np.zeros(len(parameters)))[0]

    def _factorise(self, parameters: Vector, on_diagonal: Array) -> float:
        """Replace the matrix by the factor of the covariance; return the jitter."""
        raise_if_stopped()
        self.evaluations += 1
        jitter = factorise_(self._covariance, parameters[:-1], on_diagonal, self._K)
        self.jitter = max(self.jitter, jitter)
        return jitter

    def _invert(self) -> _Inverse:
        """Replace the factor by the inverse A: both triangles, unless the upper one suffices."""
        U = self._K
        half_log = float(np.log(U.diagonal()).sum())
        alpha = lapack.solve_factored(U, self._t)
        lapack.invert_factor_(U)
        if self.objective != "nll":
            lapack.mirror_(U)
        return _Inverse(torch.from_numpy(U), torch.from_numpy(alpha), half_log)

    def _trace(self, slope: Slope, f: _Inverse) -> float:
        """Return the inner product of W with the covariance of the observations."""
        trace = slope.inverse * len(self._t)
        if isinstance(slope.inner, Tensor):
            trace += float(slope.inner @ f.kappa)
        elif slope.inner is not None:
            trace += float(slope.inner.trace_with(f.A))
        if slope.outer is not None:
            trace -= float(slope.outer @ self.rows.t)
        return trace

    def _slope(self, slope: Slope, f: _Inverse) -> Array:
        """Return W, of which the upper triangle is valid, in a buffer."""
        A = self._K
        if slope.inner is None:
            W = A
            W *= slope.inverse
        elif isinstance(slope.inner, Tensor):
            W = self._W
            scaled_gram_(A, slope.inner.numpy(), W)
        else:
            W = np.ascontiguousarray((slope.inner.left(f.A) @ f.A).numpy())
        if slope.outer is not None:
            lapack.subtract_outer_(W, slope.outer.numpy(), f.alpha.numpy())
        return W
