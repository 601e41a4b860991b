r"""Theorem 3: the true hyperparameters and the expected loss.

:math:`EL(\theta) - EL(\theta^*)` is the Kullback–Leibler divergence of :math:`N(0, K(\theta^*))`
from :math:`N(0, K(\theta))`, divided by n. So :math:`\theta^*` is a minimum for every n, of all
parameters together, and not a local one only. There the slope vanishes and the curvature is

.. math::

    \frac{\partial^2 EL}{\partial \theta_i \partial \theta_j}
        = \frac1{2n} \mathrm{Tr}(K^{-1} \partial_i K\, K^{-1} \partial_j K) ,

where the paper prints :math:`\mathrm{Tr}(K^{-1} K^{-1} \partial K\, \partial K)` for the
lengthscale. The last part of the theorem says that :math:`L(\theta^*) \le L(\theta) + \epsilon`.
There L is the appendix's, :math:`(y^\top K^{-1} y + \log\det K) / n`, twice that of Eq. (2).
"""

from __future__ import annotations

import math

import numpy as np

from experiments.theory_model import (
    PARAMETERS,
    Array,
    covariance,
    curvature,
    expected_gradient,
    expected_loss,
    inverse,
    log_theta,
    symmetric_difference,
)
from measurements.store import Record

__all__ = [
    "EPSILON_DELTA",
    "HANSON_WRIGHT",
    "case_two_slope",
    "deviation",
    "measure_expected",
    "printed_curvature",
]

#: C of the Hanson–Wright inequality 2 exp(-min(t² / 2|A|_F², t / 2|A|) / C) for a standard normal
#: vector z and symmetric A. For x = s λ, |x| ≤ 1/4, an eigenvalue λ of A adds
#: -x - log(1 - 2x) / 2 ≤ 2x² to log E exp(s (z'Az - Tr A)), and s = min(t / 4|A|_F², 1 / 4|A|)
#: gives 1 / 2C = 1/8.
HANSON_WRIGHT = 4.0
EPSILON_DELTA = 0.1
TRUE = log_theta(0.2, 1.0, 0.1)
_DRAWS = 400


def deviation(frobenius: float, largest: float, n: int, delta: float, square: bool) -> float:
    r"""Return the bound of :math:`|L - EL|` that holds with probability :math:`1 - \delta`.

    .. math::

        \frac1n \max\Big\{ \sqrt{2 C \log\tfrac2\delta}\; \|\tilde K\|_F, \;
            2 C \|\tilde K\| \log\tfrac2\delta \Big\}

    With ``square=False`` as printed, where the square is missing on the Frobenius norm of the
    tail bound and its root is left here.
    """
    log_term = math.log(2.0 / delta)
    spread = frobenius if square else math.sqrt(frobenius)
    first = math.sqrt(2.0 * HANSON_WRIGHT * log_term) * spread
    return max(first, 2.0 * HANSON_WRIGHT * log_term * largest) / n


def printed_curvature(K: Array, dK: Array) -> float:
    r"""Return :math:`\mathrm{Tr}(K^{-1} K^{-1} \partial_l K\, \partial_l K) / 2n`, as printed."""
    A, _ = inverse(K)
    return float(np.sum((A @ A) * (dK[0] @ dK[0]))) / (2.0 * len(K))


def case_two_slope(eigenvalues: Array, sd: float, sd_true: float, printed: bool) -> float:
    r"""Return the slope of EL by the noise's deviation, for unit outputscale, without 1/2n.

    .. math::

        \sum_i \frac{2 \sigma_\xi (\sigma_\xi^2 - \sigma_\xi^{*2})}{(\lambda_i + \sigma_\xi^2)^2}

    As printed, :math:`\sigma_\xi^*` stands in the denominator.
    """
    below = sd_true if printed else sd
    return float(np.sum(2.0 * sd * (sd**2 - sd_true**2) / (eigenvalues + below**2) ** 2))


def measure_expected(kernel: str, n: int, seed: int) -> Record:
    """Return slope and curvature at the truth, on all rows and on some, and the ε-minimum."""
    rng = np.random.default_rng([seed, n])
    X = np.sort(rng.uniform(size=(n, 1)), axis=0)
    K, dK = covariance(kernel, X, TRUE)
    formula = curvature(K, dK)

    def slope(theta: Array) -> Array:
        return expected_gradient(*covariance(kernel, X, theta), K)

    differences = symmetric_difference(slope, TRUE)
    return {
        "slope": float(np.abs(slope(TRUE)).max()),
        "slope_some_rows": _slope_of_some_rows(kernel, X, rng),
        "curvature": np.diag(formula).tolist(),
        "curvature_error": float(np.abs(differences / formula - 1.0).max()),
        "curvature_least": float(np.linalg.eigvalsh(formula)[0]),
        "printed_curvature": printed_curvature(K, dK),
        "divergence_least": _least_divergence(kernel, X, K, rng),
        **_case_two(dK[1]),
        **_epsilon_minimum(kernel, X, K, rng),
    }


