"""Exact nearest neighbours: one small interface over a compiled tree and torch.

On the CPU a k-d tree with vector leaves (``compiled/tree.py``) answers, on a GPU distances to all
rows in blocks. Both give the same rows, nearest first, ties by row number (torch: but for ties at
the very end of the list); a row can be left out of its own query, and so can its whole group.
Memory is bounded: a block of distances at a time.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from twostagegp.compiled import tree
from twostagegp.compiled.lanes import BLOCK, LANES
from twostagegp.compiled.threads import by_slices
from twostagegp.errors import InputError

__all__ = ["BruteIndex", "NeighborIndex", "TreeIndex", "neighbor_index", "recall"]

#: Queries of one slice of work.
_SLICE = 1024
#: Entries of a (queries, rows) block of distances: 256 MiB in float64.
_BLOCK_ENTRIES = 1 << 25


class NeighborIndex(Protocol):
    """Rows that can be asked for the nearest of them."""

    def query(
        self, points: Tensor, k: int, own: Tensor | None = None, own_group: Tensor | None = None
    ) -> Tensor:
        """Nearest rows of each point, nearest first, shape (m, k); -1 where there are no more.

        Parameters
        ----------
        points : Tensor of shape (m, d)
        own : integer Tensor of shape (m,), optional
            A row that does not count for the point, or -1.
        own_group : integer Tensor of shape (m,), optional
            A group whose rows do not count, or -1.
        """


def _no_one(m: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.full(m, -1, dtype=np.int64)


class TreeIndex:
    """A k-d tree on the CPU.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Scaled inputs.
    manhattan : bool
        L1 distances instead of Euclidean ones.
    groups : Tensor of shape (n,), optional
    leaves : int, optional
        Leaves (of 32 rows) looked at for a point at most. None is exact; with a number the search
        is approximate, and :func:`recall` says how good it is.
    ordered : bool
        ``groups`` are places in an order, and for a query with ``own_group`` only rows with a
        lower place count: the conditioning sets of Vecchia's likelihood.

    Examples
    --------
    >>> import torch
    >>> X = torch.arange(5, dtype=torch.float64)[:, None]
    >>> TreeIndex(X).query(X[:2], 2, own=torch.arange(2)).tolist()
    [[1, 2], [0, 2]]
    """

    def __init__(
        self,
        X: Tensor,
        manhattan: bool = False,
        groups: Tensor | None = None,
        leaves: int | None = None,
        ordered: bool = False,
    ) -> None:
        if leaves is not None and leaves < 1:
            raise InputError(f"leaves={leaves}: look at one leaf at least, or None for all.")
        n, d = X.shape
        self.manhattan = manhattan
        self.budget = 2**62 if leaves is None else leaves
        self.groups = np.empty(0, dtype=np.int64) if groups is None else groups.cpu().numpy()
        self.depth = max(3, math.ceil(math.log2(max(n, 1) / BLOCK)))
        nodes = 2 ** (self.depth + 1) - 1
        self.order = np.arange(n, dtype=np.int32)
        self.ends = np.empty((nodes, 2), dtype=np.int64)
        self.boxes = np.empty((nodes, 2, d))
        self.leaf_boxes = np.empty((2**self.depth // LANES, d, 2, LANES))
        self.leaves = np.empty((2**self.depth, d, BLOCK))
        columns = np.ascontiguousarray(X.double().cpu().numpy().T)
        self.ordered = ordered
        tree.build(
            columns, self.depth, self.order, self.ends, self.boxes, self.leaf_boxes, self.leaves
        )

    def query(
        self, points: Tensor, k: int, own: Tensor | None = None, own_group: Tensor | None = None
    ) -> Tensor:
        queries = points.double().cpu().numpy()
        m = len(queries)
        row = _no_one(m) if own is None else own.cpu().numpy().astype(np.int64)
        group = _no_one(m) if own_group is None else own_group.cpu().numpy().astype(np.int64)
        leaf = np.empty(m, dtype=np.int64)
        found = np.empty((m, k), dtype=np.int32)
        tree.leaf_of(np.ascontiguousarray(queries), self.boxes, self.depth, self.manhattan, leaf)
        turn = np.argsort(leaf, kind="stable")

        def work(part: slice) -> None:
            here = turn[part]
            out = np.empty((len(here), k), dtype=np.int32)
            tree.search(
                np.ascontiguousarray(queries[here]), leaf[here], self.order, self.ends, self.boxes,
                self.leaf_boxes, self.leaves, self.depth, self.manhattan, row[here],
                self.groups, group[here], self.ordered, self.budget, out,
            )  # fmt: skip
            found[here] = out

        by_slices(work, m, _SLICE)
        return torch.from_numpy(found)


class BruteIndex:
    """Distances to all rows, block by block, on the device of the rows.

    Examples
    --------
    >>> import torch
    >>> X = torch.arange(5, dtype=torch.float64)[:, None]
    >>> BruteIndex(X).query(X[:2], 2, own=torch.arange(2)).tolist()
    [[1, 2], [0, 2]]
    """

    def __init__(
        self,
        X: Tensor,
        manhattan: bool = False,
        groups: Tensor | None = None,
        ordered: bool = False,
    ) -> None:
        self.X = X
        self.ordered = ordered
        self.p = 1.0 if manhattan else 2.0
        self.groups = groups

    def query(
        self, points: Tensor, k: int, own: Tensor | None = None, own_group: Tensor | None = None
    ) -> Tensor:
        n = len(self.X)
        size = max(1, _BLOCK_ENTRIES // max(1, n))
        found = torch.full((len(points), k), -1, dtype=torch.int32, device=points.device)
        for begin in range(0, len(points), size):
            part = slice(begin, begin + size)
            # Differences, not a matrix product: exact for nearly equal rows.
            D = torch.cdist(
                points[part], self.X, p=self.p, compute_mode="donot_use_mm_for_euclid_dist"
            )
            if own is not None:
                known = torch.nonzero(own[part] >= 0)[:, 0]
                D[known, own[part][known].long()] = math.inf
            if own_group is not None and self.groups is not None:
                own_part = own_group[part][:, None]
                out = self.groups >= own_part if self.ordered else self.groups == own_part
                D.masked_fill_(out, math.inf)
            taken = min(k, n)
            distance, row = D.topk(taken, largest=False, sorted=True)
            # topk leaves ties in any order.
            row = _ties_by_row(distance, row)
            row = torch.where(distance == math.inf, -1, row)
            found[part, :taken] = row.int()
        return found


def _ties_by_row(distance: Tensor, row: Tensor) -> Tensor:
    by_row = row.argsort(dim=1)
    row, distance = row.gather(1, by_row), distance.gather(1, by_row)
    return row.gather(1, distance.argsort(dim=1, stable=True))


def neighbor_index(
    X: Tensor,
    manhattan: bool = False,
    groups: Tensor | None = None,
    leaves: int | None = None,
    ordered: bool = False,
) -> NeighborIndex:
    """The index for these rows: a tree on the CPU, blocks of distances on a GPU.

    Examples
    --------
    >>> import torch
    >>> type(neighbor_index(torch.zeros(3, 2, dtype=torch.float64))).__name__
    'TreeIndex'
    """
    if X.device.type == "cpu":
        return TreeIndex(X, manhattan, groups, leaves, ordered)
    if leaves is not None:
        raise InputError("an approximate search (leaves) is for the CPU; the GPU's is exact.")
    return BruteIndex(X, manhattan, groups, ordered)


def recall(approximate: NeighborIndex, exact: NeighborIndex, points: Tensor, k: int) -> float:
    """Share of the k nearest rows that an approximate index finds.

    Examples
    --------
    >>> import torch
    >>> X = torch.randn(2000, 3, dtype=torch.float64)
    >>> recall(TreeIndex(X, leaves=1), TreeIndex(X), X[:100], 10) < 1.0
    True
    """
    a, b = approximate.query(points, k), exact.query(points, k)
    return float((a[:, :, None] == b[:, None, :]).any(2).double().mean())
