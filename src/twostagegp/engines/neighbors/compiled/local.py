r"""Many small Gaussian processes: every point from its own k neighbours.

For a point :math:`x` with neighbours :math:`x_1, \dots, x_k`, targets t and noise variances
:math:`n_j`, let :math:`C = k_\theta(x_i, x_j) + \mathrm{diag}(n)` and :math:`k_j =
k_\theta(x, x_j)`. Then

.. math::

    a = C^{-1} k, \quad \beta = C^{-1} t, \qquad \mu = k^\top \beta, \qquad v = s - k^\top a ,

with the outputscale :math:`s = k_\theta(x, x)`. One Cholesky factor serves both: k and t are two
more rows of the matrix that is factorised, and :math:`\mu` and v are products of those rows.

For a loss :math:`F(\mu, v)` with derivatives :math:`F_\mu, F_v` and :math:`w = F_v a - F_\mu
\beta`,

.. math::

    \frac{\partial F}{\partial C} = \mathrm{sym}(a w^\top), \qquad
    \frac{\partial F}{\partial k} = F_\mu \beta - 2 F_v a, \qquad
    \frac{\partial F}{\partial \log s} = F_v v - \textstyle\sum_j a_j w_j n_j ,

the last because :math:`C a = k` and :math:`C \beta = t` (the kernel is proportional to s). Log
lengthscales get :math:`\sum_{i > j} c_{ij} P_{ij} (z_{ik} - z_{jk})^2` with the coefficients
:math:`c_{ij} = a_i w_j + a_j w_i` (and those of k) and :math:`P = -2\, \partial k / \partial r^2`;
for the L1 kernel absolute differences and P = k.
"""

# mypy: disable-error-code="no-untyped-def, misc, no-any-return, no-untyped-call, call-arg"

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from twostagegp.engines.neighbors.compiled.compiling import compiled
from twostagegp.engines.neighbors.compiled.lanes import DEGREE, FAR, LANES
from twostagegp.engines.neighbors.compiled.loops import (
    covariances_and_slopes,
    differences,
    eliminate,
    eliminate_pair,
    exponential_covariances,
    pivot,
    slope_weights,
    weighted_squares,
)
from twostagegp.kernels.catalogue import ExponentialForm

__all__ = [
    "MODES",
    "CompiledKernel",
    "covariances",
    "evaluate",
    "exp_minus",
    "gather",
    "pair_distances",
    "predict",
]

_eliminate_pair1, _eliminate_pair4 = eliminate_pair[1], eliminate_pair[4]
_squares1, _squares4 = differences[1, False], differences[4, False]
_absolute1, _absolute4 = differences[1, True], differences[4, True]
_sum1, _sum4 = weighted_squares[1, False], weighted_squares[4, False]
_absolute_sum1, _absolute_sum4 = weighted_squares[1, True], weighted_squares[4, True]

#: The objectives, by the numbers that the loops take.
MODES = {"loo": 0, "heldout": 1, "nll": 2}
_RESIDUALS, _LIKELIHOOD = 1, 2

_LOG_2PI = math.log(2.0 * math.pi)


@compiled
def exp_minus(x):
    """Return exp(-x) for x >= 0 to about 1e-13: a series, then squares, which vectorise."""
    u = min(x, FAR) * (-1.0 / 256.0)
    p = 1.0 / 3628800.0
    p = p * u + 1.0 / 362880.0
    p = p * u + 1.0 / 40320.0
    p = p * u + 1.0 / 5040.0
    p = p * u + 1.0 / 720.0
    p = p * u + 1.0 / 120.0
    p = p * u + 1.0 / 24.0
    p = p * u + 1.0 / 6.0
    p = p * u + 0.5
    p = p * u + 1.0
    p = p * u + 1.0
    p = p * p
    p = p * p
    p = p * p
    p = p * p
    p = p * p
    p = p * p
    p = p * p
    return p * p


class CompiledKernel(NamedTuple):
    """An :class:`ExponentialForm` as the loops take it: numbers only."""

    absolute: bool
    root: bool
    factor: float
    degree: int
    a1: float
    a2: float
    a3: float
    slope_factor: float
    slope_degree: int
    b1: float
    b2: float
    over_x: bool

    @classmethod
    def of(cls, form: ExponentialForm, metric: int) -> CompiledKernel:
        """Return the numbers of a kernel in the norm ``metric``."""
        a1, a2, a3 = (*form.polynomial, 0.0, 0.0, 0.0)[:DEGREE]
        b1, b2 = (*form.slope, 0.0, 0.0)[: DEGREE - 1]
        return cls(
            metric == 1, form.root, form.factor, len(form.polynomial), a1, a2, a3,
            form.slope_factor, len(form.slope), b1, b2, form.slope_over_x,
        )  # fmt: skip


