r"""Merge training rows with equal inputs, without loss of information.

Rows with the same inputs become one merged row of weight :math:`c_j` with mean target
:math:`t_j` and within-row sum of squares :math:`q_j = \sum_i w_i (y_i - t_j)^2`. A merged row of
weight c with noise variance s has the likelihood of its c copies,

.. math::

    \prod_i N(y_i; f, s) = N(t; f, s/c)\; c^{-1/2} (2 \pi s)^{-(c-1)/2} e^{-q / 2s},

and leaving out one copy while the other copies stay has the closed form used in
``objectives.py``. A ``sample_weight`` is a count of copies: weight 2 means the row twice, weight 0
means that the row is absent. Merging makes matrices smaller, and equal rows cannot make them
singular.

Merged rows are sorted by their inputs, so that results do not depend on the order of the table.

Copies whose targets agree to the last digit are usually not repeated measurements: the table was
joined with itself, rows were drawn with replacement, or ``sample_weight`` was meant as an
importance. Treated as measurements, they would show that there is no noise, and leaving one out
would hold nothing out. If most of the table consists of such copies
(:attr:`Merged.mostly_copies`), weights are divided by their mean, so that a distinct row has weight
one on average, and every distinct row becomes a group of its own, which is held out as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Merged", "Rows", "group_blocks", "lexicographic_order", "merge_rows"]

#: Copies agree if the mean square of the standardised target within their row is at most this.
_AGREE = 1e-20
#: ``mostly_copies``: share of the total weight that agreeing copies must exceed.
_COPIED = 0.5
#: ``mostly_copies``: share of the weight of repeated rows whose copies must agree.
_AGREEING = 0.9


@dataclass(frozen=True)
class Rows:
    """Merged training rows, ready for the engines.

    Attributes
    ----------
    X : Tensor of shape (m, d)
        Distinct inputs, standardised.
    t : Tensor of shape (m,) or (m, K)
        Mean target of each, standardised; K targets share the inputs (classes, for example).
    c : Tensor of shape (m,)
        Weight: the number of rows of the table that the merged row stands for.
    q : Tensor of shape (m,)
        Within-row weighted sum of squares of the target.
    extra : Tensor of shape (m,) or (m, K)
        Known noise variance, added to the learned one; K columns if it differs by target.
    groups : Tensor of shape (m,) or None
        Group number of each row; whole groups are held out together.
    """

    X: Tensor
    t: Tensor
    c: Tensor
    q: Tensor
    extra: Tensor
    groups: Tensor | None = None

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def total(self) -> float:
        """Total weight: without ``sample_weight``, the number of rows before merging."""
        return float(self.c.sum())

    @property
    def several(self) -> bool:
        """Whether t has a column per target, even if there is only one."""
        return self.t.ndim == 2

    def of_target(self, k: int) -> Rows:
        """Return the rows with the k-th of several targets."""
        extra = self.extra if self.extra.ndim == 1 else self.extra[:, k]
        return replace(self, t=self.t[:, k], extra=extra)

    @cached_property
    def plain(self) -> bool:
        """Whether every weight is one and no row has repeats."""
        return bool((self.c == 1.0).all()) and not bool(self.q.any())

    def counting_copies_once(self) -> Rows:
        """Return the rows with weight one where all copies have the same target.

        Exact copies would show that there is no noise, whatever the kernel, and would dominate a
        comparison of kernels.
        """
        copies = (self.c > 1.0) & (self.q <= _AGREE * self.c)
        return replace(self, c=torch.where(copies, torch.ones_like(self.c), self.c))

    def with_target(self, t: Tensor, q: Tensor | None = None) -> Rows:
        """Return the rows with another target, for example residuals."""
        return replace(self, t=t, q=self.q if q is None else q)

    def subset(self, index: Tensor | NDArray[np.int64]) -> Rows:
        """Return the merged rows of these numbers."""
        index = torch.as_tensor(index, device=self.X.device)
        groups = None if self.groups is None else self.groups[index]
        return Rows(
            self.X[index], self.t[index], self.c[index], self.q[index], self.extra[index], groups
        )

    def to(self, device: torch.device) -> Rows:
        """Return the rows on a device."""
        groups = None if self.groups is None else self.groups.to(device)
        X, t, c, q, extra = (
            part.to(device) for part in (self.X, self.t, self.c, self.q, self.extra)
        )
        return Rows(X, t, c, q, extra, groups)

    def in_double_precision(self) -> Rows:
        """Return the rows with numbers of double precision."""
        X, t, c, q, extra = (part.double() for part in (self.X, self.t, self.c, self.q, self.extra))
        return Rows(X, t, c, q, extra, self.groups)

    def blocks(self) -> list[Tensor]:
        """Return the row numbers of each group, in order of group number."""
        if self.groups is None:
            return [torch.tensor([i], device=self.X.device) for i in range(len(self))]
        return group_blocks(self.groups)

    def group_sizes(self) -> list[int]:
        """Return the number of rows of each group; an empty list without groups."""
        if self.groups is None:
            return []
        counts: list[int] = torch.unique(self.groups, return_counts=True)[1].tolist()
        return counts


def group_blocks(groups: Tensor) -> list[Tensor]:
    """Return the row numbers of each group, in order of group number.

    Examples
    --------
    >>> [block.tolist() for block in group_blocks(torch.tensor([1, 0, 1]))]
    [[1], [0, 2]]
    """
    order = torch.argsort(groups, stable=True)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    return list(torch.split(order, counts.tolist()))


@dataclass(frozen=True)
class Merged:
    """Result of :func:`merge_rows` in numpy: the fields of ``Rows``, and the map to the table.

    Attributes
    ----------
    X, t, c, q, extra, groups
        As in :class:`Rows`.
    inverse : integer array of shape (n,)
        Number of the merged row of each row of the table.
    deviation : array of shape (n,)
        Target of each row of the table minus that of its merged row: ``y - t[inverse]``.
    weight : array of shape (n,)
        Weight of each row of the table.
    """

    X: NDArray[np.float64]
    t: NDArray[np.float64]
    c: NDArray[np.float64]
    q: NDArray[np.float64]
    extra: NDArray[np.float64]
    groups: NDArray[np.int64] | None
    inverse: NDArray[np.int64]
    deviation: NDArray[np.float64]
    weight: NDArray[np.float64]

    @property
    def y(self) -> NDArray[np.float64]:
        """Target of each row of the table, shape (n,)."""
        return self.t[self.inverse] + self.deviation

    @property
    def mostly_copies(self) -> bool:
        """Whether most of the weight is in copies that agree, and few copies disagree.

        Expects a standardised target. False if groups are given: then copies are held out with
        their group.
        """
        repeated = self.c > 1.0
        agree = repeated & (self.q <= _AGREE * self.c)
        weight, agreeing = float(self.c[repeated].sum()), float(self.c[agree].sum())
        most = agreeing > _COPIED * float(self.c.sum()) and agreeing >= _AGREEING * weight
        return self.groups is None and most

    def counted_in(self, unit: float) -> Merged:
        """Return the rows with weights divided by ``unit``.

        If a weight above one remains, every merged row becomes a group of its own.
        """
        c = self.c / unit
        groups = np.arange(len(c)) if c.max() > 1.0 + 1e-12 else None
        return replace(self, c=c, q=self.q / unit, weight=self.weight / unit, groups=groups)

    def unmerge(
        self, residual: NDArray[np.float64], slope: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return residuals of all rows of the table, shape (n,), from those of merged rows.

        ``residual`` and ``slope`` are those of ``objectives.Heldout``.
        """
        return residual[self.inverse] + slope[self.inverse] * self.deviation

    def subset(self, index: NDArray[np.int64]) -> Merged:
        """Return the merged rows of these numbers, with the rows of the table they stand for."""
        new_number = np.full(len(self.c), -1, dtype=np.int64)
        new_number[index] = np.arange(len(index))
        kept = new_number[self.inverse] >= 0
        return Merged(
            X=self.X[index],
            t=self.t[index],
            c=self.c[index],
            q=self.q[index],
            extra=self.extra[index],
            groups=None if self.groups is None else self.groups[index],
            inverse=new_number[self.inverse[kept]],
            deviation=self.deviation[kept],
            weight=self.weight[kept],
        )

    def rows_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the table's rows that these merged rows stand for, sorted."""
        wanted = np.zeros(len(self.c), dtype=bool)
        wanted[index] = True
        return np.flatnonzero(wanted[self.inverse])


