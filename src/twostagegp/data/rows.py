r"""Training rows with repeats merged exactly.

Rows with the same inputs are one row of weight :math:`c_j` with mean target
:math:`t_j` and within-row sum of squares :math:`q_j = \sum_i w_i (y_i - t_j)^2`. Nothing is
lost: a row of weight c with noise variance s has the likelihood of its c copies,

.. math::

    \prod_i N(y_i; f, s) = N(t; f, s/c)\; c^{-1/2} (2 \pi s)^{-(c-1)/2} e^{-q / 2s},

and leaving one copy out while its twins stay has the closed form used in
``objectives.py``. A ``sample_weight`` is such a count: weight 2 is the row twice, weight 0
the row not there. Matrices get smaller, and two equal rows can no longer make one singular.

Merged rows are kept in sorted order, so that the order of the table does not matter.

Copies that agree in the target to the last digit are something else than measurements: the table
was joined with itself, rows were drawn with replacement, or a ``sample_weight`` was meant as an
importance. Taken for measurements they prove that there is no noise, and one that is left out is
known from its twins. Where such copies are most of the table (:attr:`Merged.mostly_copies`),
weights count in units of their mean, so that distinct rows count one each on average, and every
distinct row is a group of its own, left out whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Merged", "Rows", "group_blocks", "lexicographic", "merge_rows"]

#: Mean square within a row, of a standardised target, up to which its copies agree.
_AGREE = 1e-20
#: Share of all weight from which on copies that agree are most of the table.
_COPIED = 0.5
#: Share of the weight of repeated rows that must agree.
_AGREEING = 0.9


@dataclass(frozen=True)
class Rows:
    """Merged training rows, ready for the engines.

    Attributes
    ----------
    X : Tensor of shape (m, d)
        Distinct inputs, standardised.
    t : Tensor of shape (m,)
        Mean target of each, standardised.
    c : Tensor of shape (m,)
        Weight: how many rows it stands for.
    q : Tensor of shape (m,)
        Within-row weighted sum of squares of the target.
    extra : Tensor of shape (m,)
        Known noise variance that comes on top of the learned one.
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
        """Total weight: the number of rows before merging."""
        return float(self.c.sum())

    @cached_property
    def plain(self) -> bool:
        """Whether every row stands for itself only: no repeats and no weights."""
        return bool((self.c == 1.0).all()) and not bool(self.q.any())

    def counting_copies_once(self) -> Rows:
        """The same rows, where those that repeat inputs *and* target exactly count as one.

        Exact copies say that there is no noise at all, whatever the kernel: a comparison of
        kernels that believed them would compare nothing else.
        """
        copies = (self.c > 1.0) & (self.q <= _AGREE * self.c)
        return replace(self, c=torch.where(copies, torch.ones_like(self.c), self.c))

    def with_target(self, t: Tensor, q: Tensor | None = None) -> Rows:
        """The same rows with another target (for example residuals)."""
        return replace(self, t=t, q=self.q if q is None else q)

    def subset(self, index: Tensor | NDArray[np.int64]) -> Rows:
        """Some of the merged rows, with their weights."""
        index = torch.as_tensor(index, device=self.X.device)
        groups = None if self.groups is None else self.groups[index]
        return Rows(
            self.X[index], self.t[index], self.c[index], self.q[index], self.extra[index], groups
        )

    def to(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        groups = None if self.groups is None else self.groups.to(device)
        X, t, c, q, extra = (
            part.to(device) for part in (self.X, self.t, self.c, self.q, self.extra)
        )
        return Rows(X, t, c, q, extra, groups)

    def blocks(self) -> list[Tensor]:
        """Row numbers of each group, in order of group number."""
        if self.groups is None:
            return [torch.tensor([i], device=self.X.device) for i in range(len(self))]
        return group_blocks(self.groups)

    def group_sizes(self) -> list[int]:
        """Rows of each group; empty without groups."""
        if self.groups is None:
            return []
        counts: list[int] = torch.unique(self.groups, return_counts=True)[1].tolist()
        return counts


def group_blocks(groups: Tensor) -> list[Tensor]:
    """Row numbers of each group, in order of group number.

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
    """Result of :func:`merge_rows` in numpy: ``Rows`` fields, and the way back.

    ``inverse[i]`` is the merged row of original row i; ``deviation[i] = y_i - t[inverse[i]]``.
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
        """Target of every row of the table, shape (n,)."""
        return self.t[self.inverse] + self.deviation

    @property
    def mostly_copies(self) -> bool:
        """Whether most of the weight is in copies that agree, next to none in ones that do not.

        The target is standardised already. Where groups are given, copies leave with their group.
        """
        repeated = self.c > 1.0
        agree = repeated & (self.q <= _AGREE * self.c)
        weight, agreeing = float(self.c[repeated].sum()), float(self.c[agree].sum())
        most = agreeing > _COPIED * float(self.c.sum()) and agreeing >= _AGREEING * weight
        return self.groups is None and most

    def counted_in(self, unit: float) -> Merged:
        """The same with weights in that unit; rows are groups where some still are above one."""
        c = self.c / unit
        groups = np.arange(len(c)) if c.max() > 1.0 + 1e-12 else None
        return replace(self, c=c, q=self.q / unit, weight=self.weight / unit, groups=groups)

    def unmerge(
        self, residual: NDArray[np.float64], slope: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """From merged rows (see ``objectives.Heldout``) to residuals of all rows, shape (n,)."""
        return residual[self.inverse] + slope[self.inverse] * self.deviation

    def subset(self, index: NDArray[np.int64]) -> Merged:
        """Some of the merged rows, with the rows of the table that they stand for."""
        place = np.full(len(self.c), -1, dtype=np.int64)
        place[index] = np.arange(len(index))
        kept = place[self.inverse] >= 0
        return Merged(
            X=self.X[index],
            t=self.t[index],
            c=self.c[index],
            q=self.q[index],
            extra=self.extra[index],
            groups=None if self.groups is None else self.groups[index],
            inverse=place[self.inverse[kept]],
            deviation=self.deviation[kept],
            weight=self.weight[kept],
        )

    def rows_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of the table's rows that some merged rows stand for, in order."""
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
    """Merge rows with equal inputs (and equal known noise and group) into weighted rows.

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
    by_key = lexicographic(key)
    ordered = key[by_key]
    new = np.append(True, (ordered[1:] != ordered[:-1]).any(1))
    inverse = np.empty(n, dtype=np.int64)
    inverse[by_key] = np.cumsum(new) - 1
    first = by_key[new]
    c, t, q = _pooled(y, weight, inverse)
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


def _pooled(
    y: NDArray[np.float64], weight: NDArray[np.float64], inverse: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Weight, mean target and within-row sum of squares of every merged row."""
    if len(inverse) == inverse.max() + 1 and (weight == 1.0).all():
        t = np.empty(len(y))
        t[inverse] = y
        return np.ones(len(y)), t, np.zeros(len(y))
    # Equal copies become one, then copies are added in order of their values: the same to the
    # last bit whatever the order of the table, and for weights and repeats alike.
    order = np.lexsort((weight, y, inverse))
    row, value = inverse[order], y[order]
    first_copy = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (np.diff(value) != 0)))
    row, value = row[first_copy], value[first_copy]
    copies = np.add.reduceat(weight[order], first_copy)
    c = np.asarray(np.bincount(row, weights=copies), dtype=np.float64)
    t = np.bincount(row, weights=copies * value) / c
    q = np.asarray(np.bincount(row, weights=copies * (value - t[row]) ** 2), dtype=np.float64)
    return c, t, q


def lexicographic(key: NDArray[np.float64]) -> NDArray[np.int64]:
    """Stable order of rows by their first column, ties by the second, and so on.

    Most tables have few ties in some column, so the rows are sorted by one column at a time, and
    only runs of ties by the next.
    """
    order = np.argsort(key[:, 0], kind="stable")
    first = key[order, 0]
    ties = first[1:] == first[:-1]
    if key.shape[1] == 1 or not ties.any():
        return order
    if ties.mean() > 0.1:
        return np.lexsort(key.T[::-1])
    # Rows in runs of ties, sorted among themselves: by run first, then by the other columns.
    in_run = np.append(ties, False) | np.append(False, ties)
    places = np.flatnonzero(in_run)
    run = np.cumsum(np.append(True, ~ties))[places].astype(np.float64)
    rows = order[places]
    inner = np.lexsort((*key[rows, 1:].T[::-1], run))
    order[places] = rows[inner]
    return order