def _slope_of_some_rows(kernel: str, X: Array, rng: np.random.Generator) -> float:
    """Return the largest slope at the truth over subsamples of a tenth and a half of the rows."""
    largest = 0.0
    for share in (0.1, 0.5):
        rows = rng.choice(len(X), max(2, round(share * len(X))), replace=False)
        K, dK = covariance(kernel, X[rows], TRUE)
        largest = max(largest, float(np.abs(expected_gradient(K, dK, K)).max()))
    return largest


def _least_divergence(kernel: str, X: Array, K_true: Array, rng: np.random.Generator) -> float:
    """Return the smallest EL(θ) − EL(θ*) over random θ, all parameters moved at once."""
    at_truth = expected_loss(K_true, K_true)
    moved = TRUE + rng.normal(size=(50, 3))
    losses = [expected_loss(covariance(kernel, X, theta)[0], K_true) for theta in moved]
    return min(losses) - at_truth


def _case_two(K_f: Array) -> Record:
    """Compare the printed slope by the noise with differences of EL, away from the truth."""
    values = np.asarray(np.linalg.eigvalsh(K_f), dtype=np.float64)
    sd_true = math.exp(0.5 * TRUE[2])
    sd = 1.5 * sd_true

    def loss(at: Array) -> Array:
        new = values + at[0] ** 2
        return np.array([np.sum((values + sd_true**2) / new + np.log(new))])

    exact = float(symmetric_difference(loss, np.array([sd]))[0, 0])
    return {
        "case_two_right": case_two_slope(values, sd, sd_true, False) / exact,
        "case_two_printed": case_two_slope(values, sd, sd_true, True) / exact,
    }


def _epsilon_minimum(kernel: str, X: Array, K_true: Array, rng: np.random.Generator) -> Record:
    """Return how far L(θ*) lies above the lowest L of each parameter, and how often beyond ε."""
    n = len(X)
    y = np.linalg.cholesky(K_true) @ rng.normal(size=(n, _DRAWS))
    at_truth, norms_true = _losses(K_true, K_true, y)
    gap = np.zeros(_DRAWS)
    beyond = {"right": np.zeros(_DRAWS, dtype=bool), "printed": np.zeros(_DRAWS, dtype=bool)}
    for j in range(len(PARAMETERS)):
        for shift in np.linspace(-1.5, 1.5, 16):
            theta = TRUE + shift * np.eye(3)[j]
            losses, norms = _losses(covariance(kernel, X, theta)[0], K_true, y)
            excess = at_truth - losses
            gap = np.maximum(gap, excess)
            beyond["right"] |= excess > _epsilon(norms, norms_true, n, square=True)
            beyond["printed"] |= excess > _epsilon(norms, norms_true, n, square=False)
    return {
        "gap": float(np.quantile(gap, 1.0 - EPSILON_DELTA)),
        "epsilon": _epsilon(norms_true, norms_true, n, square=True),
        "epsilon_printed": _epsilon(norms_true, norms_true, n, square=False),
        "beyond": float(beyond["right"].mean()),
        "beyond_printed": float(beyond["printed"].mean()),
    }


def _losses(K: Array, K_true: Array, y: Array) -> tuple[Array, tuple[float, float]]:
    """Return the appendix's loss of every draw, and both norms of U' K⁻¹ U (U U' = true K)."""
    A, logdet = inverse(K)
    U = np.linalg.cholesky(K_true)
    values = np.linalg.eigvalsh(U.T @ A @ U)
    losses = (np.einsum("ij,ij->j", y, A @ y) + logdet) / len(K)
    return losses, (float(np.sqrt(np.sum(values**2))), float(values[-1]))


def _epsilon(
    norms: tuple[float, float], norms_true: tuple[float, float], n: int, square: bool
) -> float:
    """Return ε: printed, twice the deviation at θ; corrected, those at θ and θ*, each with δ/2."""
    if not square:
        return 2.0 * deviation(*norms, n, EPSILON_DELTA, False)
    return sum(deviation(*x, n, EPSILON_DELTA / 2.0, True) for x in (norms, norms_true))
