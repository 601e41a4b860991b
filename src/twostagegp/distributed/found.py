r"""Neighbours found so far, and how those of one more shard are added.

The k nearest rows of a query among all rows are the k nearest among those of its shards: what a
shard has to say is its own k nearest, and of these only what is no farther than the k-th so far.
Ties go to the row that comes first in the order of the inputs, column by column, which is the order
that merged rows have in one place (``rows.py``). Rows of two shards with the same inputs and the
same known noise are one row there: with weights :math:`c_a, c_b` and targets :math:`t_a, t_b` they
become

.. math::

    c = c_a + c_b, \qquad t = (c_a t_a + c_b t_b) / c .

They have the same distance, so that both are among the k nearest of their shards if one is. So the
result is that of all rows in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

__all__ = ["Found", "merge"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """The k nearest rows of m queries, nearest first.

    Attributes
    ----------
    distance : array of shape (m, k)
        Squared, but for L1; infinity where there is no row.
    X : array of shape (m, k, d)
        Standardised inputs.
    T : array of shape (m, k, p)
        Standardised targets.
    c : array of shape (m, k)
        Weights; zero where there is no row.
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
        """Distance beyond which a row is of no use."""
        return self.distance[:, -1].copy()

    def take(self, queries: NDArray[np.int64] | slice) -> Found:
        """Those of some queries."""
        return Found(*(getattr(self, field.name)[queries] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.distance)


def merge(a: Found, b: Found) -> Found:
    """The k nearest of both, where both have k.

    Examples
    --------
    >>> one, two = np.ones((1, 1)), np.full((1, 1), 2.0)
    >>> a = Found(one, one[..., None], one[..., None], one, 0 * one)
    >>> b = Found(one, one[..., None], 4 * one[..., None], two, 0 * one)
    >>> c = merge(a, b)
    >>> c.T.ravel(), c.c.ravel()
    (array([3.]), array([3.]))
    """
    k = a.distance.shape[1]
    both = Found(
        *(
            np.concatenate([getattr(a, field.name), getattr(b, field.name)], axis=1)
            for field in fields(a)
        )
    )
    order = np.argsort(both.distance, axis=1, kind="stable")
    distance = np.take_along_axis(both.distance, order, axis=1)[:, : k + 1]
    ties = (distance[:, 1:] == distance[:, :-1]) & (distance[:, 1:] < math.inf)
    tied = np.flatnonzero(ties.any(1))
    result = _ordered(both, order[:, :k])
    if len(tied):
        some = _combined(both.take(tied), k)
        for field in fields(a):
            getattr(result, field.name)[tied] = getattr(some, field.name)
    return result


def _ordered(found: Found, order: NDArray[np.int64]) -> Found:
    def take(values: Array) -> Array:
        place = order if values.ndim == 2 else order[..., None]
        return np.take_along_axis(values, place, axis=1)

    return Found(*(take(getattr(found, field.name)) for field in fields(found)))


def _combined(found: Found, k: int) -> Found:
    """Ties in order of the inputs, equal rows as one; at most k rows a query."""
    d = found.X.shape[2]
    keys = (found.extra, *(found.X[:, :, c] for c in range(d - 1, -1, -1)), found.distance)
    found = _ordered(found, np.lexsort(keys, axis=1))
    m, width = found.distance.shape
    there = found.distance < math.inf
    same = (found.X[:, 1:] == found.X[:, :-1]).all(2) & (found.extra[:, 1:] == found.extra[:, :-1])
    first = np.ones((m, width), dtype=bool)
    first[:, 1:] = ~(same & there[:, 1:])
    # Number of the distinct row that each belongs to, query by query.
    place = (np.cumsum(first, axis=1) - 1) + width * np.arange(m)[:, None]

    def pooled(values: Array) -> Array:
        sums = np.bincount(place.ravel(), weights=values.ravel(), minlength=m * width)
        return np.asarray(sums, dtype=np.float64)

    c = pooled(found.c)
    share = np.divide(1.0, c, out=np.zeros_like(c), where=c > 0.0)
    T = np.stack([pooled(found.c * t) * share for t in np.moveaxis(found.T, 2, 0)], axis=-1)
    single = (pooled(np.ones_like(found.c)) == 1.0).reshape(m, width)[:, :k]
    begin = np.argsort(~first, axis=1, kind="stable")[:, :k]
    result = _ordered(found, begin)
    real = np.arange(k) < first.sum(1)[:, None]
    result.distance[~real], result.c[~real] = math.inf, 0.0
    several = real & ~single  # a row of its own keeps its target to the last bit
    result.c[several] = c.reshape(m, width)[:, :k][several]
    result.T[several] = T.reshape(m, width, -1)[:, :k][several]
    return result
