"""``TableEncoder``: encode a table with columns of any kind as numbers, and decode it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from twostagegp.data.checks import (
    check_choice,
    check_count,
    check_finite,
    check_nonnegative,
    seen_columns,
)
from twostagegp.data.columns.choice import Column, choose_column
from twostagegp.errors import InputError, TwoStageGPWarning

__all__ = ["GAP_HINT", "TableEncoder", "array_of_shape", "refuse_equal_names"]

Array = NDArray[np.float64]

#: The end of the error message about a missing value.
GAP_HINT = "Or use missing='impute', which fills gaps with the training median and says so."


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode columns as numbers by one documented rule per kind of column, and decode them.

    Numbers stay as they are. Booleans become 0 and 1, an ordered category its position in the
    order, a category or text label one 0/1 column per level, a duration its days, and a date the
    days since the first date and the cycles that the dates span. docs/tables.md has all rules. The
    target is not used. The estimators of this package apply the encoder themselves and keep it as
    ``columns_``.

    Parameters
    ----------
    missing : {"impute", "error"}
        ``"impute"``: a missing value in a numeric column becomes the training median, and an
        indicator column is added if the training rows had gaps; in a category it is a level of its
        own. ``"error"``: a missing value is an error.
    max_levels : int
        Number of levels of a category that get a column of their own, the most common ones.
    min_rows : int
        Number of rows that a level needs for a column of its own; rarer levels share one column.
    min_share : float
        Share of the rows that such a level needs in addition.

    Attributes
    ----------
    rules_ : list
        The fitted rule of each column.
    n_features_in_, feature_names_in_ : as in scikit-learn

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"size": [1.0, None, 3.0], "color": ["red", "blue", "red"]})
    >>> encoder = TableEncoder(min_rows=1).fit(table)
    >>> list(encoder.get_feature_names_out())
    ['size', 'size is missing', 'color=blue', 'color=red']
    >>> encoder.transform(table)
    array([[1., 0., 0., 1.],
           [2., 1., 1., 0.],
           [3., 0., 0., 1.]])
    """

    missing: str
    max_levels: int
    min_rows: int
    min_share: float
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    rules_: list[Column]

    def __init__(
        self,
        missing: str = "impute",
        max_levels: int = 20,
        min_rows: int = 3,
        min_share: float = 0.01,
    ) -> None:
        self.missing = missing
        self.max_levels = max_levels
        self.min_rows = min_rows
        self.min_share = min_share

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> TableEncoder:
        """Choose and fit the rule of each column.

        Parameters
        ----------
        X : data frame or array-like of shape (n, d)
        y : ignored
        sample_weight : array-like of shape (n,), optional
            Counts of rows. Weights that sum to less than the number of rows are scaled so that
            they sum to it.
        """
        check_choice("missing", self.missing, ("impute", "error"))
        check_count("max_levels", self.max_levels)
        check_count("min_rows", self.min_rows)
        if not 0.0 <= self.min_share < 1.0:
            raise InputError(f"min_share={self.min_share!r} must lie in [0, 1), such as 0.01.")
        frame = self._frame(X, reset=True)
        names = seen_columns(self)
        self._refuse_gaps(frame, names)
        weight = check_nonnegative(sample_weight, len(frame), "sample_weight")
        if weight is None:
            weight = np.ones(len(frame))
        used = weight > 0.0
        if not used.any():
            raise InputError("sample_weight is zero in every row; at least one must be positive.")
        if not used.all():
            frame, weight = frame.loc[used], weight[used]
        if weight.sum() < len(weight):
            weight = weight * (len(weight) / weight.sum())
        needed = max(float(self.min_rows), self.min_share * weight.sum())
        self.rules_ = [
            choose_column(name, frame.iloc[:, k], weight, self.max_levels, needed)
            for k, name in enumerate(names)
        ]
        refuse_equal_names(self.names)
        return self

    def transform(self, X: Any) -> Array:
        """Return numbers without gaps, shape (n, columns of ``get_feature_names_out``)."""
        check_is_fitted(self, "rules_")
        return self.encode(self._frame(X, reset=False))

    def encode(self, frame: pd.DataFrame, quiet: bool = False) -> Array:
        """Return the numbers of a table whose column names have been checked already.

        Levels that ``fit`` has not seen are named in one warning, the first time that they occur.
        """
        self._refuse_gaps(frame, [rule.name for rule in self.rules_])
        notes: list[str] | None = None if quiet else []
        columns = (frame.iloc[:, k] for k in range(len(self.rules_)))
        blocks = [rule.encode(c, notes) for rule, c in zip(self.rules_, columns, strict=True)]
        if notes:
            warnings.warn(f"{'; '.join(notes)}.", TwoStageGPWarning, stacklevel=3)
        Z = np.concatenate(blocks, axis=1)
        check_finite(Z, "X", self.names)
        return Z

    def inverse_transform(self, X: ArrayLike) -> pd.DataFrame:
        """Return the user's columns, in the user's units, from encoded numbers."""
        check_is_fitted(self, "rules_")
        Z = np.asarray(X, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != len(self.names):
            raise InputError(f"X has shape {Z.shape}; {len(self.names)} columns are expected.")
        columns, begin = {}, 0
        for rule in self.rules_:
            end = begin + len(rule.names)
            columns[rule.name] = rule.decode(Z[:, begin:end])
            begin = end
        return pd.DataFrame(columns)

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for rule in self.rules_ for name in rule.names]

    @property
    def plain(self) -> bool:
        """Whether every column stays as it is."""
        return all(rule.plain for rule in self.rules_)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the encoded columns, for example ``date: year (sin)``."""
        check_is_fitted(self, "rules_")
        return np.array(self.names, dtype=object)

    def describe(self) -> pd.DataFrame:
        """Return a table with one row per column: its kind, its encoding, and the new names."""
        check_is_fitted(self, "rules_")
        rows = [(rule.kind, rule.describe(), ", ".join(rule.names)) for rule in self.rules_]
        index = pd.Index([rule.name for rule in self.rules_], name="column")
        return pd.DataFrame(rows, columns=["kind", "encoding", "names"], index=index)

    def lines(self) -> list[str]:
        """Return one line per column that does not stay as it is."""
        return [
            f"{rule.name}: {rule.kind}, {rule.describe()}" for rule in self.rules_ if not rule.plain
        ]

    def sum_by_column(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return values by encoded name, such as ``relevance_``, summed per column of the user."""
        return {rule.name: sum(values[name] for name in rule.names) for rule in self.rules_}

    def _frame(self, X: Any, reset: bool) -> pd.DataFrame:
        if isinstance(X, pd.DataFrame):
            refuse_equal_names(X.columns)
            check_array(array_of_shape(X), ensure_all_finite=False, estimator=self, input_name="X")
            validate_data(self, X, skip_check_array=True, reset=reset)
            return X
        array = validate_data(self, X, dtype=None, ensure_all_finite=False, reset=reset)
        return pd.DataFrame(array).infer_objects()

    def _refuse_gaps(self, frame: pd.DataFrame, names: list[str]) -> None:
        if self.missing == "error":
            gaps = frame.isna().to_numpy()
            check_finite(np.where(gaps, np.nan, 0.0), "X", names, GAP_HINT)


def array_of_shape(frame: pd.DataFrame) -> Array:
    """Return an array of zeros of the frame's shape that takes no memory, for shape checks."""
    return np.broadcast_to(np.float64(0.0), frame.shape)


def refuse_equal_names(names: Iterable[Any]) -> None:
    """Raise InputError if two columns have, or would get, the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"more than one column is called {twice[0]!r}; rename columns so that their names, and "
            "those of the levels of categories ('column=level'), differ."
        )
