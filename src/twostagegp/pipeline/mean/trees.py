r"""Boosted trees of scikit-learn, evaluated for a few rows without its threads.

``HistGradientBoostingRegressor.predict`` starts a parallel region per tree, which for one row takes
many times as long as the comparisons. Here the nodes of all trees are in common arrays. A row is
compared with the thresholds of all nodes at once, which gives each node its successor (a leaf is
its own); after as many steps as the trees are deep, every tree is at its leaf. Leaves are added in
the order of the trees, so that the sum is the same number as scikit-learn's.

The nodes are private to scikit-learn. If they are not what is expected here, or if a comparison
with ``predict`` shows any difference, :meth:`FlatTrees.of` returns None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEW_ROWS", "FlatTrees"]

Array = NDArray[np.float64]

#: Up to this many rows, the evaluation here is faster than that of scikit-learn.
FEW_ROWS = 16
#: Rows at which both are compared.
_PROBES = 16


@dataclass(frozen=True)
class FlatTrees:
    """The nodes of all trees, one after the other.

    Attributes
    ----------
    start : float
        The prediction without trees.
    roots : integer array of shape (T,)
        First node of each tree.
    feature, threshold : arrays of shape (N,)
        Column and threshold that each node compares.
    left, right : integer arrays of shape (N,)
        Next node for values up to the threshold, and for larger ones.
    value : array of shape (N,)
        Values of the leaves.
    depth : int
        Depth of the deepest tree.
    n_features : int
        Number of columns of the inputs.
    """

    start: float
    roots: NDArray[np.intp]
    feature: NDArray[np.intp]
    threshold: Array
    left: NDArray[np.intp]
    right: NDArray[np.intp]
    value: Array
    depth: int
    n_features: int

    @classmethod
    def of(cls, model: Any) -> FlatTrees | None:
        """Return the trees of a fitted regressor; None if only the regressor can evaluate them.

        Examples
        --------
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> X = np.arange(100.0)[:, None]
        >>> model = HistGradientBoostingRegressor(max_iter=5).fit(X, X[:, 0] ** 2)
        >>> trees = FlatTrees.of(model)
        >>> bool((trees.predict(X) == model.predict(X)).all())
        True
        """
        from sklearn.ensemble import HistGradientBoostingRegressor  # slow, and needed late

        if type(model) is not HistGradientBoostingRegressor or model.loss != "squared_error":
            return None
        try:
            trees = cls._flattened(model)
            return None if trees is None or not trees.agrees_with(model) else trees
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _flattened(cls, model: Any) -> FlatTrees | None:
        predictors = [predictor for (predictor,) in model._predictors]
        if model._preprocessor is not None or not predictors:
            return None
        nodes = np.concatenate([predictor.nodes for predictor in predictors])
        if nodes["is_categorical"].any():
            return None
        sizes = np.array([len(predictor.nodes) for predictor in predictors])
        roots = np.cumsum(sizes) - sizes
        leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
        first = np.repeat(roots, sizes)
        return cls(
            start=float(model._baseline_prediction.item()),
            roots=roots,
            feature=np.where(leaf, 0, nodes["feature_idx"]).astype(np.intp),
            threshold=nodes["num_threshold"].astype(np.float64),
            left=np.where(leaf, own, first + nodes["left"]).astype(np.intp),
            right=np.where(leaf, own, first + nodes["right"]).astype(np.intp),
            value=nodes["value"].astype(np.float64),
            depth=int(nodes["depth"].max()),
            n_features=int(model.n_features_in_),
        )

    def agrees_with(self, model: Any) -> bool:
        """Return whether predictions equal those of the regressor, at thresholds in particular."""
        rng = np.random.default_rng(0)
        d = self.n_features
        rows = rng.normal(size=(_PROBES, d))
        inner = np.flatnonzero(self.left != self.right)
        if len(inner):
            some = rng.choice(inner, size=(_PROBES // 2, 4 * d))
            for row, nodes in zip(rows, some, strict=False):
                row[self.feature[nodes]] = self.threshold[nodes]
        return bool(np.array_equal(self.predict(rows), model.predict(rows)))

    def takes(self, X: NDArray[Any]) -> bool:
        """Return whether the rows have the right number of columns and no NaN."""
        return X.shape[1] == self.n_features and not bool(np.isnan(X).any())

    def predict(self, X: NDArray[Any]) -> Array:
        """Return the predictions at any number of rows without NaN, shape (n,)."""
        return np.array([self._predict_row(row) for row in X.astype(np.float64, copy=False)])

    def _predict_row(self, row: Array) -> float:
        following = np.where(row.take(self.feature) <= self.threshold, self.left, self.right)
        nodes = self.roots
        for _ in range(self.depth):
            nodes = following.take(nodes)
        values = np.empty(len(nodes) + 1)
        values[0] = self.start
        self.value.take(nodes, out=values[1:])
        return float(np.add.accumulate(values)[-1])  # added one by one, from first to last
