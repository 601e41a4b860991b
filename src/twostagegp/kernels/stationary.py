r"""The kernels that have a name, with their derivatives written out.

With scaled inputs :math:`z = x / \ell` (one lengthscale, or one a column: ARD),
Euclidean distance :math:`r = \|z - z'\|_2` and outputscale :math:`s`:

.. math::

    \text{rbf}       &: s \exp(-r^2 / 2) \\
    \text{matern12}  &: s \exp(-r) \\
    \text{matern32}  &: s (1 + \sqrt3 r) \exp(-\sqrt3 r) \\
    \text{matern52}  &: s (1 + \sqrt5 r + 5 r^2 / 3) \exp(-\sqrt5 r) \\
    \text{rq}        &: s (1 + r^2 / 2\alpha)^{-\alpha} \\
    \text{laplacian} &: s \exp(-\|z - z'\|_1)

Every derivative that training needs has the form :math:`\langle W, \partial K / \partial
\theta_j \rangle`. For a function of :math:`r^2` and
:math:`M = -2\, W \circ \partial K / \partial r^2`,

.. math::

    \Big\langle W, \frac{\partial K}{\partial \log \ell_k} \Big\rangle
        = \sum_{ij} M_{ij} (z_{ik} - z_{jk})^2
        = 2 \big[ (M \mathbf 1)^\top z_k^2 - z_k^\top M z_k \big],

which is one matrix product for all columns together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostagegp.kernels.base import PRIOR_SPREAD, Kernel, Scalars, Vector

__all__ = ["KERNELS", "NamedKernel"]

#: Above this many columns distances come from a matrix product; below, from differences,
#: which are exact for nearly equal rows.
_DIRECT_COLUMNS = 64
#: Up to this many columns a GPU sums distances up column by column.
_COLUMNWISE = 32
#: Below so many distances of two tables the passes cost more than the sums.
_FEW_DISTANCES = 1_000_000
#: Rows of a block in the Laplacian's derivative: a (rows, n) panel should stay in cache.
_PANEL_ENTRIES = 65_536
#: The same on a GPU, which has no cache to fit into and wants much work at a time.
_PANEL_ENTRIES_GPU = 1 << 26


def _column_by_column(Z: Tensor, Z2: Tensor) -> bool:
    """Whether a GPU is quicker with its many passes than with torch's own distances."""
    few = Z.shape[-2] * Z2.shape[-2] < _FEW_DISTANCES
    return Z.device.type == "cuda" and Z.shape[-1] <= _COLUMNWISE and not (few and Z.ndim == 2)


def _by_columns(Z: Tensor, Z2: Tensor, p: int) -> Tensor:
    """Distances summed up column by column: a few passes over the result."""
    total = Z.new_zeros(*Z.shape[:-1], Z2.shape[-2])
    for c in range(Z.shape[-1]):
        difference = Z[..., :, None, c] - Z2[..., None, :, c]
        total += difference.abs_() if p == 1 else difference.square_()
    return total if p == 1 else total.sqrt_()


def _euclidean(Z: Tensor, Z2: Tensor) -> Tensor:
    if _column_by_column(Z, Z2):
        return _by_columns(Z, Z2, 2)
    mode = (
        "donot_use_mm_for_euclid_dist"
        if Z.shape[-1] <= _DIRECT_COLUMNS
        else "use_mm_for_euclid_dist"
    )
    return torch.cdist(Z, Z2, compute_mode=mode)


