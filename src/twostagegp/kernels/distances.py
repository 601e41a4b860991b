r"""Distances of rows, and sums over their absolute differences, on CPU and GPU.

All functions take leading dimensions: ``Z`` of shape (..., n, d) and ``Z2`` of shape (..., m, d)
have distances of shape (..., n, m).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "DIRECT_COLUMNS",
    "SquaredDistances",
    "distances",
    "distances_by_columns",
    "own_distances",
    "weighted_absolute_differences",
]

Array = NDArray[np.float64]

#: Squared distances below this share of the largest squared norm are computed from differences.
#: The others then have a relative error of at most about 1e-10.
_NEAR = 1e-5
#: Above this many columns Euclidean distances come from a matrix product; up to it from
#: differences, which are exact for nearly equal rows.
DIRECT_COLUMNS = 64
#: Up to this many columns a GPU is faster if it adds the distances up column by column, unless
#: there are so few distances that the passes over them cost more than the sums.
_COLUMNWISE, _FEW_DISTANCES = 32, 1_000_000
#: Entries of a panel of absolute differences: it should stay in a CPU's cache; a GPU has no cache
#: of that size and wants much work per call.
_PANEL_ENTRIES = {"cpu": 65_536, "cuda": 1 << 26}


def distances(Z: Tensor, Z2: Tensor, p: int = 2, direct_columns: int = DIRECT_COLUMNS) -> Tensor:
    """Return the distances of rows in the norm p (1 or 2), shape (..., n, m).

    Examples
    --------
    >>> import torch
    >>> Z = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> distances(Z[:1], Z), distances(Z[:1], Z, p=1)
    (tensor([[0., 5.]]), tensor([[0., 7.]]))
    """
    if _column_by_column(Z, Z2):
        return distances_by_columns(Z, Z2, p)
    if p == 1:
        return torch.cdist(Z, Z2, p=1.0)
    by_differences = Z.shape[-1] <= direct_columns
    mode = "donot_use_mm_for_euclid_dist" if by_differences else "use_mm_for_euclid_dist"
    return torch.cdist(Z, Z2, compute_mode=mode)


def own_distances(Z: Tensor, p: int = 2, direct_columns: int = DIRECT_COLUMNS) -> Tensor:
    """Return the distances of rows among themselves, exactly zero on the diagonal."""
    if p == 2 and Z.ndim == 2 and Z.device.type == "cpu" and Z.dtype == torch.float64:
        rows = Z.detach().numpy()
        squares = np.empty((len(rows), len(rows)))
        SquaredDistances(rows).write(slice(0, len(rows)), squares)
        return torch.from_numpy(np.sqrt(squares, out=squares))
    r = distances(Z, Z, p, direct_columns)
    if Z.shape[-1] > direct_columns:
        r.diagonal(dim1=-2, dim2=-1).zero_()  # a matrix product leaves rounding there
    return r


class SquaredDistances:
    r"""Squared distances of rows among themselves, from one matrix product,

    .. math::

        |z_i - z_j|^2 = |z_i|^2 + |z_j|^2 - 2 z_i^\top z_j .

    Pairs of rows that are so close that this difference would lose digits are computed again from
    :math:`z_i - z_j`.

    Examples
    --------
    >>> out = np.empty((2, 2))
    >>> SquaredDistances(np.array([[0.0, 0.0], [3.0, 4.0]])).write(slice(0, 2), out)
    >>> out.tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """

    def __init__(self, Z: Array) -> None:
        squares, ones = np.einsum("ij,ij->i", Z, Z), np.ones(len(Z))
        self.Z, self._near = Z, _NEAR * float(squares.max(initial=0.0))
        self._left = np.column_stack([-2.0 * Z, squares, ones])
        self._right = np.ascontiguousarray(np.column_stack([Z, ones, squares]).T)

    def write(self, rows: slice, out: Array) -> None:
        """Write the squared distances of some rows to themselves and all later rows."""
        np.matmul(self._left[rows], self._right[:, rows.start :], out=out)
        diagonal = np.einsum("ii->i", out[:, : len(out)])
        diagonal[...] = np.inf
        if not out.min(initial=np.inf) > self._near:
            i, j = np.nonzero(~(out > self._near))
            out[i, j] = np.square(self.Z[rows][i] - self.Z[rows.start :][j]).sum(1)
        diagonal[...] = 0.0


def _column_by_column(Z: Tensor, Z2: Tensor) -> bool:
    """Whether a GPU is faster with a pass per column than with torch's own distances."""
    few = Z.shape[-2] * Z2.shape[-2] < _FEW_DISTANCES
    return Z.device.type == "cuda" and Z.shape[-1] <= _COLUMNWISE and not (few and Z.ndim == 2)


def distances_by_columns(Z: Tensor, Z2: Tensor, p: int) -> Tensor:
    """Return the same distances, added up column by column: a few passes over the result."""
    total = Z.new_zeros(*Z.shape[:-1], Z2.shape[-2])
    for c in range(Z.shape[-1]):
        difference = Z[..., :, None, c] - Z2[..., None, :, c]
        total += difference.abs_() if p == 1 else difference.square_()
    return total if p == 1 else total.sqrt_()


def weighted_absolute_differences(
    M: Tensor, A: Tensor, B: Tensor, panel_entries: int | None = None
) -> Tensor:
    r"""Return :math:`\sum_{ij} M_{ij} |a_{ik} - b_{jk}|` for every column k, in panels of rows.

    ``M`` has shape (n, m), ``A`` (n, d) and ``B`` (m, d); the result has shape (d,).

    Examples
    --------
    >>> import torch
    >>> A = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    >>> weighted_absolute_differences(torch.ones(2, 2), A, A)
    tensor([4., 8.])
    """
    n, d = A.shape
    left, right = A.T.contiguous(), B.T.contiguous()
    if panel_entries is None:
        panel_entries = _PANEL_ENTRIES.get(M.device.type, _PANEL_ENTRIES["cpu"])
    rows = max(1, panel_entries // len(B))
    total = torch.zeros(d, dtype=A.dtype, device=A.device)
    for i in range(0, n, rows):
        panel = M[i : i + rows]
        for k in range(d):
            difference = (left[k, i : i + rows, None] - right[k]).abs_()
            total[k] += torch.vdot(difference.reshape(-1), panel.reshape(-1))
    return total
