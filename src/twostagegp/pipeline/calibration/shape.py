r"""The shape of a predictive distribution: how observations lie around their mean, in sigmas.

An observation at x is :math:`y = \mu(x) + \sigma(x) Z`. Z has the same distribution F for all rows,
with :math:`E Z^2 = 1`: the mean squared error of :math:`\mu(x)` is :math:`\sigma^2(x)`. F is

- *gaussian*;
- *student*: the t distribution with the degrees of freedom of largest likelihood;
- *empirical*: the smoothed held-out z-scores, mixed with a small share w of the fitted t
  distribution for tails beyond the observed z-scores,

.. math::

    F(z) = (1 - w) \sum_{j=1}^J p_j \Phi\Big(\frac{z - q_j}{h_j}\Big) + w\, T_\nu(z / s_\nu) .

The sorted z-scores are divided into J bins of shares :math:`p_j`, smaller towards both ends;
:math:`q_j` is the mean of a bin, and :math:`h_j` is proportional to the distance between
neighbouring bins, but at least a bandwidth that falls with the number of rows. All three
distributions are of this form. F has a positive density everywhere, so that quantiles never cross.

On tables without noise :math:`\sigma(x)` is at the noise floor, and the z-scores have a second
moment :math:`\kappa < 1`. The empirical shape does not rescale them to one. It gets the rest of its
second moment from a wide component of variance :math:`(1 - (1 - w) \kappa) / w` and share w, for
rare rows that the sample does not contain.

The continuous ranked probability score of held-out rows decides between the three
(:func:`choose_shape`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from twostagegp.pipeline.settings import DEFAULTS, ShapeSettings

__all__ = [
    "GAUSSIAN",
    "Shape",
    "choose_shape",
    "crps",
    "empirical_shape",
    "gaussian_shape",
    "student_shape",
]

Array = NDArray[np.float64]

#: Bounds of the degrees of freedom: above two, so that the variance is finite; at the upper bound
#: the distribution is nearly Gaussian.
DEGREES = (2.5, 200.0)
#: Levels at which the score compares quantiles.
SCORE_LEVELS = (np.arange(99) + 1.0) / 100.0
#: Quantiles at up to this many levels are kept, for this many different requests: a service asks
#: for the same interval of row after row.
_FEW_LEVELS, _KNOWN_LEVELS = 16, 64


@dataclass(frozen=True)
class Shape:
    r"""A distribution of second moment one, as in the module's formula.

    The mean of the Gaussian and of the t distribution is zero. That of the empirical shape may
    differ from zero by a few hundredths, if precise and imprecise predictions have z-scores that
    are skewed in different directions; subtracting the mean would shift every quantile.

    Attributes
    ----------
    name : {"gaussian", "student", "empirical"}
    centres, widths, shares : arrays of shape (J,)
        Means, standard deviations and shares of the Gaussian components; shares sum to one.
    tail : float
        Weight w of the t distribution.
    degrees : float
        Degrees of freedom of the t distribution.

    Examples
    --------
    >>> GAUSSIAN.ppf([0.025, 0.5]).round(3).tolist()
    [-1.96, 0.0]
    """

    name: str
    centres: Array
    widths: Array
    shares: Array
    tail: float = 0.0
    degrees: float = math.inf

    @property
    def _tail_scale(self) -> float:
        """Scale of the t distribution at which its variance is one."""
        return math.sqrt((self.degrees - 2.0) / self.degrees) if self.tail > 0.0 else 1.0

    @property
    def mean(self) -> float:
        """Mean of the distribution."""
        return (1.0 - self.tail) * float(self.shares @ self.centres)

    @property
    def std(self) -> float:
        """Standard deviation of the distribution around its mean."""
        return math.sqrt(1.0 - self.mean**2)

    def cdf(self, z: ArrayLike) -> Array:
        """Return the probability of values up to z, in the shape of z."""
        z = np.asarray(z, dtype=np.float64)
        F = np.zeros_like(z)
        if self.tail < 1.0:
            F += (1.0 - self.tail) * self._average(z, special.ndtr)
        if self.tail > 0.0:
            F += self.tail * special.stdtr(self.degrees, z / self._tail_scale)
        return F

    def logpdf(self, z: ArrayLike) -> Array:
        """Return the log density at z, in the shape of z."""
        z = np.asarray(z, dtype=np.float64)
        log_body = np.full(z.shape, -np.inf)
        if self.tail < 1.0:
            log_body = math.log1p(-self.tail) + self._log_average_density(z)
        if self.tail == 0.0:
            return log_body
        s = self._tail_scale
        log_tail = math.log(self.tail) + _log_student(z / s, self.degrees) - math.log(s)
        return np.logaddexp(log_body, log_tail)

    def ppf(self, levels: ArrayLike) -> Array:
        """Return quantiles at ``levels`` between 0 and 1, in the shape of ``levels``."""
        p = np.asarray(levels, dtype=np.float64)
        if p.size > _FEW_LEVELS:
            return self._quantiles(p)
        key = (p.shape, p.tobytes())
        z = self._known_quantiles.get(key)
        if z is None:
            z = self._quantiles(p)
            if len(self._known_quantiles) >= _KNOWN_LEVELS:
                self._known_quantiles.clear()
            self._known_quantiles[key] = z
        return z.copy()

    @cached_property
    def _known_quantiles(self) -> dict[tuple[tuple[int, ...], bytes], Array]:
        """Quantiles by shape and bytes of the levels; pickles and files do not contain them."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known_quantiles"}

    def _quantiles(self, p: Array) -> Array:
        """Return quantiles at levels between 0 and 1."""
        if self.name == "gaussian":
            return special.ndtri(p)
        if self.tail == 1.0:
            return self._tail_scale * special.stdtrit(self.degrees, p)
        # Upper quantiles come from the mirror image: near one, 1 - p is exact but the cdf is not.
        mirror = replace(self, centres=-self.centres)
        z, upper = np.empty_like(p), p > 0.5
        z[~upper] = self._lower_quantiles(p[~upper])
        z[upper] = -mirror._lower_quantiles(1.0 - p[upper])
        return z

    def _lower_quantiles(self, p: Array) -> Array:
        """Return quantiles at levels up to one half, by Newton's method between two bounds.

        A step that leaves the bounds, which every evaluation narrows, is replaced by their middle.
        """
        left, right = -2.0 * np.ones_like(p), np.full_like(p, float(self.widths.max()) + 10.0)
        while (above := self.cdf(left) > p).any():
            left = np.where(above, 2.0 * left, left)
        while (below := self.cdf(right) < p).any():
            right = np.where(below, 2.0 * right, right)
        z = 0.5 * (left + right)
        for _ in range(80):
            excess = self.cdf(z) - p
            above = excess > 0.0
            left, right = np.where(above, left, z), np.where(above, z, right)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                step = z - excess / self._density(z)
            inside = (step > left) & (step < right)
            new = np.where(inside, step, 0.5 * (left + right))
            settled = np.abs(new - z) <= 1e-14 * (1.0 + np.abs(z))
            z = new
            if settled.all():
                break
        return z

    def sample(self, size: tuple[int, ...], rng: np.random.RandomState) -> Array:
        """Draw independent values."""
        if self.name == "gaussian":
            return rng.standard_normal(size)
        if self.tail == 1.0:
            return self._tail_scale * rng.standard_t(self.degrees, size)
        which = rng.choice(len(self.centres), size=size, p=self.shares)
        draws = self.centres[which] + self.widths[which] * rng.standard_normal(size)
        if self.tail > 0.0:
            from_tail = rng.random_sample(size) < self.tail
            draws = np.where(
                from_tail, self._tail_scale * rng.standard_t(self.degrees, size), draws
            )
        return draws

    def _density(self, z: Array) -> Array:
        """Return the density at a few z; :meth:`logpdf` is exact far in the tails as well."""
        x = (z[..., None] - self.centres) / self.widths
        body = np.exp(-0.5 * x**2) @ (self.shares / self.widths) / math.sqrt(2.0 * math.pi)
        if self.tail == 0.0:
            return np.asarray(body)
        s = self._tail_scale
        far = np.exp(_log_student(z / s, self.degrees)) / s
        return np.asarray((1.0 - self.tail) * body + self.tail * far)

    def _average(self, z: Array, of: Callable[[Array], Array]) -> Array:
        if z.size <= 10_000:  # few enough to be compared with all components at once
            return of((z[..., None] - self.centres) / self.widths) @ self.shares
        total = np.zeros_like(z)
        for q, h, p in zip(self.centres, self.widths, self.shares, strict=True):
            total += p * of((z - q) / h)
        return total

    def _log_average_density(self, z: Array) -> Array:
        total = np.full(z.shape, -np.inf)
        for q, h, p in zip(self.centres, self.widths, self.shares, strict=True):
            total = np.logaddexp(total, math.log(p / h) - 0.5 * ((z - q) / h) ** 2)
        return total - 0.5 * math.log(2.0 * math.pi)


