r"""Weights of the target's values: levels that repeat, bounds, and values that are rare.

Mean, sigma and shape say where an observation is likely at x, by a distribution function
:math:`F_x`. They do not say which values a target takes at all: whole numbers only, zero in half of
the rows, nothing below zero. Edges :math:`e_1 < \dots < e_E` divide the line into E + 1 intervals
:math:`I_j`, and some of the edges are *levels*: single values that the target takes with positive
probability. With weights w of the intervals and v of the levels,

.. math::

    P(y \in I_j \mid x) = \frac{w_j\, P_{F_x}(I_j)}{S(x)}, \qquad
    P(y = e_k \mid x) = \frac{v_k\, P_{F_x}(C_k)}{S(x)},

where :math:`C_k` are the values that are nearer to the level than to any other value seen, and S(x)
makes the probabilities sum to one. Inside an interval the distribution is still :math:`F_x`. With
all weights one and no levels it is :math:`F_x` everywhere.

A bound is a level, too: :math:`C_k` are then the values beyond it, and the interval beyond it has
weight zero. With all other weights one, quantiles beyond the bound are moved to it, and all others
stay where they are.

Everything is in the user's units, so that levels and bounds are the user's numbers to the last
digit. :mod:`twostagegp.pipeline.calibration.value_weights_fit` learns the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twostagegp.pipeline.calibration.shape_table import ShapeTable

__all__ = ["Pieces", "ValueWeights", "bounds_alone", "unweighted"]

Array = NDArray[np.float64]

_SMALLEST = 1e-300
#: Levels that a summary names.
_SHOWN = 8


@dataclass(frozen=True)
class ValueWeights:
    """The weights of the module's formula.

    Attributes
    ----------
    edges : array of shape (E,)
        Increasing.
    levels : integer array of shape (L,)
        Indices of the edges that are levels, increasing.
    cells : array of shape (L, 2)
        Ends of the intervals C, infinite for the first and the last of all values.
    log_between : array of shape (E + 1,)
        Logarithms of w; minus infinity beyond a bound.
    log_at : array of shape (L,)
        Logarithms of v.
    low, high : float
        Bounds of the target; infinite if there are none.
    all_levels : bool
        Whether every value that was seen is a level. Then the intervals have the probability of
        half a row, for values that were not seen, and quantiles that fall between two levels are
        moved to the upper one.

    Examples
    --------
    A target that is never negative:

    >>> import numpy as np
    >>> from twostagegp.pipeline.calibration.shape import GAUSSIAN
    >>> from twostagegp.pipeline.calibration.shape_table import ShapeTable
    >>> values = bounds_alone(0.0, np.inf)
    >>> pieces = values.pieces(np.zeros(1), np.ones(1), ShapeTable.of(GAUSSIAN))
    >>> pieces.quantiles(np.array([[0.025, 0.5, 0.975]])).round(2).tolist()
    [[0.0, 0.0, 1.96]]
    """

    edges: Array
    levels: NDArray[np.int64]
    cells: Array
    log_between: Array
    log_at: Array
    low: float = -math.inf
    high: float = math.inf
    all_levels: bool = False

    @property
    def label(self) -> str:
        """Readable summary."""
        parts = []
        only_bounds = (self.cells[:, 1] == self.low) | (self.cells[:, 0] == self.high)
        seen = self.edges[self.levels[~only_bounds]]
        if L := len(seen):
            some = ", ".join(f"{level:.12g}" for level in seen[:_SHOWN])
            more = f", and {L - _SHOWN} more" if L > _SHOWN else ""
            parts.append(f"{L} {'levels' if L > 1 else 'level'} ({some}{more})")
        if (between := np.count_nonzero(np.isfinite(self.log_between))) > 1:
            parts.append(f"weights of {between} intervals")
        if math.isfinite(self.low):
            parts.append(f"none below {self.low:.12g}")
        if math.isfinite(self.high):
            parts.append(f"none above {self.high:.12g}")
        return ", ".join(parts)

    def within_bounds(self, y: Array) -> Array:
        """Return the values moved to the nearest bound if they are beyond it."""
        return np.clip(y, self.low, self.high)

    def pieces(self, mean: Array, sigma: Array, table: ShapeTable) -> Pieces:
        """Return the probabilities of all intervals and levels at n rows."""
        F = self.at_edges(mean, sigma, table)
        mass = np.zeros((len(mean), 2 * len(self.edges) + 1))
        mass[:, ::2] = self.between(F) * np.exp(self.log_between)
        if len(self.levels):
            at = self.at_levels(mean, sigma, table)
            mass[:, 2 * self.levels + 1] = at * np.exp(self.log_at)
        total = mass.sum(axis=1, keepdims=True)
        return Pieces(self, table, mean, sigma, F, mass / total, np.log(total[:, 0]))

    def at_edges(self, mean: Array, sigma: Array, table: ShapeTable) -> Array:
        """Return F at the edges, with 0 and 1 at its ends, shape (n, E + 2)."""
        ends = np.hstack([-np.inf, self.edges, np.inf])
        return table.cdf((ends - mean[:, None]) / sigma[:, None])

    @staticmethod
    def between(F: Array) -> Array:
        """Return the probabilities of the intervals under F, shape (n, E + 1)."""
        return np.maximum(np.diff(F, axis=1), _SMALLEST)

    def at_levels(self, mean: Array, sigma: Array, table: ShapeTable) -> Array:
        """Return the probabilities of the intervals C under F, shape (n, L)."""
        ends = table.cdf((self.cells.ravel() - mean[:, None]) / sigma[:, None])
        ends = ends.reshape(len(mean), -1, 2)
        return np.maximum(ends[..., 1] - ends[..., 0], _SMALLEST)

    def level_of(self, y: Array) -> NDArray[np.int64]:
        """Return the index of the level of each value of y, -1 for other values."""
        if len(self.levels) == 0:
            return np.full(len(y), -1)
        values = self.edges[self.levels]
        near = np.minimum(np.searchsorted(values, y), len(values) - 1)
        return np.where(values[near] == y, near, -1)


@dataclass(frozen=True)
class Pieces:
    """Intervals and levels in increasing order, with their probabilities at n rows.

    ``mass`` has shape (n, 2 E + 1): interval, edge, interval, ..., where an edge that is no level
    has probability zero. ``F`` is the distribution function at the edges, with 0 and 1 at its ends,
    and ``log_total`` the logarithm of S.
    """

    values: ValueWeights
    table: ShapeTable
    mean: Array
    sigma: Array
    F: Array
    mass: Array
    log_total: Array

    def cdf(self, y: Array) -> Array:
        """Return the probability of values up to y, one for each row."""
        return self._up_to(y, self.values.level_of(y))

    def below(self, y: Array) -> Array:
        """Return the probability of values smaller than y, one for each row."""
        level = self.values.level_of(y)
        up_to = self._up_to(y, level)
        at = np.flatnonzero(level >= 0)
        up_to[at] -= self.mass[at, 2 * self.values.levels[level[at]] + 1]
        return up_to

    def _up_to(self, y: Array, level: NDArray[np.int64]) -> Array:
        values, rows = self.values, np.arange(len(y))
        if len(values.levels):
            y = np.where(level >= 0, values.edges[values.levels[level]], y)
        j = np.searchsorted(values.edges, y, side="right")
        before = np.cumsum(self.mass, axis=1) - self.mass
        F = self.table.cdf((y - self.mean) / self.sigma)
        left, right = self.F[rows, j], self.F[rows, j + 1]
        part = np.clip((F - left) / np.maximum(right - left, _SMALLEST), 0.0, 1.0)
        return np.clip(before[rows, 2 * j] + part * self.mass[rows, 2 * j], 0.0, 1.0)

    def logpdf(self, y: Array) -> Array:
        """Return the log probability of y if it is a level, otherwise its log density."""
        values = self.values
        level = values.level_of(y)
        j = np.searchsorted(values.edges, y, side="right")
        log_f = self.table.shape.logpdf((y - self.mean) / self.sigma) - np.log(self.sigma)
        density = values.log_between[j] + log_f - self.log_total
        at = np.flatnonzero(level >= 0)
        mass = self.mass[at, 2 * values.levels[level[at]] + 1]
        density[at] = np.log(np.maximum(mass, _SMALLEST))
        return density

    def quantiles(self, p: Array) -> Array:
        """Return quantiles at the probabilities p of shape (n, q); the shape is that of p."""
        edges = self.values.edges
        upper = np.cumsum(self.mass, axis=1)
        piece = (
            (p[:, :, None] > upper[:, None, :-1]).sum(axis=2) if p.size < 1000 else _find(p, upper)
        )
        top = np.take_along_axis(upper, piece, axis=1)
        mass = np.take_along_axis(self.mass, piece, axis=1)
        part = np.clip(1.0 - (top - p) / np.maximum(mass, _SMALLEST), 0.0, 1.0)
        j = piece // 2
        left, right = (np.take_along_axis(self.F, k, axis=1) for k in (j, j + 1))
        inside = np.clip(left + part * (right - left), _SMALLEST, 1.0 - 1e-16)
        y = self.mean[:, None] + self.sigma[:, None] * self.table.ppf(inside)
        # Rounding must not move a quantile out of its interval.
        y = np.clip(y, np.append(-np.inf, edges)[j], np.append(edges, np.inf)[j])
        at_edge = piece % 2 == 1
        if self.values.all_levels:
            at_edge |= (j > self.values.levels[0]) & (j <= self.values.levels[-1])
        y = np.where(at_edge, edges[np.minimum(j, len(edges) - 1)], y)
        return self.values.within_bounds(y)


def _find(p: Array, upper: Array) -> NDArray[np.int64]:
    """Return for each probability the number of its piece, from upper ends of shape (n, pieces)."""
    return np.stack([np.searchsorted(u[:-1], row) for u, row in zip(upper, p, strict=True)])


def bounds_alone(low: float, high: float) -> ValueWeights | None:
    """Return the weights that move values beyond the bounds to them; None without a bound."""
    known = [math.isfinite(low), math.isfinite(high)]
    if not any(known):
        return None
    edges = np.array([low, high])[known]
    cells = np.array([[-math.inf, low], [high, math.inf]])[known]
    return unweighted(edges, edges, cells, low, high)


def unweighted(
    edges: Array, levels: Array, cells: Array, low: float, high: float, all_levels: bool = False
) -> ValueWeights:
    """Return weights one within the bounds and zero beyond them; ``levels`` are values."""
    between = np.zeros(len(edges) + 1)
    if math.isfinite(low):
        between[0] = -math.inf
    if math.isfinite(high):
        between[-1] = -math.inf
    index = np.searchsorted(edges, levels)
    return ValueWeights(edges, index, cells, between, np.zeros(len(levels)), low, high, all_levels)
