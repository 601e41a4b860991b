"""The innermost loops in ordinary Numba: slow, and easy to read.

``vector_loops.py`` is tested against them. They take its place with a version of Numba that it was
not tried with. Arrays are flat, offsets count doubles, and lane l of an entry is at offset + l.
"""

# mypy: disable-error-code="no-untyped-def, misc, no-any-return, no-untyped-call"

from __future__ import annotations

import math
from typing import Any

from numba import njit

from twostagegp.engines.neighbors.compiled.lanes import BLOCK, DEGREE, FAR, LANES, OPTIONS

__all__ = [
    "block_distances",
    "box_distances",
    "covariances_and_slopes",
    "differences",
    "eliminate",
    "eliminate_pair",
    "exponential_covariances",
    "pivot",
    "slope_weights",
    "weighted_squares",
]

#: Functions made by other functions are compiled into their callers, which are cached.
_OPTIONS = {**OPTIONS, "cache": False}


@njit(**_OPTIONS)
def eliminate(K, row, pivot_row, column):
    """Compute one entry of the Cholesky factor: L_ij = (K_ij - sum_p<j L_ip L_jp) / L_jj.

    ``K[pivot_row + column]`` holds 1 / L_jj.
    """
    for l in range(LANES):
        total = K[row + column + l]
        for p in range(0, column, LANES):
            total -= K[pivot_row + p + l] * K[row + p + l]
        K[row + column + l] = total * K[pivot_row + column + l]


def _eliminate_pair(count: int) -> Any:
    @njit(**_OPTIONS)
    def loop(K, first, stride, pivot_row, column):
        for r in range(count):
            eliminate(K, first + r * stride, pivot_row, column)
            eliminate(K, first + r * stride, pivot_row + stride, column + LANES)

    return loop


#: ``eliminate_pair[c](K, first, stride, pivot_row, column)``: :func:`eliminate` for c rows and two
#: columns, ``column`` and the next, whose pivots are known; ``stride`` is the width of a row.
eliminate_pair = {count: _eliminate_pair(count) for count in (1, 4)}


@njit(**_OPTIONS)
def pivot(K, row, column):
    """Set K[row + column] to 1 / sqrt(K_jj - sum_p<j L_jp^2), the inverse of the factor's diagonal.

    If a matrix is not positive definite, the result is NaN, in its own lane only.
    """
    for l in range(LANES):
        total = K[row + column + l]
        for p in range(0, column, LANES):
            total -= K[row + p + l] ** 2
        K[row + column + l] = 1.0 / math.sqrt(total)


def _differences(count: int, absolute: bool) -> Any:
    @njit(**_OPTIONS)
    def loop(X, first, stride, other, size, D, out, out_stride):
        for r in range(count):
            for l in range(LANES):
                total = 0.0
                for p in range(0, size, LANES):
                    u = X[first + r * stride + p + l] - X[other + p + l]
                    total += abs(u) if absolute else u * u
                D[out + r * out_stride + l] = total

    return loop


#: ``differences[c, absolute](X, first, stride, other, size, D, out, out_stride)``: distances of
#: c rows from one other row, squared Euclidean or (absolute) L1; ``size`` is columns x LANES.
differences = {
    (count, absolute): _differences(count, absolute)
    for count in (1, 4)
    for absolute in (False, True)
}


def _block_distances(absolute: bool) -> Any:
    @njit(**_OPTIONS)
    def loop(P, start, n_columns, q, limit, D):
        mask = 0
        for i in range(BLOCK):
            total = 0.0
            for c in range(n_columns):
                u = P[start + c * BLOCK + i] - q[c]
                total += abs(u) if absolute else u * u
            D[i] = total
            if total <= limit:
                mask |= 1 << i
        return mask

    return loop