@compiled
def covariances(K, start, size, kernel, s):
    """Turn distances (squared, except for L1) into covariances, in place."""
    variant = kernel.degree + (DEGREE + 1 if kernel.root else 0)
    exponential_covariances(
        K, start, size, variant, kernel.factor, kernel.a1, kernel.a2, kernel.a3, s
    )


@compiled
def _covariances_and_slopes(D, K, kernel, s, by_distance):
    """Fill K with covariances, and D, the distances, with -p dk/d(r^p), below the diagonal.

    With ``by_distance`` D is multiplied by the distances.
    """
    numbers = (
        kernel.factor, kernel.a1, kernel.a2, kernel.a3, kernel.b1, kernel.b2, s,
        s * kernel.slope_factor,
    )  # fmt: skip
    kind = 2 if kernel.over_x else 1 if kernel.root else 0
    row = D.shape[1] * LANES
    for i in range(1, D.shape[0] - 1):
        covariances_and_slopes(
            D.reshape(-1), K.reshape(-1), i * row, i * LANES, kind, numbers, by_distance
        )


@compiled
def gather(Z, t, noise, near, points, begin, X, T, N, missing):
    """Interleave the neighbours of LANES points; the last lanes repeat the last point.

    Return whether a neighbour is missing.
    """
    m, k = near.shape
    d = Z.shape[1]
    any_missing = False
    for l in range(LANES):
        q = min(begin + l, m - 1)
        for i in range(k):
            r = near[q, i]
            missing[i, l] = r < 0
            any_missing = any_missing or r < 0
            r = max(r, 0)
            T[i, l] = t[r]
            N[i, l] = noise[r]
            for c in range(d):
                X[i, c, l] = Z[r, c]
        for c in range(d):
            X[k, c, l] = points[q, c]
    return any_missing


@compiled
def pair_distances(X, D, absolute):
    """Fill D with the distances (squared, except for L1) of all pairs of points of X."""
    k1, d = X.shape[0], X.shape[1]
    x, out = X.reshape(-1), D.reshape(-1)
    step, row = d * LANES, D.shape[1] * LANES
    for j in range(k1 - 1):
        i = j + 1
        while i + 4 <= k1:
            if absolute:
                _absolute4(x, i * step, step, j * step, step, out, i * row + j * LANES, row)
            else:
                _squares4(x, i * step, step, j * step, step, out, i * row + j * LANES, row)
            i += 4
        while i < k1:
            if absolute:
                _absolute1(x, i * step, step, j * step, step, out, i * row + j * LANES, row)
            else:
                _squares1(x, i * step, step, j * step, step, out, i * row + j * LANES, row)
            i += 1


@compiled
def _factorise(K, k):
    """Factorise the first k rows; the rows below become their products with L^-T."""
    flat = K.reshape(-1)
    rows, row = K.shape[0], K.shape[1] * LANES
    j = 0
    while j + 2 <= k:  # two columns at a time: every entry of a row is loaded once for both
        pivot(flat, j * row, j * LANES)
        eliminate(flat, (j + 1) * row, j * row, j * LANES)
        pivot(flat, (j + 1) * row, (j + 1) * LANES)
        i = j + 2
        while i + 4 <= rows:
            _eliminate_pair4(flat, i * row, row, j * row, j * LANES)
            i += 4
        while i < rows:
            _eliminate_pair1(flat, i * row, row, j * row, j * LANES)
            i += 1
        j += 2
    if j < k:
        pivot(flat, j * row, j * LANES)
        for i in range(j + 1, rows):
            eliminate(flat, i * row, j * row, j * LANES)


@compiled
def _solve_lanes(T, N, missing, any_missing, K, s, mean, variance):
    """Compute the factor in K, which holds covariances, and mean and latent variance."""
    k = T.shape[0]
    for i in range(k):
        for l in range(LANES):
            K[i, i, l] = s + N[i, l]
            K[k + 1, i, l] = T[i, l]
    if any_missing:
        # A missing neighbour: uncorrelated with all others, target zero.
        for i in range(k):
            for l in range(LANES):
                if missing[i, l]:
                    K[i, i, l] = 1.0
                    K[k + 1, i, l] = 0.0
                    for j in range(i):
                        K[i, j, l] = 0.0
                    for j in range(i + 1, k + 1):
                        K[j, i, l] = 0.0
    _factorise(K, k)
    for l in range(LANES):
        mean[l], variance[l] = 0.0, s
    for i in range(k):
        for l in range(LANES):
            mean[l] += K[k, i, l] * K[k + 1, i, l]
            variance[l] -= K[k, i, l] * K[k, i, l]


