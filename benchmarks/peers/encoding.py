"""Tables with categories and gaps as numbers, for libraries that read numbers only.

A category becomes one column per value that the training rows have (one column in all if there are
two), a missing category is a value of its own, and a value that only new rows have is zero in all
columns. A gap in a column of numbers becomes the median of the training rows, and a further column
marks it; or it stays NaN for a library that splits on NaN by itself. Columns that are the same in
all training rows are left out: GPBoost refuses them, and no model can learn from them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from benchmarks.peers.base import Array, Fitted, Prediction

__all__ = ["Gaps", "encoded", "encoder", "is_frame", "split_columns"]

Gaps = Literal["median", "nan"]
#: The category of a gap.
MISSING = "missing"


def is_frame(X: Any) -> bool:
    """Return whether the table is a data frame."""
    return hasattr(X, "iloc")


def split_columns(X: Any) -> tuple[list[str], list[str]]:
    """Return the columns of numbers and those of categories of a data frame."""
    numbers = list(X.select_dtypes(include=["number", "bool"]).columns)
    return numbers, [name for name in X.columns if name not in numbers]


def encoder(X: Any, gaps: Gaps) -> Callable[[Any], Array]:
    """Return a function that encodes rows as the training rows X ask for.

    Examples
    --------
    >>> import pandas as pd
    >>> X = pd.DataFrame({"a": [1.0, None, 3.0], "kind": ["u", "v", "w"], "same": [0, 0, 0]})
    >>> encoder(X, "median")(X)
    array([[1., 0., 1., 0., 0.],
           [2., 1., 0., 1., 0.],
           [3., 0., 0., 0., 1.]])
    """
    encode = _frames(X, gaps) if is_frame(X) else np.asarray
    first = encode(X)
    varying = np.flatnonzero(
        ~((first == first[0]) | np.isnan(first) & np.isnan(first[0])).all(axis=0)
    )
    return lambda rows: encode(rows)[:, varying] if len(varying) else encode(rows)


def _frames(X: Any, gaps: Gaps) -> Callable[[Any], Array]:
    numbers, categories = split_columns(X)
    impute: Any = (
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
        if gaps == "median"
        else "passthrough"
    )
    one_hot = OneHotEncoder(handle_unknown="ignore", drop="if_binary", sparse_output=False)
    columns = ColumnTransformer([("numbers", impute, numbers), ("kinds", one_hot, categories)])

    def prepared(rows: Any) -> Any:
        kinds = {name: rows[name].astype(object).fillna(MISSING).astype(str) for name in categories}
        return rows.assign(**{name: rows[name].astype(np.float64) for name in numbers}, **kinds)

    columns.fit(prepared(X))

    def encode(rows: Any) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unknown categories: they are all zeros
            return np.asarray(columns.transform(prepared(rows)), dtype=np.float64)

    return encode


class _Encoded(Fitted):
    """A model of encoded rows, for rows as they are in the table."""

    def __init__(self, model: Fitted, encode: Callable[[Any], Array]) -> None:
        self.model = model
        self.encode = encode
        self.has_std = model.has_std

    def predict(self, X: Any) -> Prediction:
        return self.model.predict(self.encode(X))

    def quantiles(self, X: Any, levels: Array) -> Array:
        return self.model.quantiles(self.encode(X), levels)

    def own_scores(self, X: Any, y: Array) -> dict[str, float]:
        return self.model.own_scores(self.encode(X), y)

    def facts(self) -> dict[str, Any]:
        return self.model.facts()


def encoded(
    fit: Callable[[Array, Array, int], Fitted], gaps: Gaps
) -> Callable[[Any, Array, int], Fitted]:
    """Return a function that fits tables of any kind, given one that fits numbers."""

    def fit_table(X: Any, y: Array, seed: int) -> Fitted:
        encode = encoder(X, gaps)
        return _Encoded(fit(encode(X), y, seed), encode)

    return fit_table
