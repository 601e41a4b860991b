"""The one-dimensional functions of the paper's Figures 2 and 6."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twostagegp.errors import InputError

__all__ = ["toy"]


def toy(
    n: int = 30,
    noise: float = 1.0,
    random_state: int | np.random.Generator | None = 0,
    kind: Literal["sine", "power"] = "sine",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Draw the one-dimensional example of the paper's Figure 2 or 6.

    .. math:: y = f(x) + \epsilon, \quad x \sim U[-5, 5], \quad
              \epsilon \sim \mathcal{N}(0, \mathrm{noise}^2)

    with f(x) = 3x + 2 sin 2πx for ``kind="sine"`` (Figure 2) and f(x) = 3 abs(x)^(3/2) + 2 sin 2πx
    for ``kind="power"`` (Figure 6).

    Parameters
    ----------
    n : int, default=30
        Number of rows.
    noise : float, default=1.0
        Standard deviation of the noise; 0 gives f itself.
    random_state : int, Generator or None, default=0
        Seed of the draw.
    kind : {"sine", "power"}, default="sine"
        Which function.

    Returns
    -------
    X : ndarray of shape (n, 1)
    y : ndarray of shape (n,)

    Examples
    --------
    >>> X, y = toy(n=5)
    >>> X.shape, y.shape
    ((5, 1), (5,))
    """
    if kind not in ("sine", "power"):
        raise InputError(f"kind must be 'sine' or 'power', got {kind!r}")
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
    if not noise >= 0.0:  # also True for NaN
        raise InputError(f"noise must not be negative, got {noise}")
    rng = np.random.default_rng(random_state)
    x = rng.uniform(-5.0, 5.0, size=n)
    trend = 3.0 * x if kind == "sine" else 3.0 * np.abs(x) ** 1.5
    y = trend + 2.0 * np.sin(2.0 * np.pi * x) + noise * rng.standard_normal(n)
    return x[:, np.newaxis], y
