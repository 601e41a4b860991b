r"""Class labels as regression targets: the Dirichlet transform.

A row of class k is a draw from a Dirichlet distribution with parameters
:math:`\alpha_k = \alpha_\epsilon + Y_k`, Y its one-hot label. A Dirichlet variable is a set of
independent gamma variables divided by their sum, and a gamma variable is close to a log-normal one
of the same two moments:

.. math::

    \tilde\sigma_k^2 = \log(1 / \alpha_k + 1) , \qquad
    \tilde y_k = \log \alpha_k - \tilde\sigma_k^2 / 2 .

So every class has a regression target :math:`\tilde y_k` with known noise variance
:math:`\tilde\sigma_k^2`, and class probabilities are the softmax of the latent functions (Milios et
al. 2018; the paper prints the standard deviation where the variance belongs). Target and variance
have two values each: one for rows of the class, with index 1, and one for all other rows, with
index 0.

A probability p of the class is translated into a latent value by the precision-weighted mean of the
target,

.. math::

    \tilde m(p) = \frac{p\, \tilde y_1 / \tilde\sigma_1^2 + (1 - p)\, \tilde y_0 / \tilde\sigma_0^2}
                       {p / \tilde\sigma_1^2 + (1 - p) / \tilde\sigma_0^2} .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Dirichlet", "soft_labels"]

Array = NDArray[np.float64]


def soft_labels(codes: NDArray[np.int64], n_classes: int, smoothing: float = 0.0) -> Array:
    """Return one-hot labels, or soft ones if ``smoothing`` is positive, shape (n, n_classes).

    The share ``smoothing`` is divided equally among all classes; the row's class gets
    ``1 - smoothing`` in addition.

    Examples
    --------
    >>> soft_labels(np.array([1]), 2, smoothing=0.2).round(2).tolist()
    [[0.1, 0.9]]
    """
    Y = np.full((len(codes), n_classes), smoothing / n_classes)
    Y[np.arange(len(codes)), codes] += 1.0 - smoothing
    return Y


@dataclass(frozen=True)
class Dirichlet:
    r"""The transform: two values each of target and noise variance.

    Attributes
    ----------
    alpha_eps : float
        Dirichlet parameter of the classes that a row does not belong to.
    n_classes : int
    smoothing : float
        Smoothing of the labels, as in :func:`soft_labels`.

    Examples
    --------
    >>> one = Dirichlet(0.01, n_classes=2)
    >>> [round(float(x), 2) for x in (*one.targets, *one.noises)]
    [-6.91, -0.33, 4.62, 0.69]
    """

    alpha_eps: float
    n_classes: int
    smoothing: float = 0.0

    @property
    def _alphas(self) -> tuple[float, float]:
        """Dirichlet parameters of a row of another class, and of a row of the class."""
        rest = self.smoothing / self.n_classes
        return self.alpha_eps + rest, self.alpha_eps + 1.0 - self.smoothing + rest

    @property
    def noises(self) -> tuple[float, float]:
        r""":math:`\tilde\sigma_0^2` and :math:`\tilde\sigma_1^2`."""
        other, own = self._alphas
        return math.log1p(1.0 / other), math.log1p(1.0 / own)

    @property
    def targets(self) -> tuple[float, float]:
        r""":math:`\tilde y_0` and :math:`\tilde y_1`."""
        (other, own), (noise0, noise1) = self._alphas, self.noises
        return math.log(other) - 0.5 * noise0, math.log(own) - 0.5 * noise1

    def target(self, codes: NDArray[np.int64]) -> Array:
        r"""Return :math:`\tilde y`, shape (n, K)."""
        return self._choose(codes, *self.targets)

    def noise(self, codes: NDArray[np.int64]) -> Array:
        r"""Return :math:`\tilde\sigma^2`, shape (n, K)."""
        return self._choose(codes, *self.noises)

    def latent(self, probability: Array) -> Array:
        r"""Return :math:`\tilde m(p)`, an array of the shape of ``probability``."""
        (y0, y1), (s0, s1) = self.targets, self.noises
        own, other = probability / s1, (1.0 - probability) / s0
        return (own * y1 + other * y0) / (own + other)

    def _choose(self, codes: NDArray[np.int64], other: float, own: float) -> Array:
        values = np.full((len(codes), self.n_classes), other)
        values[np.arange(len(codes)), codes] = own
        return values
