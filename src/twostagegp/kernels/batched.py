r"""One covariance function over many small problems at once.

A batch is B problems of the same size with inputs of shape (B, n, d), each with its own parameter
vector: :math:`K_b = k_{\theta_b}(X_b, X_b)`. For a named kernel with one lengthscale only the size
of the distances changes while it is trained, so that they are computed once. A wrapped GPyTorch
kernel holds one parameter vector at a time: problems that share it are evaluated at once, others
one by one.

The derivatives are those of ``kernels.py``: with :math:`W_b` symmetric,

.. math::

    \Big\langle W_b, \frac{\partial K_b}{\partial \log \ell} \Big\rangle
        = \sum_{ij} W_{b,ij}\, (-2)\, \frac{\partial K_{b,ij}}{\partial r^2}\, r_{b,ij}^2 .
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from twostagegp.kernels import Kernel, NamedKernel, Scalars

__all__ = ["KernelBatch", "kernel_batch", "take"]

Index = slice | Tensor


class KernelBatch(Protocol):
    """K and its derivatives for some of the problems of a batch.

    ``concurrent`` says whether two threads may use it at the same time. A ``theta`` of shape (1, p)
    stands for all problems of :meth:`evaluate`, and :meth:`gradient` is then their sum.
    """

    concurrent: bool

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, Any]:
        """K of the problems in ``index``, shape (b, n, n), and what the gradient needs."""
        ...

    def gradient(self, theta: Tensor, K: Tensor, saved: Any, W: Tensor) -> Tensor:
        """The inner products of W with dK/dtheta_j, shape of ``theta``."""
        ...

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        """K(X_b, Z_b), shape (b, len(X_b), len(Z_b))."""
        ...

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        """diag K(X_b, X_b), shape (b, len(X_b))."""
        ...


def kernel_batch(kernel: Kernel, X: Tensor) -> KernelBatch:
    """The batch form of a kernel.

    Parameters
    ----------
    kernel : Kernel
    X : Tensor of shape (B, n, d), or (1, n, d) where all problems share their inputs

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
    return _WrappedBatch(kernel, X)


def take(values: Tensor, index: Index) -> Tensor:
    """Problems of a batch; a batch of one stands for all."""
    return values if values.shape[0] == 1 else values[index]


class _NamedBatch:
    concurrent = True

    def __init__(self, kernel: NamedKernel, X: Tensor) -> None:
        self.kernel = kernel
        self.X = X
        self.distances = None if kernel.ard else kernel.own_distance(self._shaped(X))

    def _shaped(self, X: Tensor) -> Tensor:
        shape = self.kernel.shape
        return X if shape is None else X / torch.as_tensor(shape, dtype=X.dtype, device=X.device)

    def _tail(self, theta: Tensor) -> tuple[Scalars, Scalars]:
        s = theta[:, -1].exp()[:, None, None]
        return s, theta[:, -2].exp()[:, None, None] if self.kernel.name == "rq" else 1.0

    def _inverse_scales(self, theta: Tensor) -> Tensor:
        return theta[:, : self.kernel.n_lengthscales].neg().exp()[:, None, :]

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, tuple[Tensor | None, Tensor]]:
        Z = None
        if self.distances is not None:
            r = take(self.distances, index) * self._inverse_scales(theta)
        else:
            Z = take(self.X, index) * self._inverse_scales(theta)
            r = self.kernel.own_distance(Z)
        return self.kernel.covariance(r, *self._tail(theta)), (Z, r)

    def gradient(
        self, theta: Tensor, K: Tensor, saved: tuple[Tensor | None, Tensor], W: Tensor
    ) -> Tensor:
        kernel, (Z, r) = self.kernel, saved
        grad = theta.new_empty(len(W), theta.shape[1])
        grad[:, -1] = _inner(W, K)
        s, alpha = self._tail(theta)
        if kernel.name == "rq":
            grad[:, -2] = theta[:, -2].exp() * _inner(W * K, kernel.alpha_profile(r, alpha))
        if Z is None:
            grad[:, 0] = _inner(W, kernel.shrink_derivative(K, r, s, alpha))
        elif kernel.metric == 1:
            M = W * K
            for k in range(kernel.n_features):
                column = Z[:, :, k]
                grad[:, k] = _inner(M, (column[:, :, None] - column[:, None, :]).abs_())
        else:
            M = kernel.minus_twice_derivative(K, r, s, alpha).mul_(W)
            forms = (M.sum(2, keepdim=True) * Z.square() - Z * (M @ Z)).sum(1)
            grad[:, : kernel.n_features] = 2.0 * forms
        return grad if len(theta) == len(W) else grad.sum(0, keepdim=True)

    def cross(self, X: Tensor, Z: Tensor, theta: Tensor) -> Tensor:
        scales = self._inverse_scales(theta)
        r = self.kernel.distance(self._shaped(X) * scales, self._shaped(Z) * scales)
        return self.kernel.covariance(r, *self._tail(theta))

    def diagonal(self, X: Tensor, theta: Tensor) -> Tensor:
        return theta[:, -1].exp()[:, None].expand(len(theta), X.shape[1])


class _WrappedBatch:
    concurrent = False  # a wrapped module holds one parameter vector at a time

    def __init__(self, kernel: Kernel, X: Tensor) -> None:
        self.kernel = kernel
        self.X = X

    def _at_once(self, X: Tensor, theta: Tensor) -> bool:
        return len(theta) == 1 and len(X) != 1 and self.kernel.takes_batches

    def evaluate(self, index: Index, theta: Tensor) -> tuple[Tensor, tuple[Tensor, Any]]:
        X = take(self.X, index)
        if self._at_once(X, theta):
            K, graph = self.kernel.evaluate(X, _vectors(theta)[0])
            return K, (X, graph)
        size = max(len(X), len(theta))
        X, vectors = X.expand(size, -1, -1), _vectors(theta.expand(size, -1))
        parts = [self.kernel.evaluate(x, th) for x, th in zip(X, vectors, strict=True)]
        return torch.stack([K for K, _ in parts]), (X, [saved for _, saved in parts])

    def gradient(self, theta: Tensor, K: Tensor, saved: tuple[Tensor, Any], W: Tensor) -> Tensor:
        X, graphs = saved
        if self._at_once(X, theta):
            total = self.kernel.gradient(X, _vectors(theta)[0], K, graphs, W)
            return torch.as_tensor(total[None]).to(theta)
        if len(X) > 1:
            # The module's parameters were overwritten since each graph was recorded; without one
            # the kernel evaluates itself anew.
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
    """Sum of the products of all entries of each problem, shape (b,)."""
    size = len(A)
    return torch.bmm(A.reshape(size, 1, -1), B.reshape(size, -1, 1))[:, 0, 0]