_ONE = (np.zeros(1), np.ones(1), np.ones(1))

GAUSSIAN = Shape("gaussian", *_ONE)


def gaussian_shape(
    z: Array, weight: Array, moment: float = 1.0, settings: ShapeSettings = DEFAULTS.shape
) -> Shape:
    """Return the Gaussian for any z-scores."""
    return GAUSSIAN


def _log_student(z: Array, nu: float) -> Array:
    r"""Return the log density of Student's t distribution,

    .. math::

        \log \Gamma(\tfrac{\nu + 1}2) - \log \Gamma(\tfrac \nu2) - \tfrac12 \log(\pi \nu)
        - \tfrac{\nu + 1}2 \log(1 + z^2 / \nu) .
    """
    constant = special.gammaln(0.5 * (nu + 1.0)) - special.gammaln(0.5 * nu)
    constant -= 0.5 * math.log(math.pi * nu)
    return np.asarray(constant - 0.5 * (nu + 1.0) * np.log1p(z**2 / nu))


def _with_moment(z: Array, weight: Array, moment: float) -> Array:
    """Return z-scores scaled to a given second moment."""
    own = max(float(weight @ z**2 / weight.sum()), np.finfo(float).tiny)
    return math.sqrt(moment / own) * z


def student_shape(
    z: Array, weight: Array, moment: float = 1.0, settings: ShapeSettings = DEFAULTS.shape
) -> Shape:
    r"""Return the t distribution of variance one with the degrees of freedom of largest likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).standard_t(5, size=20_000)
    >>> 4.5 < student_shape(z, np.ones(len(z))).degrees < 5.5
    True
    """
    z = _with_moment(z, weight, moment)

    def loss(log_degrees: float) -> float:
        nu = math.exp(log_degrees)
        s = math.sqrt((nu - 2.0) / nu)
        return -float(weight @ (_log_student(z / s, nu) - math.log(s)))

    low, high = (math.log(nu) for nu in DEGREES)
    found = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded")
    nu = float(math.exp(found.x))
    return Shape("student", *_ONE, tail=1.0, degrees=nu)


