r"""A kernel plus a constant: :math:`k(x, x') + v`, for models whose target has an unknown mean.

The constant is a function of its own with prior variance v, which is fixed. A target that was
centred over all rows does not make it superfluous: a model without a constant that predicts rows
which it has not seen would still know them through that mean, since what the other rows lack to a
mean of zero is what was left out. With more columns than rows a linear kernel can read it off.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from twostagegp.kernels.base import Kernel, Vector

__all__ = ["PlusConstant"]


class PlusConstant(Kernel):
    """A kernel plus a constant; ``theta`` is that of the kernel.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from twostagegp.kernels import make_kernel
    >>> X = torch.zeros(1, 2, dtype=torch.float64)
    >>> PlusConstant(make_kernel("rbf", 2), 10.0).cross(X, X, np.zeros(2)).tolist()
    [[11.0]]
    """

    def __init__(self, kernel: Kernel, constant: float) -> None:
        self.kernel, self.constant = kernel, constant
        self.name, self.ard = kernel.name, kernel.ard
        self.n_features = kernel.n_features

    @property
    def size(self) -> int:
        return self.kernel.size

    @property
    def label(self) -> str:
        return self.kernel.label

    @property
    def lengthscale_slots(self) -> int:
        return self.kernel.lengthscale_slots

    @property
    def manhattan(self) -> bool:
        return self.kernel.manhattan

    @property
    def takes_threads(self) -> bool:
        return self.kernel.takes_threads

    def start(self) -> Vector:
        return self.kernel.start()

    def bounds(self) -> list[tuple[float, float]]:
        return self.kernel.bounds()

    def prior(self) -> tuple[Vector, Vector]:
        return self.kernel.prior()

    def lengthscales(self, theta: Vector) -> Vector | None:
        return self.kernel.lengthscales(theta)

    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, Any]:
        K, saved = self.kernel.evaluate(X, theta)
        return K + self.constant, (K, saved)

    def gradient(self, X: Tensor, theta: Vector, K: Tensor, saved: Any, W: Tensor) -> Vector:
        inner, saved_inner = saved
        return self.kernel.gradient(X, theta, inner, saved_inner, W)

    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        return self.kernel.cross(X, Z, theta) + self.constant

    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        return self.kernel.cross_gradient(X, Z, theta, W)

    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        return self.kernel.diagonal(X, theta) + self.constant

    def diagonal_gradient(self, X: Tensor, theta: Vector, w: Tensor) -> Vector:
        return self.kernel.diagonal_gradient(X, theta, w)

    def to_gpytorch(self, theta: Vector) -> Any:
        import torch
        from gpytorch.kernels import ConstantKernel

        constant = ConstantKernel().double()
        constant.constant = torch.tensor(self.constant, dtype=torch.float64)
        return self.kernel.to_gpytorch(theta) + constant
