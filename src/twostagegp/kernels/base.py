r"""The interface of a kernel: a covariance function with a flat parameter vector.

An optimiser sees one array :math:`\theta` per kernel. ``catalogue.py`` and ``stationary.py`` have
the named kernels, with derivatives in closed form; ``wrapped.py`` makes a kernel from any GPyTorch
kernel object. :class:`twostagegp.testing.KernelContract` tests a class against this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Kernel", "Scalars", "Vector", "inverse_lengthscale_shares", "is_flexible"]

Vector = NDArray[np.float64]
#: One number, or one per problem of a batch, shape (B, 1, 1).
Scalars = float | Tensor
#: Standard deviation of the prior on a log-lengthscale and on a log-outputscale.
PRIOR_SPREAD = 4.0


class Kernel(ABC):
    """A covariance function with a flat parameter vector ``theta`` (unconstrained)."""

    name: str
    ard: bool
    n_features: int

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of entries of ``theta``."""

    @abstractmethod
    def start(self) -> Vector:
        """Return starting values for standardised inputs and a standardised target."""

    @abstractmethod
    def bounds(self) -> list[tuple[float, float]]:
        """Return the lower and upper bound of each entry of ``theta``."""

    @abstractmethod
    def prior(self) -> tuple[Vector, Vector]:
        """Return mean and precision of a weak Gaussian prior on ``theta``; 0 is no prior."""

    @abstractmethod
    def evaluate(self, X: Tensor, theta: Vector) -> tuple[Tensor, Any]:
        """Return K(X, X) as a new tensor, and the intermediate results :meth:`gradient` needs."""

    @abstractmethod
    def gradient(self, X: Tensor, theta: Vector, K: Tensor, saved: Any, W: Tensor) -> Vector:
        """Return the inner products of a symmetric W with dK/dtheta_j, shape (size,)."""

    @abstractmethod
    def cross(self, X: Tensor, Z: Tensor, theta: Vector) -> Tensor:
        """Return K(X, Z), shape (len(X), len(Z))."""

    def cross_with(self, Z: Tensor, theta: Vector) -> Callable[[Tensor], Tensor]:
        """Return the function X -> K(X, Z), for many X; it may keep what depends on Z alone."""
        return lambda X: self.cross(X, Z, theta)

    @abstractmethod
    def cross_gradient(self, X: Tensor, Z: Tensor, theta: Vector, W: Tensor) -> Vector:
        """Return the inner products of W, shape (len(X), len(Z)), with dK(X, Z)/dtheta_j."""

    @abstractmethod
    def diagonal(self, X: Tensor, theta: Vector) -> Tensor:
        """Return diag K(X, X), shape (len(X),)."""

    @abstractmethod
    def diagonal_gradient(self, X: Tensor, theta: Vector, w: Tensor) -> Vector:
        """Return the inner products of w with d(diagonal)/dtheta_j, shape (size,)."""

    @abstractmethod
    def to_gpytorch(self, theta: Vector) -> Any:
        """Return the same covariance function as a GPyTorch kernel."""

    def lengthscales(self, theta: Vector) -> Vector | None:
        """Return one lengthscale per column, or None if the kernel has no lengthscales."""
        return None

    @property
    def lengthscale_slots(self) -> int:
        """Number of entries at the beginning of ``theta`` that are log-lengthscales."""
        return 0

    @property
    def manhattan(self) -> bool:
        """Whether the kernel sees L1 distances instead of Euclidean ones."""
        return False

    @property
    def takes_batches(self) -> bool:
        """Whether :meth:`evaluate` takes several problems at once.

        X is then (b, n, d) and K is (b, n, n); :meth:`gradient` sums over the problems.
        """
        return False

    @property
    def takes_threads(self) -> bool:
        """Whether two threads may use the kernel at the same time."""
        return True

    @property
    def label(self) -> str:
        """Short name for tables."""
        return f"{self.name}-ard" if self.ard else self.name


def inverse_lengthscale_shares(kernel: Kernel, parameters: Vector) -> Vector | float:
    """Return inverse lengthscales divided by their sum; 0.0 for a kernel without lengthscales.

    ``parameters`` is (theta, log noise).
    """
    scales = kernel.lengthscales(parameters[:-1])
    return 0.0 if scales is None else (1.0 / scales) / (1.0 / scales).sum()


def is_flexible(kernel: Kernel) -> bool:
    """Whether a kernel has more parameters than a lengthscale, an outputscale and a shape.

    For such kernels, held-out scores of a row are too good if the hyperparameters were trained on
    the row.

    Examples
    --------
    >>> from twostagegp.kernels import make_kernel
    >>> is_flexible(make_kernel("rq", 5)), is_flexible(make_kernel("rbf", 5, ard=True))
    (False, True)
    """
    return len(kernel.start()) > 3
