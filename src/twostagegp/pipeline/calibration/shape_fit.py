r"""Learn the shape of the predictive distribution from held-out z-scores.

**Few z-scores say little about tails.** The t distribution is therefore not the one that fits the
z-scores best, but the one that predicts a new z-score best when scale and tails are uncertain. Let
z be in units of the root mean square of the z-scores. With the density :math:`t_\nu(z / s) / s`,
the prior

.. math::

    \log s \sim N(0, \tfrac14), \qquad
    \tfrac1\nu \text{ uniform on 20 values from } \tfrac1{200} \text{ to } \tfrac25

(a finite variance needs :math:`\nu > 2`), and the likelihood to the power :math:`\tau < 1`, since
errors of neighbouring rows depend on each other and part of the information has been used for the
local scale, the posterior is :math:`\pi(s, \nu)` and

.. math::

    p(z) = \int \frac1s\, t_\nu\Big(\frac zs\Big)\, d\pi(s, \nu) .

:func:`predictive_student` returns the t distribution that is closest to p (least Kullback–Leibler
divergence from p), with :math:`\nu` between 2.5 and 200. With few rows it has heavy tails and a
larger variance than the z-scores. With many rows it is the one of largest likelihood: nearly
Gaussian if the z-scores are.

**Many z-scores show their distribution themselves.** The shape mixes their smoothed distribution
(:func:`empirical_body`) with that t distribution,

.. math::

    F(z) = (1 - w) \sum_{j=1}^J p_j \Phi\Big(\frac{z - q_j}{h_j}\Big) + w\, T_\nu(z / s) .

w maximises the density of held-out folds, to the power :math:`\tau` and with the weight of a few
further rows that came from the t distribution (``settings.tail_rows``), so tails always reach
beyond the observed z-scores. With fewer rows than ``settings.fewest``, w = 1.

F is rescaled to second moment one. Its second moment M in units of the z-scores multiplies the
variances instead. M > 1 if little is known; M < 1 if a few outliers make up most of the mean square
and the t distribution of largest likelihood is narrower.

On tables without noise :math:`\sigma(x)` is at the noise floor, and the z-scores have a mean square
below one. If M < 1 there, the variances are not lowered: the shape gets the rest of its second
moment from a wide component at zero with the share 1 / (n + 1), for rare rows that the sample does
not contain.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special
from scipy.interpolate import CubicSpline

from twostagegp.pipeline.calibration.shape import GAUSSIAN, Shape, log_student
from twostagegp.pipeline.settings import DEFAULTS, ShapeSettings

__all__ = ["LearnedShape", "Student", "bin_edges", "empirical_body", "learn_shape"]

Array = NDArray[np.float64]

#: Bounds of the degrees of freedom: above two, so that the variance is finite; at the upper bound
#: the distribution is nearly Gaussian.
DEGREES = (2.5, 200.0)
#: Standard deviation of the prior of log s.
_PRIOR = 0.5
#: Degrees of freedom of the prior, and numbers of points of the other grids.
_PRIOR_DEGREES = 1.0 / np.linspace(1.0 / DEGREES[1], 1.0 / DEGREES[0], 20)
_COARSE, _FINE, _SPLINE = 81, 121, 96
#: Points z = 0.3 sinh(u) of integrals over z > 0, relative to the typical s, and their weights. The
#: trapezoidal rule in u converges exponentially, as the densities are even.
_STEPS = np.linspace(0.0, 9.0, 91)
_POINTS, _WEIGHTS = 0.3 * np.sinh(_STEPS), np.where(_STEPS > 0.0, 1.0, 0.5) * np.cosh(_STEPS)
#: Values of 1 / nu, and the mean of log(1 + z^2 / nu) under each t distribution.
_INVERSE = np.linspace(1.0 / DEGREES[1], 1.0 / DEGREES[0], 4000)
_MEAN_LOG = special.digamma(0.5 / _INVERSE + 0.5) - special.digamma(0.5 / _INVERSE)
#: Least mean square of z-scores: squares relative to it are finite.
_LEAST_SQUARE = 1e-100
#: Least width of the components of z-scores of mean square one.
_LEAST_WIDTH = 1e-6
#: Bounds of log(s^2 nu) of the closest t distribution, relative to the typical s.
_BOUNDS = (math.log(DEGREES[0]) - 12.0, math.log(DEGREES[1]) + 12.0)
#: Rows whose likelihood is computed at a time.
_ROWS = 5000


class LearnedShape(NamedTuple):
    """A shape, its second moment in units of the z-scores, and held-out scores.

    ``scores`` are mean negative log densities of held-out folds under the t distribution
    ("student"), the smoothed z-scores ("empirical") and their mixture ("mixture").
    """

    shape: Shape
    moment: float
    scores: dict[str, float]


class Student(NamedTuple):
    """A t distribution with a scale."""

    scale: float
    degrees: float

    @property
    def variance(self) -> float:
        """Variance of the distribution."""
        return self.scale**2 * self.degrees / (self.degrees - 2.0)

    def density(self, z: Array) -> Array:
        """Return the density at z."""
        return np.asarray(np.exp(log_student(z / self.scale, self.degrees)) / self.scale)


class Body(NamedTuple):
    """Gaussian components: means, standard deviations and shares, arrays of shape (J,)."""

    centres: Array
    widths: Array
    shares: Array

    @property
    def moment(self) -> float:
        """Second moment."""
        return float(self.shares @ (self.centres**2 + self.widths**2))

    def density(self, z: Array) -> Array:
        """Return the density at z, shape (n,)."""
        x = (z[:, None] - self.centres) / self.widths
        return np.exp(-0.5 * x**2) @ (self.shares / self.widths) / math.sqrt(2.0 * math.pi)


_NO_BODY = Body(np.zeros(0), np.zeros(0), np.zeros(0))


def learn_shape(
    z: Array,
    weight: Array,
    folds: NDArray[np.int64],
    on_floor: bool = False,
    settings: ShapeSettings = DEFAULTS.shape,
) -> LearnedShape:
    """Return the shape of z-scores, by the module's formula.

    Parameters
    ----------
    z : array of shape (n,)
        Held-out z-scores.
    weight : array of shape (n,)
    folds : integer array of shape (n,)
        Folds over which w is learned.
    on_floor : bool
        Whether variances were raised to the noise floor and must not be lowered.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(size=20)
    >>> few = learn_shape(z, np.ones(20), np.arange(20) % 5)
    >>> few.shape.name, bool(few.moment > np.mean(z**2))
    ('student', True)
    """
    counts = weight > 0.0
    z, weight, folds = z[counts], weight[counts], folds[counts]
    if len(np.unique(folds)) < 2:
        return LearnedShape(GAUSSIAN, 1.0, {})
    total = float(weight.sum())
    few = total < settings.fewest
    by_t, by_body = _heldout_densities(z, weight, folds, settings, with_body=not few)
    w = 1.0 if few else _share_of_t(by_t, by_body, weight, settings)
    w = w if w < 0.99 else 1.0
    scores = {"student": _score(by_t, weight)}
    if not few:
        scores["empirical"] = _score(by_body, weight)
        scores["mixture"] = _score(w * by_t + (1.0 - w) * by_body, weight)
    t = predictive_student(z, weight, settings)
    body = empirical_body(z, weight, settings) if w < 1.0 else _NO_BODY
    shape, moment = _normalised(body, t, w, on_floor, total)
    return LearnedShape(shape, moment, scores)


def _heldout_densities(
    z: Array,
    weight: Array,
    folds: NDArray[np.int64],
    settings: ShapeSettings,
    with_body: bool = True,
) -> tuple[Array, Array]:
    """Return densities of each z-score under the distributions learned from the other folds."""
    by_t, by_body = np.zeros_like(z), np.zeros_like(z)
    for fold in np.unique(folds):
        out = folds == fold
        rest, its_weight = z[~out], weight[~out]
        by_t[out] = predictive_student(rest, its_weight, settings).density(z[out])
        if with_body:
            by_body[out] = empirical_body(rest, its_weight, settings).density(z[out])
    return by_t, by_body


def _score(density: Array, weight: Array) -> float:
    tiny = np.finfo(float).tiny
    return -float(weight @ np.log(np.maximum(density, tiny)) / weight.sum())


def _share_of_t(by_t: Array, by_body: Array, weight: Array, settings: ShapeSettings) -> float:
    r"""Return the w that maximises the concave function

    .. math::

        \tau \sum_i c_i \log\big(w\, t(z_i) + (1 - w)\, b(z_i)\big) + n_0 \log w ,

    with the densities t and b of held-out z-scores, weights :math:`c_i` of sum n, and
    :math:`n_0` rows of the t distribution. It is at least :math:`n_0 / (\tau n + n_0)`.
    """
    tau, n_0 = settings.information, settings.tail_rows
    tiny = np.finfo(float).tiny
    log_ratio = np.log(np.maximum(by_t, tiny)) - np.log(np.maximum(by_body, tiny))
    ratio = np.exp(np.clip(log_ratio, -50.0, 50.0))

    def slope(w: float) -> float:
        return tau * float(weight @ ((ratio - 1.0) / (w * ratio + (1.0 - w)))) + n_0 / w

    least = max(n_0 / (tau * float(weight.sum()) + n_0), 1e-9)
    if slope(1.0) >= 0.0:
        return 1.0
    return float(optimize.brentq(slope, least, 1.0)) if slope(least) > 0.0 else least


def _normalised(
    body: Body, t: Student, w: float, on_floor: bool, total: float
) -> tuple[Shape, float]:
    """Return the mixture with second moment one, and the second moment that it had."""
    if on_floor:  # residuals may be zero there, but quantiles need a density
        body = body._replace(widths=np.maximum(body.widths, _LEAST_WIDTH))
        t = t._replace(scale=max(t.scale, _LEAST_WIDTH))
    centres, widths, shares = body
    shares = (1.0 - w) * shares
    moment = w * t.variance + (1.0 - w) * body.moment
    if on_floor and moment < 1.0:
        # n held-out rows do not show components of a smaller share than this.
        e = 1.0 / (1.0 + total)
        wide = math.sqrt((1.0 - (1.0 - e) * moment) / e)
        centres, widths = np.append(centres, 0.0), np.append(widths, wide)
        w, shares, moment = (1.0 - e) * w, np.append((1.0 - e) * shares, e), 1.0
    unit = math.sqrt(moment)
    scale = t.scale / unit
    if len(shares) == 0:
        return Shape("student", *GAUSSIAN.components, 1.0, t.degrees, scale), moment
    components = centres / unit, widths / unit, shares / shares.sum()
    return Shape("empirical", *components, w, t.degrees, scale), moment


def predictive_student(
    z: Array, weight: Array, settings: ShapeSettings = DEFAULTS.shape
) -> Student:
    r"""Return the t distribution closest to the posterior predictive density of the module.

    The likelihood needs z through one smooth function only,

    .. math::

        H(a) = \sum_i c_i \log(1 + z_i^2 e^{-a}), \qquad
        \sum_i c_i \log t_\nu(z_i / s) = -\frac{\nu + 1}2 H(2 \log s + \log \nu) + \dots ,

    which is computed on a grid and interpolated (the code divides H by the sum of weights).

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).standard_t(5, size=20_000)
    >>> 4.5 < predictive_student(z, np.ones(len(z))).degrees < 5.5
    True
    """
    total = float(weight.sum())
    size = math.sqrt(max(float(weight @ z**2) / total, _LEAST_SQUARE))
    squares = (z / size) ** 2
    n = settings.information * total
    typical = 0.5 * math.log(max(_median(squares, weight), 1e-8) / 0.455)
    reach = min(1.0 / math.sqrt(n), 1.0)
    low, high = min(typical, 0.0) - 1.0 - 3.0 * reach, 0.5 + 3.0 * reach
    nu = _PRIOR_DEGREES
    grid = np.linspace(2.0 * low + math.log(nu.min()), 2.0 * high + math.log(nu.max()), _SPLINE)
    H = np.zeros(_SPLINE)
    for start in range(0, len(z), _ROWS):
        rows = slice(start, start + _ROWS)
        H += np.log1p(np.exp(-grid)[:, None] * squares[rows]) @ weight[rows]
    interpolated = CubicSpline(grid, H / total)
    constant = special.gammaln(0.5 * (nu + 1.0)) - special.gammaln(0.5 * nu)
    constant -= 0.5 * np.log(math.pi * nu)

    def log_posterior(log_s: Array) -> Array:
        terms = interpolated(2.0 * log_s + np.log(nu)[:, None])
        value = n * (constant[:, None] - log_s - 0.5 * (nu[:, None] + 1.0) * terms)
        return np.asarray(value - 0.5 * (log_s / _PRIOR) ** 2)

    coarse = np.linspace(low, high, _COARSE)
    peak = coarse[log_posterior(coarse).max(0).argmax()]
    log_s = np.linspace(max(low, peak - 0.6 - 4 * reach), min(high, peak + 0.6 + 4 * reach), _FINE)
    posterior = log_posterior(log_s)
    posterior = np.exp(posterior - posterior.max())
    return _closest(posterior / posterior.sum(), log_s, nu, size)


def _median(values: Array, weight: Array) -> float:
    order = np.argsort(values)
    place = np.searchsorted(np.cumsum(weight[order]), 0.5 * weight.sum())
    return float(values[order][min(int(place), len(values) - 1)])


def _closest(posterior: Array, log_s: Array, nu: Array, size: float) -> Student:
    r"""Return the t distribution with the least divergence from a mixture of t distributions.

    With the expectation E over the mixture and :math:`a = 2 \log s + \log \nu`, the divergence is

    .. math::

        \frac a2 - \log \frac{\Gamma(\frac{\nu + 1}2)}{\Gamma(\frac \nu2)}
        + \frac{\nu + 1}2\, G(a) + \dots, \qquad G(a) = E \log(1 + z^2 e^{-a}) .

    Its derivatives by :math:`\nu` and by a are zero if

    .. math::

        \psi\Big(\frac{\nu + 1}2\Big) - \psi\Big(\frac \nu2\Big) = G(a), \qquad
        (\nu + 1)\, E\, \frac{z^2}{z^2 + e^a} = 1 .

    The first equation gives :math:`\nu` for each a, and the second one a.
    """
    unit = math.exp(float(posterior.sum(0) @ log_s))
    density = np.zeros_like(_POINTS)
    for share, degrees in zip(posterior, nu, strict=True):
        kept = share > 1e-7
        x = log_s[kept] - math.log(unit)
        density += np.exp(log_student(_POINTS[:, None] * np.exp(-x), degrees) - x) @ share[kept]
    p = _WEIGHTS * density
    p /= p.sum()
    squares = _POINTS**2

    def degrees_for(a: float) -> float:
        mean_log = p @ np.log1p(squares * math.exp(-a))
        return 1.0 / float(np.interp(mean_log, _MEAN_LOG, _INVERSE))

    def slope(a: float) -> float:
        return 1.0 - (degrees_for(a) + 1.0) * float(p @ (squares / (squares + math.exp(a))))

    a = float(optimize.brentq(slope, *_BOUNDS))
    degrees = degrees_for(a)
    return Student(size * unit * math.exp(0.5 * (a - math.log(degrees))), degrees)


def empirical_body(z: Array, weight: Array, settings: ShapeSettings = DEFAULTS.shape) -> Body:
    r"""Return the smoothed distribution of z-scores, with their second moment.

    The sorted z-scores are divided into J bins of shares :math:`p_j`, smaller towards both ends;
    :math:`q_j` is the mean of a bin, and :math:`h_j` is proportional to the distance between
    neighbouring bins, but at least a bandwidth that falls with the number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> body = empirical_body(np.random.default_rng(0).normal(size=3000), np.ones(3000))
    >>> round(float(body.density(np.zeros(1))[0]), 1)
    0.4
    """
    n = float(weight.sum())
    moment = max(float(weight @ z**2) / n, _LEAST_SQUARE)
    # Equal z-scores are merged and their weights added, since a weight is a number of repeats.
    z, distinct = np.unique(z / math.sqrt(moment), return_inverse=True)
    w = np.bincount(distinct, weights=weight) / n
    edges = bin_edges(n, settings)
    # A row on an edge is divided between the two bins.
    mass = np.concatenate([[0.0], np.cumsum(w)])
    sums = np.concatenate([[0.0], np.cumsum(w * z)])
    p = np.diff(edges)
    q = np.diff(np.interp(edges, mass / mass[-1], sums)) / p
    quartiles = np.interp([0.25, 0.75], mass[1:] - 0.5 * w, z)
    spread = min(1.0, float(quartiles[1] - quartiles[0]) / 1.349)
    bandwidth = max(settings.bandwidth * 0.9 * spread * n**-0.2, _LEAST_WIDTH)
    h = np.maximum(bandwidth, settings.overlap * np.gradient(q))
    # Smoothing has changed the second moment; this restores it.
    scale = math.sqrt(moment / float(p @ (q**2 + h**2)))
    return Body(scale * q, scale * h, p)


def bin_edges(n: float, settings: ShapeSettings = DEFAULTS.shape) -> Array:
    """Return the levels between the bins of n rows.

    Bins have equal probability, except that at both ends they are halved repeatedly.

    Examples
    --------
    >>> bin_edges(12.0)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    count = max(2, int(min(settings.bins, n / settings.last_bin_rows)))
    edges = np.arange(count + 1) / count
    ends = []
    last = 0.5 / count
    while last * n >= settings.last_bin_rows:
        ends.append(last)
        last *= 0.5
    lower = np.array(ends[::-1])
    return np.concatenate([[0.0], lower, edges[1:-1], 1.0 - lower[::-1], [1.0]])
