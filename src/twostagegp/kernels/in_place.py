r"""A named kernel over one table, evaluated again and again in the same memory.

Training evaluates K(X, X) and its derivative at many parameters. Every temporary of the size of K
would be fetched from the operating system and cleared by it, which at a few hundred rows takes as
long as the arithmetic. Here two buffers hold, for the upper triangle, x and :math:`s e^{-x}` of
:class:`~twostagegp.kernels.catalogue.ExponentialForm`,

.. math::

    K = (1 + a_1 x + a_2 x^2 + \dots)\, s e^{-x}, \qquad
    M = W \circ g\, (1 + b_1 x + \dots)\, s e^{-x} \ [\,/\,x\,] ,

and the derivatives follow as in ``stationary.py``. The triangle is passed through in panels of rows
that stay in a core's cache. A panel of a buffer is contiguous, without the entries left of it: a
pass over it is two to four times as fast as one over a part of a square matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
    derivatives : bool
        Whether :meth:`gradient` will be called. If not, all panels share one small buffer.

    Examples
    --------
    >>> import numpy as np
    >>> kernel = NamedKernel("rbf", 1)
    >>> K = np.empty((2, 2))
    >>> InPlaceKernel(kernel, np.array([[0.0], [1.0]])).evaluate(np.zeros(2), K)
    >>> np.triu(K).round(3).tolist()
    [[1.0, 0.607], [0.0, 1.0]]
    """

    def __init__(self, kernel: NamedKernel, X: Array, derivatives: bool = True) -> None:
        form = kernel.form.compiled
        assert form is not None
        self.kernel, self.form = kernel, form
        self.X = X if kernel.shape is None else X / kernel.shape
        n = len(X)
        rows = min(_PANEL_ROWS, -(-n // 4)) if n > _PANEL_ROWS else max(n, 1)
        self._work = np.empty(rows * n)
        shared = None if derivatives else (np.empty(rows * n), np.empty(rows * n))
        self._panels = [_Panel.of(slice(i, min(i + rows, n)), n, shared) for i in range(0, n, rows)]
        self._Z = self.X

    @staticmethod
    def fits(kernel: Kernel) -> bool:
        """Return whether a kernel can be evaluated in place."""
        return isinstance(kernel, NamedKernel) and kernel.form.compiled is not None

    def evaluate(self, theta: Vector, out: Array) -> None:
        """Write the upper triangle of K into ``out``, and its diagonal blocks as a whole."""
        kernel, form = self.kernel, self.form
        s, _ = kernel.tail(theta)
        # With these inputs a distance (p = 1) or squared distance (p = 2) is f D.
        scale = form.factor ** (1.0 / kernel.metric)
        self._Z = self.X * (scale * np.exp(-theta[: kernel.n_lengthscales]))
        write, log_s = self._distances(), math.log(s)
        for panel in self._panels:
            x, e = panel.x, panel.e
            write(panel.rows, x)
            if form.root:
                np.sqrt(x, out=x)
            np.subtract(log_s, x, out=e)
            _exp_(e)
            K = out[panel.rows, panel.rows.start :]
            self._times_polynomial(x, e, form.polynomial, K)

    def clear_lower_(self, out: Array) -> None:
        """Set the entries below the diagonal that :meth:`evaluate` wrote to zero."""
        for panel in self._panels:
            _upper(out[panel.rows, panel.rows.start :])

    def _distances(self) -> Callable[[slice, Array], None]:
        """Return a function that writes the distances (p = 1) or squared distances of a panel."""
        if self.kernel.metric == 2:
            return SquaredDistances(self._Z).write
        Z = torch.from_numpy(self._Z)

        def write(rows: slice, out: Array) -> None:
            out[...] = torch.cdist(Z[rows], Z[rows.start :], p=1.0).numpy()

        return write

    def _times_polynomial(
        self, x: Array, e: Array, coefficients: tuple[float, ...], out: Array
    ) -> None:
        """Write (1 + c_1 x + c_2 x^2 + ...) e into ``out``, which may be e."""
        if not coefficients:
            if out is not e:
                np.copyto(out, e)
            return
        work = self._work[: x.size].reshape(x.shape)
        np.multiply(x, coefficients[-1], out=work)
        for c in coefficients[-2::-1]:
            work += c
            work *= x
        work += 1.0
        np.multiply(work, e, out=out)

    def gradient(self, W: Array) -> Vector:
        """Return the inner products of a symmetric W with dK/d(log lengthscales).

        Only the upper triangle of W is read. W and the exponentials are overwritten: K must be
        evaluated again before the next gradient.
        """
        form = self.form
        for panel in self._panels:
            x, e = panel.x, panel.e
            self._times_polynomial(x, e, form.slope, e)
            if form.slope_over_x:
                # Infinite at distance zero, where it is multiplied by a squared difference of zero.
                np.divide(e, x, out=e, where=x > 0.0)
        if not self.kernel.ard:
            sums = np.array([self._by_distances(W)])
        elif self.kernel.metric == 1:
            sums = self._by_absolute_differences(W)
        else:
            sums = self._by_squared_differences(W)
        return np.asarray(2.0 * form.slope_factor / form.factor * sums)

    def _by_distances(self, W: Array) -> float:
        """Return the sum of M times f D over the pairs of rows."""
        total = 0.0
        for panel in self._panels:
            m = panel.times(W)
            m *= panel.x
            if self.form.root:
                m *= panel.x
            total += float(_upper(m).sum())
        return total

    def _by_squared_differences(self, W: Array) -> Vector:
        """Return, for every column, the sum of M times f times squared differences of inputs."""
        Z = self._Z
        for panel in self._panels:
            W_panel = W[panel.rows, panel.rows.start :]
            np.multiply(W_panel, panel.e, out=W_panel)
        product = lapack.symmetric_times(W, np.column_stack([Z, np.ones(len(Z))]))
        sums = product[:, -1] @ np.square(Z) - np.einsum("ij,ij->j", Z, product[:, :-1])
        return np.asarray(sums)

    def _by_absolute_differences(self, W: Array) -> Vector:
        """Return, for every column, the sum of M times f times differences of inputs."""
        columns = np.ascontiguousarray(self._Z.T)
        total = np.zeros(len(columns))
        for panel in self._panels:
            m, rows = _upper(panel.times(W)), panel.rows
            work = self._work[: m.size].reshape(m.shape)
            for k, z in enumerate(columns):
                np.subtract(z[rows, None], z[rows.start :], out=work)
                np.abs(work, out=work)
                total[k] += float(work.reshape(-1) @ m.reshape(-1))
        return total


@dataclass(frozen=True)
class _Panel:
    """Some rows of the upper triangle, from their first row's column on.

    Attributes
    ----------
    rows : slice
    x, e : array of shape (rows, columns)
        x, and the exponential or what replaced it.
    """

    rows: slice
    x: Array
    e: Array

    @classmethod
    def of(cls, rows: slice, n: int, shared: tuple[Array, Array] | None = None) -> _Panel:
        """Return the panel of some rows of an n x n matrix, its content undefined.

        x and e are new arrays, or parts of the ``shared`` ones.
        """
        shape = rows.stop - rows.start, n - rows.start
        size = shape[0] * shape[1]
        x, e = (np.empty(size), np.empty(size)) if shared is None else shared
        return cls(rows, x[:size].reshape(shape), e[:size].reshape(shape))

    def times(self, W: Array) -> Array:
        """Multiply the exponentials by the entries of W, in place, and return them."""
        return np.multiply(self.e, W[self.rows, self.rows.start :], out=self.e)


def _upper(panel: Array) -> Array:
    """Return a panel after setting its entries below the diagonal of the matrix to zero."""
    corner = panel[:, : len(panel)]
    corner[lapack.below_diagonal(len(corner))] = 0.0
    return panel


def _exp_(values: Array) -> None:
    """Replace values by their exponentials, with the faster of NumPy and torch.

    NumPy's exponential of float64 is compiled for AVX-512 only; torch's for smaller vectors too.
    """
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        np.exp(values, out=values)
    else:
        torch.from_numpy(values).exp_()
