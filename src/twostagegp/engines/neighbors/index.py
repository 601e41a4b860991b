"""Exact nearest neighbours: one small interface over a compiled tree and torch.

On the CPU the index is a k-d tree with vector leaves (``compiled/tree.py``), on a GPU boxes of rows
or blocks of distances to all rows. All give the same rows, nearest first, ties by row number (in
torch except for ties with the last neighbour). A row can be left out of its own query, and so can
its whole group. Memory is bounded: one block of distances at a time.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.engines.neighbors.compiled.lanes import BLOCK, LANES
from twostagegp.engines.neighbors.compiled.threads import by_slices
from twostagegp.errors import InputError

__all__ = ["BoxIndex", "BruteIndex", "NeighborIndex", "TreeIndex", "neighbor_index", "recall"]

#: Entries of a (queries, rows) block of distances: 256 MiB in float64.
_BLOCK_ENTRIES = 1 << 25
#: Rows of a box on a GPU, and most boxes that a query searches before it searches all rows.
_BOX_ROWS, _MOST_BOXES = 256, 1024


class NeighborIndex(Protocol):
    """Rows among which the nearest to a point are found."""

    def query(
        self, points: Tensor, k: int, own: Tensor | None = None, own_group: Tensor | None = None
    ) -> Tensor:
        """Return the nearest rows of each point, nearest first, shape (m, k); -1 fills up.

        Parameters
        ----------
        points : Tensor of shape (m, d)
        own : integer Tensor of shape (m,), optional
            A row to leave out for each point, or -1.
        own_group : integer Tensor of shape (m,), optional
            A group whose rows are left out for each point, or -1.
        """


def _minus_ones(m: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
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
        Most leaves (of 32 rows) that are searched for a point. None is exact; with a number the
        search is approximate, and :func:`recall` measures how good it is.
    ordered : bool
        ``groups`` are positions in an order, and a query with ``own_group`` finds only rows with a
        lower position: the conditioning sets of Vecchia's likelihood.
    slice_points : int
        Points of one slice of work for a thread.

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
        slice_points: int = 1024,
    ) -> None:
        if leaves is not None and leaves < 1:
            raise InputError(
                f"leaves={leaves}: give a number of at least 1, or None to search all leaves."
            )
        from twostagegp.engines.neighbors.compiled import tree  # loads Numba

        n, d = X.shape
        self.manhattan, self.slice_points = manhattan, slice_points
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
        return torch.from_numpy(self._search(points, k, own, own_group, None)[0])

    def query_within(
        self, points: Tensor, k: int, bound: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the nearest rows within ``bound``, and their distances (squared, except for L1).

        Parameters
        ----------
        points : Tensor of shape (m, d)
        bound : array of shape (m,), optional
            In the units of the distances; no bound by default.

        Returns
        -------
        rows, distances : arrays of shape (m, k)
            Nearest first, filled up with -1 and infinity.

        Examples
        --------
        >>> import torch
        >>> X = torch.arange(5, dtype=torch.float64)[:, None]
        >>> TreeIndex(X).query_within(X[:1], 3, np.array([1.0]))
        (array([[ 0,  1, -1]], dtype=int32), array([[ 0.,  1., inf]]))
        """
        return self._search(points, k, None, None, bound)

    def _search(
        self,
        points: Tensor,
        k: int,
        own: Tensor | None,
        own_group: Tensor | None,
        bound: NDArray[np.float64] | None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        from twostagegp.engines.neighbors.compiled import tree

        queries = points.double().cpu().numpy()
        m = len(queries)
        row = _minus_ones(m) if own is None else own.cpu().numpy().astype(np.int64)
        group = _minus_ones(m) if own_group is None else own_group.cpu().numpy().astype(np.int64)
        limit = np.full(m, math.inf) if bound is None else bound
        leaf = np.empty(m, dtype=np.int64)
        found, distance = np.empty((m, k), dtype=np.int32), np.empty((m, k))
        tree.leaf_of(np.ascontiguousarray(queries), self.boxes, self.depth, self.manhattan, leaf)
        turn = np.argsort(leaf, kind="stable")

        def work(part: slice) -> None:
            here = turn[part]
            out, far = np.empty((len(here), k), dtype=np.int32), np.empty((len(here), k))
            tree.search(
                np.ascontiguousarray(queries[here]), leaf[here], self.order, self.ends, self.boxes,
                self.leaf_boxes, self.leaves, self.depth, self.manhattan, row[here],
                self.groups, group[here], self.ordered, self.budget, limit[here], out, far,
            )  # fmt: skip
            found[here], distance[here] = out, far

        by_slices(work, m, self.slice_points)
        return found, distance


class BruteIndex:
    """Distances to all rows, ``block_entries`` at a time, on the device of the rows.

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
        block_entries: int = _BLOCK_ENTRIES,
    ) -> None:
        self.X = X
        self.ordered, self.block_entries = ordered, block_entries
        self.p = 1.0 if manhattan else 2.0
        self.groups = groups

    def query(
        self, points: Tensor, k: int, own: Tensor | None = None, own_group: Tensor | None = None
    ) -> Tensor:
        n = len(self.X)
        size = max(1, self.block_entries // max(1, n))
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


class BoxIndex:
    """Rows in boxes, for a GPU: a query searches the nearest boxes, as many as it needs.

    Rows are halved along their widest column until a box has at most ``_BOX_ROWS``. For every query
    the boxes are sorted by distance; in round j it compares the rows of its j-th box with the
    nearest found so far, and is done when the next box is farther than the k-th of them. A query
    that would need very many boxes is compared with all rows.

    Examples
    --------
    >>> import torch
    >>> X = torch.arange(5, dtype=torch.float64)[:, None]
    >>> BoxIndex(X).query(X[:2], 2, own=torch.arange(2)).tolist()
    [[1, 2], [0, 2]]
    """

    def __init__(
        self,
        X: Tensor,
        manhattan: bool = False,
        groups: Tensor | None = None,
        ordered: bool = False,
    ) -> None:
        self.p = 1.0 if manhattan else 2.0
        self.groups, self.ordered = groups, ordered
        self.brute = BruteIndex(X, manhattan, groups, ordered)
        n = len(X)
        levels = max(0, math.ceil(math.log2(max(n, 1) / _BOX_ROWS)))
        size = math.ceil(n / 2**levels)
        number = torch.arange(size * 2**levels, device=X.device)
        rows = number.clamp(max=n - 1).reshape(1, -1)
        real = (number < n).reshape(1, -1)
        for _ in range(levels):
            inputs = X[rows]
            spread = inputs.amax(1) - inputs.amin(1)
            widest = spread.argmax(1)[:, None, None].expand(-1, inputs.shape[1], 1)
            turn = inputs.gather(2, widest)[:, :, 0].argsort(dim=1)
            half = (len(rows) * 2, rows.shape[1] // 2)
            rows, real = rows.gather(1, turn).reshape(half), real.gather(1, turn).reshape(half)
        self.rows, self.inputs = torch.where(real, rows, -1), X[rows]
        self.low, self.high = self.inputs.amin(1), self.inputs.amax(1)

    def query(
        self, points: Tensor, k: int, own: Tensor | None = None, own_group: Tensor | None = None
    ) -> Tensor:
        boxes, size, d = self.inputs.shape
        # Few launches are what counts on a GPU: blocks of up to 2 GiB.
        entries = _BLOCK_ENTRIES * (8 if points.device.type == "cuda" else 1)
        chunk = max(1, min(entries // boxes, entries // (size * d)))
        found = torch.empty((len(points), k), dtype=torch.int32, device=points.device)
        for begin in range(0, len(points), chunk):
            part = slice(begin, begin + chunk)
            found[part] = self._query(
                points[part],
                k,
                None if own is None else own[part],
                None if own_group is None else own_group[part],
            )
        return found

    def _query(
        self, points: Tensor, k: int, own: Tensor | None, own_group: Tensor | None
    ) -> Tensor:
        m, boxes = len(points), len(self.rows)
        near = points.new_full((m, k), math.inf)
        found = torch.full((m, k), -1, dtype=torch.long, device=points.device)
        rounds = min(boxes, _MOST_BOXES)
        gap, turn = self._gaps(points).topk(rounds, largest=False, sorted=True)
        active = torch.arange(m, device=points.device)
        for j in range(rounds):
            # The factor keeps a box that holds a row at exactly this distance, despite rounding.
            active = active[gap[active, j] * (1.0 - 1e-12) <= near[active, -1]]
            if len(active) == 0:
                break
            box = turn[active, j]
            D, row = self._distances(points[active], box), self.rows[box]
            out = row < 0
            if own is not None:
                out |= row == own[active][:, None]
            if own_group is not None and self.groups is not None:
                theirs, mine = self.groups[row.clamp(min=0)], own_group[active][:, None]
                out |= (theirs >= mine) if self.ordered else (theirs == mine)
            D.masked_fill_(out, math.inf)
            # Most boxes of the later rounds hold nothing nearer.
            better = torch.nonzero(D.amin(1) <= near[active, -1])[:, 0]
            who = active[better]
            both = torch.cat([near[who], D[better]], dim=1)
            number = torch.cat([found[who], row[better]], dim=1)
            best, place = both.topk(k, largest=False, sorted=True)
            near[who], found[who] = best, number.gather(1, place)
        found.masked_fill_(near == math.inf, -1)
        found = _ties_by_row(near, found)
        if rounds < boxes:
            left = active[gap[active, -1] * (1.0 - 1e-12) <= near[active, -1]]
            if len(left):
                found[left] = self.brute.query(
                    points[left],
                    k,
                    None if own is None else own[left],
                    None if own_group is None else own_group[left],
                ).long()
        return found.int()

    def _gaps(self, points: Tensor) -> Tensor:
        """Return distances of points from all boxes (squared, except for L1), shape (m, boxes)."""
        total = points.new_zeros(len(points), len(self.low))
        for c in range(points.shape[1]):
            x = points[:, c, None]
            gap = torch.maximum(self.low[:, c] - x, x - self.high[:, c]).clamp_(min=0.0)
            total += gap if self.p == 1.0 else gap.square_()
        return total

    def _distances(self, points: Tensor, box: Tensor) -> Tensor:
        """Return the distances of each point from the rows of its box, shape (m, rows per box)."""
        u = self.inputs[box] - points[:, None, :]
        return u.abs_().sum(2) if self.p == 1.0 else u.square_().sum(2)


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
    """Return the index of these rows: a tree on the CPU, boxes or blocks of distances on a GPU.

    Examples
    --------
    >>> import torch
    >>> type(neighbor_index(torch.zeros(3, 2, dtype=torch.float64))).__name__
    'TreeIndex'
    """
    if X.device.type == "cpu":
        return TreeIndex(X, manhattan, groups, leaves, ordered)
    if leaves is not None:
        raise InputError(
            f"leaves={leaves}: only the CPU has an approximate search; use leaves=None on a GPU."
        )
    if len(X) >= 20_000:  # fewer are compared with all in less time than boxes take
        return BoxIndex(X, manhattan, groups, ordered)
    return BruteIndex(X, manhattan, groups, ordered)


def recall(approximate: NeighborIndex, exact: NeighborIndex, points: Tensor, k: int) -> float:
    """Return the share of the k nearest rows that an approximate index finds.

    Examples
    --------
    >>> import torch
    >>> X = torch.randn(2000, 3, dtype=torch.float64)
    >>> recall(TreeIndex(X, leaves=1), TreeIndex(X), X[:100], 10) < 1.0
    True
    """
    a, b = approximate.query(points, k), exact.query(points, k)
    return float((a[:, :, None] == b[:, None, :]).any(2).double().mean())
