r"""One factor on the variance, from held-out z-scores.

With held-out residuals :math:`r_i` and held-out variances :math:`v_i` let
:math:`z_i = r_i / \sqrt{v_i}`. The calibrated variance is :math:`c\, \hat\sigma^2(x)` with

.. math::

    c = \Big( \frac{q_{0.95}(|z|)}{\Phi^{-1}(0.975)} \Big)^2 ,

so that 95 % intervals hold on rows that were held out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

__all__ = ["Calibration", "scale_from_quantile"]

Array = NDArray[np.float64]

#: Level of the intervals that the factor makes right on held-out rows.
LEVEL = 0.95


@dataclass(frozen=True)
class Calibration:
    """What the calibration learned.

    Attributes
    ----------
    kind : str
        ``"scale"`` or ``"none"``.
    factor : float
        Multiplies every predictive variance.
    z : array of shape (n,)
        Held-out z-scores before the factor, one a training row.
    note : str
        Why the kind is not the one asked for, if so.
    """

    kind: str
    factor: float
    z: Array
    note: str = ""

    @property
    def z_calibrated(self) -> Array:
        """Held-out z-scores after the factor."""
        return self.z / np.sqrt(self.factor)


def scale_from_quantile(z: Array, weight: Array | None = None, level: float | None = None) -> float:
    r"""The factor c of the module's formula from (weighted) z-scores.

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(scale=2.0, size=100_000)
    >>> bool(abs(scale_from_quantile(z) - 4.0) < 0.1)
    True
    """
    level = LEVEL if level is None else level
    order = np.argsort(np.abs(z))
    size = np.abs(z)[order]
    w = np.ones(len(z)) if weight is None else weight[order]
    # The (n + 1) rank of split conformal prediction: never below the nominal level.
    rank = np.searchsorted(np.cumsum(w), level * (w.sum() + 1.0))
    quantile = size[min(rank, len(size) - 1)]
    return float((quantile / norm.ppf(0.5 + level / 2.0)) ** 2)
