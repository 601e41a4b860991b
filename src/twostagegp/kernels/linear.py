r"""The linear kernel :math:`k(x, x') = s\, x^\top x' / d`, for wide tables.

On rows of unit length it is the cosine of their angle. For sums with other kernels use GPyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostagegp.kernels.base import PRIOR_SPREAD, Kernel, Vector

__all__ = ["LinearKernel"]


class LinearKernel(Kernel):
    """The linear kernel; ``theta`` is the log outputscale.

    Examples
    --------
    >>> X = torch.eye(2, dtype=torch.float64)
    >>> LinearKernel(2).cross(X, X, np.zeros(1)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    name = "linear"
    ard = False
    n_features: int

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features

    @property
    def size(self) -> int:
        return 1

    @property
    def takes_batches(self) -> bool:
        return True

    def start(self) -> Vector:
        return np.zeros(1)

    def bounds(self) -> list[tuple[float, float]]:
        return [(math.log(1e-4), math.log(1e5))]

    def prior(self) -> tuple[Vector, Vector]:
        return np.zeros(1), np.full(1, 1.0 / (2.0 * PRIOR_SPREAD) ** 2)

    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, Any]:
        return self.cross(X, X, theta), None

    def gradient(self, X: Tensor, theta: Vector, K: Tensor, saved: Any, W: Tensor) -> Vector:
        return np.array([float((W * K).sum())])

    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        return (math.exp(theta[0]) / self.n_features) * (X @ Z.transpose(-1, -2))

    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        return np.array([float((W * self.cross(X, Z, theta)).sum())])

    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        return (math.exp(theta[0]) / self.n_features) * X.square().sum(-1)

    def diagonal_gradient(self, X: Tensor, theta: Vector, w: Tensor) -> Vector:
        return np.array([float(w @ self.diagonal(X, theta))])

    def to_gpytorch(self, theta: Vector) -> Any:
        from gpytorch.kernels import LinearKernel as Linear

        kernel = Linear().double()
        variance = math.exp(theta[0]) / self.n_features
        kernel.variance = torch.as_tensor(variance, dtype=torch.float64)
        return kernel
