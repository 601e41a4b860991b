r"""Theorem 1: what a mean that is taken for zero does to the hyperparameters.

For :math:`y \sim N(m, K^*)`, :math:`E[y^\top K^{-1} y] = \mathrm{Tr}(K^{-1} K^*) + m^\top K^{-1} m`
(the paper prints a minus), so that the slope of MEL at :math:`\theta^*` is

.. math::

    g_j = -\frac1{2n}\, m^\top K^{-1} \partial_j K\, K^{-1} m .

It is negative for outputscale and noise, whose :math:`\partial K` is positive definite, unless
:math:`m(X) = 0`. For the lengthscale it can vanish with :math:`m(X) \ne 0` (``balanced`` below).
"""

from __future__ import annotations

import math

import numpy as np

from experiments.theory_model import (
    Array,
    covariance,
    expected_gradient,
    expected_loss,
    inverse,
    log_theta,
    lowest,
    symmetric_difference,
)
from measurements.store import Record

__all__ = [
    "MEANS",
    "balanced_mean",
    "form_and_slope",
    "mean_vector",
    "measure_mean",
    "quadratic_form",
]

KERNEL = "matern32"
#: Means, and whether the slope of every parameter is zero ("all"), the lengthscale's, or none.
MEANS = {"constant": "", "line": "", "wave": "", "zero on rows": "all", "balanced": "lengthscale"}
TRUE = log_theta(0.2, 1.0, 0.1)
#: Where the quadratic form is checked: away from the truth, where nothing cancels.
ELSEWHERE = TRUE + np.log([1.5, 0.7, 2.0])
_DRAWS = 20_000


def form_and_slope(X: Array, m: Array, theta: Array) -> Array:
    r"""Return :math:`m^\top K^{-1} \partial_j K\, K^{-1} m` of every parameter."""
    K, dK = covariance(KERNEL, X, theta)
    v = np.linalg.solve(K, m)
    return np.asarray([v @ D @ v for D in dK])


def balanced_mean(X: Array) -> Array:
    r"""Return a mean with :math:`m^\top K^{-1} \partial_l K\, K^{-1} m = 0` at the truth.

    :math:`\partial_l K` has a zero trace, so that it has eigenvalues of both signs; for
    :math:`v = \sqrt{-\lambda_-}\, u_+ + \sqrt{\lambda_+}\, u_-` the form vanishes, and m = K v. Its
    size is that of a mean whose square is a tenth of the outputscale.
    """
    K, dK = covariance(KERNEL, X, TRUE)
    values, vectors = np.linalg.eigh(dK[0])
    v = math.sqrt(-values[0]) * vectors[:, -1] + math.sqrt(values[-1]) * vectors[:, 0]
    m = K @ v
    return np.asarray(m * math.sqrt(0.1 / np.mean(m**2)))


def mean_vector(case: str, X: Array) -> Array:
    """Return the mean at the rows of X, which lie evenly on [0, 1]."""
    x = X[:, 0]
    if case == "balanced":
        return balanced_mean(X)
    return {
        "constant": np.full_like(x, 1.5),
        "line": 5.0 * x,
        "wave": 2.0 * np.sin(6.0 * math.pi * x),
        "zero on rows": np.sin(math.pi * (len(x) - 1) * x),
    }[case]


def measure_mean(case: str, n: int, seed: int) -> Record:
    """Return quadratic form (simulation, formula), slopes at the truth, and where MEL is lowest."""
    X = np.linspace(0.0, 1.0, n)[:, None]
    m = mean_vector(case, X)
    K_true, dK = covariance(KERNEL, X, TRUE)
    S = K_true + np.outer(m, m)
    formula = -form_and_slope(X, m, TRUE) / (2 * n)
    differences = symmetric_difference(
        lambda theta: np.array([expected_loss(covariance(KERNEL, X, theta)[0], S)]), TRUE
    )[:, 0]
    # From beside the truth: at a stationary truth a search would not move at all.
    alone = [lowest(KERNEL, X, S, TRUE + 0.3 * np.eye(3)[j], (j,))[0][j] for j in range(3)]
    together, left = lowest(KERNEL, X, S, TRUE + 0.3)
    turning = symmetric_difference(lambda theta: form_and_slope(X, m, theta)[:1], TRUE)[0, 0]
    return {
        **quadratic_form(X, m, K_true, seed),
        "slope_formula": formula.tolist(),
        "slope_exact": expected_gradient(K_true, dK, S).tolist(),
        "slope_differences": differences.tolist(),
        "form": float(form_and_slope(X, m, TRUE)[0]),
        "form_slope": float(turning),
        "alone": np.exp(np.array(alone) - TRUE).tolist(),
        "together": np.exp(together - TRUE).tolist(),
        "slope_left": left,
        "printed_data_fit": _least_printed_fit(X, m, K_true),
    }


def quadratic_form(X: Array, m: Array, K_true: Array, seed: int) -> Record:
    """Return the mean of y'Ay over draws, its standard error, and both formulas."""
    n = len(X)
    A, _ = inverse(covariance(KERNEL, X, ELSEWHERE)[0])
    rng = np.random.default_rng([seed, n])
    y = m[:, None] + np.linalg.cholesky(K_true) @ rng.normal(size=(n, _DRAWS))
    forms = np.einsum("ij,ij->j", y, A @ y)
    trace, extra = float(np.sum(A * K_true)), float(m @ A @ m)
    return {
        "simulated": float(forms.mean()),
        "simulated_se": float(forms.std(ddof=1)) / math.sqrt(_DRAWS),
        "right": trace + extra,
        "printed": trace - extra,
    }


def _least_printed_fit(X: Array, m: Array, K_true: Array) -> float:
    r"""Return the least :math:`\mathrm{Tr}(K^{-1}(K^* - m m^\top)) / n` by lengthscale and noise.

    If it is negative, the printed MEL goes to minus infinity as K is scaled down.
    """
    S = K_true - np.outer(m, m)
    fits = []
    for l in np.geomspace(0.02, 20.0, 13):
        for noise in np.geomspace(1e-3, 10.0, 9):
            A, _ = inverse(covariance(KERNEL, X, log_theta(l, 1.0, noise))[0])
            fits.append(float(np.sum(A * S)) / len(X))
    return min(fits)
