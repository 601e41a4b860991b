r"""Combine the nearest rows found in several shards.

The k nearest rows of a query among all rows are among the k nearest rows of each shard, and of
these only rows that are no farther than the k-th found so far matter. Ties go to the row that comes
first in the lexicographic order of the inputs, which is the order of merged rows in a local fit
(``data/rows.py``). Rows of two shards with the same inputs and the same known noise would be one
merged row in a local fit: with weights :math:`c_a, c_b` and targets :math:`t_a, t_b` they become

.. math::

    c = c_a + c_b, \qquad t = (c_a t_a + c_b t_b) / c .

They have the same distance, so that both are among the k nearest of their shards if one is. So the
result is the same as with all rows in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

__all__ = ["NeighborLists", "merge_neighbors"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NeighborLists:
    """The k nearest rows of m queries, nearest first.

    Attributes
    ----------
    distance : array of shape (m, k)
        Squared Euclidean or plain L1 distance; infinity if there is no row.
    X : array of shape (m, k, d)
        Standardised inputs.
    T : array of shape (m, k, p)
        Standardised targets.
    c : array of shape (m, k)
        Weights; zero if there is no row.
    extra : array of shape (m, k)
        Known noise variances, in the user's units.
    """

    distance: Array
    X: NDArray[np.floating]
    T: Array
    c: Array
    extra: Array

    def __sizeof__(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @property
    def bound(self) -> Array:
        """Distance beyond which a row cannot be among the k nearest, shape (m,)."""
        return self.distance[:, -1].copy()

    def take(self, queries: NDArray[np.int64] | slice) -> NeighborLists:
        """Return the neighbours of some queries."""
        return NeighborLists(*(getattr(self, field.name)[queries] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.distance)


def merge_neighbors(a: NeighborLists, b: NeighborLists) -> NeighborLists:
    """Return the k nearest rows of both, each of which has k.

    Examples
    --------
    >>> one, two = np.ones((1, 1)), np.full((1, 1), 2.0)
    >>> a = NeighborLists(one, one[..., None], one[..., None], one, 0 * one)
    >>> b = NeighborLists(one, one[..., None], 4 * one[..., None], two, 0 * one)
    >>> c = merge_neighbors(a, b)
    >>> c.T.ravel(), c.c.ravel()
    (array([3.]), array([3.]))
    """
    k = a.distance.shape[1]
    both = NeighborLists(
        *(
            np.concatenate([getattr(a, field.name), getattr(b, field.name)], axis=1)
            for field in fields(a)
        )
    )
    order = np.argsort(both.distance, axis=1, kind="stable")
    distance = np.take_along_axis(both.distance, order, axis=1)[:, : k + 1]
    ties = (distance[:, 1:] == distance[:, :-1]) & (distance[:, 1:] < math.inf)
    tied = np.flatnonzero(ties.any(1))
    result = _reorder(both, order[:, :k])
    if len(tied):
        some = _merge_ties(both.take(tied), k)
        for field in fields(a):
            getattr(result, field.name)[tied] = getattr(some, field.name)
    return result


def _reorder(found: NeighborLists, order: NDArray[np.int64]) -> NeighborLists:
    def take(values: Array) -> Array:
        index = order if values.ndim == 2 else order[..., None]
        return np.take_along_axis(values, index, axis=1)

    return NeighborLists(*(take(getattr(found, field.name)) for field in fields(found)))


def _merge_ties(found: NeighborLists, k: int) -> NeighborLists:
    """Order ties by the inputs, merge equal rows, and keep at most k rows per query."""
    d = found.X.shape[2]
    keys = (found.extra, *(found.X[:, :, c] for c in range(d - 1, -1, -1)), found.distance)
    found = _reorder(found, np.lexsort(keys, axis=1))
    m, width = found.distance.shape
    there = found.distance < math.inf
    same = (found.X[:, 1:] == found.X[:, :-1]).all(2) & (found.extra[:, 1:] == found.extra[:, :-1])
    first = np.ones((m, width), dtype=bool)
    first[:, 1:] = ~(same & there[:, 1:])
    # Number of the distinct row that each row belongs to; numbers of query i begin at i * width.
    distinct = (np.cumsum(first, axis=1) - 1) + width * np.arange(m)[:, None]

    def pooled(values: Array) -> Array:
        sums = np.bincount(distinct.ravel(), weights=values.ravel(), minlength=m * width)
        return np.asarray(sums, dtype=np.float64)

    c = pooled(found.c)
    share = np.divide(1.0, c, out=np.zeros_like(c), where=c > 0.0)
    T = np.stack([pooled(found.c * t) * share for t in np.moveaxis(found.T, 2, 0)], axis=-1)
    single = (pooled(np.ones_like(found.c)) == 1.0).reshape(m, width)[:, :k]
    begin = np.argsort(~first, axis=1, kind="stable")[:, :k]
    result = _reorder(found, begin)
    real = np.arange(k) < first.sum(1)[:, None]
    result.distance[~real], result.c[~real] = math.inf, 0.0
    several = real & ~single  # other rows keep their target to the last bit
    result.c[several] = c.reshape(m, width)[:, :k][several]
    result.T[several] = T.reshape(m, width, -1)[:, :k][several]
    return result
