r"""The frequentist band :math:`|f - \hat m_n| \le \beta_n \hat\sigma_n` of Algorithm 5.

f is a function of the RKHS with the known norm B, so that nothing has to be estimated:

* ``random``, a sum of kernels at random places;
* ``worst``, :math:`k(x, \cdot) - \sum_i w_i k(x_i, \cdot)` for the row x of the largest variance,
  the function whose error there is the largest that Lemma 2 allows;
* ``level``, all but a constant (a lengthscale far longer than the interval) and small, with few
  rows and noise above one, where the printed :math:`1/\sigma_\xi` makes the band too narrow.

A draw of the noise counts as covered if the band holds at every one of many x at once; and, for
the theorem's "for all n", at the first 1, 2, 4, ... rows too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.theory_model import (
    Array,
    KernelSum,
    covariance,
    inverse,
    log_theta,
    posterior,
    random_function,
)
from measurements.store import Record

__all__ = ["BANDS", "DELTAS", "beta", "drawn_function", "measure_band"]

KERNEL = "matern52"
DELTAS = (0.05, 0.01)


@dataclass(frozen=True)
class Band:
    """Lengthscale of the kernel, and norm of the function."""

    length: float
    norm: float


BANDS = {"random": Band(0.2, 1.0), "worst": Band(0.2, 1.0), "level": Band(50.0, 0.1)}
_DRAWS, _NEW_ROWS = 4000, 200


def beta(K_f: Array, sd: float, B: float, delta: float, printed: bool) -> float:
    r"""Return :math:`\beta_n` for the kernel matrix without noise.

    With :math:`a = \sigma_\xi^2` and factor 1, or as printed :math:`a = \sigma_\xi` and factor
    :math:`1 / \sigma_\xi`, and :math:`\bar a = \max(1, a)`:

    .. math::

        \beta_n = B + \text{factor} \sqrt{\log\det\big( \tfrac{\bar a}{a} K + \bar a I \big)
            - 2 \log \delta} .
    """
    a, factor = (sd, 1.0 / sd) if printed else (sd**2, 1.0)
    top = max(1.0, a)
    logdet = inverse(K_f * (top / a) + top * np.eye(len(K_f)))[1]
    return B + factor * math.sqrt(max(0.0, logdet - 2.0 * math.log(delta)))


def measure_band(case: str, n: int, sd: float, seed: int) -> Record:
    """Return the coverage over draws of the noise, with the first rows and with all of them."""
    band = BANDS[case]
    theta = log_theta(band.length, 1.0, sd**2)
    rng = np.random.default_rng([seed, n])
    X, Z = rng.uniform(size=(n, 1)), np.linspace(0.0, 1.0, _NEW_ROWS)[:, None]
    f = drawn_function(case, X, Z, theta, rng)
    y = f(X)[:, None] + sd * rng.normal(size=(n, _DRAWS))
    sizes = [2**k for k in range(n.bit_length()) if 2**k < n] + [n]
    ratios = [_ratio(X[:k], Z, y[:k], f, theta) for k in sizes]
    record: Record = {"norm": f.norm}
    for delta in DELTAS:
        record[f"at_{delta:g}"] = {
            kind: _coverage(X, sizes, ratios, (theta, band.norm, delta), kind == "printed")
            for kind in ("printed", "corrected")
        } | {"needed": float(np.quantile(ratios[-1], 1.0 - delta))}
    sigma = np.sqrt(posterior(KERNEL, X, Z, theta).variance)
    record["median_sd"] = float(np.median(sigma))
    return record


def drawn_function(
    case: str, X: Array, Z: Array, theta: Array, rng: np.random.Generator
) -> KernelSum:
    """Return the function of a case, a weighted sum of kernels of the norm of the case."""
    norm = BANDS[case].norm
    if case == "random":
        return random_function(KERNEL, theta, norm, rng)
    if case == "level":
        return KernelSum(KERNEL, theta, np.full((1, 1), 0.5), np.ones(1)).scaled(norm)
    post = posterior(KERNEL, X, Z, theta)
    i = int(post.variance.argmax())
    centres = np.concatenate([Z[i : i + 1], X])
    return KernelSum(KERNEL, theta, centres, np.append(1.0, -post.weights[i])).scaled(norm)


def _ratio(X: Array, Z: Array, y: Array, f: KernelSum, theta: Array) -> Array:
    """Return the largest error over the new rows, in posterior deviations, one per draw."""
    post = posterior(KERNEL, X, Z, theta)
    error = np.abs(post.weights @ y - f(Z)[:, None])
    return np.asarray((error / np.sqrt(post.variance)[:, None]).max(0))


def _coverage(
    X: Array,
    sizes: list[int],
    ratios: list[Array],
    setting: tuple[Array, float, float],
    printed: bool,
) -> Record:
    theta, norm, delta = setting
    sd = math.exp(0.5 * theta[2])
    K_f = covariance(KERNEL, X, theta)[1][1]
    betas = [beta(K_f[:k, :k], sd, norm, delta, printed) for k in sizes]
    inside = np.array([ratio <= b for ratio, b in zip(ratios, betas, strict=True)])
    return {
        "beta": betas[-1],
        "coverage": float(inside[-1].mean()),
        "coverage_all_n": float(inside.all(0).mean()),
    }
