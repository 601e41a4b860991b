r"""Boosted trees as tensors: a batch of rows goes through all trees at once, on any device.

Each row begins at the root of every tree. One step takes it from node k to one of its two children,

.. math::

    k \leftarrow \mathrm{child}_{2k + [x_{f(k)} > \theta(k)]} ,

with the column :math:`f(k)` and the threshold :math:`\theta(k)` of the node. A leaf is its own
child, so that after as many steps as the deepest tree has levels every row is at its leaves. Their
values are added in the order of the trees, as scikit-learn does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.pipeline.mean.trees import FlatTrees

__all__ = ["TreeTensors"]

#: Pairs of a row and a tree that are followed at a time; each needs some 50 bytes.
_PAIRS = 1 << 22


@dataclass(frozen=True)
class TreeTensors:
    """The nodes of :class:`FlatTrees` on a device.

    Attributes
    ----------
    start : float
        The prediction without trees.
    roots : integer Tensor of shape (T,)
        First node of each tree.
    feature, threshold : Tensors of shape (N,)
        Column and threshold that each node compares.
    children : integer Tensor of shape (2 N,)
        Next nodes of node k: entry 2 k for values up to the threshold, 2 k + 1 for larger ones.
    value : Tensor of shape (N,)
        Values of the leaves.
    depth : int
        Depth of the deepest tree.
    n_features : int
        Number of columns of the inputs.
    """

    start: float
    roots: Tensor
    feature: Tensor
    threshold: Tensor
    children: Tensor
    value: Tensor
    depth: int
    n_features: int

    @classmethod
    def of(cls, trees: FlatTrees, device: torch.device) -> TreeTensors:
        """Return the nodes on a device.

        Examples
        --------
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> X = np.arange(100.0)[:, None]
        >>> model = HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 0] ** 2)
        >>> trees = TreeTensors.of(FlatTrees.of(model), torch.device("cpu"))
        >>> bool((trees.predict(torch.as_tensor(X)).numpy() == model.predict(X)).all())
        True
        """

        def tensor(array: NDArray[Any]) -> Tensor:
            return torch.as_tensor(array, device=device)

        return cls(
            start=trees.start,
            roots=tensor(trees.roots),
            feature=tensor(trees.feature),
            threshold=tensor(trees.threshold),
            children=tensor(np.column_stack([trees.left, trees.right]).reshape(-1)),
            value=tensor(trees.value),
            depth=trees.depth,
            n_features=trees.n_features,
        )

    def takes(self, X: Tensor) -> bool:
        """Return whether the rows have the right number of columns and no NaN."""
        return X.shape[1] == self.n_features and not bool(torch.isnan(X).any())

    def predict(self, X: Tensor, pairs: int = _PAIRS) -> Tensor:
        """Return the predictions at any number of rows without NaN, float64, shape (n,).

        ``pairs`` bounds the memory: as many pairs of a row and a tree are followed at a time.
        """
        rows = max(1, pairs // len(self.roots))
        return torch.cat([self._predict(part) for part in torch.split(X.double(), rows)])

    def _predict(self, X: Tensor) -> Tensor:
        columns = X.T.contiguous()
        nodes = self.roots[:, None].expand(-1, len(X))
        for _ in range(self.depth):
            larger = columns.gather(0, self.feature.take(nodes)) > self.threshold.take(nodes)
            nodes = self.children.take(2 * nodes + larger)
        values = self.value.take(nodes)
        # Sums down the columns are made one by one, from the first tree to the last.
        return torch.cat([values.new_full((1, len(X)), self.start), values]).cumsum(0)[-1]
