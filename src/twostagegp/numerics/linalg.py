r"""Dense linear algebra: one safe Cholesky, and operations on its factor.

:func:`safe_cholesky` and :func:`batch_cholesky` factorise covariance matrices of the exact engine
(up to ``ExactSettings.blocked_rows`` rows), of stacks of small problems and of inducing points,
with the same jitter steps and the same errors. ``engines/exact/blocked.py`` factorises larger
matrices in place, and the compiled loops over neighbours have a separate factorisation; both raise
these errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.errors import NumericalError
from twostagegp.numerics import lapack

__all__ = [
    "JITTERS",
    "batch_cholesky",
    "batch_solve",
    "block_inverses",
    "cholesky_inverse",
    "cholesky_solve",
    "extended_cholesky",
    "inverse_diagonal",
    "not_finite",
    "not_positive_definite",
    "safe_cholesky",
    "scaled_gram",
    "scaled_gram_",
]

Array = NDArray[np.float64]

#: Jitter steps, relative to the mean of the diagonal; the first attempt adds no jitter.
JITTERS = (1e-10, 1e-8, 1e-6)
#: Rows up to which, on a GPU, a triangular solve and a product are faster than
#: ``torch.cholesky_inverse``.
_SMALL_ON_GPU = 4000


def safe_cholesky(K: Tensor) -> tuple[Tensor, float]:
    r"""Return the lower Cholesky factor of a symmetric matrix, with at most three jitter steps.

    The factor :math:`L` satisfies :math:`L L^\top = K + \varepsilon I`, where
    :math:`\varepsilon = 0` if that works and otherwise the smallest of
    ``JITTERS`` times the mean of the diagonal that works.

    Parameters
    ----------
    K : Tensor of shape (..., n, n)
        Not changed.

    Returns
    -------
    L : Tensor of shape (..., n, n)
    jitter : float
        The largest :math:`\varepsilon` that was added (0.0 in the ordinary case).

    Raises
    ------
    NumericalError
        If K holds NaN or infinity, or is not positive definite with the largest jitter.

    Examples
    --------
    >>> import torch
    >>> L, jitter = safe_cholesky(torch.tensor([[4.0, 2.0], [2.0, 3.0]], dtype=torch.float64))
    >>> bool(torch.allclose(L @ L.T, torch.tensor([[4.0, 2.0], [2.0, 3.0]]).double())), jitter
    (True, 0.0)
    """
    L, info = torch.linalg.cholesky_ex(K)
    # LAPACK reports a NaN in K as "not positive definite" or returns a NaN factor; infinity on the
    # diagonal becomes an infinite pivot.
    if not bool(info.any()) and bool(_finite_pivots(L).all()):
        return L, 0.0
    if not bool(torch.isfinite(K).all()):
        raise not_finite(K.shape[-1], K.dtype, int((~torch.isfinite(K)).sum()))
    scale = float(K.diagonal(dim1=-2, dim2=-1).mean())
    for relative in JITTERS:
        jitter = relative * scale
        jittered = K.clone()
        jittered.diagonal(dim1=-2, dim2=-1).add_(jitter)
        L, info = torch.linalg.cholesky_ex(jittered)
        if not bool(info.any()):
            return L, jitter
    raise not_positive_definite(K.shape[-1], K.dtype, jitter, scale)


def not_finite(n: int, dtype: torch.dtype, bad: int) -> NumericalError:
    """Return the error for an n x n covariance matrix with ``bad`` NaN or infinite entries."""
    return NumericalError(
        f"the {n} x {n} covariance matrix holds {bad} entries that are "
        "NaN or infinite; a kernel parameter or an input has left the range of its dtype "
        f"({dtype}). Check the inputs' scale, or use dtype='float64'."
    )


def not_positive_definite(
    n: int, dtype: torch.dtype, jitter: float, scale: float
) -> NumericalError:
    """Return the error for a covariance matrix that is not positive definite with any jitter."""
    return NumericalError(
        f"a {n} x {n} covariance matrix ({dtype}) is not positive definite, "
        f"even with a jitter of {jitter:.1e} on a mean diagonal of {scale:.1e}. "
        "Raise noise_floor, use dtype='float64', or remove nearly repeated rows."
    )


def _finite_pivots(L: Tensor) -> Tensor:
    """Return whether the pivots of each factor are finite.

    If they are, all entries that LAPACK has read are finite as well.
    """
    return L.diagonal(dim1=-2, dim2=-1).isfinite().all(-1)


def batch_cholesky(K: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of a batch of matrices; one that fails does not affect the others.

    Each matrix gets its own jitter.

    Parameters
    ----------
    K : Tensor of shape (b, n, n)

    Returns
    -------
    L : Tensor of shape (b, n, n)
        The identity for a matrix that cannot be factorised with the largest jitter.
    fine : Tensor of shape (b,)
        Whether each matrix could be factorised.

    Examples
    --------
    >>> import torch
    >>> K = torch.stack([torch.eye(2), -torch.eye(2)]).double()
    >>> batch_cholesky(K)[1].tolist()
    [True, False]
    """
    L, info = torch.linalg.cholesky_ex(K)
    fine = (info == 0) & _finite_pivots(L)
    if bool(fine.all()):
        return L, fine
    for b in torch.nonzero(~fine)[:, 0].tolist():
        try:
            L[b] = safe_cholesky(K[b])[0]
            fine[b] = True
        except NumericalError:
            L[b] = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    return L, fine