@compiled
def predict(Z, t, noise, near, points, kernel, s, mean, variance):
    """Fill in mean and latent variance of points; NaN if a matrix is not positive definite.

    Parameters
    ----------
    Z : (n, d) scaled inputs; t : (n,) targets; noise : (n,) noise variances
    near : (m, k) int32, neighbours; -1 stands for a missing one
    points : (m, d) scaled inputs
    kernel : CompiledKernel; s : outputscale
    mean, variance : (m,), filled
    """
    m, k = near.shape
    d = Z.shape[1]
    X, T, N = np.empty((k + 1, d, LANES)), np.empty((k, LANES)), np.empty((k, LANES))
    missing = np.empty((k, LANES), np.bool_)
    K = np.zeros((k + 2, k + 2, LANES))
    mu, v = np.empty(LANES), np.empty(LANES)
    for begin in range(0, m, LANES):
        any_missing = gather(Z, t, noise, near, points, begin, X, T, N, missing)
        pair_distances(X, K, kernel.absolute)
        for i in range(1, k + 1):
            covariances(K.reshape(-1), i * K.shape[1] * LANES, i * LANES, kernel, s)
        _solve_lanes(T, N, missing, any_missing, K, s, mu, v)
        for l in range(min(LANES, m - begin)):
            mean[begin + l] = mu[l]
            # Rounding may go below zero; NaN must stay NaN.
            variance[begin + l] = 0.0 if v[l] < 0.0 else v[l]


@compiled
def _back_substitute(K, k, row, x):
    """Set x = L^-T y for the y in a row of K."""
    for j in range(k - 1, -1, -1):
        for l in range(LANES):
            x[j, l] = K[row, j, l]
        for i in range(j + 1, k):
            for l in range(LANES):
                x[j, l] -= K[i, j, l] * x[i, l]
        for l in range(LANES):
            x[j, l] *= K[j, j, l]


@compiled
def _loss(mu, v, s, t, c, q, R, mode, all_copies):
    """Return the density of one (merged) row and its derivatives by mu, v and the noise s.

    Of c > 1 copies one is left out. The others remain as an observation with noise s / (c - 1),
    which turns v into v' = 1 / (1/v + (c-1)/s) (``objectives.py``). For Vecchia's likelihood all
    copies are predicted together from earlier rows. With ``all_copies`` (if rows have groups) a row
    is left out with all its copies.
    """
    if mode == _LIKELIHOOD:
        V = v + s / c
        e = t - mu
        slope = 0.5 * (1.0 / V - e * e / (V * V))
        within = q / s + (c - 1.0) * math.log(s) + math.log(c) + c * _LOG_2PI
        value = 0.5 * (e * e / V + math.log(V) + within)
        return value, -e / V, slope, slope / c + 0.5 * ((c - 1.0) / s - q / (s * s))
    by_residuals = mode == _RESIDUALS
    if c <= 1.0 or all_copies:
        V = v + s
        Q = R if by_residuals else c * (t - mu) ** 2 + q
        slope = 0.5 * (c / V - Q / (V * V))
        by_mu = 0.0 if by_residuals else -c * (t - mu) / V
        return 0.5 * (Q / V + c * (math.log(V) + _LOG_2PI)), by_mu, slope, slope
    v = max(v, 1e-12 * s)
    u = 1.0 / (1.0 / v + (c - 1.0) / s)
    u_v, u_s = (u / v) ** 2, (c - 1.0) * (u / s) ** 2
    V = u + s
    if by_residuals:
        slope = 0.5 * (c / V - R / (V * V))
        value = 0.5 * (R / V + c * (math.log(V) + _LOG_2PI))
        return value, 0.0, slope * u_v, slope * (u_s + 1.0)
    e = t - mu
    r, f = u / v * e, 1.0 + u / s
    Q = c * r * r + f * f * q
    slope = 0.5 * (c / V - Q / (V * V))
    Q_v = 2.0 * c * r * e * (u_v - u / v) / v + 2.0 * f * q * u_v / s
    Q_s = 2.0 * c * r * e * u_s / v + 2.0 * f * q * (u_s - u / s) / s
    value = 0.5 * (Q / V + c * (math.log(V) + _LOG_2PI))
    by_mu = -c * r * (u / v) / V
    return value, by_mu, 0.5 * Q_v / V + slope * u_v, 0.5 * Q_s / V + slope * (u_s + 1.0)


