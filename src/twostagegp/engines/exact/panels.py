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

from twostagegp.kernels import Kernel, Vector

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
        top, _ = self.kernel.evaluate(self.X[a:b], self.theta)
        top.diagonal().add_(self.noise[a:b])
        if b == len(self.X):
            return top
        return torch.cat([top, self.kernel.cross(self.X[b:], self.X[a:b], self.theta)])

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
        total = np.zeros(self.kernel.size)
        X, theta = self.X, self.theta
        for a, b in self.blocks():
            K, saved = self.kernel.evaluate(X[a:b], theta)
            W = U[a:b] @ V[a:b].T
            W = W.add_(W.T.clone()).mul_(0.5)
            total += self.kernel.gradient(X[a:b], theta, K, saved, W)
            del K, saved, W
            if b < len(X):
                W = (U[b:] @ V[a:b].T).addmm_(V[b:], U[a:b].T)
                total += self.kernel.cross_gradient(X[b:], X[a:b], theta, W)
        return total
