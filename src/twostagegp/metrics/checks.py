"""Argument checks shared by the scores of regression and of classification."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twostagegp.errors import InputError

__all__ = ["check_bins", "check_interval", "check_same_length", "finite_array", "finite_vector"]

Array = NDArray[np.float64]


def finite_array(values: ArrayLike, name: str) -> Array:
    """Return the values as a float64 array of any shape; raise if one is NaN or infinite.

    Examples
    --------
    >>> finite_array([1, 2], "y")
    array([1., 2.])
    >>> finite_array([[0.0, np.nan]], "cov")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: cov must be finite, but cov[0, 1] = nan
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if not np.isfinite(array).all():
        where = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
        at = ", ".join(str(int(i)) for i in where)
        raise InputError(f"{name} must be finite, but {name}[{at}] = {array[where]}")
    return array


def finite_vector(values: ArrayLike, name: str) -> Array:
    """Return the values as a finite float64 array of shape (n,); raise if it is empty.

    Examples
    --------
    >>> finite_vector([[1.0], [2.0]], "mean")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: mean must have shape (n,), got (2, 1)
    """
    array = finite_array(values, name)
    if array.ndim != 1:
        raise InputError(f"{name} must have shape (n,), got {array.shape}")
    if array.shape[0] == 0:
        raise InputError(f"{name} is empty")
    return array


def check_same_length(y: NDArray[Any], other: NDArray[Any], name: str) -> None:
    """Raise an :class:`InputError` unless both arrays have the same number of rows.

    Examples
    --------
    >>> check_same_length(np.zeros(3), np.zeros(2), "std")
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: std has 2 rows, but y has 3
    """
    # Without this check, NumPy would broadcast shape (1,) against (n,) and score n pairs.
    if other.shape[0] != y.shape[0]:
        raise InputError(f"{name} has {other.shape[0]} rows, but y has {y.shape[0]}")


def check_bins(n_bins: int) -> None:
    """Raise an :class:`InputError` unless ``n_bins`` is a whole number of at least 2.

    Examples
    --------
    >>> check_bins(1)
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: n_bins must be at least 2, got 1
    """
    if not isinstance(n_bins, Integral):
        raise InputError(f"n_bins must be a whole number, got {n_bins!r}")
    if n_bins < 2:
        raise InputError(f"n_bins must be at least 2, got {n_bins}")


def check_interval(y: ArrayLike, interval: ArrayLike) -> tuple[Array, Array, Array]:
    """Return outcomes, lower ends and upper ends; raise unless there is one interval per outcome.

    Examples
    --------
    >>> check_interval([0.0], [[1.0, -1.0]])
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: interval[0] has its ends in the wrong order: 1.0 > -1.0
    """
    y_ = finite_vector(y, "y")
    bounds = np.asarray(interval, dtype=np.float64)
    if bounds.shape != (y_.shape[0], 2):
        raise InputError(f"interval must have shape ({y_.shape[0]}, 2), got {bounds.shape}")
    # Infinite ends are allowed, since conformal intervals can have them; NaN is not.
    if np.isnan(bounds).any():
        raise InputError(f"interval is NaN in row {int(np.argmax(np.isnan(bounds).any(axis=1)))}")
    lower, upper = bounds[:, 0], bounds[:, 1]
    if np.any(lower > upper):
        i = int(np.argmax(lower > upper))
        raise InputError(f"interval[{i}] has its ends in the wrong order: {lower[i]} > {upper[i]}")
    return y_, lower, upper
