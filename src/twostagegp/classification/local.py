r"""Latent regressions from the nearest rows.

For a point x with nearest rows N, all classes together,

.. math::

    f(x) = T_N^\top w(x), \qquad w(x) = (K_{NN} + \mathrm{diag}(s_N / c_N))^{-1} k_{Nx}, \qquad
    v(x) = k(x, x) - k_{Nx}^\top w(x) ,

many small systems at once. A row that is held out is not among its own neighbours, nor is its
group; of a row that stands for c > 1 copies one is left out.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.classification.table import ClassTable
from twostagegp.classification.views import View
from twostagegp.engines.neighbors.index import BruteIndex, NeighborIndex, TreeIndex
from twostagegp.kernels import Kernel, NamedKernel, Vector

__all__ = ["LocalRows", "weighted"]

Array = NDArray[np.float64]

#: Up to this many columns a tree finds neighbours; above, distances to all rows are faster.
TREE_COLUMNS = 32
#: Entries of the gathered neighbours (points, k, d) at a time: 64 MiB in float64.
_BLOCK_ENTRIES = 1 << 23
#: Noise of a neighbour that is not there.
_ABSENT = 1e12


class LocalRows:
    """Rows in a view, scaled by a kernel's lengthscales, with an index over them."""

    table: ClassTable
    view: View
    kernel: Kernel
    theta: Vector
    k: int
    constant: float
    c: Tensor
    _index: NeighborIndex | None = None

    def __init__(
        self,
        table: ClassTable,
        view: View,
        kernel: Kernel,
        theta: Vector,
        n_neighbors: int,
        constant: float,
    ) -> None:
        self.table, self.view, self.kernel, self.theta = table, view, kernel, theta
        self.k = min(n_neighbors, len(table))
        self.constant = constant
        self.c = table.tensor(table.c)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_index": None}

    @property
    def Z(self) -> Tensor:
        return self.table.inputs(self.view)

    def _scaled(self, Z: Tensor) -> Tensor:
        return self.kernel.scaled(Z, self.theta) if isinstance(self.kernel, NamedKernel) else Z

    @property
    def index(self) -> NeighborIndex:
        if self._index is None:
            Z, groups = self._scaled(self.Z), self.table.group_tensor
            manhattan = getattr(self.kernel, "metric", 2) == 1
            by_tree = Z.device.type == "cpu" and Z.shape[1] <= TREE_COLUMNS
            make = TreeIndex if by_tree else BruteIndex
            self._index = make(Z, manhattan, groups)
        return self._index

    def near(self, points: Tensor) -> Tensor:
        """Nearest rows of points in the view, shape (n, k); -1 where there are no more."""
        return self.index.query(self._scaled(points), self.k).long().to(points.device)

    def near_heldout(self, sample: NDArray[np.int64]) -> Tensor:
        """Nearest rows of rows that are held out."""
        rows = torch.as_tensor(sample, device=self.Z.device)
        groups = self.table.group_tensor
        own = torch.where(self.c[rows] > 1.0, -1, rows)
        own_group = None if groups is None else groups[rows]
        found = self.index.query(self._scaled(self.Z[rows]), self.k, own, own_group)
        return found.long().to(rows.device)

    def solve(
        self, points: Tensor, near: Tensor, noise: Tensor, own: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weights w of the neighbours, and variances v.

        Parameters
        ----------
        points : Tensor of shape (n, d)
        near : Tensor of shape (n, k)
        noise : Tensor of shape (m,)
            Noise variance of every row.
        own : Tensor of shape (n,), optional
            The points' own rows, where they are held out.

        Returns
        -------
        weights : Tensor of shape (n, k)
        variance : Tensor of shape (n,)
        """
        size = max(1, _BLOCK_ENTRIES // max(1, near.shape[1] * points.shape[1]))
        weights, variances = [], []
        for begin in range(0, len(points), size):
            part = slice(begin, begin + size)
            here, there = near[part].clamp(min=0), near[part] >= 0
            copies = self.c[here]
            if own is not None:
                copies = torch.where(
                    here == own[part, None], (copies - 1.0).clamp(min=1e-12), copies
                )
            s = torch.where(there, noise[here] / copies, _ABSENT)
            N = self.Z[here]
            K, _ = self.kernel.evaluate(N, self.theta)
            K = K + self.constant + torch.diag_embed(s)
            k = self.kernel.cross(points[part, None], N, self.theta)[:, 0] + self.constant
            k = k * there
            L = torch.linalg.cholesky(K)
            w = torch.cholesky_solve(k[..., None], L)[..., 0]
            weights.append(w * there)
            prior = self.kernel.diagonal(points[part], self.theta) + self.constant
            variances.append((prior - (k * w).sum(1)).clamp(min=0.0))
        return torch.cat(weights), torch.cat(variances)

    def means(self, X: Array, noise: float, T: Tensor) -> Tensor:
        """Latents at rows in the user's units, shape (n, K)."""
        points = self.table.tensor(self.view(X))
        near = self.near(points)
        w, _ = self.solve(points, near, torch.full_like(self.c, noise))
        return weighted(w, near, T)

    def heldout_means(self, sample: NDArray[np.int64], noise: float, T: Tensor) -> Tensor:
        """Latents of rows that are held out, shape (h, K)."""
        rows = torch.as_tensor(sample, device=self.Z.device)
        near = self.near_heldout(sample)
        w, _ = self.solve(self.Z[rows], near, torch.full_like(self.c, noise), rows)
        return weighted(w, near, T)


def weighted(w: Tensor, near: Tensor, T: Tensor) -> Tensor:
    """Weighted sums of the neighbours' targets, shape (n, K)."""
    return torch.einsum("nk,nkc->nc", w, T[near.clamp(min=0)])
