r"""Whether a prediction is certain: a paired t-test between the two leading classes.

With sampled probabilities :math:`p_1^s, p_2^s`, s = 1, ..., S, of the two classes with the largest
mean probability and differences :math:`d_s = p_1^s - p_2^s`,

.. math::

    t = \frac{\bar d}{\mathrm{sd}(d) / \sqrt S}

has S - 1 degrees of freedom; the test is two-sided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["leading_pvalues"]

Array = NDArray[np.float64]


def leading_pvalues(samples: Array) -> Array:
    """Return the p-value of each row, shape (n,); zero if there is only one class.

    Parameters
    ----------
    samples : array of shape (S, n, K)

    Examples
    --------
    >>> steady = [[[0.6, 0.4]], [[0.7, 0.3]], [[0.65, 0.35]]]
    >>> torn = [[[0.9, 0.1]], [[0.2, 0.8]], [[0.5, 0.5]]]
    >>> leading_pvalues(np.concatenate([steady, torn], axis=1)) < 0.05
    array([ True, False])
    """
    S, n, K = samples.shape
    if K < 2:
        return np.zeros(n)
    lead = np.argsort(-samples.mean(0), axis=1, kind="stable")
    rows = np.arange(n)
    d = samples[:, rows, lead[:, 0]] - samples[:, rows, lead[:, 1]]
    mean, spread = d.mean(0), d.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / (spread / np.sqrt(S))
    p = 2.0 * stats.t.sf(np.abs(t), S - 1)
    # Without any spread the prediction is certain, unless the two probabilities are equal.
    return np.where(spread > 0.0, p, np.where(mean > 0.0, 0.0, 1.0))
