r"""Decide when the ranking of kernels is unlikely to change, so that a search can stop.

After r of R repetitions on common subsamples let :math:`d_1 \dots d_r` be the differences of two
kernels' scores, with mean :math:`\bar d > 0` and standard deviation s. The mean over all R
repetitions changes its sign only if the R - r others have a mean below
:math:`-r \bar d / (R - r)`. Given the first r, their mean is a Student-t variable with r - 1
degrees of freedom, location :math:`\bar d` and scale :math:`s \sqrt{1/r + 1/(R-r)}`, so that

.. math::

    P(\text{sign changes}) = F_{t, r-1} \Big( -\frac{\bar d}{s} \sqrt{\frac{R\, r}{R - r}} \Big) .

This assumes that the differences are independent and normal, as a t-test does.

The probabilities are added up over pairs of kernels that are adjacent in the ranking. If the
ranking is checked several times, each check gets an equal part of the permitted error probability.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

__all__ = ["checkpoints", "probability_of_rank_change"]

Array = NDArray[np.float64]


def checkpoints(n_repeats: int, first: int = 8) -> list[int]:
    """Return the numbers of repetitions after which the ranking is checked.

    Each is twice the one before; the last is ``n_repeats``.

    Examples
    --------
    >>> checkpoints(100)
    [8, 16, 32, 64, 100]
    """
    counts, count = [], first
    while count < n_repeats:
        counts.append(count)
        count *= 2
    return [*counts, n_repeats]


def probability_of_rank_change(scores: Array, n_repeats: int) -> float:
    """Return a bound on the probability that further repetitions change the ranking.

    Parameters
    ----------
    scores : array of shape (kernels, r)
        Scores on common subsamples, one row per kernel; kernels are ranked by their means.
    n_repeats : int
        R, the planned number of repetitions.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=(2, 10))
    >>> probability_of_rank_change(noise + np.array([[0.0], [50.0]]), 100) < 1e-6
    True
    >>> probability_of_rank_change(noise, 100) > 0.01
    True
    """
    r = scores.shape[1]
    if r >= n_repeats or len(scores) < 2:
        return 0.0
    if r < 2:
        return 1.0
    ordered = scores[np.argsort(scores.mean(1))]
    difference = np.diff(ordered, axis=0)
    mean, spread = difference.mean(1), difference.std(1, ddof=1)
    reach = np.sqrt(n_repeats * r / (n_repeats - r))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean > 0.0, mean / spread * reach, 0.0)
    return float(student.cdf(-t, r - 1).sum())
