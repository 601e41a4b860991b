r"""Log-linear pooling: one latent per class from those of several models, by held-out log loss.

.. math::

    \ell(x) = b + \sum_j w_j f_j(x) , \qquad p(x) = \mathrm{softmax}(\ell(x)) , \qquad w_j \ge 0 ,

w and b minimise the log loss of held-out rows plus a weak prior,

.. math::

    \frac1N \sum_i -\log p_{y_i}(x_i) + \frac{1}{N_e} \Big( \tfrac12 \|b\|^2
        + \tfrac12 \sum_j (u_j - \bar u)^2 + \sum_j u_j \Big) ,
    \qquad u_j = w_j\, \mathrm{sd}(f_j) .

The prior keeps the bias of a class with few rows near zero, spreads the weight equally over the
models unless the rows favour one of them, and charges one nat per unit of weight, so that gains of
the size of chance are not taken. :math:`N_e` is the number of rows, or of groups if there are any,
since rows of one group are not independent. A single model is scaled in the same way, so that
models with different links and strengths can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

__all__ = ["Pool", "fit_pool", "row_losses"]

Array = NDArray[np.float64]


def row_losses(latents: Array, codes: NDArray[np.int64]) -> Array:
    """Return the log loss of each row under the softmax of its latents, shape (n,)."""
    return -np.asarray(log_softmax(latents, axis=1))[np.arange(len(codes)), codes]


@dataclass(frozen=True)
class Pool:
    """Weights of the models, biases of the classes, and the resulting held-out log loss."""

    weights: Array
    bias: Array
    loss: float

    def __call__(self, latents: Sequence[Array]) -> Array:
        """Return the pooled latents, shape (n, K)."""
        total = np.broadcast_to(self.bias, (len(latents[0]), len(self.bias))).copy()
        for weight, each in zip(self.weights, latents, strict=True):
            total += weight * each
        return total


def fit_pool(
    latents: Sequence[Array],
    codes: NDArray[np.int64],
    weight: Array,
    groups: NDArray[np.int64] | None = None,
) -> Pool:
    """Return the weights and biases with the smallest held-out log loss plus prior.

    Parameters
    ----------
    latents : sequence of J arrays of shape (n, K)
        Latents of held-out rows, one array per model.
    codes : integer array of shape (n,)
    weight : array of shape (n,)
    groups : integer array of shape (n,), optional

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> f = rng.normal(size=(4000, 2))
    >>> codes = (rng.gumbel(size=(4000, 2)) + 3.0 * f).argmax(1)
    >>> fit_pool([f, rng.normal(size=(4000, 2))], codes, np.ones(4000)).weights.round(1).tolist()
    [2.8, 0.0]
    """
    F = np.stack(latents)
    J, n, K = F.shape
    N = float(weight.sum())
    # Divided by their standard deviation, so that one step length suits all weights.
    spread = np.maximum(F.std(axis=(1, 2)), 1e-12)
    F = F / spread[:, None, None]
    share = (weight / N)[:, None]
    price = 1.0 / (N if groups is None else len(np.unique(groups)))
    own = np.zeros((n, K))
    own[np.arange(n), codes] = 1.0

    def objective(p: Array) -> tuple[float, Array]:
        w, b = p[:J], p[J:]
        log_p = np.asarray(log_softmax(np.tensordot(w, F, 1) + b, axis=1))
        slope = share * (np.exp(log_p) - own)
        apart = w - w.mean()
        prior = 0.5 * float(b @ b + apart @ apart) + float(w.sum())
        value = -float((share * own * log_p).sum()) + price * prior
        by_weight = np.tensordot(F, slope, 2) + price * (apart + 1.0)
        return value, np.concatenate([by_weight, slope.sum(0) + price * b])

    start = np.concatenate([np.full(J, 1.0 / J), np.zeros(K)])
    bounds = [(0.0, None)] * J + [(None, None)] * K
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    loss = float(share[:, 0] @ row_losses(np.tensordot(found.x[:J], F, 1) + found.x[J:], codes))
    return Pool(found.x[:J] / spread, found.x[J:].copy(), loss)
