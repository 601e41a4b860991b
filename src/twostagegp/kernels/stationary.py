r"""A named kernel on the columns of a table: lengthscales, bounds, prior and derivatives.

The function itself comes from ``catalogue.py``. Every derivative that training needs has the form
:math:`\langle W, \partial K / \partial \theta_j \rangle`. With scaled inputs :math:`z = x / \ell`
(one lengthscale, or one per column: ARD), distance r in the norm p and
:math:`M = -p\, W \circ \partial K / \partial r^p`,

.. math::

    \Big\langle W, \frac{\partial K}{\partial \log \ell_k} \Big\rangle
        = \sum_{ij} M_{ij} |z_{ik} - z_{jk}|^p ,

which for p = 2 is one matrix product for all columns together,
:math:`2 \big[ (M \mathbf 1)^\top z_k^2 - z_k^\top M z_k \big]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostagegp.kernels.base import PRIOR_SPREAD, Kernel, Scalars, Vector
from twostagegp.kernels.catalogue import StationaryForm, stationary_form
from twostagegp.kernels.distances import distances, own_distances, weighted_absolute_differences

__all__ = ["NamedKernel"]


class NamedKernel(Kernel):
    r"""A named stationary kernel; ``theta`` is (log lengthscales, [log alpha,] log outputscale).

    Parameters
    ----------
    name : str
        One of ``KERNELS``.
    n_features : int
        Number of input columns.
    ard : bool
        One lengthscale per column instead of one for all.
    shape : array of shape (n_features,), optional
        Fixed ratios of the lengthscales, so that only their common size is learned:
        :math:`\ell_k = \ell\, \text{shape}_k`.

    Examples
    --------
    >>> import torch
    >>> kernel = NamedKernel("matern32", n_features=2)
    >>> X = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    >>> K, _ = kernel.evaluate(X, kernel.start())
    >>> K.shape
    torch.Size([2, 2])
    """

    n_features: int
    shape: Vector | None
    metric: int

    def __init__(
        self, name: str, n_features: int, ard: bool = False, shape: Vector | None = None
    ) -> None:
        self.name = name
        self.n_features = n_features
        self.ard = ard and n_features > 1 and shape is None
        self.shape = shape
        self.metric = self.form.metric

    @property
    def form(self) -> StationaryForm:
        """The record of this kernel in the catalogue."""
        return stationary_form(self.name)

    @property
    def manhattan(self) -> bool:
        return self.metric == 1

    @property
    def n_lengthscales(self) -> int:
        """Number of lengthscales in ``theta``: one, or one per column."""
        return self.n_features if self.ard else 1

    @property
    def lengthscale_slots(self) -> int:
        return self.n_lengthscales

    @property
    def size(self) -> int:
        return self.n_lengthscales + 1 + (self.form.extra is not None)

    def typical_lengthscale(self) -> float:
        """Return the typical distance of two standardised rows: sqrt(d), or d for the L1 norm."""
        d = float(max(self.n_features, 1))  # a table may have no column that varies
        return d if self.metric == 1 else math.sqrt(d)

    @property
    def label(self) -> str:
        return super().label if self.shape is None else f"{self.name}-shaped"

    def classical(self) -> Vector:
        """Return ``theta`` of classical kernel ridge, gamma = 1/d, with a unit outputscale.

        For the L1 Laplacian exp(-gamma |x - x'|_1) the lengthscale is d, for the rbf
        exp(-gamma |x - x'|^2) it is sqrt(d / 2); the others take sqrt(d).
        """
        scale = self.typical_lengthscale() / self.form.classical_divisor
        return np.concatenate([np.full(self.n_lengthscales, math.log(scale)), self._tail_start()])

    def _tail_start(self) -> Vector:
        return np.zeros(self.size - self.n_lengthscales)

    def start(self) -> Vector:
        log_l = math.log(self.typical_lengthscale())
        return np.concatenate([np.full(self.n_lengthscales, log_l), self._tail_start()])

    def bounds(self) -> list[tuple[float, float]]:
        centre, extra = math.log(self.typical_lengthscale()), self.form.extra
        lengthscales = [(centre - 7.0, centre + 7.0)] * self.n_lengthscales
        tail = [] if extra is None else [(math.log(extra.bounds[0]), math.log(extra.bounds[1]))]
        return [*lengthscales, *tail, (math.log(1e-4), math.log(1e5))]

    def prior(self) -> tuple[Vector, Vector]:
        # The mean is one above the start: long lengthscales, unless the data say otherwise.
        mean = self.start()
        mean[: self.n_lengthscales] += 1.0
        precision = np.full(self.size, 1.0 / PRIOR_SPREAD**2)
        precision[-1] = 1.0 / (2.0 * PRIOR_SPREAD) ** 2
        return mean, precision

    def lengthscales(self, theta: Vector) -> Vector:
        scales = np.broadcast_to(np.exp(theta[: self.n_lengthscales]), (self.n_features,)).copy()
        return scales if self.shape is None else scales * self.shape

    def scaled(self, X: Tensor, theta: Vector) -> Tensor:
        """Return the inputs divided by the lengthscales."""
        return X * self._inverse_lengthscales(theta, X)

    def _inverse_lengthscales(self, theta: Vector, like: Tensor) -> Scalars:
        """Return one number for all columns or, with the type of ``like``, one per column."""
        if not self.ard and self.shape is None:
            return math.exp(-theta[0])
        inverse = np.exp(-theta[: self.n_lengthscales])
        inverse = inverse if self.shape is None else inverse / self.shape
        return torch.as_tensor(inverse, dtype=like.dtype, device=like.device)

    def tail(self, theta: Vector) -> tuple[float, float]:
        """Return the outputscale and the extra parameter (1.0 for kernels that have none)."""
        return math.exp(theta[-1]), 1.0 if self.form.extra is None else math.exp(theta[-2])

    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        Z = self.scaled(X, theta)
        r = own_distances(Z, self.metric)
        return self.form.covariance(r, *self.tail(theta)), (Z, r)

    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        return self.cross_with(Z, theta)(X)

    def cross_with(self, Z: Tensor, theta: Vector) -> Callable[[Tensor], Tensor]:
        inverse, (s, alpha) = self._inverse_lengthscales(theta, Z), self.tail(theta)
        metric, covariance, scaled = self.metric, self.form.covariance, Z * inverse
        return lambda X: covariance(distances(X * inverse, scaled, metric), s, alpha)

    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        return torch.full((X.shape[0],), math.exp(theta[-1]), dtype=X.dtype, device=X.device)

    def diagonal_gradient(self, X: Tensor, theta: Vector, w: Tensor) -> Vector:
        gradient = np.zeros(self.size)
        gradient[-1] = math.exp(theta[-1]) * float(w.sum())
        return gradient

    def gradient(
        self, X: Tensor, theta: Vector, K: Tensor, saved: tuple[Tensor, Tensor], W: Tensor
    ) -> Vector:
        Z, r = saved
        return self._gradient(Z, Z, theta, K, r, W)

    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        A, B = self.scaled(X, theta), self.scaled(Z, theta)
        r = distances(A, B, self.metric)
        return self._gradient(A, B, theta, self.form.covariance(r, *self.tail(theta)), r, W)

    def _gradient(
        self, A: Tensor, B: Tensor, theta: Vector, K: Tensor, r: Tensor, W: Tensor
    ) -> Vector:
        """Gradient from the scaled inputs A and B; W is symmetric if they are the same."""
        form, (s, alpha) = self.form, self.tail(theta)
        grad = np.empty(self.size)
        grad[-1] = _inner(W, K)
        if form.extra is not None:
            grad[-2] = alpha * _inner(W * K, form.extra_derivative(r, alpha))
        if not self.ard:
            grad[0] = _inner(W, form.shrink_derivative(K, r, s, alpha))
            return grad
        M = form.derivative(K, r, s, alpha).mul_(W)
        if self.metric == 1:
            sums = weighted_absolute_differences(M, A, B)
        else:
            of_rows = M.sum(1) @ A.square()
            of_columns = of_rows if A is B else M.sum(0) @ B.square()
            sums = of_rows + of_columns - 2.0 * (A * (M @ B)).sum(0)
        grad[: self.n_features] = sums.cpu().numpy()
        return grad

    def to_gpytorch(self, theta: Vector) -> Any:
        from twostagegp.kernels.gpytorch import named_to_gpytorch

        return named_to_gpytorch(self, theta)


def _inner(A: Tensor, B: Tensor) -> float:
    """Return the sum of the products of all entries, without a matrix in between."""
    return float(torch.vdot(A.reshape(-1), B.reshape(-1)))
