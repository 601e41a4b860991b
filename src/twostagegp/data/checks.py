"""Check parameters and values; an error names the value that was given and what to use instead.

Every layer above ``data`` shares these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import column_or_1d

from twostagegp.errors import InputError

__all__ = [
    "HUGE",
    "check_choice",
    "check_count",
    "check_finite",
    "check_groups",
    "check_nonnegative",
    "column_names",
    "is_dask",
    "penalty_option",
    "seen_columns",
]

Array = NDArray[np.float64]

#: Largest magnitude of a value whose square, times a variance, is far from overflow.
HUGE = 1e100


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise an :class:`InputError` that lists the choices unless ``value`` is one of them.

    Examples
    --------
    >>> check_choice("ard", "yes", (True, False, "both"))
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: ard='yes' is not one of True, False, 'both'.
    """
    value = bool(value) if isinstance(value, np.bool_) else value
    if not any(value is c or (isinstance(value, str) and value == c) for c in choices):
        listed = ", ".join(repr(c) for c in choices)
        raise InputError(f"{name}={value!r} is not one of {listed}.")


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int; raise unless it is a whole number of at least ``least``.

    Examples
    --------
    >>> check_count("n_samples", 0)
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: n_samples=0 must be a whole number of at least 1.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def penalty_option(penalty: Any, words: tuple[str, ...]) -> str | tuple[float, ...]:
    """Return a ``penalty`` parameter as one of ``words`` or as a grid of positive numbers.

    Examples
    --------
    >>> penalty_option(0.1, ("auto",))
    (0.1,)
    """
    if isinstance(penalty, str) and penalty in words:
        return penalty
    listed = ", ".join(repr(word) for word in words)
    message = f"penalty={penalty!r}: use {listed}, a positive number, or a grid of them."
    if isinstance(penalty, str):
        raise InputError(message)
    try:
        grid = np.atleast_1d(np.asarray(penalty, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(message) from error
    if grid.ndim != 1 or grid.size == 0 or not (np.isfinite(grid) & (grid > 0.0)).all():
        raise InputError(message)
    return tuple(grid.tolist())


def check_finite(
    values: Array, name: str, columns: Sequence[str] | None = None, hint: str = ""
) -> None:
    """Raise an :class:`InputError` that says where the first NaN or infinity is.

    If the value is a NaN, ``hint`` is appended to the message.

    Examples
    --------
    >>> import numpy as np
    >>> check_finite(np.array([[1.0, 2.0]]), "X")
    >>> check_finite(np.array([[1.0, np.nan]]), "X", ["height", "width"])
    Traceback (most recent call last):
    ...
    twostagegp.errors.InputError: X contains NaN: 1 of 2 values, the first in row 0, column 'width'.
    Remove such rows, or impute them first, for example with sklearn.impute.SimpleImputer.
    """
    if np.isfinite(values).all():
        return
    bad = ~np.isfinite(values)
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    value = values[where]
    kind = "NaN" if np.isnan(value) else "infinity (inf)"
    place = f"row {where[0]}"
    if len(where) > 1:
        place += f", column {columns[where[1]]!r}" if columns else f", column {where[1]}"
    raise InputError(
        f"{name} contains {kind}: {int(bad.sum())} of {values.size} values, the first in {place}. "
        "Remove such rows, or impute them first, for example with sklearn.impute.SimpleImputer."
        + (f" {hint}" if hint and kind == "NaN" else "")
    )


def check_nonnegative(values: ArrayLike | None, n: int, name: str) -> Array | None:
    """Return a vector such as ``sample_weight`` or ``noise_var`` as an array of shape (n,).

    A scalar is repeated; None stays None. NaN, infinite, negative and huge values are errors.
    """
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    array = np.full(n, float(array)) if array.ndim == 0 else array
    if array.ndim != 1 or len(array) != n:
        raise InputError(f"{name} has shape {array.shape}, expected ({n},): one number per row.")
    check_finite(array, name)
    if (array < 0.0).any():
        first = int(np.argmax(array < 0.0))
        raise InputError(f"{name} must not be negative; row {first} has {float(array[first])}.")
    if (array > HUGE).any():
        first = int(np.argmax(array))
        raise InputError(f"{name} reaches {array[first]:.1e} in row {first}; rescale it.")
    return array


def check_groups(groups: ArrayLike | None, n: int) -> NDArray[np.int64] | None:
    """Turn group labels of any type into group numbers, shape (n,)."""
    if groups is None:
        return None
    labels = column_or_1d(np.asarray(groups))
    if len(labels) != n:
        raise InputError(f"groups has {len(labels)} labels for {n} rows; give one label per row.")
    _, numbers = np.unique(labels, return_inverse=True)
    if numbers.max(initial=0) < 1:
        raise InputError("groups has a single label; at least two are needed to hold one out.")
    return numbers.reshape(-1)


def column_names(X: Any) -> list[str]:
    """Return the names of a data frame's columns; x0, x1, ... for other tables."""
    columns = getattr(X, "columns", None)
    if columns is not None:
        return [str(name) for name in columns]
    shape = np.shape(X)
    return [f"x{k}" for k in range(shape[1] if len(shape) > 1 else 1)]


def seen_columns(estimator: Any) -> list[str]:
    """Return the names of the columns seen in ``fit``; x0, x1, ... if they had no names."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        return list(names)
    return [f"x{k}" for k in range(estimator.n_features_in_)]


def is_dask(value: Any) -> bool:
    """Return whether a value is a Dask array, data frame, series or other Dask collection.

    Dask is not imported: its collections are recognised by the module of their type.

    Examples
    --------
    >>> import numpy as np
    >>> is_dask(np.zeros(3))
    False
    """
    if type(value) is np.ndarray:
        return False
    packages = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    return "dask" in packages or "dask_expr" in packages
