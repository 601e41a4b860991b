r"""Training on rows for which one n x n matrix fits, and no second one.

The value of an objective is exact: the factor, and for held-out densities the diagonal of its
inverse (``blocked.py``), :math:`n^3/3` operations each. Its derivatives would need the inverse and
a product of it, several times as much. They are estimated instead: with p vectors z of random signs

.. math::

    a A + A B A = \mathrm E\big[\, (a z + A B z) (A z)^\top \big]
    \approx \tfrac1p \sum_z (a z + A B z) (A z)^\top ,

which costs 2p solves. The signs are the same in every evaluation of a problem, so that results
repeat. The standard error of a derivative falls with :math:`1/\sqrt p`. The step that it sends a
parameter astray is small beside what the rows themselves leave open about it (``docs/scale.md`` has
it measured).

**Float32.** Where the matrix fits in float32 only, the factor is float32 and
serves as the preconditioner of conjugate gradients on the float64 matrix, which is evaluated panel
by panel: solutions are float64 again. Determinant and held-out variances keep the rounding of
the factor.
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

__all__ = ["BlockedInverse", "LargeProblem", "group_bytes"]

#: Relative residual to which solutions with a float32 factor are refined, and steps at most.
_REFINED, _MOST_STEPS = 1e-10, 200
#: Columns of L^-1 that are held at once for the blocks of groups.
_GROUP_COLUMNS = 4096


@dataclass
class BlockedInverse:
    """The inverse of a covariance through its blocked factor: all that objectives ask of it.

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
        """Half the logarithm of the determinant."""
        return 0.5 * self.factor.log_determinant()

    def solve(self, v: Tensor) -> Tensor:
        """A v, refined where the factor has fewer digits than v."""
        if self.factor.buffer.dtype == v.dtype:
            return self.factor.solve(v)
        return self._refined(v)

    def _refined(self, v: Tensor) -> Tensor:
        """Conjugate gradients, preconditioned by the factor."""
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
        r"""Inverses of :math:`A_{GG} = (L^{-1})_{:G}^\top (L^{-1})_{:G}`."""
        batches: list[tuple[Tensor, Tensor]] = []
        for some in _by_columns(blocks, _GROUP_COLUMNS):
            index = torch.cat(some)
            places = torch.arange(len(index), device=index.device)
            local = list(torch.split(places, [len(block) for block in some]))
            part = block_inverses(self._inverse_at(index), local)
            batches += [(index[where], values) for where, values in part.batches]
        return Blocks(batches)

    def _inverse_at(self, index: Tensor) -> Tensor:
        """Entries of A at these rows and columns; the columns of L^-1 are let go."""
        Z = self.factor.inverse_columns(index)
        return (Z.T @ Z).to(self.t.dtype)


def group_bytes(n: int, sizes: Sequence[int], itemsize: int = 8) -> int:
    """Peak bytes that groups of so many rows take beside the factor; 0 without groups.

    Examples
    --------
    >>> group_bytes(20_000, [10_000, 10_000]) // 10**6, group_bytes(20_000, [10] * 2_000) // 10**6
    (4800, 925)
    """
    if not sizes:
        return 0
    wide = max(min(n, _GROUP_COLUMNS), max(sizes))  # columns of L^-1 at once, at most
    held = sum(g * g for g in sizes)  # the inverses of the blocks
    batch = min(wide * max(sizes), held)  # one list of them
    # A panel of L^-1 and its square; then that square, a batch, its factor and its inverse.
    making = max(n * wide * itemsize + 2 * wide * wide * 8, 8 * (wide * wide + 3 * batch))
    using = 8 * (held + 2 * batch)  # as many weights, and temporaries of a batch
    return 8 * held + max(making, using)


def _by_columns(blocks: list[Tensor], most: int) -> list[list[Tensor]]:
    """Blocks in lists of at most ``most`` rows together, or of one block."""
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
        Of the matrix; None for that of the rows.
    settings : ExactSettings
        Sizes of the blocks, and random vectors of a derivative.
    """

    factor_dtype: torch.dtype | None = None
    settings: ExactSettings = EXACT_DEFAULTS

    def __call__(self, parameters: Vector) -> tuple[float, Vector]:
        """Mean objective plus prior, and the estimated gradient."""
        self.evaluations += 1
        rows = self.rows
        block = self.settings.block_size(len(rows), rows.X.device)
        f = BlockedInverse.of(self.kernel, parameters, rows, block, self.factor_dtype)
        self.jitter = max(self.jitter, f.factor.jitter)
        noise = math.exp(parameters[-1])
        result = objectives.terms(self.objective, f, rows, noise + rows.extra, self.R)
        U, V = self._columns(f, result.slope)
        gradient = np.empty(len(parameters))
        gradient[:-1] = f.panels.gradient(U, V)
        on_diagonal = (U * V).sum(1)
        gradient[-1] = noise * float((on_diagonal / rows.c + result.g).sum())
        return self._a_row(parameters, result.value, gradient)

    def _columns(self, f: BlockedInverse, slope: objectives.Slope) -> tuple[Tensor, Tensor]:
        """U and V with sym(U V^T) the slope, in expectation over the signs."""
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