def extended_cholesky(L: Tensor, K21: Tensor, K22: Tensor) -> Tensor | None:
    r"""Return the factor of a matrix whose leading block is factorised already.

    .. math::

        \begin{pmatrix} K_{11} & K_{21}^\top \\ K_{21} & K_{22} \end{pmatrix}
        = \begin{pmatrix} L & 0 \\ L_{21} & L_{22} \end{pmatrix}
          \begin{pmatrix} L & 0 \\ L_{21} & L_{22} \end{pmatrix}^\top , \qquad
        L_{21} = K_{21} L^{-\top} , \quad L_{22} L_{22}^\top = K_{22} - L_{21} L_{21}^\top .

    With n known and m further rows this takes of the order of :math:`n^2 m` operations instead of
    :math:`(n + m)^3`.

    Parameters
    ----------
    L : Tensor of shape (n, n)
        Lower factor of the leading block; not changed.
    K21 : Tensor of shape (m, n)
    K22 : Tensor of shape (m, m)

    Returns
    -------
    factor : Tensor of shape (n + m, n + m) or None
        None if the matrix is not positive definite to rounding, or not finite.

    Examples
    --------
    >>> import torch
    >>> K = torch.tensor([[4.0, 2.0, 1.0], [2.0, 3.0, 0.5], [1.0, 0.5, 2.0]], dtype=torch.float64)
    >>> L = extended_cholesky(torch.linalg.cholesky(K[:2, :2]), K[2:, :2], K[2:, 2:])
    >>> bool(torch.allclose(L @ L.T, K))
    True
    """
    n, m = len(L), len(K22)
    L21 = torch.linalg.solve_triangular(L, K21.T, upper=False).T
    L22, info = torch.linalg.cholesky_ex(K22 - L21 @ L21.T)
    if bool(info) or not bool(_finite_pivots(L22)):
        return None
    factor = L.new_zeros(n + m, n + m).T  # stored by columns, as LAPACK's factors are
    factor[:n, :n] = L
    factor[n:, :n] = L21
    factor[n:, n:] = L22
    return factor


def cholesky_solve(L: Tensor, b: Tensor) -> Tensor:
    """Solve ``L L^T x = b`` for a vector b of shape (n,) or a matrix of shape (n, m)."""
    if b.ndim == 1:
        return torch.cholesky_solve(b[:, None], L)[:, 0]
    return torch.cholesky_solve(b, L)


def cholesky_inverse(L: Tensor) -> Tensor:
    """Return the inverse of ``L L^T``, shape (n, n).

    Examples
    --------
    >>> import torch
    >>> cholesky_inverse(torch.tensor([[2.0]]))
    tensor([[0.2500]])
    """
    if L.device.type == "cpu" and L.dtype == torch.float64 and lapack.available():
        A = L.detach().T.clone(memory_format=torch.contiguous_format)
        lapack.invert_factor_(A.numpy())
        lapack.mirror_(A.numpy())
        return A
    if L.device.type == "cpu" or len(L) > _SMALL_ON_GPU:
        return torch.cholesky_inverse(L)
    half = torch.linalg.solve_triangular(
        L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False
    )
    return half.T @ half


def inverse_diagonal(L: Tensor) -> Tensor:
    """Return the diagonal of the inverse of ``L L^T``, shape (n,).

    Examples
    --------
    >>> import torch
    >>> inverse_diagonal(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    tensor([0.5000, 1.0000])
    """
    if L.device.type == "cpu" and L.dtype == torch.float64 and lapack.available():
        U = L.detach().T.clone(memory_format=torch.contiguous_format)
        return torch.from_numpy(lapack.inverse_diagonal_(U.numpy()))
    return cholesky_inverse(L).diagonal()


def batch_solve(L: Tensor, b: Tensor) -> Tensor:
    """Solve ``L L^T x = b`` for each problem: L (B, n, n), b (B, n) or (B, n, m)."""
    if b.ndim == 2:
        return batch_solve(L, b[:, :, None])[:, :, 0]
    half = torch.linalg.solve_triangular(L, b, upper=False)
    return torch.linalg.solve_triangular(L.mT, half, upper=True)