class NamedKernel(Kernel):
    r"""A named stationary kernel; ``theta`` is (log lengthscales, [log alpha,] log outputscale).

    Parameters
    ----------
    name : str
        A key of ``KERNELS``.
    n_features : int
        Number of input columns.
    ard : bool
        One lengthscale a column instead of one for all.
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

    def __init__(
        self, name: str, n_features: int, ard: bool = False, shape: Vector | None = None
    ) -> None:
        self.name = name
        self.n_features = n_features
        self.ard = ard and n_features > 1 and shape is None
        self.shape = shape
        self.metric = 1 if name == "laplacian" else 2

    @property
    def n_lengthscales(self) -> int:
        return self.n_features if self.ard else 1

    @property
    def lengthscale_slots(self) -> int:
        return self.n_lengthscales

    @property
    def size(self) -> int:
        return self.n_lengthscales + 1 + (self.name == "rq")

    def typical_lengthscale(self) -> float:
        """Typical distance of two standardised rows: sqrt(d), or d for the L1 metric."""
        d = float(max(self.n_features, 1))  # a table may have no column that varies
        return d if self.metric == 1 else math.sqrt(d)

    @property
    def label(self) -> str:
        return super().label if self.shape is None else f"{self.name}-shaped"

    def classical(self) -> Vector:
        """Lengthscale of classical kernel ridge, gamma = 1/d, with a unit outputscale.

        For the L1 Laplacian exp(-g |x - x'|_1) this is l = d, for the rbf
        exp(-g |x - x'|^2) it is l = sqrt(d / 2); the others take l = sqrt(d).
        """
        scale = self.typical_lengthscale() / (math.sqrt(2.0) if self.name == "rbf" else 1.0)
        return np.concatenate([np.full(self.n_lengthscales, math.log(scale)), self._tail_start()])

    def _tail_start(self) -> Vector:
        return np.zeros(self.size - self.n_lengthscales)

    def start(self) -> Vector:
        log_l = math.log(self.typical_lengthscale())
        return np.concatenate([np.full(self.n_lengthscales, log_l), self._tail_start()])

    def bounds(self) -> list[tuple[float, float]]:
        centre = math.log(self.typical_lengthscale())
        tail = [(math.log(1e-2), math.log(1e3))] if self.name == "rq" else []
        lengthscales = [(centre - 7.0, centre + 7.0)] * self.n_lengthscales
        return [*lengthscales, *tail, (math.log(1e-4), math.log(1e5))]

    def prior(self) -> tuple[Vector, Vector]:
        # Centred one unit above the start: a column is innocent until proven relevant.
        mean = self.start()
        mean[: self.n_lengthscales] += 1.0
        precision = np.full(self.size, 1.0 / PRIOR_SPREAD**2)
        precision[-1] = 1.0 / (2.0 * PRIOR_SPREAD) ** 2
        return mean, precision

    def lengthscales(self, theta: Vector) -> Vector:
        scales = np.broadcast_to(np.exp(theta[: self.n_lengthscales]), (self.n_features,)).copy()
        return scales if self.shape is None else scales * self.shape

    def scaled(self, X: Tensor, theta: Vector) -> Tensor:
        """Inputs divided by the lengthscales."""
        if not self.ard and self.shape is None:
            return X * math.exp(-theta[0])
        inverse = np.exp(-theta[: self.n_lengthscales])
        inverse = inverse if self.shape is None else inverse / self.shape
        return X * torch.as_tensor(inverse, dtype=X.dtype, device=X.device)

    def distance(self, Z: Tensor, Z2: Tensor) -> Tensor:
        """Distances of scaled inputs, in the kernel's metric."""
        if self.metric == 2:
            return _euclidean(Z, Z2)
        if _column_by_column(Z, Z2):
            return _by_columns(Z, Z2, 1)
        return torch.cdist(Z, Z2, p=1.0)

    def own_distance(self, Z: Tensor) -> Tensor:
        """Distances of scaled inputs among themselves, exactly zero on the diagonal."""
        r = self.distance(Z, Z)
        if Z.shape[-1] > _DIRECT_COLUMNS:
            r.diagonal(dim1=-2, dim2=-1).zero_()  # a matrix product leaves rounding there
        return r

    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        Z = self.scaled(X, theta)
        r = self.own_distance(Z)
        K = self.covariance(r, *self._tail(theta))
        return K, (Z, r)

    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        r = self.distance(self.scaled(X, theta), self.scaled(Z, theta))
        return self.covariance(r, *self._tail(theta))

    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        return torch.full((X.shape[0],), math.exp(theta[-1]), dtype=X.dtype, device=X.device)

    def _tail(self, theta: Vector) -> tuple[float, float]:
        """Outputscale and, for ``rq``, alpha (1 elsewhere)."""
        return math.exp(theta[-1]), math.exp(theta[-2]) if self.name == "rq" else 1.0

    def covariance(self, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        """K as a function of scaled distances; ``s`` and ``alpha`` may differ between problems."""
        if self.name == "rbf":
            return r.square().mul_(-0.5).exp_().mul_(s)
        if self.name in ("matern12", "laplacian"):
            return r.neg().exp_().mul_(s)
        if self.name == "matern32":
            a = r * math.sqrt(3.0)
            return a.neg().exp_().mul_(a.add_(1.0)).mul_(s)
        if self.name == "matern52":
            a = r * math.sqrt(5.0)
            return a.neg().exp_().mul_((a + 1.0).addcmul_(a, a, value=1.0 / 3.0)).mul_(s)
        return r.square().div_(2.0 * alpha).add_(1.0).pow_(-alpha).mul_(s)

    def minus_twice_derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        """-2 dK/d(r^2), elementwise."""
        if self.name == "rbf":
            return K.clone()
        if self.name == "matern12":
            return (K / r).nan_to_num_(nan=0.0, posinf=0.0)
        if self.name == "matern32":
            return (r * -math.sqrt(3.0)).exp_().mul_(3.0 * s)
        if self.name == "matern52":
            a = r * math.sqrt(5.0)
            return a.neg().exp_().mul_(a.add_(1.0)).mul_(5.0 / 3.0 * s)
        return K / r.square().div_(2.0 * alpha).add_(1.0)

    def shrink_derivative(self, K: Tensor, r: Tensor, s: Scalars, alpha: Scalars) -> Tensor:
        """-dK/d(log r), elementwise: what a common log-lengthscale does to K."""
        if self.metric == 1 or self.name == "matern12":
            return K * r
        return self.minus_twice_derivative(K, r, s, alpha).mul_(r).mul_(r)

    def gradient(
        self, X: Tensor, theta: Vector, K: Tensor, saved: tuple[Tensor, Tensor], W: Tensor
    ) -> Vector:
        Z, r = saved
        return self._gradient(Z, Z, theta, K, r, W)

    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        A, B = self.scaled(X, theta), self.scaled(Z, theta)
        r = self.distance(A, B)
        return self._gradient(A, B, theta, self.covariance(r, *self._tail(theta)), r, W)

    def _gradient(
        self, A: Tensor, B: Tensor, theta: Vector, K: Tensor, r: Tensor, W: Tensor
    ) -> Vector:
        """From scaled inputs of rows and columns; where they are the same, W is symmetric."""
        grad = np.empty(self.size)
        grad[-1] = _inner(W, K)
        if self.name == "rq":
            alpha = math.exp(theta[-2])
            grad[-2] = alpha * _inner(W * K, self.alpha_profile(r, alpha))
        if not self.ard:
            grad[0] = _inner(W, self.shrink_derivative(K, r, *self._tail(theta)))
        elif self.metric == 1:
            grad[: self.n_features] = _weighted_absolute_differences(W * K, A, B).cpu().numpy()
        else:
            M = self.minus_twice_derivative(K, r, *self._tail(theta)).mul_(W)
            of_rows = M.sum(1) @ A.square()
            of_columns = of_rows if A is B else M.sum(0) @ B.square()
            forms = of_rows + of_columns - 2.0 * (A * (M @ B)).sum(0)
            grad[: self.n_features] = forms.cpu().numpy()
        return grad

    @staticmethod
    def alpha_profile(r: Tensor, alpha: Scalars) -> Tensor:
        """(1/K) dK/d(alpha) of the rational quadratic kernel, elementwise."""
        base = r.square().div_(2.0 * alpha)
        return base / (base + 1.0) - torch.log1p(base)

    def to_gpytorch(self, theta: Vector) -> Any:
        from twostagegp.kernels.gpytorch import named_to_gpytorch

        return named_to_gpytorch(self, theta)


def _inner(A: Tensor, B: Tensor) -> float:
    """Sum of the products of all entries, without a matrix in between."""
    return float(torch.vdot(A.reshape(-1), B.reshape(-1)))


def _weighted_absolute_differences(M: Tensor, A: Tensor, B: Tensor) -> Tensor:
    r"""Return :math:`\sum_{ij} M_{ij} |a_{ik} - b_{jk}|` for every column k, in panels of rows."""
    n, d = A.shape
    left, right = A.T.contiguous(), B.T.contiguous()
    entries = _PANEL_ENTRIES_GPU if M.device.type == "cuda" else _PANEL_ENTRIES
    rows = max(1, entries // len(B))
    total = torch.zeros(d, dtype=A.dtype, device=A.device)
    for i in range(0, n, rows):
        panel = M[i : i + rows]
        for k in range(d):
            difference = (left[k, i : i + rows, None] - right[k]).abs_()
            total[k] += torch.vdot(difference.reshape(-1), panel.reshape(-1))
    return total


#: Names that a user may pass wherever a kernel is asked for.
KERNELS = ("rbf", "matern12", "matern32", "matern52", "rq", "laplacian")
