r"""A named kernel over one table, evaluated again and again in the same memory.

Training evaluates K(X, X) and its derivative at many parameters. Every temporary of the size of K
would be fetched from the operating system and cleared by it, which at a few hundred rows takes as
long as the arithmetic. Here two buffers hold, for the upper triangle, x and :math:`e^{-x}` of
:class:`~twostagegp.kernels.catalogue.ExponentialForm`,

.. math::

    K = s\, (1 + a_1 x + a_2 x^2 + \dots)\, e^{-x}, \qquad
    M = W \circ s g\, (1 + b_1 x + \dots)\, e^{-x} \ [\,/\,x\,] ,

and the derivatives follow as in ``stationary.py``. The triangle is passed through in panels of rows
that stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from twostagegp.kernels.base import Kernel, Vector
from twostagegp.kernels.distances import SquaredDistances
from twostagegp.kernels.stationary import NamedKernel
from twostagegp.numerics import lapack

__all__ = ["InPlaceKernel"]

Array = NDArray[np.float64]

#: Most rows of a panel.
_PANEL_ROWS = 128


class InPlaceKernel:
    """K(X, X) and its derivative for a named kernel, in buffers that are used again.

    Parameters
    ----------
    kernel : NamedKernel
        One that has an :class:`ExponentialForm`.
    X : array of shape (n, d)

    Examples
    --------
    >>> import numpy as np
    >>> kernel = NamedKernel("rbf", 1)
    >>> K = np.empty((2, 2))
    >>> InPlaceKernel(kernel, np.array([[0.0], [1.0]])).evaluate(np.zeros(2), K)
    >>> np.triu(K).round(3).tolist()
    [[1.0, 0.607], [0.0, 1.0]]
    """

    def __init__(self, kernel: NamedKernel, X: Array) -> None:
        form = kernel.form.compiled
        assert form is not None
        self.kernel, self.form = kernel, form
        self.X = X if kernel.shape is None else X / kernel.shape
        n = len(X)
        self._x, self._e = np.empty((n, n)), np.empty((n, n))
        rows = min(_PANEL_ROWS, -(-n // 4)) if n > _PANEL_ROWS else max(n, 1)
        self._panels = [slice(i, min(i + rows, n)) for i in range(0, n, rows)]
        self._work = np.empty(rows * n)
        self._Z = self.X

    @staticmethod
    def fits(kernel: Kernel) -> bool:
        """Return whether a kernel can be evaluated in place."""
        return isinstance(kernel, NamedKernel) and kernel.form.compiled is not None

    def evaluate(self, theta: Vector, out: Array) -> None:
        """Write the upper triangle of K into ``out``."""
        form, (s, _) = self.form, self.kernel.tail(theta)
        self._Z = self.X * np.exp(-theta[: self.kernel.n_lengthscales])
        for rows, x in self._distances():
            e, K = self._e[rows, rows.start :], out[rows, rows.start :]
            if form.factor != 1.0:
                x *= form.factor
            if form.root:
                np.sqrt(x, out=x)
            np.negative(x, out=e)
            _exp_(e)
            if s != 1.0:
                e *= s
            _polynomial(x, e, form.polynomial, K)

    def _distances(self) -> Iterator[tuple[slice, Array]]:
        """Yield panels of rows, and in place of x the distances (p = 1) or squared distances."""
        Z = self._Z
        if self.kernel.metric == 1:
            T = torch.from_numpy(Z)
            for rows in self._panels:
                x = self._x[rows, rows.start :]
                x[...] = torch.cdist(T[rows], T[rows.start :], p=1.0).numpy()
                yield rows, x
            return
        squared = SquaredDistances(Z)
        for rows in self._panels:
            x = self._x[rows, rows.start :]
            squared.write(rows, x)
            yield rows, x

    def slope_times(self, W: Array) -> Array:
        """Return M for a symmetric W (upper triangle), written over the exponentials."""
        form = self.form
        for rows in self._panels:
            x, e = self._x[rows, rows.start :], self._e[rows, rows.start :]
            work = self._work[: x.size].reshape(x.shape)
            if form.slope:
                _polynomial(x, e, form.slope, work)
                np.copyto(e, work)
            if form.slope_over_x:
                # Infinite at distance zero, where it is multiplied by a squared difference of zero.
                np.divide(e, x, out=e, where=x > 0.0)
            np.multiply(e, W[rows, rows.start :], out=e)
            if form.slope_factor != 1.0:
                e *= form.slope_factor
        return self._e

    def gradient(self, W: Array) -> Vector:
        """Return the inner products of a symmetric W with dK/d(log lengthscales).

        Only the upper triangle of W is read. The exponentials are overwritten: K must be evaluated
        again before the next gradient.
        """
        M = self.slope_times(W)
        if not self.kernel.ard:
            return np.array([self._common(M)])
        Z = self._Z
        if self.kernel.metric == 1:
            return self._by_absolute_differences(M)
        product = lapack.symmetric_times(M, np.column_stack([Z, np.ones(len(Z))]))
        sums = product[:, -1] @ np.square(Z) - np.einsum("ij,ij->j", Z, product[:, :-1])
        return np.asarray(2.0 * sums)

    def _common(self, M: Array) -> float:
        """Return the sum of M times the distances to the power p."""
        total = 0.0
        for rows in self._panels:
            x, m = self._x[rows, rows.start :], M[rows, rows.start :]
            work = self._work[: x.size].reshape(x.shape)
            np.multiply(m, x, out=work)
            if self.form.root:
                work *= x
            total += float(_upper(work).sum())
        return 2.0 * total / self.form.factor

    def _by_absolute_differences(self, M: Array) -> Vector:
        columns = np.ascontiguousarray(self._Z.T)
        total = np.zeros(len(columns))
        for rows in self._panels:
            m = _upper(np.ascontiguousarray(M[rows, rows.start :]))
            work = self._work[: m.size].reshape(m.shape)
            for k, z in enumerate(columns):
                np.subtract(z[rows, None], z[rows.start :], out=work)
                np.abs(work, out=work)
                total[k] += float(work.reshape(-1) @ m.reshape(-1))
        return 2.0 * total


def _upper(panel: Array) -> Array:
    """Return a panel after setting its entries below the diagonal of the matrix to zero."""
    corner = panel[:, : len(panel)]
    corner[lapack.below_diagonal(len(corner))] = 0.0
    return panel


def _polynomial(x: Array, e: Array, coefficients: tuple[float, ...], out: Array) -> None:
    """Write (1 + c_1 x + c_2 x^2 + ...) e into ``out``."""
    if not coefficients:
        np.copyto(out, e)
        return
    np.multiply(x, coefficients[-1], out=out)
    for c in coefficients[-2::-1]:
        out += c
        out *= x
    out += 1.0
    out *= e


def _exp_(values: Array) -> None:
    """Replace values by their exponentials, with the faster of NumPy and torch.

    NumPy's exponential of float64 is compiled for AVX-512 only; torch's for smaller vectors too.
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        np.exp(values, out=values)
    else:
        torch.from_numpy(values).exp_()
