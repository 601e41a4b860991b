r"""A covariance matrix that is never stored: its block columns, products and derivatives.

With :math:`K = K_\theta + \mathrm{diag}(s / c)`, only block columns from the diagonal downwards are
evaluated, each when it is needed; the rest follows from symmetry. If the slope dL/dK of an
objective is given by few columns, :math:`W = \mathrm{sym}(U V^\top)`, its derivatives are

.. math::

    \Big\langle W, \frac{\partial K}{\partial \theta} \Big\rangle
    = \sum_k \Big\langle W_{kk}, \frac{\partial K_{kk}}{\partial \theta} \Big\rangle
      + 2 \Big\langle W_{>k,k}, \frac{\partial K_{>k,k}}{\partial \theta} \Big\rangle .
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostagegp.engines.exact.tiles import row_slices
from twostagegp.kernels import Kernel, Vector
from twostagegp.runtime.cores import spread

__all__ = ["CovariancePanels"]


@dataclass(frozen=True)
class CovariancePanels:
    """The covariance matrix of training rows, by block columns.

    Attributes
    ----------
    kernel : Kernel
    theta : array
    X : Tensor of shape (n, d)
    noise : Tensor of shape (n,)
        Added to the diagonal.
    block : int
        Number of columns that are evaluated at a time.
    """

    kernel: Kernel
    theta: Vector
    X: Tensor
    noise: Tensor
    block: int

    def __call__(self, a: int, b: int) -> Tensor:
        """Return the entries [a:, a:b], shape (n - a, b - a)."""
        X, n = self.X, len(self.X)
        panel = X.new_empty(n - a, b - a)

        def write(rows: slice) -> None:
            panel[rows.start - a : rows.stop - a] = self.kernel.cross(X[rows], X[a:b], self.theta)

        panel[: b - a] = self.kernel.evaluate(X[a:b], self.theta)[0]
        panel[: b - a].diagonal().add_(self.noise[a:b])
        spread(write, self._rows(b, n))
        return panel

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first column and the end of each block column."""
        n = len(self.X)
        for start in range(0, n, self.block):
            yield start, min(start + self.block, n)

    def times(self, V: Tensor) -> Tensor:
        """Return K V for V of shape (n, m)."""
        result = torch.zeros_like(V)
        for a, b in self.blocks():
            P = self(a, b)
            result[a:].addmm_(P, V[a:b])
            result[a:b].addmm_(P[b - a :].T, V[b:])
        return result

    def gradient(self, U: Tensor, V: Tensor) -> Vector:
        """Return the inner products of sym(U V^T) with dK/dtheta_j; U and V have shape (n, m)."""
        X, theta = self.X, self.theta

        def of_tile(tile: tuple[slice, slice]) -> Vector:
            rows, columns = tile
            if rows == columns:
                K, saved = self.kernel.evaluate(X[rows], theta)
                W = U[rows] @ V[rows].T
                W = W.add_(W.T.clone()).mul_(0.5)
                return self.kernel.gradient(X[rows], theta, K, saved, W)
            W = (U[rows] @ V[columns].T).addmm_(V[rows], U[columns].T)
            return self.kernel.cross_gradient(X[rows], X[columns], theta, W)

        tiles = [
            (rows, slice(a, b))
            for a, b in self.blocks()
            for rows in [slice(a, b), *self._rows(b, len(X))]
        ]
        return np.sum(spread(of_tile, tiles, self._most), axis=0)

    @property
    def _most(self) -> int | None:
        """Most evaluations of the kernel at a time; None if there is no limit."""
        return None if self.kernel.takes_threads else 1

    def _rows(self, a: int, b: int) -> list[slice]:
        """Return slices of the rows a to b whose covariances are evaluated at a time."""
        return row_slices(a, b, self.X.device, self.kernel.takes_threads) if a < b else []
