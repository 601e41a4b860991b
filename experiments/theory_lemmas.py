r"""Lemmas 1 to 4, which Theorem 2 rests on.

**Lemma 1**: :math:`\hat\sigma_n^2(x) \le C' (\sigma_\xi^2 / n)^p` with :math:`p = 1 - d / 2 m_0`,
under a condition that is printed as :math:`\sigma_\xi > C n^{1 - 2 m_0 / d}`. Without noise the
variance falls like :math:`n^{1 - 2 m_0 / d}`, and the bound reaches down to that for
:math:`\sigma_\xi^2 = n^{1 - 2 m_0 / d}`: it is the variance that the condition must be about.
**Lemma 2**: :math:`|w f_X - f(x)| \le \|f\| \hat\sigma_n(x)`, printed with :math:`\sigma_\xi`. The
largest error of a function of norm one is known, :math:`(\hat\sigma_n^2 - \sigma_\xi^2 w w^\top)
^{1/2}`. **Lemma 3**: :math:`P(|Z| \ge a) \ge e^{-a^2/2 - a}`, proved from the same for
:math:`P(Z \ge a)`, which is wrong near zero; and for :math:`u = w \epsilon_X - \epsilon_*` the
deviation is :math:`v = \sigma_\epsilon (1 + w w^\top)^{1/2}`, printed as
:math:`(w w^\top + \sigma_\epsilon^2)^{1/2}`. **Lemma 4**: :math:`v \ge \|K_{X*}\| / (\lambda_1 +
\sigma_\xi^2)`, which lacks the same :math:`\sigma_\epsilon`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from experiments.theory_model import (
    Array,
    log_theta,
    posterior,
    random_function,
    smoothness,
)
from measurements.store import Record

__all__ = [
    "CONTRACTIONS",
    "TAIL_DELTA",
    "Contraction",
    "lower_tail",
    "measure_contraction",
    "measure_spectrum",
    "measure_tail",
    "measure_worst_case",
]

LENGTH = 0.5


@dataclass(frozen=True)
class Contraction:
    """Kernel, columns, and noise variance.

    The noise is so small that the kernel averages over less than its lengthscale, where the rate
    shows, and so large that it averages over several rows. ``edge`` puts the variance or the
    deviation at :math:`n^{1 - 2 m_0 / d}` instead.
    """

    kernel: str
    d: int
    noise: float = 0.1
    edge: str = ""

    def variance(self, n: int) -> float:
        """Return the noise variance for n rows."""
        limit = float(n ** (1.0 - 2.0 * smoothness(self.kernel, self.d) / self.d))
        return {"": self.noise, "variance": limit, "deviation": limit**2}[self.edge]

    @property
    def power(self) -> float:
        r"""Return :math:`p = 1 - d / 2 m_0`."""
        return 1.0 - self.d / (2.0 * smoothness(self.kernel, self.d))


CONTRACTIONS = {
    "matern12, d=1": Contraction("matern12", 1),
    "matern32, d=1": Contraction("matern32", 1, 1e-3),
    "matern52, d=1": Contraction("matern52", 1, 1e-5),
    "matern12, d=2": Contraction("matern12", 2),
    "matern32, d=2": Contraction("matern32", 2, 1e-2),
    "variance at the edge": Contraction("matern12", 1, edge="variance"),
    "deviation at the edge": Contraction("matern12", 1, edge="deviation"),
}
TAIL_DELTA = 0.1


def measure_contraction(case: str, n: int) -> Record:
    """Return the largest posterior variance on the unit cube with n rows on a grid."""
    setting = CONTRACTIONS[case]
    side = round(n ** (1.0 / setting.d))
    rows = side**setting.d
    noise = setting.variance(rows)
    X, Z = _grid(side, setting.d), _between(side, setting.d)
    largest = float(posterior(setting.kernel, X, Z, log_theta(LENGTH, 1.0, noise)).variance.max())
    return {
        "rows": rows,
        "variance": largest,
        "over_bound": largest / (noise / rows) ** setting.power,
        "power": setting.power,
    }


def _grid(side: int, d: int) -> Array:
    """Return a regular grid of the unit cube, half a step away from its edge."""
    line = (np.arange(side) + 0.5) / side
    return np.stack(np.meshgrid(*[line] * d, indexing="ij"), axis=-1).reshape(-1, d)


def _between(side: int, d: int) -> Array:
    """Return corners of the grid's cells, which are far from its points; about 1600 at most."""
    line = np.arange(side + 1) / side
    most = 1600 if d == 1 else 40
    line = line[np.unique(np.linspace(0, side, min(side + 1, most)).astype(int))]
    return np.stack(np.meshgrid(*[line] * d, indexing="ij"), axis=-1).reshape(-1, d)


