r"""Training on so many rows that only one n x n matrix fits into memory.

The value of an objective is exact. It needs the factor and, for held-out densities, the diagonal of
the inverse (``blocked.py``), :math:`n^3/3` operations each. Its derivatives would need the inverse
and a product with it, several times as many operations. They are estimated instead: with p vectors
z of random signs

.. math::

    a A + A B A = \mathrm E\big[\, (a z + A B z) (A z)^\top \big]
    \approx \tfrac1p \sum_z (a z + A B z) (A z)^\top ,

which costs 2p solves. The signs are the same in every evaluation of a problem, so that results are
reproducible. The standard error of a derivative falls with :math:`1/\sqrt p`. The resulting error
of a parameter is small compared with the parameter's uncertainty given the rows (``docs/scale.md``
has measurements).

**Float32.** If the matrix fits into memory only in float32, the factor is float32 and serves as the
preconditioner of conjugate gradients on the float64 matrix, which is evaluated panel by panel, so
that solutions have float64 precision. Determinant and held-out variances have the rounding errors
of the factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.blocked import BlockedFactor
from twostagegp.engines.exact.panels import CovariancePanels
from twostagegp.engines.exact.settings import EXACT_DEFAULTS, ExactSettings
from twostagegp.engines.problem import Problem
from twostagegp.errors import NumericalError
from twostagegp.kernels import Kernel, Vector
from twostagegp.numerics import objectives
from twostagegp.numerics.linalg import Blocks, block_inverses
from twostagegp.runtime.cores import raise_if_stopped

__all__ = ["BlockedInverse", "LargeProblem", "group_bytes"]

#: Relative residual to which solutions with a float32 factor are refined, and most steps of this.
_REFINED, _MOST_STEPS = 1e-10, 200
#: Columns of L^-1 that are in memory at a time for the blocks of groups.
_GROUP_COLUMNS = 4096


@dataclass
class BlockedInverse:
    """The inverse of a covariance through its blocked factor, as the objectives need it.

    Attributes
    ----------
    panels : CovariancePanels
    factor : BlockedFactor
    t : Tensor of shape (n,)
        Target.
    """

    panels: CovariancePanels
    factor: BlockedFactor
    t: Tensor

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        parameters: Vector,
        rows: Rows,
        block: int,
        dtype: torch.dtype | None = None,
    ) -> BlockedInverse:
        """Factorise the covariance of rows at (theta, log noise), in ``dtype`` if given."""
        noise = (math.exp(parameters[-1]) + rows.extra) / rows.c
        panels = CovariancePanels(kernel, parameters[:-1], rows.X, noise, block)
        like = rows.X if dtype is None else rows.X.new_empty(0, dtype=dtype)
        return cls(panels, BlockedFactor(panels, len(rows), like, block), rows.t)

    @cached_property
    def alpha(self) -> Tensor:
        """The solution A t."""
        if self.t.ndim == 1:
            return self.solve(self.t)
        return torch.stack([self.solve(column) for column in self.t.T], dim=1)

    @cached_property
    def kappa(self) -> Tensor:
        """The diagonal of A."""
        return self.factor.inverse_diagonal().to(self.t.dtype)

    def half_log_determinant(self) -> Tensor:
        """Return half the logarithm of the determinant of the covariance."""
        return 0.5 * self.factor.log_determinant()

    def solve(self, v: Tensor) -> Tensor:
        """Return A v, refined if the factor has a lower precision than v."""
        if self.factor.buffer.dtype == v.dtype:
            return self.factor.solve(v)
        return self._refined(v)

    def _refined(self, v: Tensor) -> Tensor:
        """Return A v by conjugate gradients, preconditioned by the factor."""
        x, r = torch.zeros_like(v), v.clone()
        wanted = _REFINED * float(v.norm())
        if wanted == 0.0:
            return x
        y = self.factor.solve(r).to(v.dtype)
        p, ry = y, r @ y
        for _ in range(_MOST_STEPS):
            Kp = self.panels.times(p[:, None])[:, 0]
            step = ry / (p @ Kp)
            x, r = x + step * p, r - step * Kp
            if float(r.norm()) <= wanted:
                return x
            y = self.factor.solve(r).to(v.dtype)
            before, ry = ry, r @ y
            p = y + (ry / before) * p
        raise NumericalError(
            f"a solution with a float32 factor of {len(v)} rows has a relative residual of "
            f"{float(r.norm() / v.norm()):.1e} after {_MOST_STEPS} steps of refinement. Raise "
            "noise_floor, remove nearly repeated rows, or fit fewer rows, for which float64 fits."
        )

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        r"""Return the inverses of :math:`A_{GG} = (L^{-1})_{:G}^\top (L^{-1})_{:G}`."""
        batches: list[tuple[Tensor, Tensor]] = []
        for some in _by_columns(blocks, _GROUP_COLUMNS):
            index = torch.cat(some)
            positions = torch.arange(len(index), device=index.device)
            local = list(torch.split(positions, [len(block) for block in some]))
            part = block_inverses(self._inverse_at(index), local)
            batches += [(index[where], values) for where, values in part.batches]
        return Blocks(batches)

    def _inverse_at(self, index: Tensor) -> Tensor:
        """Return the entries of A at these rows and columns; the columns of L^-1 are freed."""
        Z = self.factor.inverse_columns(index)
        return (Z.T @ Z).to(self.t.dtype)


def group_bytes(n: int, sizes: Sequence[int], itemsize: int = 8) -> int:
    """Return the peak bytes that groups of these sizes take in addition to the factor.

    Examples
    --------
    >>> group_bytes(20_000, [10_000, 10_000]) // 10**6, group_bytes(20_000, [10] * 2_000) // 10**6
    (4800, 925)
    """
    if not sizes:
        return 0
    wide = max(min(n, _GROUP_COLUMNS), max(sizes))  # most columns of L^-1 at a time
    held = sum(g * g for g in sizes)  # the inverses of the blocks
    batch = min(wide * max(sizes), held)  # one list of them
    # A panel of L^-1 and its square; then that square, a batch, its factor and its inverse.
    making = max(n * wide * itemsize + 2 * wide * wide * 8, 8 * (wide * wide + 3 * batch))
    using = 8 * (held + 2 * batch)  # as many weights, and temporaries of a batch
    return 8 * held + max(making, using)


def _by_columns(blocks: list[Tensor], most: int) -> list[list[Tensor]]:
    """Return the blocks in lists of at most ``most`` rows in total; a larger block is alone."""
    lists: list[list[Tensor]] = []
    size = most
    for block in blocks:
        if size + len(block) > most:
            lists.append([])
            size = 0
        lists[-1].append(block)
        size += len(block)
    return lists


@dataclass
class LargeProblem(Problem):
    """A training problem whose evaluation holds one n x n matrix.

    Parameters
    ----------
    factor_dtype : torch.dtype or None
        Precision of the matrix; None for that of the rows.
    settings : ExactSettings
        Block sizes, and the number of random vectors for derivatives.
    """

    factor_dtype: torch.dtype | None = None
    settings: ExactSettings = EXACT_DEFAULTS

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        """Return the mean objective plus prior, and its estimated gradient."""
        rows, noise = self.rows, math.exp(parameters[-1])
        f, result = self._terms(parameters)
        U, V = self._columns(f, result.slope)
        gradient = np.empty(len(parameters))
        gradient[:-1] = f.panels.gradient(U, V)
        on_diagonal = (U * V).sum(1)
        gradient[-1] = noise * float((on_diagonal / rows.c + result.g).sum())
        return self._per_row(parameters, result.value, gradient)

    def value(self, parameters: Vector) -> float:
        value = self._terms(parameters)[1].value
        return self._per_row(parameters, value, np.zeros(len(parameters)))[0]

    def _terms(self, parameters: Vector) -> tuple[BlockedInverse, objectives.Terms]:
        """Return the factorised covariance and the terms of the objective."""
        raise_if_stopped()
        self.evaluations += 1
        rows = self.rows
        block = self.settings.block_size(len(rows), rows.X.device)
        f = BlockedInverse.of(self.kernel, parameters, rows, block, self.factor_dtype)
        self.jitter = max(self.jitter, f.factor.jitter)
        s = math.exp(parameters[-1]) + rows.extra
        return f, objectives.terms(self.objective, f, rows, s, self.R)

    def _columns(self, f: BlockedInverse, slope: objectives.Slope) -> tuple[Tensor, Tensor]:
        """Return U and V for which sym(U V^T) has the slope as expectation over the signs."""
        rows, p = self.rows, self.settings.probes
        signs = np.random.default_rng(0).integers(0, 2, size=(len(rows), p)) * 2.0 - 1.0
        z = torch.as_tensor(signs, dtype=rows.X.dtype, device=rows.X.device)
        Az = f.factor.solve(z).to(z.dtype)
        left = slope.inverse * z
        if slope.inner is not None:
            left = left + f.factor.solve(slope.times_inner(z)).to(z.dtype)
        left = left / p
        if slope.outer is None:
            return left, Az
        return (
            torch.cat([left, -slope.outer[:, None]], dim=1),
            torch.cat([Az, f.alpha[:, None]], dim=1),
        )
