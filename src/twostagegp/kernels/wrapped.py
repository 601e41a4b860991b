"""Any GPyTorch kernel object as a kernel of this package, differentiated by autograd."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from twostagegp.data.kept_columns import Columns
from twostagegp.errors import InputError
from twostagegp.kernels.base import Kernel, Vector

__all__ = ["WrappedKernel"]


class WrappedKernel(Kernel):
    """Any GPyTorch kernel; ``theta`` is the concatenation of its raw parameters.

    A kernel without an outputscale is put into a ``ScaleKernel``. The constraints of the kernel are
    used, priors that are registered on it are not. Parameters with ``requires_grad=False`` keep
    their values.

    Parameters
    ----------
    module : gpytorch.kernels.Kernel
        Copied, never changed.
    n_features : int
        Number of input columns, checked by a trial evaluation.
    columns : Columns, optional
        Their positions in the user's table; ``active_dims`` and ``ard_num_dims`` refer to it.
    """

    #: Entries of the matrix whose autograd graph is held at one time, per kind of device. The graph
    #: of a sum or product holds about 100 numbers per entry, that of a spectral mixture about 250.
    graph_entries: ClassVar[Mapping[str, int]] = {"cpu": 1 << 16, "cuda": 1 << 21}
    ard = False
    _takes_batches: bool | None = None  # None: not tried yet
    n_features: int
    columns: Columns | None
    module: torch.nn.Module

    def __init__(self, module: Any, n_features: int, columns: Columns | None = None) -> None:
        from twostagegp.kernels.gpytorch import describe, with_outputscale

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
    def takes_threads(self) -> bool:
        return False  # the module holds one parameter vector at a time

    @property
    def takes_batches(self) -> bool:
        if self._takes_batches is None:
            self._takes_batches = self._agrees_on_a_batch()
        return self._takes_batches

    def _agrees_on_a_batch(self) -> bool:
        """Whether a few small problems in one call give the same results as one call each.

        GPyTorch's own kernels broadcast over leading dimensions; those that users write may not.
        """
        draw = torch.Generator().manual_seed(0)
        X = torch.randn(3, 4, self.n_features, dtype=torch.float64, generator=draw)
        W = torch.randn(3, 4, 4, dtype=torch.float64, generator=draw)
        theta = self.start()

        def results(x: Tensor, w: Tensor) -> tuple[Tensor, Vector]:
            K, saved = self.evaluate(x, theta)
            return K, self.gradient(x, theta, K, saved, w)

        try:
            with warnings.catch_warnings():  # only the result matters here
                warnings.simplefilter("ignore")
                K, gradient = results(X, W)
                each = [results(x, w) for x, w in zip(X, W, strict=True)]
        except Exception:
            return False
        alone = torch.stack([one for one, _ in each])
        total = np.sum([slope for _, slope in each], axis=0)
        # GPyTorch's smallest distances are square roots of rounding errors.
        same = K.shape == alone.shape and torch.allclose(K, alone, rtol=1e-6, atol=1e-6)
        return same and bool(np.allclose(gradient, total, rtol=1e-5, atol=1e-5))

    def _dense(self, X: Tensor, Z: Tensor) -> Tensor:
        from twostagegp.kernels.gpytorch import dense

        return dense(self.module, self._in_user_columns(X), self._in_user_columns(Z))

    def _in_user_columns(self, X: Tensor) -> Tensor:
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
            return self._graph_derivatives(saved, W)
        # There is no graph if the matrix is large, or if the module's parameters have changed.
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
            return self._graph_derivatives(self._dense(X, Z), W)

    def _in_strips(self, X: Tensor, Z: Tensor) -> bool:
        """Whether the graph of the whole matrix would be too large."""
        return X.ndim == 2 and len(X) * len(Z) > self._entries(X)

    def _entries(self, X: Tensor) -> int:
        return self.graph_entries.get(X.device.type, self.graph_entries["cpu"])

    def _strips(self, X: Tensor, Z: Tensor, first: int = 0) -> Iterator[tuple[int, int]]:
        """Yield first and last row of strips of X, from ``first`` on, that are small enough."""
        size = max(1, self._entries(X) // len(Z))
        for start in range(first, len(X), size):
            yield start, min(start + size, len(X))

    def _squares(self, X: Tensor) -> Iterator[tuple[int, int]]:
        """Yield first and last row of the diagonal blocks."""
        size = math.isqrt(self._entries(X))
        for start in range(0, len(X), size):
            yield start, min(start + size, len(X))

    def _symmetric(self, X: Tensor) -> Tensor:
        """Return K(X, X), computed block by block; the upper triangle is a copy of the lower."""
        K = X.new_empty(len(X), len(X))
        for a, b in self._squares(X):
            K[a:b, a:b] = self._dense(X[a:b], X[a:b])
            for c, d in self._strips(X, X[a:b], b):
                K[c:d, a:b] = self._dense(X[c:d], X[a:b])
                K[a:b, c:d] = K[c:d, a:b].T
        return K

    def _graph_derivatives(self, graph: Tensor, W: Tensor) -> Vector:
        """Return the inner products of W with the derivatives of a matrix by the parameters."""
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
            return torch.as_tensor(self.module(self._in_user_columns(X), diag=True))

    def diagonal_gradient(self, X: Tensor, theta: Vector, w: Tensor) -> Vector:
        self._write(theta, X)
        with torch.enable_grad():
            return self._graph_derivatives(
                torch.as_tensor(self.module(self._in_user_columns(X), diag=True)), w
            )

    def lengthscales(self, theta: Vector) -> Vector | None:
        from twostagegp.kernels.gpytorch import lengthscales_of

        module = self.to_gpytorch(theta)
        if self.columns is None:
            return lengthscales_of(module, self.n_features)
        scales = lengthscales_of(module, self.columns.width)
        return None if scales is None else scales[list(self.columns.kept)]

    def to_gpytorch(self, theta: Vector) -> Any:
        # Write to a copy: another thread may be predicting with this module.
        other = copy.deepcopy(self)
        other._write(theta, torch.zeros(1, dtype=torch.float64))
        return other.module
