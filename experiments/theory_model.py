r"""A Gaussian process small enough to be exact: matrices, expected losses, posteriors, functions.

The parameters are :math:`\theta = (\log l, \log \sigma_f^2, \log \sigma_\xi^2)` and

.. math::

    K(\theta) = \sigma_f^2\, C(l) + \sigma_\xi^2 I .

For targets with second moment :math:`S = E[y y^\top]` the expected loss of Eq. (2), without its
constant, and its derivative are

.. math::

    \frac1{2n} \big( \mathrm{Tr}(K^{-1} S) + \log\det K \big), \qquad
    \frac1{2n} \mathrm{Tr}\big( K^{-1} (I - S K^{-1})\, \partial_j K \big) .

:math:`S = K(\theta^*)` gives EL, :math:`S = K(\theta^*) + m m^\top` gives MEL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from twostagegp.kernels import NamedKernel

__all__ = [
    "PARAMETERS",
    "Array",
    "KernelSum",
    "Posterior",
    "covariance",
    "cross",
    "curvature",
    "expected_gradient",
    "expected_loss",
    "inverse",
    "log_theta",
    "lowest",
    "posterior",
    "random_function",
    "smoothness",
    "symmetric_difference",
]

Array = NDArray[np.float64]
PARAMETERS = ("lengthscale", "outputscale", "noise")
#: How far a minimum is looked for, in logarithms of the parameters.
_REACH = 8.0


def log_theta(l: float, s: float, noise: float) -> Array:
    """Return the logarithms of lengthscale, outputscale and noise variance."""
    return np.log([l, s, noise])


def covariance(name: str, X: Array, theta: Array) -> tuple[Array, Array]:
    """Return K with noise, (n, n), and its derivatives by the entries of theta, (3, n, n)."""
    kernel = NamedKernel(name, X.shape[1])
    K_f, (_, r) = kernel.evaluate(torch.as_tensor(X), theta[:2])
    by_l = kernel.form.shrink_derivative(K_f, r, math.exp(theta[1]), 1.0)
    noise = math.exp(theta[2]) * np.eye(len(X))
    return K_f.numpy() + noise, np.stack([by_l.numpy(), K_f.numpy(), noise])


def cross(name: str, X: Array, Z: Array, theta: Array) -> Array:
    """Return the covariance of the function, without noise, between the rows of X and of Z."""
    kernel = NamedKernel(name, X.shape[1])
    K = kernel.cross(torch.as_tensor(X), torch.as_tensor(Z), theta[:2])
    return np.asarray(K.numpy())


def inverse(K: Array) -> tuple[Array, float]:
    """Return inverse and log determinant of a positive definite matrix."""
    factor = cho_factor(K, lower=True)
    A = cho_solve(factor, np.eye(len(K)))
    return 0.5 * (A + A.T), 2.0 * float(np.log(np.diag(factor[0])).sum())


def expected_loss(K: Array, S: Array) -> float:
    r"""Return :math:`(\mathrm{Tr}(K^{-1} S) + \log\det K) / 2n`."""
    A, logdet = inverse(K)
    return (float(np.sum(A * S)) + logdet) / (2.0 * len(K))


def expected_gradient(K: Array, dK: Array, S: Array) -> Array:
    r"""Return :math:`\mathrm{Tr}(K^{-1} (I - S K^{-1}) \partial_j K) / 2n` of every parameter."""
    A, _ = inverse(K)
    # (I - S A) is formed first, so that it vanishes as a whole where S = K.
    M = A @ (np.eye(len(K)) - S @ A)
    return np.asarray([float(np.sum(M * D)) for D in dK]) / (2.0 * len(K))


def curvature(K: Array, dK: Array) -> Array:
    r"""Return :math:`\mathrm{Tr}(K^{-1} \partial_i K K^{-1} \partial_j K) / 2n`, shape (3, 3)."""
    A, _ = inverse(K)
    B = [A @ D for D in dK]
    return np.array([[float(np.sum(b * c.T)) for c in B] for b in B]) / (2.0 * len(K))


def symmetric_difference(f: Callable[[Array], Array], at: Array, step: float = 1e-4) -> Array:
    """Return central differences of f, of fourth order, one row for each entry of ``at``."""
    rows = []
    for unit in np.eye(len(at)):
        near = (f(at + step * unit) - f(at - step * unit)) / (2.0 * step)
        far = (f(at + 2.0 * step * unit) - f(at - 2.0 * step * unit)) / (4.0 * step)
        rows.append((4.0 * near - far) / 3.0)
    return np.asarray(rows)


def lowest(
    name: str, X: Array, S: Array, start: Array, free: Sequence[int] = (0, 1, 2)
) -> tuple[Array, float]:
    """Return the minimum of the expected loss over some parameters, and the remaining slope."""
    chosen = list(free)

    def full(part: Array) -> Array:
        theta = start.copy()
        theta[chosen] = part
        return theta

    def value_and_slope(part: Array) -> tuple[float, Array]:
        K, dK = covariance(name, X, full(part))
        return expected_loss(K, S), expected_gradient(K, dK, S)[chosen]

    limits = [(start[j] - _REACH, start[j] + _REACH) for j in chosen]
    found = minimize(
        value_and_slope,
        start[chosen],
        jac=True,
        bounds=limits,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 500},
    )
    return full(np.asarray(found.x)), float(np.abs(found.jac).max())


@dataclass(frozen=True)
class Posterior:
    r"""What a zero-mean process says about m new rows.

    Attributes
    ----------
    weights : array of shape (m, n)
        :math:`K_{*X} K^{-1}`, so that the mean is ``weights @ y``.
    variance : array of shape (m,)
        :math:`\hat\sigma_n^2(x)`, of the function.
    K : array of shape (n, n)
        With noise.
    k_cross : array of shape (m, n)
    """

    weights: Array
    variance: Array
    K: Array
    k_cross: Array

    @property
    def noise_gain(self) -> Array:
        """Sum of the squared weights of every new row: how much of the noise gets through."""
        return np.asarray(np.square(self.weights).sum(1))


def posterior(name: str, X: Array, Z: Array, theta: Array) -> Posterior:
    """Return the posterior at the rows of Z given the rows of X."""
    K, _ = covariance(name, X, theta)
    k_cross = cross(name, Z, X, theta)
    weights = cho_solve(cho_factor(K, lower=True), k_cross.T).T
    variance = math.exp(theta[1]) - (weights * k_cross).sum(1)
    return Posterior(weights, variance.clip(min=0.0), K, k_cross)


@dataclass(frozen=True)
class KernelSum:
    r"""A function of the RKHS whose norm is known: :math:`f = \sum_j c_j k(z_j, \cdot)`.

    :math:`\|f\|_k^2 = c^\top K_{ZZ} c`.
    """

    name: str
    theta: Array
    centres: Array
    coefficients: Array

    def __call__(self, X: Array) -> Array:
        return cross(self.name, X, self.centres, self.theta) @ self.coefficients

    @property
    def norm(self) -> float:
        K = cross(self.name, self.centres, self.centres, self.theta)
        return math.sqrt(max(0.0, float(self.coefficients @ K @ self.coefficients)))

    def scaled(self, norm: float) -> KernelSum:
        """Return the same function scaled to another norm."""
        return replace(self, coefficients=self.coefficients * (norm / self.norm))


def random_function(
    name: str, theta: Array, norm: float, rng: np.random.Generator, d: int = 1, terms: int = 20
) -> KernelSum:
    """Return a sum of kernels at random places of the unit cube, of the given norm."""
    centres = rng.uniform(size=(terms, d))
    return KernelSum(name, theta, centres, rng.normal(size=terms)).scaled(norm)


def smoothness(name: str, d: int) -> float:
    r"""Return the :math:`m_0 = \nu + d/2` of assumption C2 for a Matérn kernel."""
    return {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}[name] + 0.5 * d