def scaled_gram(A: Tensor, v: Tensor) -> Tensor:
    r"""Return :math:`A\,\mathrm{diag}(v)\,A` for a symmetric A; v may have any sign.

    Examples
    --------
    >>> import torch
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> v = torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> bool(torch.allclose(scaled_gram(A, v), A @ torch.diag(v) @ A))
    True
    """
    if A.device.type == "cpu" and A.dtype == torch.float64 and lapack.available():
        W = torch.empty(A.shape, dtype=A.dtype)
        scaled_gram_(A.clone(memory_format=torch.contiguous_format).numpy(), v.numpy(), W.numpy())
        lapack.mirror_(W.numpy())
        return W
    return (A * v) @ A


def scaled_gram_(A: Array, v: Array, out: Array) -> None:
    r"""Write :math:`A\,\mathrm{diag}(v)\,A` into the upper triangle of ``out``; A is overwritten.

    Rows with positive and with negative v are two symmetric products: together half of the
    arithmetic of a general product.
    """
    A *= np.sqrt(np.abs(v))[:, None]
    negative = v < 0.0
    if negative.all() or not negative.any():
        lapack.add_gram_(out, A, -1.0 if negative.all() else 1.0, fresh=True)
        return
    lapack.add_gram_(out, A[~negative], fresh=True)
    lapack.add_gram_(out, A[negative], -1.0)


@dataclass(frozen=True)
class Blocks:
    """A block-diagonal matrix, blocks of one size in one batch.

    Attributes
    ----------
    batches : list of (index, values)
        Row numbers of the blocks, shape (g, s), and their entries, shape (g, s, s).
    """

    batches: list[tuple[Tensor, Tensor]]

    def __matmul__(self, V: Tensor) -> Tensor:
        """Return this matrix times a vector (n,) or a matrix (n, m)."""
        result = torch.empty_like(V)
        for index, values in self.batches:
            part = V[index]
            flat = part if part.ndim == 3 else part[..., None]
            result[index] = (values @ flat).reshape(part.shape)
        return result

    def left(self, A: Tensor) -> Tensor:
        """Return A times this matrix; the result has the shape of A."""
        result = torch.empty_like(A)
        for index, values in self.batches:
            result[:, index] = torch.einsum("ngs,gst->ngt", A[:, index], values)
        return result

    def diagonal(self) -> Tensor:
        index = torch.cat([index.reshape(-1) for index, _ in self.batches])
        values = torch.cat([v.diagonal(dim1=1, dim2=2).reshape(-1) for _, v in self.batches])
        result = torch.empty_like(values)
        result[index] = values
        return result

    def trace_with(self, A: Tensor) -> Tensor:
        """Return the trace of this matrix times a symmetric A."""
        parts = [(values * A[G[:, :, None], G[:, None, :]]).sum() for G, values in self.batches]
        return torch.stack(parts).sum()

    def logdet(self) -> Tensor:
        """Return the logarithm of the determinant."""
        parts = [torch.linalg.slogdet(values)[1].sum() for _, values in self.batches]
        return torch.stack(parts).sum()

    def map(self, of: Callable[[Tensor, Tensor], Tensor]) -> Blocks:
        """Return the matrix with the same blocks and the entries ``of(index, values)``."""
        return Blocks([(index, of(index, values)) for index, values in self.batches])


def block_inverses(A: Tensor, blocks: list[Tensor], plus: Tensor | None = None) -> Blocks:
    r"""Return the inverses :math:`S_G = (A_{GG})^{-1}` of the diagonal blocks of a symmetric A.

    With ``plus``, a matrix B of shape (r, n), the blocks are those of :math:`A + B^\top B`.

    Examples
    --------
    >>> import torch
    >>> A = torch.tensor([[2.0, 0.0, 5.0], [0.0, 4.0, 0.0], [5.0, 0.0, 1.0]])
    >>> block_inverses(A, [torch.tensor([0]), torch.tensor([1]), torch.tensor([2])]).diagonal()
    tensor([0.5000, 0.2500, 1.0000])
    """
    by_size: dict[int, list[Tensor]] = {}
    for block in blocks:
        by_size.setdefault(len(block), []).append(block)
    batches = []
    for alike in by_size.values():
        index = torch.stack(alike)
        part = A[index[:, :, None], index[:, None, :]]
        if plus is not None:
            B = plus[:, index]
            part = part + torch.einsum("rgs,rgt->gst", B, B)
        L, failed = torch.linalg.cholesky_ex(part)
        if bool(failed.any()):
            L = torch.stack([safe_cholesky(each)[0] for each in part])
        batches.append((index, torch.cholesky_inverse(L)))
    return Blocks(batches)
