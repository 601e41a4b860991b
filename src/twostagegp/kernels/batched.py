r"""One covariance function over many small problems at once.

A batch is B problems of the same size with inputs of shape (B, n, d), each with its own parameter
vector: :math:`K_b = k_{\theta_b}(X_b, X_b)`. For a named kernel with one lengthscale all distances
change by a common factor during training, so they are computed once. A wrapped GPyTorch kernel
holds one parameter vector at a time: problems that share it are evaluated in one call, others one
by one.

The derivatives are those of ``stationary.py``, with a symmetric :math:`W_b` per problem.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from twostagegp.kernels.base import Kernel, Scalars
from twostagegp.kernels.distances import distances, own_distances
from twostagegp.kernels.plus_constant import PlusConstant
from twostagegp.kernels.stationary import NamedKernel

__all__ = ["KernelBatch", "kernel_batch", "take"]

Index = slice | Tensor


class KernelBatch(Protocol):
    """K and its derivatives for some of the problems of a batch.

    ``concurrent`` says whether two threads may use it at the same time. A ``theta`` of shape (1, p)
    is shared by all problems of :meth:`evaluate`, and :meth:`gradient` is then the sum over them.
    """

    concurrent: bool

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, Any]:
        """Return K of the problems in ``index``, shape (b, n, n), and what the gradient needs."""
        ...

    def gradient(self, theta: Tensor, K: Tensor, saved: Any, W: Tensor) -> Tensor:
        """Return the inner products of W with dK/dtheta_j, shape of ``theta``."""
        ...

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        """Return K(X_b, Z_b), shape (b, len(X_b), len(Z_b))."""
        ...

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        """Return diag K(X_b, X_b), shape (b, len(X_b))."""
        ...


def kernel_batch(kernel: Kernel, X: Tensor) -> KernelBatch:
    """Return the batch form of a kernel.

    Parameters
    ----------
    kernel : Kernel
    X : Tensor of shape (B, n, d), or (1, n, d) if all problems share their inputs

    Examples
    --------
    >>> import torch
    >>> from twostagegp.kernels import make_kernel
    >>> X = torch.randn(5, 7, 2, dtype=torch.float64)
    >>> batch = kernel_batch(make_kernel("rbf", 2), X)
    >>> K, _ = batch.evaluate(slice(0, 3), torch.zeros(3, 2, dtype=torch.float64))
    >>> K.shape
    torch.Size([3, 7, 7])
    """
    if isinstance(kernel, NamedKernel):
        return _NamedBatch(kernel, X)
    if isinstance(kernel, PlusConstant):
        return _PlusConstantBatch(kernel_batch(kernel.kernel, X), kernel.constant)
    return _WrappedBatch(kernel, X)


def take(values: Tensor, index: Index) -> Tensor:
    """Return some problems of a batch; a batch of one is shared by all problems."""
    return values if values.shape[0] == 1 else values[index]


class _NamedBatch:
    concurrent = True

    def __init__(self, kernel: NamedKernel, X: Tensor) -> None:
        self.kernel = kernel
        self.X = X
        self.distances = None if kernel.ard else own_distances(self._shaped(X), kernel.metric)

    def _shaped(self, X: Tensor) -> Tensor:
        shape = self.kernel.shape
        return X if shape is None else X / torch.as_tensor(shape, dtype=X.dtype, device=X.device)

    def _tail(self, theta: Tensor) -> tuple[Scalars, Scalars]:
        s = theta[:, -1].exp()[:, None, None]
        has_extra = self.kernel.form.extra is not None
        return s, theta[:, -2].exp()[:, None, None] if has_extra else 1.0

    def _inverse_scales(self, theta: Tensor) -> Tensor:
        return theta[:, : self.kernel.n_lengthscales].neg().exp()[:, None, :]

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, tuple[Tensor | None, Tensor]]:
        Z = None
        if self.distances is not None:
            r = take(self.distances, index) * self._inverse_scales(theta)
        else:
            Z = take(self.X, index) * self._inverse_scales(theta)
            r = own_distances(Z, self.kernel.metric)
        return self.kernel.form.covariance(r, *self._tail(theta)), (Z, r)

    def gradient(
        self, theta: Tensor, K: Tensor, saved: tuple[Tensor | None, Tensor], W: Tensor
    ) -> Tensor:
        kernel, form, (Z, r) = self.kernel, self.kernel.form, saved
        grad = theta.new_empty(len(W), theta.shape[1])
        grad[:, -1] = _inner(W, K)
        s, alpha = self._tail(theta)
        if form.extra is not None:
            grad[:, -2] = theta[:, -2].exp() * _inner(W * K, form.extra_derivative(r, alpha))
        if Z is None:
            grad[:, 0] = _inner(W, form.shrink_derivative(K, r, s, alpha))
        elif kernel.metric == 1:
            M = form.derivative(K, r, s, alpha).mul_(W)
            for k in range(kernel.n_features):
                column = Z[:, :, k]
                grad[:, k] = _inner(M, (column[:, :, None] - column[:, None, :]).abs_())
        else:
            M = form.derivative(K, r, s, alpha).mul_(W)
            sums = (M.sum(2, keepdim=True) * Z.square() - Z * (M @ Z)).sum(1)
            grad[:, : kernel.n_features] = 2.0 * sums
        return grad if len(theta) == len(W) else grad.sum(0, keepdim=True)

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        scales = self._inverse_scales(theta)
        A, B = self._shaped(X) * scales, self._shaped(Z) * scales
        r = distances(A, B, self.kernel.metric)
        return self.kernel.form.covariance(r, *self._tail(theta))

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        return theta[:, -1].exp()[:, None].expand(len(theta), X.shape[1])


class _PlusConstantBatch:
    def __init__(self, batch: KernelBatch, constant: float) -> None:
        self.batch, self.constant = batch, constant
        self.concurrent = batch.concurrent

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, Any]:
        K, saved = self.batch.evaluate(index, theta)
        return K + self.constant, (K, saved)

    def gradient(self, theta: Tensor, K: Tensor, saved: Any, W: Tensor) -> Tensor:
        inner, saved_inner = saved
        return self.batch.gradient(theta, inner, saved_inner, W)

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        return self.batch.cross(X, Z, theta) + self.constant

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        return self.batch.diagonal(X, theta) + self.constant


class _WrappedBatch:
    concurrent = False  # a wrapped module holds one parameter vector at a time

    def __init__(self, kernel: Kernel, X: Tensor) -> None:
        self.kernel = kernel
        self.X = X

    def _in_one_call(self, X: Tensor, theta: Tensor) -> bool:
        return len(theta) == 1 and len(X) != 1 and self.kernel.takes_batches

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, tuple[Tensor, Any]]:
        X = take(self.X, index)
        if self._in_one_call(X, theta):
            K, graph = self.kernel.evaluate(X, _vectors(theta)[0])
            return K, (X, graph)
        size = max(len(X), len(theta))
        X, vectors = X.expand(size, -1, -1), _vectors(theta.expand(size, -1))
        parts = [self.kernel.evaluate(x, th) for x, th in zip(X, vectors, strict=True)]
        return torch.stack([K for K, _ in parts]), (X, [saved for _, saved in parts])

    def gradient(self, theta: Tensor, K: Tensor, saved: tuple[Tensor, Any], W: Tensor) -> Tensor:
        X, graphs = saved
        if self._in_one_call(X, theta):
            total = self.kernel.gradient(X, _vectors(theta)[0], K, graphs, W)
            return torch.as_tensor(total[None]).to(theta)
        if len(X) > 1:
            # The module's parameters were overwritten after each graph was recorded; without a
            # graph the kernel is evaluated again.
            graphs = [None] * len(X)
        gradients = []
        vectors = _vectors(theta.expand(len(X), -1))
        for x, th, k, graph, w in zip(X, vectors, K, graphs, W, strict=True):
            gradients.append(self.kernel.gradient(x, th, k, graph, w))
        grad = torch.as_tensor(np.stack(gradients)).to(theta)
        return grad if len(theta) == len(X) else grad.sum(0, keepdim=True)

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        size = len(theta)
        rows = zip(X.expand(size, -1, -1), Z.expand(size, -1, -1), _vectors(theta), strict=True)
        return torch.stack([self.kernel.cross(*row) for row in rows])

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        rows = zip(X.expand(len(theta), -1, -1), _vectors(theta), strict=True)
        return torch.stack([self.kernel.diagonal(*row) for row in rows])


def _vectors(theta: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return theta.cpu().numpy().astype(np.float64)


def _inner(A: Tensor, B: Tensor) -> Tensor:
    """Return the sum of the products of all entries of each problem, shape (b,)."""
    size = len(A)
    return torch.bmm(A.reshape(size, 1, -1), B.reshape(size, -1, 1))[:, 0, 0]
