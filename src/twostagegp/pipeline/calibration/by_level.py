r"""Intervals that hold in every level of a column: a factor of the variance per level.

The common calibration holds over all rows together. If the noise differs between the levels of a
column (the sex of a patient, the make of an instrument), its intervals may be too wide in one level
and too narrow in another. From the held-out z-scores :math:`z_i` of the common calibration, with
weights :math:`w_i`, the log variance :math:`\theta_l` of level l is estimated by the robust
equation

.. math::

    \sum_{i \in l} w_i \,(u_i - 1) = 0, \qquad
    u_i = \frac{(\nu + 1)\, r_i}{\nu + r_i}, \quad r_i = z_i^2 e^{-\theta_l} ,

which is the mean of the squares for :math:`\nu = \infty`; a finite :math:`\nu` bounds what a single
outlier can do. From :math:`n_l = \tau \sum_{i \in l} w_i` effective rows, the estimate
:math:`\hat\theta_l` has the sampling variance

.. math::

    V_l = \frac K{n_l}, \qquad
    K = \frac{\overline{(u - 1)^2}}{\big( \overline{u\, \nu / (\nu + r)} \big)^2} \ge 2 ,

with means over all rows; for :math:`\nu = \infty`, K is the kurtosis minus one. (If rows come in
groups, the residuals of a group may share an error: the numerator is then a mean over groups.)
:math:`K / (2 \sum w_i)` is added to :math:`\hat\theta_l`, since the logarithm of a mean is too
small on average.

**Few rows of a level say little about it.** Between levels the :math:`\theta_l` have an unknown
mean :math:`\mu` and variance :math:`s^2`. With a uniform prior of :math:`\mu` and a half-normal one
of s,

.. math::

    p(s \mid \hat\theta) \propto e^{-s^2 / 2 s_0^2}\;
    \Big( \sum_l \frac1{V_l + s^2} \Big)^{-1/2} \prod_l (V_l + s^2)^{-1/2}
    \exp\Big( {-\frac12} \sum_l \frac{(\hat\theta_l - \mu_s)^2}{V_l + s^2} \Big) , \qquad
    \mu_s = \frac{\sum_l \hat\theta_l / (V_l + s^2)}{\sum_l 1 / (V_l + s^2)} ,

and the shrunken factor of level l is

.. math::

    f_l = \Big( \frac{e^{\hat\theta_l}}{a} \Big)^{\lambda_l}, \qquad
    \lambda_l = E_s \frac{s^2}{s^2 + V_l}, \qquad
    a = \frac1L \sum_l e^{\mu + \lambda_l (\hat\theta_l - \mu)}, \quad \mu = E_s\, \mu_s .

a is the average variance of a level. A level with many rows has its own factor
(:math:`\lambda \to 1`), a level with few has nearly :math:`f = 1`, and so has a level that was not
in the training rows. If levels differ by no more than chance explains, s is probably small and all
factors are near 1. The common scale and the shape of the distribution are learned afterwards from
:math:`z_i / \sqrt{f_{l(i)}}`, so they remain right over all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostagegp.data.columns.levels import Levels
from twostagegp.pipeline.settings import DEFAULTS, LevelSettings

__all__ = ["LevelFactors", "fit_level_factors", "log_variances", "shrink"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Values of s over which the posterior is summed.
_GRID = np.geomspace(1e-3, 6.0, 240)


@dataclass(frozen=True)
class LevelFactors:
    """Factors of the predictive variance, one per level of a column.

    Attributes
    ----------
    levels : Levels
        The column and its L levels.
    factor : array of shape (L,)
        Shrunken factor of each level.
    own : array of shape (L,)
        The factor without shrinkage; 1 without held-out rows.
    rows : array of shape (L,)
        Total weight of the held-out rows of each level.
    spread : float
        Standard deviation s of the log variances between levels.
    of_row : integer array of shape (n,)
        Level number of each held-out row of the table.
    """

    levels: Levels
    factor: Array
    own: Array
    rows: Array
    spread: float
    of_row: Index

    @property
    def heldout_factor(self) -> Array:
        """Factor of each held-out row, shape (n,)."""
        return self.factor[self.of_row]

    @property
    def label(self) -> str:
        """Readable summary."""
        low, high = float(self.factor.min()), float(self.factor.max())
        return f"{len(self.levels)} levels of {self.levels.column!r}, {low:.2f} to {high:.2f}"

    def at(self, X: Any) -> Any:
        """Return the factors at standardised rows, 1 for an unseen level.

        X is an array or Tensor of shape (..., d), and so is the result, of shape (...).
        """
        number = self.levels.numbers(X)
        padded = np.append(self.factor, 1.0)  # the number of an unseen level is -1: the last entry
        if isinstance(X, Tensor):
            return torch.as_tensor(padded, device=X.device)[number]
        return padded[number]


def fit_level_factors(
    levels: Levels,
    z: Array,
    weight: Array,
    of_row: Index,
    groups: Index | None = None,
    settings: LevelSettings = DEFAULTS.levels,
) -> LevelFactors:
    """Learn the factors from held-out z-scores, by the module's formulas.

    Parameters
    ----------
    levels : Levels
    z, weight : arrays of shape (n,)
        Held-out z-scores under the common calibration, and weights.
    of_row : integer array of shape (n,)
        Level of each row.
    groups : integer array of shape (n,), optional
        Rows of a group may share an error.
    settings : LevelSettings

    Examples
    --------
    >>> import numpy as np
    >>> levels = Levels("kind", ["a", "b"], np.array([0]), np.array([[0.0], [1.0]]))
    >>> of_row = np.repeat([0, 1], 5000)
    >>> z = np.random.default_rng(0).normal(size=10_000) * np.array([1.0, 2.0])[of_row]
    >>> found = fit_level_factors(levels, z, np.ones(10_000), of_row)
    >>> round(float(found.factor[1] / found.factor[0]), 1)
    4.0
    """
    L = len(levels)
    rows: Array = np.bincount(of_row, weights=weight, minlength=L).astype(np.float64)
    used = rows > 0.0
    factor, own, s = np.ones(L), np.ones(L), 0.0
    if used.sum() > 1 and (z[weight > 0.0] != 0.0).any():
        theta, K = log_variances(z, weight, of_row, L, groups, settings)
        V: Array = K / (settings.information * rows[used])
        factor[used], average, s = shrink(theta[used], V, settings)
        own[used] = np.exp(theta[used]) / average
    return LevelFactors(levels, factor, own, rows, s, of_row)


def log_variances(
    z: Array,
    weight: Array,
    of_row: Index,
    L: int,
    groups: Index | None = None,
    settings: LevelSettings = DEFAULTS.levels,
) -> tuple[Array, float]:
    r"""Return :math:`\hat\theta` of each level, shape (L,), 0 without rows; and K.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(size=100_000)
    >>> theta, K = log_variances(z, np.ones(len(z)), np.zeros(len(z), dtype=int), 1)
    >>> bool(2.0 <= K < 2.3)
    True
    """
    nu = settings.degrees
    rows = np.bincount(of_row, weights=weight, minlength=L)
    used = rows > 0.0
    squares = z**2
    # Residuals of exactly zero in a level must not give it a variance of zero.
    squares = np.maximum(squares, settings.smallest * float(weight @ squares / weight.sum()))
    theta = np.zeros(L)

    def level_mean(values: Array) -> Array:
        return np.bincount(of_row, weights=weight * values, minlength=L)[used] / rows[used]

    theta[used] = np.log(level_mean(squares))
    for _ in range(500):
        r = squares * np.exp(-theta[of_row])
        step = np.log(level_mean((nu + 1.0) * r / (nu + r)))
        theta[used] += step
        if np.abs(step).max() < 1e-10:
            break
    r = squares * np.exp(-theta[of_row])
    u = (nu + 1.0) * r / (nu + r)
    total = float(weight.sum())
    freedom = max(total - float(used.sum()), 1.0)  # one number per level was fitted
    error = float(weight @ (u - 1.0) ** 2)
    if groups is not None:
        _, both = np.unique(of_row + L * groups, return_inverse=True)
        error = max(error, float((np.bincount(both, weights=weight * (u - 1.0)) ** 2).sum()))
    slope = float(weight @ (u * nu / (nu + r))) / total
    K = max(error / freedom / slope**2, 2.0)
    # An expansion for many rows; for a fraction of a row it means nothing.
    theta[used] += np.minimum(K / (2.0 * rows[used]), 1.0)
    return theta, K


def shrink(
    theta: Array, V: Array, settings: LevelSettings = DEFAULTS.levels
) -> tuple[Array, float, float]:
    """Return the shrunken factors of levels, their average variance a, and the mean of s.

    Parameters
    ----------
    theta : array of shape (L,)
        Estimated log variances, of at least two levels.
    V : array of shape (L,)
        Sampling variances of these.
    settings : LevelSettings

    Examples
    --------
    >>> import numpy as np
    >>> factor, average, s = shrink(np.array([0.0, 2.0, 2.0]), np.array([1e-6, 1e-6, 1e6]))
    >>> (factor * average).round(2).tolist()  # the first two keep theirs, the last is average
    [1.0, 7.39, 3.7]
    """
    total = V + _GRID[:, None] ** 2
    precision = (1.0 / total).sum(1)
    mu = (theta / total).sum(1) / precision
    log_p = -0.5 * (np.log(total).sum(1) + np.log(precision))
    log_p -= 0.5 * ((theta - mu[:, None]) ** 2 / total).sum(1)
    log_p += np.log(_GRID) - 0.5 * (_GRID / settings.prior_spread) ** 2  # per unit of log s
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    share = p @ (_GRID[:, None] ** 2 / total)
    centre = float(p @ mu)
    average = float(np.exp(centre + share * (theta - centre)).mean())
    return np.exp(share * (theta - np.log(average))), average, float(p @ _GRID)
