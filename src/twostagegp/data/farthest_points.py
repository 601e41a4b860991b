"""Farthest point sampling on arrays and on tensors (``sampling.py`` describes the algorithm)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["as_tensor", "farthest_points_numpy", "farthest_points_torch"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def farthest_points_numpy(
    X: Array,
    k: int,
    first: int | None,
    *,
    chunk_entries: int = 2**17,
    copied_entries: int = 2**20,
) -> Indices:
    """Return k row numbers in the order in which they are chosen.

    Parameters
    ----------
    X : array of shape (n, d)
    k : int
        At most n.
    first : int or None
        The row to start with; None starts with the row nearest the mean.
    chunk_entries : int
        Number of entries of X whose differences are formed at a time. The default, 1 MiB, fits
        into the cache of one core.
    copied_entries : int
        Tables of up to this many entries (8 MiB) are copied column by column, which is faster.

    Examples
    --------
    >>> farthest_points_numpy(np.array([[0.0], [1.0], [2.0], [10.0]]), 3, None)
    array([2, 3, 0])
    """
    n, d = X.shape
    table = np.asfortranarray(X) if X.size <= copied_entries else X
    rows = min(n, max(1, chunk_entries // d))
    difference = np.empty_like(table[:rows])  # in the memory order of the table
    square = np.empty(rows)

    def lower_distances(point: Array) -> None:
        for begin in range(0, n, rows):
            near = nearest[begin : begin + rows]
            delta, distance = difference[: len(near)], square[: len(near)]
            np.subtract(table[begin : begin + rows], point, out=delta)
            np.einsum("ij,ij->i", delta, delta, out=distance)
            np.minimum(near, distance, out=near)

    # Squared distance to the nearest chosen row. A chosen row is marked with -1: no minimum raises
    # it, and it is below the zeros of repeated rows, so that the maximum never finds it again.
    nearest = np.full(n, np.inf)
    if first is None:
        lower_distances(table.mean(0))
        first = int(nearest.argmin())
        nearest.fill(np.inf)
    index = np.empty(k, dtype=np.int64)
    index[0] = first
    for i in range(1, k):
        last = index[i - 1]
        nearest[last] = -1.0
        lower_distances(table[last].copy())
        index[i] = nearest.argmax()
    return index


def farthest_points_torch(
    X: Tensor, k: int, first: int | None, *, chunk_entries: int = 2**24
) -> Indices:
    """Return what :func:`farthest_points_numpy` returns, computed on the device of X.

    Row numbers stay on the device until the end, so that no step waits for the host. The default
    of ``chunk_entries`` bounds the memory (128 MiB); larger chunks mean fewer kernel launches.
    """
    n, d = X.shape
    rows = max(1, chunk_entries // d)

    def lower_distances(point: Tensor) -> None:
        for begin in range(0, n, rows):
            near = nearest[begin : begin + rows]
            distance = (X[begin : begin + rows] - point).square_().sum(1)
            torch.minimum(near, distance, out=near)

    nearest = torch.full((n,), torch.inf, dtype=X.dtype, device=X.device)
    if first is None:
        lower_distances(X.mean(0))
        last = nearest.argmin(0, keepdim=True)
        nearest.fill_(torch.inf)
    else:
        last = torch.tensor([first], device=X.device)
    index = torch.empty(k, dtype=torch.int64, device=X.device)
    index[:1] = last
    for i in range(1, k):
        nearest.index_fill_(0, last, -1.0)
        lower_distances(X.index_select(0, last))
        last = nearest.argmax(0, keepdim=True)
        index[i : i + 1] = last
    return index.cpu().numpy()


def as_tensor(table: Array | Tensor, device: torch.device) -> Tensor:
    """Return a table as a tensor on a device."""
    if isinstance(table, Tensor):
        return table.to(device)
    # torch.tensor copies: it accepts read-only arrays without a warning, but no negative strides.
    return torch.tensor(np.ascontiguousarray(table), device=device)
