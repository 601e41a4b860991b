r"""A Cholesky factor in one n x n buffer, computed block by block, and operations on it.

Block columns are factorised from left to right. With the blocks to the left known,

.. math::

    L_{:k} = \big( K_{:k} - L_{:,<k} L_{k,<k}^\top \big) L_{kk}^{-\top} , \qquad
    L_{kk} L_{kk}^\top = K_{kk} - L_{k,<k} L_{k,<k}^\top ,

so that K is never stored: a block column of it is evaluated, turned into a block column of L and
written into the buffer. Nearly all operations are matrix products. Solves use the inverses of the
diagonal blocks, which are kept. The diagonal of :math:`K^{-1}` comes from block columns of
:math:`L^{-1}`, which are computed one at a time and discarded,

.. math::

    (K^{-1})_{jj} = \sum_{i \ge j} (L^{-1})_{ij}^2 .

Apart from the buffer only a few block columns are in memory. The factor and that diagonal take
:math:`n^3 / 3` floating point operations each. On a CPU the matrix products are split into parts
that cores compute side by side (``tiles.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from twostagegp.engines.exact.settings import EXACT_DEFAULTS, ExactSettings
from twostagegp.engines.exact.tiles import column_slices, row_slices
from twostagegp.numerics.linalg import JITTERS, not_finite, not_positive_definite
from twostagegp.runtime.cores import spread

__all__ = ["BlockedFactor", "blocked_bytes"]

#: Most block columns in memory at a time: the kernel's panel with its distances and temporaries.
_LIVE_PANELS = 12
#: Columns of the inverse factor that are computed together, in blocks on a GPU and as a number on a
#: CPU, and most such groups at a time.
_INVERSE_BLOCKS, _INVERSE_COLUMNS, _MOST_INVERSES = 4, 128, 32

#: Returns the entries [k0:, k0:k1] of a symmetric matrix, shape (n - k0, k1 - k0), in a tensor that
#: the caller may change.
Panel = Callable[[int, int], Tensor]


def blocked_bytes(
    n: int, device: torch.device, itemsize: int = 8, settings: ExactSettings = EXACT_DEFAULTS
) -> int:
    """Return the peak bytes of a factorisation and of all operations on the factor.

    Examples
    --------
    >>> blocked_bytes(100_000, torch.device("cuda")) // 10**9  # GB
    89
    """
    b = settings.block_size(n, device)
    return n * n * itemsize + _LIVE_PANELS * n * b * max(itemsize, 8)


class BlockedFactor:
    """The lower Cholesky factor of a symmetric positive definite matrix, in one buffer.

    Parameters
    ----------
    panel : callable
        ``panel(k0, k1)`` returns the entries [k0:, k0:k1] of the matrix.
    n : int
        Rows of the matrix.
    like : Tensor
        The factor has its dtype and device.
    block : int
        Rows of a block.

    Attributes
    ----------
    buffer : Tensor of shape (n, n)
        L on and below the diagonal, zero above it.
    jitter : float
        The number that was added to the diagonal; usually 0.

    Examples
    --------
    >>> import torch
    >>> K = torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64)
    >>> factor = BlockedFactor(lambda a, b: K[a:, a:b].clone(), 2, K, block=1)
    >>> bool(torch.allclose(factor.solve(K), torch.eye(2).double()))
    True
    """

    def __init__(self, panel: Panel, n: int, like: Tensor, block: int) -> None:
        self.block = block
        self.buffer = torch.empty(n, n, dtype=like.dtype, device=like.device)
        self.jitter = self._factorise(panel)

    @classmethod
    def of(cls, buffer: Tensor, block: int, jitter: float = 0.0) -> BlockedFactor:
        """Wrap an existing factor, which is lower triangular with zeros above the diagonal."""
        factor = cls.__new__(cls)
        factor.block, factor.buffer, factor.jitter = block, buffer, jitter
        factor._inverses = [_inverse(buffer[a:b, a:b]) for a, b in factor._blocks()]
        return factor

    def __len__(self) -> int:
        return len(self.buffer)

    def _blocks(self, first: int = 0) -> Iterator[tuple[int, int]]:
        n = len(self)
        for start in range(first, n, self.block):
            yield start, min(start + self.block, n)

    def _factorise(self, panel: Panel) -> float:
        """Fill the buffer and return the jitter; if a pivot fails, restart with a larger one."""
        jitter, scale = 0.0, 0.0
        for relative in (0.0, *JITTERS):
            jitter = relative * scale
            pivots = self._attempt(panel, jitter)
            if pivots is None:
                return jitter
            scale = pivots
        raise not_positive_definite(len(self), self.buffer.dtype, jitter, scale)

    def _attempt(self, panel: Panel, jitter: float) -> float | None:
        """Fill the buffer and return None; if the jitter is too small, return the mean diagonal.

        That is the mean over the diagonal of the block that fails.
        """
        L = self.buffer
        self._inverses: list[Tensor] = []
        for a, b in self._blocks():
            column = panel(a, b).to(L.dtype)
            top = column[: b - a]
            if jitter:
                top.diagonal().add_(jitter)
            mean = float(top.diagonal().mean())
            if a:
                self._subtract_known(column, a, b)
            D, info = torch.linalg.cholesky_ex(top)
            if bool(info) or not bool(torch.isfinite(D.diagonal()).all()):
                if not bool(torch.isfinite(column).all()):
                    raise not_finite(len(self), L.dtype, int((~torch.isfinite(column)).sum()))
                return mean
            inverse = _inverse(D)
            self._inverses.append(inverse)
            L[a:b, a:b] = D
            L[a:b, b:] = 0.0
            if b < len(self):
                self._divide_by_block(column, inverse, a, b)
            if jitter == 0.0 and not bool(torch.isfinite(L[-1, a:b]).all()):
                raise not_finite(len(self), L.dtype, int((~torch.isfinite(L[b:, a:b])).sum()))
        return None

    def _subtract_known(self, column: Tensor, a: int, b: int) -> None:
        """Subtract the product of the known blocks from the block column a to b."""
        L = self.buffer

        def subtract(rows: slice) -> None:
            known = L[a + rows.start : a + rows.stop, :a]
            column[rows].addmm_(known, L[a:b, :a].T, alpha=-1.0)

        spread(subtract, row_slices(0, len(column), L.device))

    def _divide_by_block(self, column: Tensor, inverse: Tensor, a: int, b: int) -> None:
        """Write the block column below its diagonal block, given that block's inverse."""
        L = self.buffer

        def divide(rows: slice) -> None:
            torch.mm(column[rows.start - a : rows.stop - a], inverse.T, out=L[rows, a:b])

        spread(divide, row_slices(b, len(self), L.device))

    def half_solve_(self, B: Tensor, first: int = 0, split: bool = True) -> Tensor:
        r"""Compute :math:`L^{-1} B` in place, for B of shape (n - first, m).

        With ``first``, a multiple of the block, L is the part of the factor from that row and
        column on. ``split=False`` keeps the columns together, if B is itself a task of one core.
        """

        def solve(columns: slice) -> None:
            C = B[:, columns]
            for a, b in self._blocks(first):
                part = C[a - first : b - first]
                if a > first:
                    part.addmm_(self.buffer[a:b, first:a], C[: a - first], alpha=-1.0)
                part.copy_(self._inverses[a // self.block] @ part)

        m = B.shape[1]
        spread(solve, column_slices(m, B.device) if split else [slice(0, m)])
        return B

    def back_solve_(self, B: Tensor) -> Tensor:
        r"""Compute :math:`L^{-\top} B` in place, for B of shape (n, m)."""

        def solve(columns: slice) -> None:
            C = B[:, columns]
            for a, b in reversed(list(self._blocks())):
                part = C[a:b]
                if b < len(self):
                    part.addmm_(self.buffer[b:, a:b].T, C[b:], alpha=-1.0)
                part.copy_(self._inverses[a // self.block].T @ part)

        spread(solve, column_slices(B.shape[1], B.device))
        return B

    def solve(self, B: Tensor) -> Tensor:
        r"""Return :math:`(L L^\top)^{-1} B` for a vector (n,) or a matrix (n, m)."""
        columns = B.to(self.buffer.dtype).reshape(len(self), -1).clone()
        return self.back_solve_(self.half_solve_(columns)).reshape(B.shape)

    def log_determinant(self) -> Tensor:
        r"""Return :math:`\log \det L L^\top`."""
        return 2.0 * self.buffer.diagonal().double().log().sum()

    def inverse_diagonal(self) -> Tensor:
        r"""Return the diagonal of :math:`(L L^\top)^{-1}`, shape (n,)."""
        n, kappa = len(self), torch.empty_like(self.buffer[0])
        on_cpu = kappa.device.type == "cpu"
        width = _INVERSE_COLUMNS if on_cpu else _INVERSE_BLOCKS * self.block

        def write(start: int) -> None:
            end = min(start + width, n)
            first = start - start % self.block
            Z = torch.zeros(n - first, end - start, dtype=kappa.dtype, device=kappa.device)
            Z[start - first :].diagonal().fill_(1.0)
            kappa[start:end] = self.half_solve_(Z, first, split=False).square_().sum(0)

        spread(write, range(0, n, width), most=_MOST_INVERSES)
        return kappa

    def inverse_columns(self, index: Tensor) -> Tensor:
        r"""Return columns of :math:`L^{-1}`, shape (n, len(index))."""
        E = torch.zeros(len(self), len(index), dtype=self.buffer.dtype, device=self.buffer.device)
        E[index, torch.arange(len(index), device=E.device)] = 1.0
        return self.half_solve_(E)


def _inverse(D: Tensor) -> Tensor:
    """Return the inverse of a lower triangular block."""
    eye = torch.eye(len(D), dtype=D.dtype, device=D.device)
    return torch.linalg.solve_triangular(D, eye, upper=False)