def merge_rows(
    X: NDArray[np.float64],
    y: NDArray[np.float64],
    weight: NDArray[np.float64] | None = None,
    extra: NDArray[np.float64] | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Merged:
    """Merge rows with equal inputs, known noise variance and group into weighted rows.

    Parameters
    ----------
    X : array of shape (n, d)
    y : array of shape (n,)
    weight : array of shape (n,), optional
        Positive counts; rows of weight zero must have been removed.
    extra : array of shape (n,), optional
        Known noise variances.
    groups : integer array of shape (n,), optional

    Examples
    --------
    >>> import numpy as np
    >>> merged = merge_rows(np.array([[1.0], [0.0], [1.0]]), np.array([2.0, 5.0, 4.0]))
    >>> merged.X.ravel(), merged.t, merged.c, merged.q
    (array([0., 1.]), array([5., 3.]), array([1., 2.]), array([0., 2.]))
    """
    n = X.shape[0]
    weight = np.ones(n) if weight is None else weight
    extra_column = np.zeros(n) if extra is None else extra
    group_column = np.zeros(n) if groups is None else groups.astype(np.float64)
    key = np.column_stack([X, extra_column, group_column])
    by_key = lexicographic_order(key)
    ordered = key[by_key]
    new = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    inverse = np.empty(n, dtype=np.int64)
    inverse[by_key] = np.cumsum(new) - 1
    first = by_key[new]
    c, t, q = _pool_copies(y, weight, inverse)
    return Merged(
        X=X[first],
        t=t,
        c=c,
        q=q,
        extra=extra_column[first],
        groups=None if groups is None else groups[first],
        inverse=inverse,
        deviation=y - t[inverse],
        weight=weight,
    )


def _pool_copies(
    y: NDArray[np.float64], weight: NDArray[np.float64], inverse: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return weight, mean target and within-row sum of squares of every merged row."""
    if len(inverse) == inverse.max() + 1 and (weight == 1.0).all():
        t = np.empty(len(y))
        t[inverse] = y
        return np.ones(len(y)), t, np.zeros(len(y))
    # Equal copies are joined first, then copies are added in order of their values: so the sums
    # are the same to the last bit for any order of the table, and for weights and repeats alike.
    order = np.lexsort((weight, y, inverse))
    row, value = inverse[order], y[order]
    first_copy = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (np.diff(value) != 0)))
    row, value = row[first_copy], value[first_copy]
    copies = np.add.reduceat(weight[order], first_copy)
    c = np.asarray(np.bincount(row, weights=copies), dtype=np.float64)
    t = np.bincount(row, weights=copies * value) / c
    q = np.asarray(np.bincount(row, weights=copies * (value - t[row]) ** 2), dtype=np.float64)
    return c, t, q


def lexicographic_order(key: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the stable order of rows by the first column, ties by the second, and so on.

    Equal to ``np.lexsort(key.T[::-1])``. Most tables have few ties in the first column, so only
    runs of ties are sorted by the others.
    """
    order = np.argsort(key[:, 0], kind="stable")
    first = key[order, 0]
    ties = first[1:] == first[:-1]
    if key.shape[1] == 1 or not ties.any():
        return order
    if ties.mean() > 0.1:
        return np.lexsort(key.T[::-1])
    # Sort the rows in runs of ties: by the number of the run, then by the other columns.
    in_run = np.append(ties, False) | np.append(False, ties)
    positions = np.flatnonzero(in_run)
    run = np.cumsum(np.append(True, ~ties))[positions].astype(np.float64)
    rows = order[positions]
    inner = np.lexsort((*key[rows, 1:].T[::-1], run))
    order[positions] = rows[inner]
    return order
