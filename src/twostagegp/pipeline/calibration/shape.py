r"""The shape of a predictive distribution: how observations lie around their mean, in sigmas.

An observation at x is :math:`y = \mu(x) + \sigma(x) Z`. Z has the same distribution F for all rows,
with :math:`E Z^2 = 1`: the mean squared error of :math:`\mu(x)` is :math:`\sigma^2(x)`. F is a
mixture of Gaussian components and one t distribution,

.. math::

    F(z) = (1 - w) \sum_{j=1}^J p_j \Phi\Big(\frac{z - q_j}{h_j}\Big) + w\, T_\nu(z / s) ,

with a positive density everywhere, so that quantiles never cross. The Gaussian (w = 0, one
component) and the t distribution (w = 1) are special cases.
:mod:`twostagegp.pipeline.calibration.shape_fit` learns F from held-out z-scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

__all__ = ["GAUSSIAN", "Shape", "log_student"]

Array = NDArray[np.float64]

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
    spread : float or None
        Scale s of the t distribution; None is the one at which its variance is one.

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
    spread: float | None = None

    @property
    def components(self) -> tuple[Array, Array, Array]:
        """Centres, widths and shares of the Gaussian components."""
        return self.centres, self.widths, self.shares

    @property
    def _tail_scale(self) -> float:
        if self.spread is not None:
            return self.spread
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
        log_tail = math.log(self.tail) + log_student(z / s, self.degrees) - math.log(s)
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

    @cached_property
    def kept(self) -> dict[str, Any]:
        """A cache for tables that are made from the shape; pickles and files do not contain it."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        caches = ("_known_quantiles", "kept")
        return {name: value for name, value in self.__dict__.items() if name not in caches}

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

        A step that leaves the bounds, which every evaluation narrows, is replaced by their middle,
        and so is a step after one that has not halved the error.
        """
        left, right = -2.0 * np.ones_like(p), np.full_like(p, float(self.widths.max()) + 10.0)
        while (above := self.cdf(left) > p).any():
            left = np.where(above, 2.0 * left, left)
        while (below := self.cdf(right) < p).any():
            right = np.where(below, 2.0 * right, right)
        z = 0.5 * (left + right)
        done, before = np.zeros(p.shape, dtype=bool), np.full_like(p, np.inf)
        for _ in range(200):
            excess = self.cdf(z) - p
            size = np.abs(excess)
            done |= size <= 4.0 * np.finfo(float).eps * p
            above = excess > 0.0
            left, right = np.where(above, left, z), np.where(above, z, right)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                step = z - excess / self.pdf(z)
            newton = (step > left) & (step < right) & (size <= 0.5 * before)
            new = np.where(newton, step, 0.5 * (left + right))
            settled = np.abs(new - z) <= 1e-14 * (1.0 + np.abs(z))
            z, before = np.where(done, z, new), size
            done |= settled
            if done.all():
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

    def pdf(self, z: Array) -> Array:
        """Return the density at a few z; :meth:`logpdf` is exact far in the tails as well."""
        x = (z[..., None] - self.centres) / self.widths
        body = np.exp(-0.5 * x**2) @ (self.shares / self.widths) / math.sqrt(2.0 * math.pi)
        if self.tail == 0.0:
            return np.asarray(body)
        s = self._tail_scale
        far = np.exp(log_student(z / s, self.degrees)) / s
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


def log_student(z: Array, nu: float) -> Array:
    r"""Return the log density of Student's t distribution,

    .. math::

        \log \Gamma(\tfrac{\nu + 1}2) - \log \Gamma(\tfrac \nu2) - \tfrac12 \log(\pi \nu)
        - \tfrac{\nu + 1}2 \log(1 + z^2 / \nu) .
    """
    constant = special.gammaln(0.5 * (nu + 1.0)) - special.gammaln(0.5 * nu)
    constant -= 0.5 * math.log(math.pi * nu)
    return np.asarray(constant - 0.5 * (nu + 1.0) * np.log1p(z**2 / nu))
