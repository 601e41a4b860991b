r"""Part 3 of a classifier: the scale of the latents, by held-out log loss.

From held-out latents :math:`\ell_i` and variances :math:`v_i`,

.. math::

    p(x) = E\, \mathrm{softmax}\big( \tau\, \ell(x) + b + \sqrt{c\, v(x)}\, \varepsilon \big) ,
    \qquad \varepsilon \sim N(0, I) .

For every c of a grid, :math:`\tau` and b minimise the log loss of rows that were held out, plus
:math:`(\|b\|^2 + \log^2 \tau) / 2 N_e` (:mod:`twostagegp.classification.pool`). On rows like the
training rows a change of c can nearly be compensated by one of :math:`\tau`, while far from them
only c widens the distribution; so the largest c is chosen whose log loss is within one standard
error (of the paired differences, summed within groups) of the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from twostagegp.classification.probability import quadrature_softmax, sobol_normals
from twostagegp.pipeline.settings import ClassSettings

__all__ = ["LatentScale", "choose_scale", "losses_of", "mean_and_error"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

#: Logarithm to base 2 of the number of points of an integral while the scale is fitted.
LOG_POINTS = 6


@dataclass(frozen=True)
class LatentScale:
    r"""The fitted calibration.

    Attributes
    ----------
    tau : float
        Factor of the latents.
    bias : array of shape (K,)
        The b of the module's formula.
    c : float
        Factor of the latents' variances.
    loss : float
        Held-out log loss.
    losses : dict
        Held-out log loss for each factor c that was tried.
    """

    tau: float
    bias: Array
    c: float
    loss: float = math.nan
    losses: dict[float, float] = field(default_factory=dict)

    def __call__(self, latents: Array, variances: Array) -> tuple[Array, Array]:
        """Return calibrated means and variances, each of shape (n, K)."""
        return self.tau * latents + self.bias, self.c * variances

    @property
    def label(self) -> str:
        """Readable summary."""
        return f"latents times {self.tau:.3g}, variances times {self.c:.3g}"


def losses_of(scale: LatentScale, latents: Array, variances: Array, codes: Index) -> Array:
    """Return the log loss of each row, shape (n,)."""
    P = quadrature_softmax(*scale(latents, variances))
    return -np.log(np.maximum(P[np.arange(len(codes)), codes], np.finfo(float).tiny))


def mean_and_error(values: Array, weight: Array, labels: Index) -> tuple[float, float]:
    """Return the weighted mean of values and its standard error.

    Rows with the same label are one observation.

    Examples
    --------
    >>> values, labels = np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1])
    >>> [round(number, 3) for number in mean_and_error(values, np.ones(4), labels)]
    [2.0, 0.707]
    """
    share = weight / weight.sum()
    mean = float(share @ values)
    by_label = np.bincount(labels, weights=share * (values - mean))
    return mean, math.sqrt(float(by_label @ by_label))


def choose_scale(
    latents: Array,
    variances: Array,
    codes: Index,
    weight: Array,
    groups: Index | None,
    settings: ClassSettings,
    rng: np.random.Generator,
) -> LatentScale:
    """Return tau, b and c of the module's formula.

    Parameters
    ----------
    latents, variances : arrays of shape (n, K)
        Held-out predictions of the rows.
    codes : integer array of shape (n,)
    weight : array of shape (n,)
    groups : integer array of shape (n,) or None
    """
    some = np.sort(rng.permutation(len(codes))[: settings.scale_rows])
    L, v, y, w = latents[some], variances[some], codes[some], weight[some]
    labels = np.arange(len(y)) if groups is None else groups[some]
    price = 1.0 / (w.sum() if groups is None else len(np.unique(labels)))
    found: list[LatentScale] = []
    tau, bias = 1.0, np.zeros(L.shape[1])
    for c in settings.variance_factors:
        tau, bias = _fit(L, c * v, y, w, price, tau, bias)
        found.append(LatentScale(tau, bias, c))
    rows = np.stack([losses_of(scale, L, v, y) for scale in found])
    share = w / w.sum()
    losses = rows @ share
    best = int(np.argmin(losses))
    chosen = best
    for j in range(best + 1, len(found)):
        difference, error = mean_and_error(rows[j] - rows[best], w, labels)
        if difference <= settings.standard_errors * error:
            chosen = j
    by_factor = dict(zip(settings.variance_factors, losses.tolist(), strict=True))
    picked = found[chosen]
    return LatentScale(picked.tau, picked.bias, picked.c, float(losses[chosen]), by_factor)


def _fit(
    L: Array, v: Array, codes: Index, weight: Array, price: float, tau: float, bias: Array
) -> tuple[float, Array]:
    """Return the tau and b with the smallest log loss at given variances.

    The search starts from the given ``tau`` and ``bias``.
    """
    K = L.shape[1]
    N = float(weight.sum())
    latents, spread = torch.as_tensor(L), torch.as_tensor(np.sqrt(v))
    own, share = torch.as_tensor(codes), torch.as_tensor(weight / N)
    points = (
        torch.as_tensor(sobol_normals(K, LOG_POINTS)) if v.any() else torch.zeros(1, K).double()
    )
    noise = spread * points[:, None, :]

    def objective(p: Array) -> tuple[float, Array]:
        q = torch.tensor(p, requires_grad=True)
        f = torch.exp(q[0]) * latents + q[1:] + noise
        log_p = torch.log_softmax(f, dim=2).gather(2, own.expand(len(points), -1)[..., None])[
            ..., 0
        ]
        mean = torch.logsumexp(log_p, 0) - math.log(len(points))
        loss = -(share * mean).sum() + 0.5 * price * q.square().sum()
        (gradient,) = torch.autograd.grad(loss, q)
        return loss.item(), gradient.numpy()

    start = np.concatenate([[math.log(max(tau, 1e-3))], bias])
    bounds = [(-5.0, 5.0)] + [(None, None)] * K
    result = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60}
    )
    return float(math.exp(result.x[0])), result.x[1:].copy()
