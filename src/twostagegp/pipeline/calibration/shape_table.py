r"""A shape as two tables: its distribution function and its quantiles at any points, quickly.

The distribution function of a shape is a sum over many components, and its quantiles need a search.
Where each row asks for other points, both are interpolated instead: cubic Hermite polynomials
through exact values with exact derivatives, for the distribution function over z, for quantiles
over :math:`\log (p / (1 - p))`. Derivatives are limited to three times the neighbouring slopes, so
that both are monotone (Fritsch and Carlson). Beyond the ends the exact functions are called.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from twostagegp.pipeline.calibration.shape import Shape

__all__ = ["ShapeTable"]

Array = NDArray[np.float64]

#: Largest tabulated z, and largest log odds: the probability 1e-9 and its opposite.
_FARTHEST_Z, _FARTHEST_ODDS = 12.0, 20.7
_NODES = 4097
#: Inverse hyperbolic sine of the largest quantile from which the search for one starts.
_START = 10.0


@dataclass(frozen=True)
class ShapeTable:
    """Distribution function and quantiles of a shape.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp.pipeline.calibration.shape import GAUSSIAN
    >>> table = ShapeTable.of(GAUSSIAN)
    >>> table.cdf(np.array([0.0, 1.96])).round(3).tolist()
    [0.5, 0.975]
    >>> table.ppf(np.array([0.5, 0.975])).round(2).tolist()
    [0.0, 1.96]
    """

    shape: Shape
    z: _Monotone | None
    odds: _Monotone | None

    @classmethod
    def of(cls, shape: Shape) -> ShapeTable:
        """Return the tables of a shape, which keeps them; the Gaussian is fast enough without."""
        table = shape.kept.get("table")
        if table is None:
            table = shape.kept["table"] = cls._made(shape)
        return table

    @classmethod
    def _made(cls, shape: Shape) -> ShapeTable:
        if shape.name == "gaussian":
            return cls(shape, None, None)
        z = np.linspace(-_FARTHEST_Z, _FARTHEST_Z, _NODES)
        odds = np.linspace(-_FARTHEST_ODDS, _FARTHEST_ODDS, _NODES)
        quantiles, slopes = _quantiles(shape, odds)
        return cls(
            shape,
            _Monotone.through(z, shape.cdf(z), shape.pdf(z)),
            _Monotone.through(odds, quantiles, slopes),
        )

    def cdf(self, z: Array) -> Array:
        """Return the probability of values up to z, in the shape of z."""
        if self.z is None:
            return self.shape.cdf(z)
        F = self.z(z)
        F[z == np.inf], F[z == -np.inf] = 1.0, 0.0
        far = (np.abs(z) > _FARTHEST_Z) & np.isfinite(z)
        if far.any():
            F[far] = self.shape.cdf(z[far])
        return F

    def ppf(self, p: Array) -> Array:
        """Return quantiles at probabilities between 0 and 1, in the shape of p."""
        if self.odds is None:
            return self.shape.ppf(p)
        odds = special.logit(p)
        z = self.odds(odds)
        far = np.abs(odds) > _FARTHEST_ODDS
        if far.any():
            z[far] = self.shape.ppf(p[far])
        return z


def _quantiles(shape: Shape, odds: Array) -> tuple[Array, Array]:
    """Return quantiles at increasing log odds, and their derivatives by the log odds.

    Three of Newton's steps from a table; where they have not converged, the shape's own search.
    """
    p = special.expit(odds)
    start = np.sinh(np.linspace(-_START, _START, _NODES))
    F = np.clip(shape.cdf(start), 1e-300, 1.0 - 1e-16)
    z = np.interp(odds, np.maximum.accumulate(special.logit(F)), start)
    for _ in range(3):
        F = np.clip(shape.cdf(z), 1e-300, 1.0 - 1e-16)
        density = np.maximum(shape.pdf(z), 1e-300)
        z = z - np.clip((special.logit(F) - odds) * F * (1.0 - F) / density, -1.0, 1.0)
    wrong = ~(np.abs(shape.cdf(z) - p) <= 1e-9 * np.minimum(p, 1.0 - p) + 1e-15)
    if wrong.any():
        z[wrong] = shape.ppf(p[wrong])
    z = np.maximum.accumulate(z)
    return z, p * (1.0 - p) / np.maximum(shape.pdf(z), 1e-300)


@dataclass(frozen=True)
class _Monotone:
    """A cubic Hermite polynomial between nodes at equal distances."""

    first: float
    step: float
    values: Array
    slopes: Array

    @classmethod
    def through(cls, x: Array, values: Array, slopes: Array) -> _Monotone:
        """Return the interpolant through increasing values; slopes are limited."""
        step = float(x[1] - x[0])
        secant = np.diff(values) / step
        limit = 3.0 * np.minimum(np.append(secant, np.inf), np.append(np.inf, secant))
        return cls(float(x[0]), step, values, np.minimum(slopes, limit))

    def __call__(self, x: Array) -> Array:
        """Return the interpolated values at x, in the shape of x; constant beyond the ends."""
        u = np.clip((x - self.first) / self.step, 0.0, len(self.values) - 1.0)
        j = np.minimum(np.nan_to_num(u).astype(np.int64), len(self.values) - 2)
        t = u - j
        left, right = self.values[j], self.values[j + 1]
        a, b = self.step * self.slopes[j], self.step * self.slopes[j + 1]
        rise = right - left
        return np.asarray(
            left + t * (a + t * (3.0 * rise - 2.0 * a - b + t * (a + b - 2.0 * rise)))
        )
