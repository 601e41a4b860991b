r"""How fast the loss and its slope come close to their expectations.

With the appendix's loss, :math:`L = (y^\top K^{-1} y + \log\det K) / n`, and
:math:`y = U_* z`, :math:`U_* U_*^\top = K(\theta^*)`,

.. math::

    L - EL = \frac1n (z^\top \tilde K z - \mathrm{Tr} \tilde K), \quad
    \tilde K = U_*^\top K^{-1} U_*, \qquad
    \mathrm{sd}(L - EL) = \frac{\sqrt2}{n} \|\tilde K\|_F ,

and the same for the slope with :math:`\bar K = U_*^\top K^{-1} \partial K\, K^{-1} U_*`. At the
truth :math:`\|\tilde K\|_F = \sqrt n`, so the rate is :math:`n^{-1/2}`; without the square on the
Frobenius norm, as printed, it would be :math:`n^{-3/4}`. Rows come either into the same interval
(``infill``), where slopes concentrate faster because :math:`\|\bar K\|_F^2` grows slower than n, or
into one that grows with them (``growing``).
"""

from __future__ import annotations

import math

import numpy as np

from experiments.theory_expected import deviation
from experiments.theory_model import PARAMETERS, Array, covariance, inverse, log_theta
from measurements.store import Record

__all__ = ["DELTAS", "QUANTILE", "QUANTITIES", "measure_concentration"]

KERNEL = "matern32"
TRUE = log_theta(0.2, 1.0, 0.1)
ELSEWHERE = TRUE + np.log([1.5, 0.7, 2.0])
DELTAS = (0.1, 0.01)
#: The quantile whose rate is fitted.
QUANTILE = 0.9
#: Rows on an interval of length one where the interval grows with them.
_DENSITY = 8
_DRAWS = 4000
QUANTITIES = tuple(
    f"{what}, {where}"
    for where in ("true θ", "other θ")
    for what in ("loss", *(f"slope by {name}" for name in PARAMETERS))
)


def measure_concentration(design: str, n: int, seed: int) -> Record:
    """Return quantiles of the deviations, norms that bound them, and shares within each bound."""
    growing = design == "growing"
    rng = np.random.default_rng([seed, n, growing])
    length = n / _DENSITY if growing else 1.0
    X = np.sort(rng.uniform(0.0, length, size=(n, 1)), axis=0)
    U = np.linalg.cholesky(covariance(KERNEL, X, TRUE)[0])
    y = U @ rng.normal(size=(n, _DRAWS))
    found: list[Record] = []
    for theta in (TRUE, ELSEWHERE):
        K, dK = covariance(KERNEL, X, theta)
        A, _ = inverse(K)
        v = A @ y
        found.append(_judged(np.einsum("ij,ij->j", y, v), U.T @ A @ U))
        for D in dK:
            form = np.einsum("ij,ij->j", v, D @ v)
            found.append(_judged(form, U.T @ (A @ D @ A) @ U))
    return {"quantities": dict(zip(QUANTITIES, found, strict=True))}


def _judged(forms: Array, M: Array) -> Record:
    """Return the record of one quantity; ``forms`` are draws of z'Mz."""
    n = len(M)
    values = np.linalg.eigvalsh(M)
    away = np.abs(forms - values.sum()) / n
    frobenius, largest = float(np.sqrt(np.sum(values**2))), float(np.abs(values).max())
    record: Record = {
        "quantile": float(np.quantile(away, QUANTILE)),
        "sd": float(np.sqrt(np.mean(away**2))),
        "frobenius": frobenius,
        "largest": largest,
        "trace": float(values.sum()),
    }
    for delta in DELTAS:
        right, printed = (
            deviation(frobenius, largest, n, delta, square) for square in (True, False)
        )
        quantile = float(np.quantile(away, 1.0 - delta))
        record[f"at_{delta:g}"] = {
            "quantile": quantile,
            "right": right,
            "printed": printed,
            "inside_right": float((away < right).mean()),
            "inside_printed": float((away < printed).mean()),
            # The corollary at the truth as it stands twice, without its C.
            "inside_without_c": float((away < math.sqrt(2.0 * math.log(2.0 / delta) / n)).mean()),
            # The C without which the printed bound fails: were it universal, it would not grow.
            "c_needed": (n * quantile) ** 2 / (2.0 * frobenius * math.log(2.0 / delta)),
        }
    return record
