r"""Held-out predictions of one kernel at several noise variances.

.. math::

    K_y(s) = K + \mathrm{diag}(s / c), \qquad K_y = U^\top U, \quad
    \alpha = K_y^{-1} t, \quad \kappa = \mathrm{diag}\, K_y^{-1} .

K does not depend on the noise: it is evaluated once. Every noise variance takes one factorisation
and the inverse of its factor, in memory that is used again. A posterior, which can predict new rows
as well, costs a third more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.rows import Rows
from twostagegp.engines.exact.dense import fits_in_place
from twostagegp.kernels import Kernel, NamedKernel, Vector
from twostagegp.kernels.in_place import InPlaceKernel
from twostagegp.numerics import lapack
from twostagegp.numerics.held_out import Heldout, leave_out
from twostagegp.numerics.linalg import Blocks

__all__ = ["NoiseTrials"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Diagonal:
    """The solution and the diagonal of the inverse: all that rows without groups need."""

    alpha: Tensor
    kappa: Tensor

    def block_inverses(self, blocks: list[Tensor]) -> Blocks:
        raise NotImplementedError  # groups need the inverse


class NoiseTrials:
    """Held-out predictions of rows without groups, with one target on a CPU.

    Parameters
    ----------
    kernel : Kernel
        One for which :meth:`fits` is true.
    theta : array
        Its parameters.
    rows : Rows
    """

    def __init__(self, kernel: Kernel, theta: Vector, rows: Rows) -> None:
        assert isinstance(kernel, NamedKernel)
        n = len(rows)
        self.rows, self._t = rows, np.ascontiguousarray(rows.t.numpy())
        self._K, self._U = np.zeros((n, n)), np.empty((n, n))
        inputs = np.ascontiguousarray(rows.X.numpy())
        InPlaceKernel(kernel, inputs, derivatives=False).evaluate(theta, self._K)

    @staticmethod
    def fits(kernel: Kernel, rows: Rows) -> bool:
        """Return whether this class can be used."""
        return rows.groups is None and not rows.several and fits_in_place(kernel, rows)

    def heldout(self, log_noise: float) -> Heldout | None:
        """Return held-out predictions, or None if the matrix cannot be factorised as it is."""
        rows, U = self.rows, self._U
        s = math.exp(log_noise) + rows.extra
        np.copyto(U, self._K)
        diagonal = np.einsum("ii->i", U)
        diagonal += (s / rows.c).numpy()
        if not (lapack.cholesky_(U) and np.isfinite(diagonal).all()):
            return None
        alpha = lapack.solve_factored(U, self._t)
        kappa = lapack.inverse_diagonal_(U)
        solved = _Diagonal(torch.from_numpy(alpha), torch.from_numpy(kappa))
        return leave_out(solved, rows, s)