@compiled
def evaluate(Z, t, c, q, extra, all_copies, mode, R, batch, near, kernel, s, noise, ard, gradient):
    """Return the sum of the densities of rows, each predicted from its neighbours.

    Parameters
    ----------
    Z, t, c, q, extra : merged rows, Z scaled (see ``rows.py``)
    all_copies : bool
        Whether a row is left out with all its copies (with groups) or one copy at a time.
    mode : int, from ``MODES``
    R : (m,) sums of squares of other residuals for "heldout", else empty
    batch : (m,) int64, rows; near : (m, k) int32, their neighbours without themselves
    ard : bool
        Whether every column has a lengthscale.
    gradient : (number of lengthscales + 2,)
        The derivatives by log lengthscales, log s and log noise are added to it.

    Returns
    -------
    value : float
    """
    m, k = near.shape
    d = Z.shape[1]
    X, T, N = np.empty((k + 1, d, LANES)), np.empty((k, LANES)), np.empty((k, LANES))
    missing = np.empty((k, LANES), np.bool_)
    D, K = np.zeros((k + 2, k + 2, LANES)), np.zeros((k + 2, k + 2, LANES))
    mu, v = np.empty(LANES), np.empty(LANES)
    a, beta, w = np.empty((k, LANES)), np.empty((k, LANES)), np.empty((k, LANES))
    F_mu, F_v = np.empty(LANES), np.empty(LANES)
    G = np.empty((d, LANES))
    noises = (noise + extra) / c
    points = np.empty((LANES, d))
    own = np.empty((LANES, k), np.int32)
    absolute = kernel.absolute
    total = 0.0
    n_scales = gradient.size - 2
    for begin in range(0, m, LANES):
        here = min(LANES, m - begin)
        for l in range(LANES):
            r = min(begin + l, m - 1)
            for c_ in range(d):
                points[l, c_] = Z[batch[r], c_]
            for i in range(k):
                own[l, i] = near[r, i]
        any_missing = gather(Z, t, noises, own, points, 0, X, T, N, missing)
        pair_distances(X, D, absolute)
        _covariances_and_slopes(D, K, kernel, s, not ard)
        _solve_lanes(T, N, missing, any_missing, K, s, mu, v)
        _back_substitute(K, k, k, a)
        _back_substitute(K, k, k + 1, beta)
        for l in range(LANES):
            F_mu[l] = F_v[l] = 0.0
            if l < here:
                i = batch[begin + l]
                residual = R[begin + l] if R.size > 0 else 0.0
                value, F_mu[l], F_v[l], F_s = _loss(
                    mu[l], v[l], noise + extra[i], t[i], c[i], q[i], residual, mode, all_copies
                )
                total += value
                gradient[-1] += noise * F_s
                gradient[-2] += F_v[l] * v[l]
        for i in range(k):
            for l in range(LANES):
                w[i, l] = F_v[l] * a[i, l] - F_mu[l] * beta[i, l]
                if missing[i, l]:
                    a[i, l] = w[i, l] = beta[i, l] = 0.0
                along = a[i, l] * w[i, l]
                gradient[-2] -= along * N[i, l]
                gradient[-1] += along * noise / c[max(own[l, i], 0)]
        # K becomes M = coefficients x P; without ARD, D is P times the distances.
        along = 0.0
        row = K.shape[1] * LANES
        for i in range(1, k):
            along += slope_weights(
                D.reshape(-1), K.reshape(-1), i * row, i * LANES, a.reshape(-1), w.reshape(-1),
                i * LANES,
            )  # fmt: skip
        for j in range(k):
            for l in range(LANES):
                K[k, j, l] = (F_mu[l] * beta[j, l] - 2.0 * F_v[l] * a[j, l]) * D[k, j, l]
                along += K[k, j, l]
        if not ard:
            gradient[0] += along
            continue
        for c_ in range(d):
            for l in range(LANES):
                G[c_, l] = 0.0
        for i in range(1, k + 1):
            _columns(K, X, G, i, absolute)
        for c_ in range(n_scales):
            for l in range(LANES):
                gradient[c_] += G[c_, l]
    return total


@compiled
def _columns(M, X, G, i, absolute):
    """Add sum_j<i M_ij |x_ik - x_jk|^p to G_k for every column k."""
    d = X.shape[1]
    flat, x, g = M.reshape(-1), X.reshape(-1), G.reshape(-1)
    row, point, stride = i * M.shape[1] * LANES, i * d * LANES, d * LANES
    column = 0
    while column + 4 <= d:
        if absolute:
            _absolute_sum4(flat, row, i, x, point, stride, column * LANES, g)
        else:
            _sum4(flat, row, i, x, point, stride, column * LANES, g)
        column += 4
    while column < d:
        if absolute:
            _absolute_sum1(flat, row, i, x, point, stride, column * LANES, g)
        else:
            _sum1(flat, row, i, x, point, stride, column * LANES, g)
        column += 1