def empirical_shape(
    z: Array, weight: Array, moment: float = 1.0, settings: ShapeSettings = DEFAULTS.shape
) -> Shape:
    r"""Return the smoothed distribution of z-scores, with the tails of the fitted t distribution.

    Parameters
    ----------
    z, weight : arrays of shape (n,)
    moment : float
        Second moment :math:`\kappa` that the z-scores are scaled to, at most one.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).exponential(size=20_000) - 1.0
    >>> shape = empirical_shape(z, np.ones(len(z)))
    >>> float(np.abs(shape.ppf([0.1, 0.5, 0.9]) - (-np.log([0.9, 0.5, 0.1]) - 1)).max().round(1))
    0.0
    """
    z = _with_moment(z, weight, moment)
    n = float(weight.sum())
    # Equal z-scores are merged and their weights added, since a weight is a number of repeats.
    z, distinct = np.unique(z, return_inverse=True)
    w = np.bincount(distinct, weights=weight) / n
    edges = bin_edges(n, settings)
    # A row on an edge is divided between the two bins.
    mass = np.concatenate([[0.0], np.cumsum(w)])
    sums = np.concatenate([[0.0], np.cumsum(w * z)])
    p = np.diff(edges)
    q = np.diff(np.interp(edges, mass / mass[-1], sums)) / p
    quartiles = np.interp([0.25, 0.75], mass[1:] - 0.5 * w, z)
    spread = min(math.sqrt(moment), float(quartiles[1] - quartiles[0]) / 1.349)
    bandwidth = max(settings.bandwidth * 0.9 * spread * n**-0.2, 1e-6)
    h = np.maximum(bandwidth, settings.overlap * np.gradient(q))
    # Smoothing has changed the second moment; this restores it.
    scale = math.sqrt(moment / float(p @ (q**2 + h**2)))
    tail = settings.tail_rows / (n + settings.tail_rows)
    degrees = student_shape(z, w, moment).degrees
    centres, widths, shares = scale * q, scale * h, p
    if moment < 1.0:
        wide = math.sqrt((1.0 - (1.0 - tail) * moment) / tail)
        centres, widths = np.append(centres, 0.0), np.append(widths, wide)
        shares = np.append((1.0 - tail) * shares, tail)
    return Shape("empirical", centres, widths, shares, tail, degrees)


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


