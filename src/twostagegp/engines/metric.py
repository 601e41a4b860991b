"""The metric of a kernel: the distance between inputs divided by the kernel's lengthscales.

Neighbours are searched, and inducing points are spread out, in this metric.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostagegp.kernels import Kernel, Vector

__all__ = ["Metric"]


@dataclass(frozen=True)
class Metric:
    """Inverse lengthscales divided by the largest of them, and the norm."""

    inverse: tuple[float, ...]
    manhattan: bool

    @classmethod
    def of(cls, kernel: Kernel, theta: Vector, d: int) -> Metric:
        """Return the metric of a kernel; without lengthscales all columns count equally.

        Only ratios of lengthscales decide which rows are near, so kernels whose lengthscales
        differ by a common factor share their neighbours.
        """
        scales = kernel.lengthscales(theta)
        inverse = np.ones(d) if scales is None else 1.0 / np.asarray(scales)
        inverse = inverse / inverse.max(initial=0.0)  # the table may have no columns
        return cls(tuple(float(f"{value:.10g}") for value in inverse), kernel.manhattan)

    def change(self, other: Metric) -> float:
        """Return the largest difference of a log ratio of two lengthscales.

        It is 0 if the neighbour sets cannot change.
        """
        return float(np.ptp(np.log(self.inverse) - np.log(other.inverse)))

    def has_left(self, other: Metric) -> bool:
        """Return whether neighbours and inducing points should be found again.

        Those of the other metric are kept if every ratio of two lengthscales changes by less than
        2 %.
        """
        return self.change(other) >= 0.02

    def scale(self, X: Tensor) -> Tensor:
        """Return scaled inputs, whose ordinary distances are those of the metric."""
        return X * torch.as_tensor(self.inverse, dtype=X.dtype, device=X.device)
