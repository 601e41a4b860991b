r"""The predictive distributions of n rows: mean, sigma, shape, and weights of the target's values.

Without weights an observation is :math:`y = \mu(x) + \sigma(x) Z`
(:mod:`twostagegp.pipeline.calibration.shape`). With them it is that distribution, reweighted by
value (:mod:`twostagegp.pipeline.calibration.value_weights`). All quantiles, probabilities and draws
of observations come from this module. The mean and the standard deviation that ``predict`` returns
are those without weights: they are about squared errors, which the mean is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.pipeline.calibration.shape_table import ShapeTable
from twostagegp.pipeline.calibration.value_weights import Pieces, ValueWeights

__all__ = ["Law", "Laws"]

Array = NDArray[np.float64]

#: Factors of the generator SplitMix64.
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
#: Numbers that the arrays of one chunk of rows may have.
_CHUNK_NUMBERS = 4_000_000


@dataclass(frozen=True)
class Law:
    """What all rows of a target share: the shape, and the weights of the values if there are any.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp.pipeline.calibration.shape import GAUSSIAN
    >>> rows = Law(GAUSSIAN).at(np.zeros(2), np.array([1.0, 2.0]))
    >>> rows.quantiles(np.array([0.5, 0.975])).round(2).tolist()
    [[0.0, 1.96], [0.0, 3.92]]
    """

    shape: Shape
    values: ValueWeights | None = None

    def at(self, mean: Array, sigma: Array) -> Laws:
        """Return the distributions of rows with these means and sigmas, each of shape (n,)."""
        return Laws(self, mean, sigma)

    def within_bounds(self, y: Array) -> Array:
        """Return the values moved to the nearest bound if they are beyond it."""
        return y if self.values is None else self.values.within_bounds(y)


class Laws:
    """The predictive distributions of n rows.

    Parameters
    ----------
    law : Law
    mean, sigma : arrays of shape (n,)
    """

    def __init__(self, law: Law, mean: Array, sigma: Array) -> None:
        self.law, self.mean, self.sigma = law, mean, sigma

    def quantiles(self, levels: Array) -> Array:
        """Return quantiles at q levels, the same for all rows; (n, q)."""
        if self.law.values is None:
            return self.mean[:, None] + self.sigma[:, None] * self.law.shape.ppf(levels)
        return self.inverse_cdf(np.broadcast_to(levels, (len(self.mean), len(levels))))

    def inverse_cdf(self, p: Array) -> Array:
        """Return quantiles at the probabilities p of shape (n, q), other ones for each row."""
        if self.law.values is None:
            return self.mean[:, None] + self.sigma[:, None] * self.law.shape.ppf(p)
        return self._by_chunk(lambda pieces, rows: pieces.quantiles(p[rows]), p.shape[1])

    def cdf(self, y: Array) -> Array:
        """Return the probability of an observation of at most y, shape (n,)."""
        if self.law.values is None:
            return self.law.shape.cdf((y - self.mean) / self.sigma)
        return self._by_chunk(lambda pieces, rows: pieces.cdf(y[rows]))

    def pit(self, y: Array) -> Array:
        """Return the randomised probability integral transform of y, shape (n,).

        It is uniform if the distributions are right: the distribution function at y; at a level a
        random number between the probabilities of smaller values and of at most y. It depends on
        the row's mean and sigma, and if these are equal for several rows, on their order.
        """
        if self.law.values is None:
            return self.cdf(y)
        u = _scrambled(self.mean, self.sigma)

        def between(pieces: Pieces, rows: slice) -> Array:
            below = pieces.below(y[rows])
            return below + u[rows] * (pieces.cdf(y[rows]) - below)

        return np.clip(self._by_chunk(between), 0.0, 1.0)

    def logpdf(self, y: Array) -> Array:
        """Return the log density at y, or its log probability if y is a level, shape (n,)."""
        if self.law.values is None:
            z = (y - self.mean) / self.sigma
            return self.law.shape.logpdf(z) - np.log(self.sigma)
        return self._by_chunk(lambda pieces, rows: pieces.logpdf(y[rows]))

    def samples(self, count: int, rng: np.random.RandomState) -> Array:
        """Return independent draws, shape (n, count)."""
        if self.law.values is None:
            Z = self.law.shape.sample((len(self.mean), count), rng)
            return self.mean[:, None] + self.sigma[:, None] * Z
        return self.inverse_cdf(rng.random_sample((len(self.mean), count)))

    def _by_chunk(self, of: Callable[[Pieces, slice], Array], columns: int = 1) -> Array:
        """Return ``of(pieces, rows)`` for all rows, some at a time: pieces take much memory."""
        values = self.law.values
        assert values is not None
        table = ShapeTable.of(self.law.shape)
        each = columns + 6 * len(values.edges) + 6
        size = max(1, math.ceil(_CHUNK_NUMBERS / each))
        made = []
        for begin in range(0, max(len(self.mean), 1), size):
            rows = slice(begin, begin + size)
            made.append(of(values.pieces(self.mean[rows], self.sigma[rows], table), rows))
        return np.concatenate(made)


def _scrambled(mean: Array, sigma: Array) -> Array:
    """Return numbers that look uniform, computed from the bits of each mean and sigma.

    Rows with equal mean and sigma get different numbers, by how many of them come before.
    """
    bits = _mixed(np.array(mean, dtype=np.float64).view(np.uint64))
    bits = _mixed(bits ^ np.array(sigma, dtype=np.float64).view(np.uint64))
    order = np.argsort(bits, kind="stable")
    ordered = bits[order]
    first = np.append(True, ordered[1:] != ordered[:-1])
    place = np.arange(len(bits))
    before = np.empty(len(bits), dtype=np.uint64)
    before[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return np.asarray((_mixed(bits + before) >> np.uint64(11)) * 2.0**-53)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the last step of the generator SplitMix64, which scrambles bits."""
    with np.errstate(over="ignore"):
        for factor, shift in zip(_FACTORS, (30, 27), strict=True):
            bits = (bits ^ (bits >> np.uint64(shift))) * factor
    return bits ^ (bits >> np.uint64(31))
