r"""A test on new rows, before they are added, of whether the model still predicts them correctly.

A new row has a predictive distribution F given the rows before it, and
:math:`z = \Phi^{-1}(F(y))` is standard normal if the model is correct. No model is exactly correct,
so the hypothesis is a band: normal z with :math:`|E z| \le 1/4`, :math:`E z^2 \le 5/4` and
:math:`\mathrm{Var}\, z \ge 4/5`. The evidence against it are ratios of normal densities beyond the
band and at its edge,

.. math::

    e_j(z) = \frac{N(z; \mu_j, \tau_j^2)}{N(z; m_j, s_j^2)} , \qquad E\, e_j(z) \le 1
    \text{ inside of the band,}

for errors that became larger, became smaller, or are biased. Their products over rows,
:math:`E_{jb}` for the rows of update b, may be inspected after every update. Since the update at
which a change begins is unknown, each possible beginning b has the weight
:math:`w_b = 1 / (b (b + 1))`,

.. math::

    S_{jb} = E_{jb}\, (S_{j,b-1} + w_b) , \qquad
    M_b = \frac1J \sum_j S_{jb} + \frac1{b + 1} .

M starts at one and is expected to fall inside of the band, so that it *ever* reaches
:math:`1/\alpha` with probability :math:`\alpha` at most, however many updates there are and however
many rows each has (Ville's inequality). That is for rows that are independent given the model; of
rows of one group only the geometric mean of their ratios counts, which is safe whatever their
dependence. z stops at ±3: a few wild rows are outliers, not a change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtri

from twostagegp.pipeline.calibration.shape import Shape

__all__ = ["BAND", "LEVEL", "evidence", "log_ratios", "normal_scores", "start_evidence"]

Array = NDArray[np.float64]

#: Largest probability that a model which holds is ever told to be refitted.
LEVEL = 0.01
#: z-scores stop here.
LARGEST = 3.0
#: Mean and variance beyond the band, and those at its edge.
BAND = (
    (0.0, 2.0, 0.0, 1.25),
    (0.0, 4.0, 0.0, 1.25),
    (0.0, 0.5, 0.0, 0.8),
    (0.0, 0.2, 0.0, 0.8),
    (0.75, 1.25, 0.25, 1.25),
    (-0.75, 1.25, -0.25, 1.25),
)


def normal_scores(shape: Shape, z: Array) -> Array:
    """Return z-scores of a shape as standard normal scores, clipped at ``LARGEST``.

    Examples
    --------
    >>> import numpy as np
    >>> from twostagegp.pipeline.calibration.shape import GAUSSIAN
    >>> normal_scores(GAUSSIAN, np.array([-1.0, 50.0])).round(6)
    array([-1.,  3.])
    """
    edge = 0.5 * math.erfc(LARGEST / math.sqrt(2.0))
    return np.asarray(ndtri(np.clip(shape.cdf(z), edge, 1.0 - edge)))


def log_ratios(z: Array) -> Array:
    """Return the logarithms of e in the module's formula, shape (n, J)."""
    mean, variance, edge_mean, edge_variance = np.array(BAND).T
    beyond = (z[:, None] - mean) ** 2 / variance + np.log(variance)
    edge = (z[:, None] - edge_mean) ** 2 / edge_variance + np.log(edge_variance)
    return 0.5 * (edge - beyond)


def start_evidence() -> list[float]:
    """Return log S before the first update."""
    return [-math.inf] * len(BAND)


def evidence(
    log_S: Sequence[float], number: int, z: Array, groups: NDArray[np.int64] | None = None
) -> tuple[list[float], float]:
    """Return the evidence after one more update.

    Parameters
    ----------
    log_S : sequence of float
        Log S of the module's formula after the update before.
    number : int
        Number of this update since the fit, from 1 on.
    z : array of shape (n,)
        Normal scores of its rows.
    groups : integer array of shape (n,), optional

    Returns
    -------
    log_S : list of float
    log_M : float

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> _, held = evidence(start_evidence(), 1, rng.normal(size=200))
    >>> _, drifted = evidence(start_evidence(), 1, 2.0 * rng.normal(size=200))
    >>> held < -math.log(LEVEL) < drifted
    True
    """
    ratios = log_ratios(z)
    if groups is not None:
        _, members = np.unique(groups, return_inverse=True)
        members = members.reshape(-1)
        ratios = ratios / np.bincount(members)[members][:, None]
    begun = np.logaddexp(np.asarray(log_S), -math.log(number * (number + 1.0)))
    after = ratios.sum(axis=0) + begun
    total = logsumexp(np.append(after - math.log(len(BAND)), -math.log(number + 1.0)))
    return [float(value) for value in after], float(total)
