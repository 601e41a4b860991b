r"""The dictionary of covariance functions, and how any GPyTorch kernel joins it.

A kernel here is a covariance function :math:`k_\theta` together with the layout of its
parameter vector :math:`\theta`, so that an optimiser sees one flat array:

* the named kernels (``rbf``, ``matern12``, ``matern32``, ``matern52``, ``rq``,
  ``laplacian``), whose derivatives are written out, and
* :class:`WrappedKernel`, any GPyTorch kernel object, differentiated by autograd.

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

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.errors import InputError

__all__ = [
    "KERNELS",
    "Columns",
    "Kernel",
    "NamedKernel",
    "WrappedKernel",
    "inverse_lengthscale_shares",
    "is_flexible",
    "make_kernel",
]

Vector = NDArray[np.float64]
#: One number, or one a problem of a batch, shape (B, 1, 1).
Scalars = float | Tensor

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
#: Entries of a GPyTorch kernel's matrix whose autograd graph is held at once: sums and products
#: hold a hundred numbers an entry, a spectral mixture some 250.
_GRAPH_ENTRIES = {"cpu": 1 << 16, "cuda": 1 << 21}
#: Standard deviation of the prior on a log-lengthscale and on a log-outputscale.
PRIOR_SPREAD = 4.0


class Kernel(ABC):
    """A covariance function with a flat parameter vector ``theta`` (unconstrained)."""

    name: str
    ard: bool

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of entries of ``theta``."""

    @abstractmethod
    def start(self) -> Vector:
        """Starting values for standardised inputs and a standardised target."""

    @abstractmethod
    def bounds(self) -> list[tuple[float, float]]:
        """Lower and upper bound of each entry of ``theta``."""

    @abstractmethod
    def prior(self) -> tuple[Vector, Vector]:
        """Mean and precision of a weak Gaussian prior on ``theta`` (precision 0: none)."""

    @abstractmethod
    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, Any]:
        """K(X, X), and what :meth:`gradient` needs to remember."""

    @abstractmethod
    def gradient(self, X: Tensor, theta: Vector, K: Tensor, saved: Any, W: Tensor) -> Vector:
        """The vector of inner products of a symmetric W with dK/dtheta_j."""

    @abstractmethod
    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        """K(X, Z), shape (len(X), len(Z))."""

    @abstractmethod
    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        """The vector of inner products of W, shape (len(X), len(Z)), with dK(X, Z)/dtheta_j."""

    @abstractmethod
    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        """diag K(X, X), shape (len(X),)."""

    @abstractmethod
    def to_gpytorch(self, theta: Vector) -> Any:
        """The same covariance function as a GPyTorch kernel."""

    def lengthscales(self, theta: Vector) -> Vector | None:
        """One lengthscale a column, where the kernel has them."""
        return None

    @property
    def lengthscale_slots(self) -> int:
        """How many entries at the head of ``theta`` are log-lengthscales."""
        return 0

    @property
    def takes_batches(self) -> bool:
        """Whether :meth:`evaluate` takes several problems at once.

        X is then (b, n, d) and K is (b, n, n); :meth:`gradient` sums over the problems.
        """
        return False

    @property
    def label(self) -> str:
        """Short name for tables."""
        return f"{self.name}-ard" if self.ard else self.name


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
        from twostagegp.gpytorch_kernels import named_to_gpytorch

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


@dataclass(frozen=True)
class Columns:
    """Which columns of the user's table the inputs are, where constant ones were dropped.

    Attributes
    ----------
    kept : tuple of int
    width : int
        Columns of the table.
    """

    kept: tuple[int, ...]
    width: int

    def expand(self, X: Tensor) -> Tensor:
        """The inputs in their places, zero in the others, shape (..., n, width)."""
        table = X.new_zeros(*X.shape[:-1], self.width)
        table[..., list(self.kept)] = X
        return table