#: ``block_distances[absolute](P, start, n_columns, q, limit, D)``: write the distances of the BLOCK
#: points of one leaf from q into D; return an integer whose bit i is set if D[i] <= ``limit``.
block_distances = {absolute: _block_distances(absolute) for absolute in (False, True)}


def _box_distances(absolute: bool) -> Any:
    @njit(**_OPTIONS)
    def loop(boxes, start, n_columns, q, D):
        for l in range(LANES):
            total = 0.0
            for c in range(n_columns):
                low = start + c * 2 * LANES + l
                gap = max(boxes[low] - q[c], q[c] - boxes[low + LANES], 0.0)
                total += gap if absolute else gap * gap
            D[l] = total

    return loop


#: ``box_distances[absolute](boxes, start, n_columns, q, D)``: write the distances of q from LANES
#: boxes into D; the boxes' smallest and largest values lie column by column.
box_distances = {absolute: _box_distances(absolute) for absolute in (False, True)}


def _weighted_squares(count: int, absolute: bool) -> Any:
    @njit(**_OPTIONS)
    def loop(M, row, size, X, point, stride, column, G):
        for c in range(column, column + count * LANES):
            for j in range(size):
                u = X[point + c] - X[j * stride + c]
                G[c] += M[row + j * LANES + c % LANES] * (abs(u) if absolute else u * u)

    return loop


#: ``weighted_squares[c, absolute](M, row, size, X, point, stride, column, G)``: for c columns,
#: G_k += sum_j M_ij (x_ik - x_jk)^2, or the absolute difference, over the first ``size`` points.
weighted_squares = {
    (count, absolute): _weighted_squares(count, absolute)
    for count in (1, 4)
    for absolute in (False, True)
}


@njit(**_OPTIONS)
def exponential_covariances(K, start, size, variant, factor, a1, a2, a3, s):
    """Turn distances D (squared, except for L1) into covariances s p(x) exp(-x), in place.

    x is ``factor`` times D, or the square root of that, and p(x) = 1 + a1 x + a2 x^2 + a3 x^3.
    ``variant`` is the degree of p, plus ``DEGREE + 1`` for the root; coefficients beyond the degree
    are zero.
    """
    for e in range(start, start + size):
        x = factor * K[e]
        x = min(math.sqrt(x) if variant > DEGREE else x, FAR)
        K[e] = s * (1.0 + x * (a1 + x * (a2 + x * a3))) * math.exp(-x)


@njit(**_OPTIONS)
def covariances_and_slopes(D, K, start, size, kind, numbers, by_distance):
    """Fill K with covariances and replace distances D by the kernel's slopes.

    ``numbers`` are f, a1, a2, a3, b1, b2, s and s g of the kernel's
    :class:`~twostagegp.kernels.catalogue.ExponentialForm`. ``kind`` is 0 for x = f D, 1 for its
    square root, and 2 for a root whose slope is divided by x. With ``by_distance`` the slopes are
    multiplied by the distances.
    """
    f, a1, a2, a3, b1, b2, s, g = numbers
    for e in range(start, start + size):
        x = f * D[e]
        x = min(math.sqrt(x) if kind > 0 else x, FAR)
        K[e] = s * (1.0 + x * (a1 + x * (a2 + x * a3))) * math.exp(-x)
        slope = g * (1.0 + x * (b1 + x * b2)) * math.exp(-x)
        if kind == 2:
            slope /= max(x, 1e-100)
        D[e] = slope * D[e] if by_distance else slope


@njit(**_OPTIONS)
def slope_weights(P, M, place, size, a, w, point):
    """Set M_ij = P_ij (a_i w_j + a_j w_i) for j < i, and return the sum over j and all lanes.

    ``place`` is the offset of row i of P and M, ``point`` that of a_i and w_i, ``size`` is
    i x LANES.
    """
    total = 0.0
    for p in range(size):
        own = point + p % LANES
        M[place + p] = P[place + p] * (a[own] * w[p] + w[own] * a[p])
        total += M[place + p]
    return total