def measure_worst_case(n: int, noise: float, seed: int) -> Record:
    """Return the largest noiseless error of functions of norm one, and both forms of Lemma 2."""
    rng = np.random.default_rng([seed, n])
    X, Z = rng.uniform(size=(n, 1)), rng.uniform(size=(300, 1))
    theta = log_theta(LENGTH, 1.0, noise)
    post = posterior("matern32", X, Z, theta)
    largest = np.sqrt((post.variance - noise * post.noise_gain).clip(min=0.0))
    sd = np.sqrt(post.variance)
    functions = [random_function("matern32", theta, 1.0, rng) for _ in range(50)]
    errors = np.array([np.abs(post.weights @ f(X) - f(Z)) for f in functions])
    return {
        "over_sd": float((largest / sd).max()),
        "over_noise": float(largest.max()) / math.sqrt(noise),
        "drawn_over_largest": float((errors / largest).max()),
        "drawn_over_noise": float(errors.max()) / math.sqrt(noise),
    }


def lower_tail(a: Array) -> Array:
    r"""Return :math:`e^{-a^2/2 - a}`."""
    return np.asarray(np.exp(-0.5 * a**2 - a))


def measure_tail(n: int, noise: float, seed: int) -> Record:
    """Check Lemma 3 as a statement on normal variables, and with the deviation of a posterior."""
    a = np.linspace(0.0, 8.0, 8001)
    rng = np.random.default_rng([seed, n])
    X, Z = rng.uniform(size=(n, 1)), rng.uniform(size=(300, 1))
    post = posterior("matern32", X, Z, log_theta(LENGTH, 1.0, noise))
    right = np.sqrt(noise * (1.0 + post.noise_gain))
    printed = np.sqrt(post.noise_gain + noise)
    A = math.sqrt(1.0 - 2.0 * math.log(1.0 - TAIL_DELTA)) - 1.0
    lemma4 = np.linalg.norm(post.k_cross, axis=1) / float(np.linalg.eigvalsh(post.K)[-1])
    return {
        "one_sided_least": float((norm.sf(a) / lower_tail(a)).min()),
        "one_sided_from": float(brentq(lambda t: norm.logsf(t) + 0.5 * t**2 + t, 0.1, 4.0)),
        "two_sided_least": float((2.0 * norm.sf(a) / lower_tail(a)).min()),
        "probability_right": float((2.0 * norm.sf(A)).min()),
        "probability_printed": float((2.0 * norm.sf(A * printed / right)).min()),
        "lemma4_over_printed": float((lemma4 / printed).max()),
        "lemma4_over_right": float((lemma4 / right).max()),
        "lemma4_noise_over_right": float((math.sqrt(noise) * lemma4 / right).max()),
    }


def measure_spectrum(name: str) -> Record:
    r"""Return the spread of :math:`\mathcal F(k)(\omega) (1 + \omega^2)^{m_0}`, ω ≤ 30, d = 1.

    Assumption C2 wants it between two constants. The spectral density of a Matérn kernel with unit
    lengthscale goes like :math:`(2 \nu + \omega^2)^{-m_0}`, that of the rbf like
    :math:`e^{-\omega^2/2}`, for which the best of several :math:`m_0` is taken.
    """
    omega = np.linspace(0.0, 30.0, 3001)
    if name == "rbf":
        logs = [-0.5 * omega**2 + m0 * np.log1p(omega**2) for m0 in np.linspace(0.6, 100.0, 200)]
    else:
        m0 = smoothness(name, 1)
        logs = [m0 * (np.log1p(omega**2) - np.log(2.0 * (m0 - 0.5) + omega**2))]
    return {"log10_spread": min(float(np.ptp(values)) for values in logs) / math.log(10.0)}