class WrappedKernel(Kernel):
    """Any GPyTorch kernel; ``theta`` is the concatenation of its raw parameters.

    A kernel without any outputscale is put into a ``ScaleKernel``. Priors registered on
    the kernel are not used; its constraints are. Parameters with ``requires_grad=False`` keep
    their values.

    Parameters
    ----------
    module : gpytorch.kernels.Kernel
        Copied, never changed.
    n_features : int
        Number of input columns, checked by a trial evaluation.
    columns : Columns, optional
        Where they stand in the user's table, whose columns ``active_dims`` and ``ard_num_dims``
        count.
    """

    ard = False
    _takes_batches: bool | None = None  # not tried yet

    def __init__(self, module: Any, n_features: int, columns: Columns | None = None) -> None:
        from twostagegp.gpytorch_kernels import describe, with_outputscale

        self.name = describe(module)
        self.n_features = n_features
        self.columns = columns
        self.module = with_outputscale(copy.deepcopy(module)).double()
        self._check_columns()

    def _check_columns(self) -> None:
        probe = torch.zeros(2, self.n_features, dtype=torch.float64)
        try:
            with torch.no_grad():
                shape = tuple(self._dense(probe, probe).shape)
        except Exception as error:
            raise InputError(
                f"the kernel {self.name} cannot be evaluated on {self.n_features} input columns "
                f"({error}); check its ard_num_dims and active_dims."
            ) from error
        if shape != (2, 2):
            raise InputError(
                f"the kernel {self.name} gives a matrix of shape {shape} for two rows instead of "
                "(2, 2); kernels with a batch shape are not supported."
            )

    @property
    def takes_batches(self) -> bool:
        if self._takes_batches is None:
            self._takes_batches = self._agrees_on_a_batch()
        return self._takes_batches

    def _agrees_on_a_batch(self) -> bool:
        """Whether a few small problems at once are what they are one by one.

        GPyTorch's kernels broadcast over leading dimensions; those that users write need not.
        """
        draw = torch.Generator().manual_seed(0)
        X = torch.randn(3, 4, self.n_features, dtype=torch.float64, generator=draw)
        W = torch.randn(3, 4, 4, dtype=torch.float64, generator=draw)
        theta = self.start()

        def results(x: Tensor, w: Tensor) -> tuple[Tensor, Vector]:
            K, saved = self.evaluate(x, theta)
            return K, self.gradient(x, theta, K, saved, w)

        try:
            with warnings.catch_warnings():  # what counts is the result
                warnings.simplefilter("ignore")
                K, gradient = results(X, W)
                each = [results(x, w) for x, w in zip(X, W, strict=True)]
        except Exception:
            return False
        alone = torch.stack([one for one, _ in each])
        total = np.sum([slope for _, slope in each], axis=0)
        # Equal to rounding, and to the roots of it that are GPyTorch's smallest distances.
        same = K.shape == alone.shape and torch.allclose(K, alone, rtol=1e-6, atol=1e-6)
        return same and bool(np.allclose(gradient, total, rtol=1e-5, atol=1e-5))

    def _dense(self, X: Tensor, Z: Tensor) -> Tensor:
        from twostagegp.gpytorch_kernels import dense

        return dense(self.module, self._placed(X), self._placed(Z))

    def _placed(self, X: Tensor) -> Tensor:
        return X if self.columns is None else self.columns.expand(X)

    def _free(self) -> list[Tensor]:
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self._free())

    def _read(self) -> Vector:
        flat = [p.detach().reshape(-1).cpu().numpy() for p in self._free()]
        return np.concatenate(flat).astype(np.float64) if flat else np.zeros(0)

    def _write(self, theta: Vector, like: Tensor) -> None:
        self.module.to(dtype=like.dtype, device=like.device)
        offset = 0
        with torch.no_grad():
            for p in self._free():
                part = theta[offset : offset + p.numel()]
                p.copy_(torch.as_tensor(part, dtype=like.dtype).reshape(p.shape))
                offset += p.numel()

    def start(self) -> Vector:
        return self._read()

    def bounds(self) -> list[tuple[float, float]]:
        start = self.start()
        return [(float(min(v, 0.0)) - 30.0, float(max(v, 0.0)) + 30.0) for v in start]

    def prior(self) -> tuple[Vector, Vector]:
        return self.start(), np.zeros(self.size)

    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, Tensor | None]:
        self._write(theta, X)
        if self._in_strips(X, X):
            with torch.no_grad():
                return self._symmetric(X), None
        with torch.enable_grad():
            graph = self._dense(X, X)
        return graph.detach().clone(), graph

    def gradient(
        self, X: Tensor, theta: Vector, K: Tensor, saved: Tensor | None, W: Tensor
    ) -> Vector:
        if saved is not None:
            return self._through(saved, W)
        # No graph, since the matrix is large or the module has had other parameters since.
        self._write(theta, X)
        total = np.zeros(self.size)
        for a, b in self._squares(X):
            total += self._graph_gradient(X[a:b], X[a:b], W[a:b, a:b])
            for c, d in self._strips(X, X[a:b], b):
                total += 2.0 * self._graph_gradient(X[c:d], X[a:b], W[c:d, a:b])
        return total

    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        self._write(theta, X)
        if not self._in_strips(X, Z):
            return self._graph_gradient(X, Z, W)
        parts = [self._graph_gradient(X[a:b], Z, W[a:b]) for a, b in self._strips(X, Z)]
        return np.sum(parts, axis=0)

    def _graph_gradient(self, X: Tensor, Z: Tensor, W: Tensor) -> Vector:
        with torch.enable_grad():
            return self._through(self._dense(X, Z), W)

    def _in_strips(self, X: Tensor, Z: Tensor) -> bool:
        """Whether the graph of one whole matrix would be large."""
        return X.ndim == 2 and len(X) * len(Z) > _graph_entries(X.device)

    def _strips(self, X: Tensor, Z: Tensor, first: int = 0) -> Iterator[tuple[int, int]]:
        """Beginnings and ends of rows of X from ``first`` on, few enough beside Z."""
        size = max(1, _graph_entries(X.device) // len(Z))
        for start in range(first, len(X), size):
            yield start, min(start + size, len(X))

    def _squares(self, X: Tensor) -> Iterator[tuple[int, int]]:
        """The same of diagonal blocks, which the kernel sees as rows with themselves."""
        size = math.isqrt(_graph_entries(X.device))
        for start in range(0, len(X), size):
            yield start, min(start + size, len(X))

    def _symmetric(self, X: Tensor) -> Tensor:
        """K(X, X) block by block; above the diagonal the mirror image."""
        K = X.new_empty(len(X), len(X))
        for a, b in self._squares(X):
            K[a:b, a:b] = self._dense(X[a:b], X[a:b])
            for c, d in self._strips(X, X[a:b], b):
                K[c:d, a:b] = self._dense(X[c:d], X[a:b])
                K[a:b, c:d] = K[c:d, a:b].T
        return K

    def _through(self, graph: Tensor, W: Tensor) -> Vector:
        """The inner products of W with the derivatives of a matrix by the free parameters."""
        parameters = self._free()
        if not parameters:
            return np.zeros(0)
        parts = torch.autograd.grad(graph, parameters, grad_outputs=W, allow_unused=True)
        flat = [
            np.zeros(p.numel()) if g is None else g.reshape(-1).cpu().numpy()
            for p, g in zip(parameters, parts, strict=True)
        ]
        return np.concatenate(flat).astype(np.float64)

    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        self._write(theta, X)
        with torch.no_grad():
            if not self._in_strips(X, Z):
                return self._dense(X, Z)
            if X.shape == Z.shape and torch.equal(X, Z):
                return self._symmetric(X)
            K = X.new_empty(len(X), len(Z))
            for a, b in self._strips(X, Z):
                K[a:b] = self._dense(X[a:b], Z)
            return K

    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        self._write(theta, X)
        with torch.no_grad():
            return torch.as_tensor(self.module(self._placed(X), diag=True))

    def lengthscales(self, theta: Vector) -> Vector | None:
        from twostagegp.gpytorch_kernels import lengthscales_of

        module = self.to_gpytorch(theta)
        if self.columns is None:
            return lengthscales_of(module, self.n_features)
        scales = lengthscales_of(module, self.columns.width)
        return None if scales is None else scales[list(self.columns.kept)]

    def to_gpytorch(self, theta: Vector) -> Any:
        # A copy is written to: another thread may be predicting with this module.
        other = copy.deepcopy(self)
        other._write(theta, torch.zeros(1, dtype=torch.float64))
        return other.module


def _graph_entries(device: torch.device) -> int:
    return _GRAPH_ENTRIES.get(device.type, _GRAPH_ENTRIES["cpu"])


def inverse_lengthscale_shares(kernel: Kernel, parameters: Vector) -> Vector | float:
    """Inverse lengthscales divided by their sum; 0.0 for a kernel without lengthscales.

    ``parameters`` is (theta, log noise).
    """
    scales = kernel.lengthscales(parameters[:-1])
    return 0.0 if scales is None else (1.0 / scales) / (1.0 / scales).sum()


#: Names that a user may pass wherever a kernel is asked for.
KERNELS = ("rbf", "matern12", "matern32", "matern52", "rq", "laplacian")


def is_flexible(kernel: Kernel) -> bool:
    """Whether a kernel has more parameters than a lengthscale, an outputscale and a shape.

    Held-out scores at hyperparameters that have seen the row are too good for such kernels.

    Examples
    --------
    >>> is_flexible(make_kernel("rq", 5)), is_flexible(make_kernel("rbf", 5, ard=True))
    (False, True)
    """
    return len(kernel.start()) > 3


def make_kernel(
    kernel: Any, n_features: int, ard: bool = False, columns: Columns | None = None
) -> Kernel:
    """Build a :class:`Kernel` from a name or a GPyTorch kernel object.

    ``columns`` says where the inputs stand in the user's table, where they are not all of it.

    Examples
    --------
    >>> make_kernel("rbf", n_features=3, ard=True).label
    'rbf-ard'
    """
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise InputError(f"unknown kernel {kernel!r}; the names are {', '.join(KERNELS)}.")
        return NamedKernel(kernel, n_features, ard)
    if hasattr(kernel, "forward") and hasattr(kernel, "covar_dist"):
        return WrappedKernel(kernel, n_features, columns)
    raise InputError(
        f"a kernel is a name ({', '.join(KERNELS)}) or a GPyTorch kernel object, "
        f"not {type(kernel).__name__} {kernel!r}."
    )
