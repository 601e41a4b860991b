"""Choose the encoding rule of a column by its dtype and, for object columns, by its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.columns.categories import CategoryColumn
from twostagegp.data.columns.numbers import (
    BooleanColumn,
    EmptyColumn,
    NumberColumn,
    NumericColumn,
    OrderedColumn,
    format_values,
)
from twostagegp.data.columns.times import DateColumn, DurationColumn
from twostagegp.errors import InputError

__all__ = ["Column", "choose_column", "is_plain_dtype"]

Array = NDArray[np.float64]
Column = NumericColumn | CategoryColumn


_NUMERIC: dict[str, type[NumericColumn]] = {
    "boolean": BooleanColumn,
    "integer": NumberColumn,
    "floating": NumberColumn,
    "mixed-integer-float": NumberColumn,
    "decimal": NumberColumn,
    "datetime": DateColumn,
    "datetime64": DateColumn,
    "date": DateColumn,
    "period": DateColumn,
    "timedelta": DurationColumn,
    "timedelta64": DurationColumn,
    "empty": EmptyColumn,
}


def is_plain_dtype(dtype: Any) -> bool:
    """Return whether a column of this dtype holds plain numbers and needs no encoding."""
    return isinstance(dtype, np.dtype) and dtype.kind in "iufc"


def choose_column(
    name: str, series: pd.Series, weight: Array, max_levels: int, min_rows: float
) -> Column:
    """Return the fitted rule of one column; raise InputError if no rule applies."""
    dtype = series.dtype
    if series.isna().all():
        return EmptyColumn(name).fit(series, weight)
    if isinstance(dtype, pd.CategoricalDtype):
        if dtype.ordered:
            return OrderedColumn(name).fit(series, weight)
        return CategoryColumn(name, "category", max_levels, min_rows).fit(series, weight)
    kind = _kind(series)
    if kind == "string":
        _refuse_prose(name, series)
        return CategoryColumn(name, "text", max_levels, min_rows).fit(series, weight)
    if kind not in _NUMERIC:
        _refuse(name, series)
    return _NUMERIC[kind](name).fit(series, weight)


def _kind(series: pd.Series) -> str:
    """Return pandas' name of what a column holds."""
    dtype = series.dtype
    api = pd.api.types
    if isinstance(dtype, pd.PeriodDtype):
        return "period"
    for kind, test in (
        ("boolean", api.is_bool_dtype),
        ("complex", api.is_complex_dtype),
        ("floating", api.is_numeric_dtype),
        ("datetime", api.is_datetime64_any_dtype),
        ("timedelta", api.is_timedelta64_dtype),
    ):
        if test(dtype):
            return kind
    return api.infer_dtype(series, skipna=True)


def _refuse(name: str, series: pd.Series) -> None:
    """Raise InputError for a column of mixed or unknown kind."""
    known = series.dropna()
    types: dict[str, Any] = {}
    for value in known:
        types.setdefault(type(value).__name__, value)
    if len(types) > 1:
        seen = " and ".join(f"{value!r} ({kind})" for kind, value in list(types.items())[:2])
        raise InputError(
            f"column {name!r} mixes kinds of values: {seen}. Make it all numbers "
            "(pandas.to_numeric) or all text (astype(str))."
        )
    raise InputError(
        f"column {name!r} holds values such as {known.iloc[0]!r} ({next(iter(types))}); use "
        "numbers, booleans, categories, text labels, dates or durations."
    )


def _refuse_prose(name: str, series: pd.Series) -> None:
    """Raise InputError for a text column whose values rarely repeat."""
    known = series.dropna()
    levels = known.unique()
    # More distinct values than ten and than half of the rows: free text, or an identifier.
    if len(levels) <= max(10, len(known) // 2):
        return
    seen = (
        f"{len(levels)} distinct values in {len(known)} rows, such as {format_values([levels[0]])}"
    )
    for what, convert in (("numbers", pd.to_numeric), ("dates", _iso_dates)):
        try:
            convert(known)
        except (ValueError, TypeError):
            continue
        function = "to_numeric" if what == "numbers" else "to_datetime"
        raise InputError(
            f"column {name!r} holds {what} as text ({seen}); convert it first: "
            f"pandas.{function}(X[{name!r}])."
        )
    raise InputError(
        f"column {name!r} looks like free text: {seen}. Turn it into numbers with "
        "twostagegp.foundation.TextEncoder, drop it, or declare that it is a category: "
        f"X[{name!r}].astype('category')."
    )


def _iso_dates(series: pd.Series) -> Any:
    return pd.to_datetime(series, format="ISO8601")