#: Functions that fit each shape, simplest first.
MAKERS: Mapping[str, Callable[[Array, Array, float, ShapeSettings], Shape]] = {
    "gaussian": gaussian_shape,
    "student": student_shape,
    "empirical": empirical_shape,
}


def crps(shape: Shape, z: Array) -> Array:
    r"""Return the continuous ranked probability score of each z-score, a mean of pinball losses.

    .. math::

        \mathrm{CRPS}(F, z) = 2 \int_0^1 (\mathbf 1\{z < F^{-1}(p)\} - p)\,(F^{-1}(p) - z)\, dp
    """
    q = shape.ppf(SCORE_LEVELS)
    score = np.zeros_like(z)
    for level, quantile in zip(SCORE_LEVELS, q, strict=True):
        score += np.where(z < quantile, 1.0 - level, level) * np.abs(quantile - z)
    return 2.0 * score / len(q)


def choose_shape(
    z: Array,
    weight: Array,
    folds: NDArray[np.int64],
    moment: float = 1.0,
    settings: ShapeSettings = DEFAULTS.shape,
) -> tuple[Shape, dict[str, float]]:
    """Return the shape with the best score on held-out folds.

    Parameters
    ----------
    z : array of shape (n,)
        Held-out z-scores under the final sigma.
    weight : array of shape (n,)
    folds : integer array of shape (n,)
    moment : float
        Second moment of the z-scores: less than one if sigma is at the noise floor.

    Returns
    -------
    shape : Shape
        Fitted to all z-scores.
    scores : dict
        Mean held-out score by name, in units of sigma.
    """
    numbers = np.unique(folds)
    if len(numbers) < 2:
        return GAUSSIAN, {}
    makers = {name: MAKERS[name] for name in settings.names}
    if weight.sum() < settings.fewest:
        makers.pop("empirical", None)
    losses = {name: np.empty(len(z)) for name in makers}
    for fold in numbers:
        out = folds == fold
        for name, make in makers.items():
            losses[name][out] = crps(make(z[~out], weight[~out], moment, settings), z[out])
    share = weight / weight.sum()
    best = settings.names[0]
    for name in list(makers)[1:]:
        difference = losses[name] - losses[best]
        gain = float(share @ difference)
        error = math.sqrt(float(share @ (difference - gain) ** 2 / weight.sum()))
        if gain < -settings.standard_errors * error:
            best = name
    return makers[best](z, weight, moment, settings), {
        name: float(share @ loss) for name, loss in losses.items()
    }
