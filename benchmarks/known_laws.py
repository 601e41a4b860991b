r"""Generated tables whose law is known: what a calibrated model should say of them is no question.

Each is an array of independent rows ``x``, uniform on the unit cube, and a target ``y = f(x) + e``:

- ``friedman``: Friedman's first function, ten columns of which five have no effect, and Gaussian
  noise,

  .. math:: f = 10 \sin(\pi x_1 x_2) + 20 (x_3 - \tfrac12)^2 + 10 x_4 + 5 x_5,
            \qquad e \sim N(0, 1)

- ``heteroscedastic``, ``heavy_tailed``, ``skewed``: a smooth function of four columns,

  .. math:: f = \sin(2 \pi x_1) + 4 (x_2 - \tfrac12)^2 + x_3 x_4,

  with noise whose standard deviation grows along the first column,
  :math:`e \sim N(0, (0.05 + 0.6 x_1)^2)`; with noise of Student's t distribution with three degrees
  of freedom, :math:`e = 0.2\, t_3`; with skewed noise of mean 0, :math:`e = 0.3\, (G - 1)`, where G
  has an exponential distribution, the Gamma distribution of shape 1
- ``noise_free``: the same function without noise, e = 0
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["LAWS", "friedman", "generate", "smooth"]

Array = NDArray[np.float64]
Random = np.random.Generator

#: Rows of a table: training rows and test rows are drawn from them.
ROWS = 10_000


def friedman(X: Array) -> Array:
    """Return Friedman's first function of the first five columns, without noise, shape (n,)."""
    wave = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1])
    return wave + 20.0 * (X[:, 2] - 0.5) ** 2 + 10.0 * X[:, 3] + 5.0 * X[:, 4]


def smooth(X: Array) -> Array:
    """Return the smooth function of the first four columns, without noise, shape (n,)."""
    return np.sin(2.0 * np.pi * X[:, 0]) + 4.0 * (X[:, 1] - 0.5) ** 2 + X[:, 2] * X[:, 3]


def _friedman_with_noise(rng: Random) -> tuple[Array, Array]:
    X = rng.uniform(size=(ROWS, 10))
    return X, friedman(X) + rng.normal(size=ROWS)


def _smooth_with(
    noise: Callable[[Array, Random], Array],
) -> Callable[[Random], tuple[Array, Array]]:
    def law(rng: Random) -> tuple[Array, Array]:
        X = rng.uniform(size=(ROWS, 4))
        return X, smooth(X) + noise(X, rng)

    return law


#: Functions that draw a table, by its name.
LAWS: Mapping[str, Callable[[Random], tuple[Array, Array]]] = {
    "friedman": _friedman_with_noise,
    "heteroscedastic": _smooth_with(lambda X, rng: (0.05 + 0.6 * X[:, 0]) * rng.normal(size=ROWS)),
    "heavy_tailed": _smooth_with(lambda X, rng: 0.2 * rng.standard_t(3, size=ROWS)),
    "skewed": _smooth_with(lambda X, rng: 0.3 * (rng.gamma(1.0, size=ROWS) - 1.0)),
    "noise_free": _smooth_with(lambda X, rng: np.zeros(ROWS)),
}


def generate(name: str) -> tuple[Array, Array]:
    """Return inputs and target of a table of :data:`LAWS`; the same in every call.

    Examples
    --------
    >>> X, y = generate("noise_free")
    >>> X.shape, bool(np.allclose(y, smooth(X)))
    ((10000, 4), True)
    """
    return LAWS[name](np.random.default_rng(zlib.crc32(name.encode())))
