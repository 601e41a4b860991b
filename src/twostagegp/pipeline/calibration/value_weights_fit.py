r"""Learn which values the target takes, from held-out rows.

Levels are found by counting: a value is a level if enough rows have it. If nearly all rows have
such values, all values are levels. Edges are the levels, the smallest and the largest value, and
quantiles of the other values. With the held-out probabilities :math:`m_{ip}` of interval or level p
under the distribution of row i (:mod:`twostagegp.pipeline.calibration.value_weights`), log weights
u maximise

.. math::

    \sum_i c_i \log \frac{m_{ip_i} e^{u_{p_i}}}{\sum_p m_{ip} e^{u_p}}
    + \sum_p \alpha_p (u_p - e^{u_p}),

which is concave: the likelihood of the pieces in which the rows lie, and a prior that pulls weights
to one, as strong as :math:`\alpha_p` rows. At the maximum each piece is expected as often as it was
seen, up to the prior.

Weights are used only if they lower CRPS on held-out rows by more than its standard error, and do
not raise the losses of quantiles in the tails: levels, edges and weights are learned from all folds
but one, and scored on the last one. A bound needs no such decision, since moving quantiles to a
bound that holds never makes them worse.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from twostagegp.pipeline.calibration.law import Law
from twostagegp.pipeline.calibration.shape import Shape
from twostagegp.pipeline.calibration.shape_table import ShapeTable
from twostagegp.pipeline.calibration.value_weights import ValueWeights, bounds_alone, unweighted
from twostagegp.pipeline.settings import DEFAULTS, ValueSettings

__all__ = ["HeldLaws", "find_edges", "find_levels", "fit_weights", "learn_value_weights"]

Array = NDArray[np.float64]

#: Probabilities of the quantiles whose losses make up CRPS.
_P = (np.arange(39) + 0.5) / 39.0
#: Probabilities of the quantiles in the tails.
_TAILS = np.array([0.025, 0.05, 0.95, 0.975])


class HeldLaws:
    """Held-out rows with their distributions, mean + sigma Z.

    Parameters
    ----------
    y, mean, sigma, weight : arrays of shape (n,)
        ``weight`` are counts.
    table : ShapeTable
        Of the distribution of Z.
    """

    def __init__(
        self, y: Array, mean: Array, sigma: Array, weight: Array, table: ShapeTable
    ) -> None:
        self.y, self.mean, self.sigma, self.weight, self.table = y, mean, sigma, weight, table

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> HeldLaws:
        """Return some of the rows."""
        return HeldLaws(
            self.y[index], self.mean[index], self.sigma[index], self.weight[index], self.table
        )

    def expected_below(self, value: float) -> float:
        """Return how many rows are expected below a value."""
        return float(self.weight @ self.table.cdf((value - self.mean) / self.sigma))

    def losses(self, values: ValueWeights | None) -> Array:
        """Return CRPS, and the mean loss of quantiles in the tails, of each row, shape (2, n)."""
        p = np.append(_P, _TAILS)
        laws = Law(self.table.shape, values).at(self.mean, self.sigma)
        error = self.y[:, None] - laws.quantiles(p)
        loss = 2.0 * np.where(error >= 0.0, p * error, (p - 1.0) * error)
        return np.stack([loss[:, : len(_P)].mean(axis=1), loss[:, len(_P) :].mean(axis=1)])


def learn_value_weights(
    y: Array,
    mean: Array,
    sigma: Array,
    weight: Array,
    folds: NDArray[np.int64],
    shape: Shape,
    bounds: tuple[float, float],
    seed: int,
    settings: ValueSettings = DEFAULTS.values,
) -> ValueWeights | None:
    """Return the weights; without gain those of the bounds alone, or None without bounds.

    Parameters
    ----------
    y, mean, sigma, weight : arrays of shape (n,)
        Held-out rows in the user's units: target, mean and sigma of their distributions, counts.
    folds : integer array of shape (n,)
        Folds of the rows, for the decision.
    shape : Shape
    bounds : pair of float
        Bounds of the target that are known; infinite where there is none.
    seed : int
    settings : ValueSettings
    """
    if len(y) > settings.rows:
        index = np.random.default_rng(seed).permutation(len(y))[: settings.rows]
        y, mean, sigma, weight = y[index], mean[index], sigma[index], weight[index]
        folds = folds[index]
    rows = HeldLaws(y, mean, sigma, weight, ShapeTable.of(shape))
    low, high = _bounds(rows, bounds, settings)
    rows.y = np.clip(y, low, high)  # the user's bounds may have been passed by rounding
    plain = bounds_alone(low, high)
    if weight.sum() < settings.fewest:
        return plain
    before, after = np.empty((2, len(y))), np.empty((2, len(y)))
    for k in np.unique(folds):
        others, own = rows.take(folds != k), rows.take(folds == k)
        if len(others.y) < 2:
            return plain
        before[:, folds == k] = own.losses(plain)
        after[:, folds == k] = own.losses(_fitted(others, low, high, settings))
    gain, in_tails = before - after
    total = float(weight @ gain)
    error = math.sqrt(float(weight @ (gain - total / weight.sum()) ** 2))
    if total <= max(settings.least_gain * float(weight @ before[0]), settings.errors * error):
        return plain
    if weight @ in_tails < 0.0:
        return plain
    return _fitted(rows, low, high, settings)


def _bounds(
    rows: HeldLaws, bounds: tuple[float, float], settings: ValueSettings
) -> tuple[float, float]:
    """Return the bounds: those given, and zero if the rows show that the target never passes it."""
    low, high = bounds
    expected, n = rows.expected_below(0.0), float(rows.weight.sum())
    if low == -math.inf and rows.y.min() >= 0.0 and expected >= settings.beyond_zero:
        low = 0.0
    if high == math.inf and rows.y.max() <= 0.0 and n - expected >= settings.beyond_zero:
        high = 0.0
    return low, high


def find_levels(y: Array, weight: Array, settings: ValueSettings = DEFAULTS.values) -> Array:
    """Return the levels of a target, increasing.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.append(np.zeros(50), np.linspace(1, 2, 50))
    >>> find_levels(y, np.ones(100)).tolist()
    [0.0]
    >>> find_levels(np.repeat([1.0, 2.0, 3.0], [60, 39, 1]), np.ones(100)).tolist()
    [1.0, 2.0, 3.0]
    """
    distinct, inverse = np.unique(y, return_inverse=True)
    count = np.bincount(inverse, weights=weight)
    often = count >= max(settings.level_rows, settings.level_share * count.sum())
    rest = float(count[~often].sum())
    if rest <= settings.rest_share * count.sum() and len(distinct) <= settings.most_levels:
        return np.asarray(distinct)
    return np.asarray(distinct[often])


def find_edges(
    y: Array, weight: Array, levels: Array, settings: ValueSettings = DEFAULTS.values
) -> NDArray[np.float64]:
    """Return the edges: levels, the smallest and the largest value, and quantiles of the others.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.append(np.zeros(50), np.linspace(1, 2, 50))
    >>> find_edges(y, np.ones(100), np.zeros(1)).round(1).tolist()
    [0.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0]
    """
    other = ~np.isin(y, levels)
    if not other.any():
        return np.unique(levels)
    values, inverse = np.unique(y[other], return_inverse=True)
    counts = np.bincount(inverse, weights=weight[other])
    middle = (np.cumsum(counts) - 0.5 * counts) / counts.sum()
    inner = np.interp(np.arange(1, settings.intervals) / settings.intervals, middle, values)
    return np.unique(np.concatenate([levels, inner, [y.min(), y.max()]]))


def _fitted(rows: HeldLaws, low: float, high: float, settings: ValueSettings) -> ValueWeights:
    """Return levels, edges and weights learned from rows."""
    y = rows.y
    distinct = np.unique(y)
    seen = find_levels(y, rows.weight, settings)
    edges = find_edges(y, rows.weight, seen, settings)
    middle = 0.5 * (distinct[1:] + distinct[:-1])
    place = np.searchsorted(distinct, seen)
    cells = np.column_stack([np.append(low, middle)[place], np.append(middle, high)[place]])
    # A bound has the values beyond it, even if it is a level that was seen.
    alone = bounds_alone(low, high)
    levels = seen
    if alone is not None:
        new = ~np.isin(alone.edges, seen)
        levels = np.append(seen, alone.edges[new])
        cells = np.vstack([cells, alone.cells[new]])
        order = np.argsort(levels)
        levels, cells = levels[order], cells[order]
        edges = np.unique(np.append(edges, alone.edges))
        cells[levels == low, 0] = -math.inf
        cells[levels == high, 1] = math.inf
    all_levels = len(seen) == len(distinct)
    start = unweighted(edges, levels, cells, low, high, all_levels)
    return fit_weights(rows, start, settings)


def fit_weights(
    rows: HeldLaws,
    start: ValueWeights,
    settings: ValueSettings = DEFAULTS.values,
) -> ValueWeights:
    """Maximise the module's formula by Newton's method; weights beyond bounds stay zero.

    If every row has a level, the prior of all intervals together is worth half a row.
    """
    F = start.at_edges(rows.mean, rows.sigma, rows.table)
    used = np.flatnonzero(np.isfinite(start.log_between))
    log_m = np.log(
        np.hstack([start.between(F)[:, used], start.at_levels(rows.mean, rows.sigma, rows.table)])
    )
    level = start.level_of(rows.y)
    position = np.full(len(start.log_between), -1)
    position[used] = np.arange(len(used))
    # A value on an edge without a level belongs to the interval on its right.
    own = position[np.searchsorted(start.edges, rows.y, side="right")]
    own = np.where(level >= 0, len(used) + level, own)
    alpha = np.full(log_m.shape[1], settings.level_prior)
    not_seen = ~np.isin(start.edges[start.levels], rows.y)
    alpha[len(used) :][not_seen] = settings.interval_prior
    alpha[: len(used)] = 0.5 / len(used) if start.all_levels else settings.interval_prior
    u = _maximise(log_m, own, rows.weight, alpha)
    between = np.full(len(start.log_between), -math.inf)
    between[used] = u[: len(used)]
    return replace(start, log_between=between, log_at=u[len(used) :])


def _maximise(log_m: Array, own: NDArray[np.int64], weight: Array, alpha: Array) -> Array:
    """Return the log weights at the maximum."""
    n, P = log_m.shape
    seen = np.bincount(own, weights=weight, minlength=P)
    each = np.arange(n)

    def terms(u: Array) -> tuple[float, Array]:
        log_q = log_m + u
        top = log_q.max(axis=1, keepdims=True)
        q = np.exp(log_q - top)
        total = q.sum(axis=1, keepdims=True)
        fit = weight @ (log_q[each, own] - (top + np.log(total))[:, 0])
        return float(fit + alpha @ (u - np.exp(u))), q / total

    u = np.zeros(P)
    value, q = terms(u)
    for _ in range(50):
        expected = weight @ q
        gradient = seen - expected + alpha * (1.0 - np.exp(u))
        if np.abs(gradient).max() <= 1e-6 * max(1.0, float(weight.sum())):
            break
        curvature = np.diag(expected + alpha * np.exp(u)) - (q * weight[:, None]).T @ q
        step = np.clip(np.linalg.solve(curvature, gradient), -3.0, 3.0)
        for _ in range(30):
            new, q_new = terms(u + step)
            if new >= value:
                break
            step *= 0.5
        else:
            break
        u, value, q = u + step, new, q_new
    return u
