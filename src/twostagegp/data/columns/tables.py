"""Turn the table that an estimator is given into numbers.

Arrays and frames of numbers without gaps are used as they are. Other tables are encoded by a
:class:`TableEncoder`, which the estimator keeps as ``columns_``. It is None for arrays, unless
missing values are to be imputed.
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data

from twostagegp.data.checks import check_finite, seen_columns
from twostagegp.data.columns.choice import is_plain_dtype
from twostagegp.data.columns.encoder import (
    GAP_HINT,
    TableEncoder,
    array_of_shape,
    refuse_equal_names,
)
from twostagegp.errors import InputError

__all__ = [
    "MISSING",
    "encoded_names",
    "learn_columns",
    "named_inputs",
    "needs_encoding",
    "new_inputs",
    "training_table",
]

Array = NDArray[np.float64]

#: Choices of the parameter ``missing`` of the estimators.
MISSING = ("auto", "impute", "error")


def training_table(estimator: Any, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
    """Check X and y as scikit-learn does and return them.

    A frame that must be encoded is returned unchanged.
    """
    if isinstance(X, pd.DataFrame):
        refuse_equal_names(X.columns)
    if not needs_encoding(X):
        return validate_data(estimator, X, y, **options)
    _, y = validate_data(estimator, array_of_shape(X), y, **options)
    validate_data(estimator, X, skip_check_array=True)  # names of the columns
    return X, y


def learn_columns(estimator: Any, given: Any, X: Any, weight: Array | None) -> Array:
    """Fit the encoder, set ``columns_`` and return the encoded table.

    Parameters
    ----------
    estimator : estimator
    given : data frame or array-like
        X as the user passed it.
    X : data frame or array
        X as :func:`training_table` returned it.
    weight : array of shape (n,), optional
    """
    framed = isinstance(given, pd.DataFrame)
    missing = estimator.missing
    if not framed and missing != "impute":
        estimator.columns_ = None
        check_finite(X, "X", seen_columns(estimator), GAP_HINT)
        return X
    encoder = TableEncoder(missing="error" if missing == "error" else "impute")
    if isinstance(X, pd.DataFrame):
        estimator.columns_ = encoder.fit(X, sample_weight=weight)
        return encoder.encode(X, quiet=True)
    # The frame adds the names and copies nothing.
    frame = pd.DataFrame(X, columns=given.columns if framed else None, copy=False)
    estimator.columns_ = encoder.fit(frame, sample_weight=weight)
    if not encoder.plain:
        return encoder.encode(frame, quiet=True)
    check_finite(X, "X", encoder.names)
    return X


def new_inputs(estimator: Any, X: Any) -> Array:
    """Return the encoded table of rows to predict, by the rules of the fit."""
    encoder: TableEncoder | None = estimator.columns_
    if encoder is None or (encoder.plain and not needs_encoding(X)):
        if not _is_valid_array(estimator, X):
            X = named_inputs(estimator, X, dtype=np.float64, ensure_all_finite=False)
        if encoder is None or encoder.missing == "error" or not np.isnan(X).any():
            if not np.isfinite(X).all():
                check_finite(X, "X", seen_columns(estimator), GAP_HINT)
            return X
        return encoder.encode(pd.DataFrame(X, copy=False))
    if isinstance(X, pd.DataFrame):
        check_array(array_of_shape(X), ensure_all_finite=False, estimator=estimator, input_name="X")
        frame = named_inputs(estimator, X, skip_check_array=True)
    else:
        array = named_inputs(estimator, X, dtype=None, ensure_all_finite=False)
        frame = pd.DataFrame(array).infer_objects()
    return encoder.encode(frame)


def _is_valid_array(estimator: Any, X: Any) -> bool:
    """Return whether X is an array that scikit-learn's checks would return unchanged.

    They take longer than the prediction of a single row.
    """
    return (
        type(X) is np.ndarray
        and X.dtype == np.float64
        and X.ndim == 2
        and len(X) > 0
        and X.shape[1] == estimator.n_features_in_ > 0
        # The checks warn if the columns had names in fit.
        and not hasattr(estimator, "feature_names_in_")
    )


def encoded_names(estimator: Any) -> list[str]:
    """Return the names of the encoded columns."""
    encoder: TableEncoder | None = estimator.columns_
    return seen_columns(estimator) if encoder is None else encoder.names


def needs_encoding(X: Any) -> bool:
    """Return whether X is a data frame with a column that does not hold plain numbers."""
    return isinstance(X, pd.DataFrame) and not all(is_plain_dtype(dtype) for dtype in X.dtypes)


def named_inputs(estimator: Any, X: Any, **options: Any) -> Any:
    """Return X checked against the fit; if names differ, the error suggests similar ones."""
    if isinstance(X, pd.DataFrame):
        refuse_equal_names(X.columns)
    try:
        return validate_data(estimator, X, reset=False, **options)
    except ValueError as error:
        known = getattr(estimator, "feature_names_in_", None)
        if known is None or not isinstance(X, pd.DataFrame):
            raise
        hint = _name_hint([str(name) for name in X.columns], list(known))
        if not hint:
            raise
        raise InputError(f"{str(error).rstrip()}\n{hint}") from None


def _name_hint(given: list[str], known: list[str]) -> str:
    absent = [name for name in known if name not in given]
    if not absent:
        return (
            "The names are the same in another order: use X[model.feature_names_in_]."
            if sorted(given) == sorted(known) and given != known
            else ""
        )
    unknown = [name for name in given if name not in known]
    pairs = [(name, difflib.get_close_matches(name, unknown, n=1, cutoff=0.6)) for name in absent]
    near = [f"{match[0]!r} for {name!r}" for name, match in pairs if match]
    return f"Did you mean {', '.join(near)}?" if near else ""
