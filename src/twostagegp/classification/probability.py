r"""From latents to probabilities: the mean of a softmax under a Gaussian.

.. math::

    p_k(x) = \int \frac{e^{f_k}}{\sum_j e^{f_j}}\, N(f;\, \mu(x), \mathrm{diag}\, v(x))\, df .

*Sampling* takes the mean over S draws of f. All rows use the same standard normal draws, so that
the probability of a row does not depend on the other rows of a call. *Quadrature* is deterministic.
For two classes the difference of the latents is Gaussian, and the trapezoidal rule integrates over
it (error below 1e-7 up to a standard deviation of 40, where the sigmoid is nearly a step and
Gauss-Hermite nodes have errors of percents). For more classes, points of a Sobol sequence replace
the draws.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri, softmax
from scipy.stats import qmc

__all__ = ["mean_softmax", "quadrature_softmax", "sampled_softmax", "sobol_normals"]

Array = NDArray[np.float64]

#: Two classes: number of nodes, and the standard deviations that they reach to. More classes:
#: logarithm to base 2 of the number of points.
NODES, REACH, LOG_POINTS = 513, 8.0, 10
#: Most entries of a (draws, rows, classes) array in memory at a time.
_BLOCK_ENTRIES = 1 << 23


def sampled_softmax(mean: Array, variance: Array, draws: Array) -> Array:
    """Return the probabilities under every draw, shape (S, n, K).

    Parameters
    ----------
    mean, variance : arrays of shape (n, K)
    draws : array of shape (S, K)
        Standard normal.
    """
    return np.asarray(softmax(mean + np.sqrt(variance) * draws[:, None, :], axis=2))


def mean_softmax(
    mean: Array, variance: Array, draws: Array, block_entries: int = _BLOCK_ENTRIES
) -> Array:
    """Return the mean of the softmax over the draws, shape (n, K), computed in blocks of rows.

    Examples
    --------
    >>> mean_softmax(np.zeros((1, 2)), np.ones((1, 2)), sobol_normals(2)).round(3).tolist()
    [[0.5, 0.5]]
    """
    n, K = mean.shape
    P = np.empty((n, K))
    size = max(1, block_entries // (len(draws) * K))
    for begin in range(0, n, size):
        part = slice(begin, begin + size)
        P[part] = sampled_softmax(mean[part], variance[part], draws).mean(0)
    return P


@lru_cache(maxsize=32)
def sobol_normals(K: int, log_points: int = LOG_POINTS) -> Array:
    """Return quasi-random standard normal points in K dimensions, shape (2**log_points, K)."""
    points = qmc.Sobol(K, scramble=True, rng=np.random.default_rng(0)).random_base2(log_points)
    return np.asarray(ndtri(points))


def quadrature_softmax(mean: Array, variance: Array) -> Array:
    """Return the mean of the softmax without random draws, shape (n, K).

    Examples
    --------
    >>> quadrature_softmax(np.array([[0.0, 2.0]]), np.zeros((1, 2))).round(4).tolist()
    [[0.1192, 0.8808]]
    """
    if mean.shape[1] != 2:
        return mean_softmax(mean, variance, sobol_normals(mean.shape[1]))
    nodes = np.linspace(-REACH, REACH, NODES)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    difference = mean[:, 1] - mean[:, 0]
    spread = np.sqrt(variance.sum(1))
    second = np.empty(len(mean))
    size = max(1, _BLOCK_ENTRIES // NODES)
    for begin in range(0, len(mean), size):
        part = slice(begin, begin + size)
        at = difference[part, None] + spread[part, None] * nodes
        second[part] = expit(at) @ weights
    return np.column_stack([1.0 - second, second])
