"""How a hard table is drawn, and the plain law of which most of them change one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOISE", "Array", "Draw", "Pair", "Recipe", "Spoil", "plain", "truth"]

Array = NDArray[np.float64]
Pair = tuple[Array, Array]
Draw = Callable[[np.random.Generator, int], Pair]
Spoil = Callable[[np.random.Generator, Array, Array], Pair]

#: Standard deviation of the noise of the plain law.
NOISE = 0.3


@dataclass(frozen=True)
class Recipe:
    """A law of rows.

    Attributes
    ----------
    draw : callable
        (rng, n) to n rows of one law, inputs and target.
    n : int
        Training rows.
    judged : bool
        Whether coverage at new rows of the law can be asked for.
    spoil : callable, optional
        What happens to the training rows alone.
    """

    draw: Draw
    n: int = 40
    judged: bool = True
    spoil: Spoil | None = None


def truth(X: Array) -> Array:
    """Return a smooth function of the first two columns, or of a single one."""
    return np.sin(2.0 * X[:, 0]) + 0.5 * X[:, min(1, X.shape[1] - 1)]


def plain(d: int = 2, noise: float = NOISE) -> Draw:
    """Return the plain law: normal inputs, the smooth function, normal noise."""

    def draw(rng: np.random.Generator, n: int) -> Pair:
        X = rng.normal(size=(n, d))
        return X, truth(X) + noise * rng.normal(size=n)

    return draw
