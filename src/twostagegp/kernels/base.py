r"""What a kernel is: a covariance function with a flat parameter vector.

An optimiser sees one array :math:`\theta` per kernel. ``stationary.py`` has the kernels that have
a name, with derivatives written out; ``wrapped.py`` makes a kernel of any GPyTorch kernel object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Kernel", "Scalars", "Vector", "inverse_lengthscale_shares", "is_flexible"]

Vector = NDArray[np.float64]
#: One number, or one a problem of a batch, shape (B, 1, 1).
Scalars = float | Tensor
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


def inverse_lengthscale_shares(kernel: Kernel, parameters: Vector) -> Vector | float:
    """Inverse lengthscales divided by their sum; 0.0 for a kernel without lengthscales.

    ``parameters`` is (theta, log noise).
    """
    scales = kernel.lengthscales(parameters[:-1])
    return 0.0 if scales is None else (1.0 / scales) / (1.0 / scales).sum()


def is_flexible(kernel: Kernel) -> bool:
    """Whether a kernel has more parameters than a lengthscale, an outputscale and a shape.

    Held-out scores at hyperparameters that have seen the row are too good for such kernels.

    Examples
    --------
    >>> from twostagegp.kernels import make_kernel
    >>> is_flexible(make_kernel("rq", 5)), is_flexible(make_kernel("rbf", 5, ard=True))
    (False, True)
    """
    return len(kernel.start()) > 3
