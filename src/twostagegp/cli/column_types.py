"""Conversion of the columns of a file to the types of a model.

For a fit, text columns in which every value is an ISO 8601 date become dates. For a prediction,
every column gets the type that it had in the fit (``model.columns_``), whatever the chunk looks
like: float, text for categories of text, date or boolean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from twostagegp.data.columns.categories import CategoryColumn
from twostagegp.data.columns.numbers import BooleanColumn, EmptyColumn, NumberColumn, OrderedColumn
from twostagegp.data.columns.times import DateColumn, DurationColumn
from twostagegp.errors import InputError

__all__ = ["as_numbers", "conform", "infer_dates", "number_columns"]

_ISO = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d+)?)?\s?(Z|[+-]\d{2}:?\d{2})?)?"
_ZONE = r".*(Z|[+-]\d{2}:?\d{2})"
_TRUTH = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


def infer_dates(frame: pd.DataFrame) -> list[str]:
    """Convert text columns of ISO 8601 dates in place, and return their names."""
    found = []
    for name in frame.columns:
        text = frame[name]
        if not _is_text(text) or text.isna().all():
            continue
        if not _all_match(text, _ISO):
            continue
        try:
            frame[name] = _dates(text)
        except (ValueError, TypeError):
            continue  # such as 2024-13-45: left as text, which the model checks
        found.append(str(name))
    return found


def number_columns(rules: Sequence[Any] | None, names: Sequence[str]) -> set[str]:
    """Return the names of the columns that are numbers in a model."""
    if rules is None:
        return set(names)
    return {name for name, rule in zip(names, rules, strict=True) if isinstance(rule, NumberColumn)}


def conform(
    frame: pd.DataFrame, rules: Sequence[Any] | None, first: int, decimal: str = "."
) -> pd.DataFrame:
    """Return a chunk with every column in the type that it had in the fit.

    Parameters
    ----------
    frame : DataFrame
        Columns in the order of the rules.
    rules : sequence, optional
        Rules of the fitted encoder; None if every column contains numbers.
    first : int
        Number of the first row in the file, from 0, for messages.
    decimal : str
        Decimal mark of numbers in text.
    """
    columns = {}
    for k, name in enumerate(frame.columns):
        rule = None if rules is None else rules[k]
        columns[name] = _column(frame[name], rule, first, decimal)
    return pd.DataFrame(columns, index=frame.index)


def _column(series: pd.Series, rule: Any, first: int, decimal: str) -> pd.Series:
    if rule is None or isinstance(rule, NumberColumn):
        return as_numbers(series, first, decimal)
    if isinstance(rule, EmptyColumn):
        return series
    if isinstance(rule, BooleanColumn):
        return _booleans(series, first)
    if isinstance(rule, CategoryColumn | OrderedColumn):
        levels = list(rule.shares) if isinstance(rule, CategoryColumn) else rule.levels
        return _levels(series, levels)
    if isinstance(rule, DateColumn) and _is_text(series):
        return _checked(series, lambda text: _dates(text, rule.zone is not None), first, "a date")
    if isinstance(rule, DurationColumn) and _is_text(series):
        return _checked(series, pd.to_timedelta, first, "a duration")
    return series


def as_numbers(series: pd.Series, first: int, decimal: str = ".") -> pd.Series:
    """Return a column as float64; raise InputError with the first cell that is not a number."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype)
    if pd.api.types.is_numeric_dtype(series.dtype) and not _is_text(series):
        return pd.Series(series.to_numpy(dtype=np.float64, na_value=np.nan), series.index)
    if decimal != "." and _is_text(series):
        series = series.str.replace(decimal, ".", regex=False)
    return _checked(series, lambda values: values.astype("float64"), first, "a number")


def _booleans(series: pd.Series, first: int) -> pd.Series:
    if pd.api.types.is_bool_dtype(series.dtype) or pd.api.types.is_numeric_dtype(series.dtype):
        return series

    def truth(values: pd.Series) -> Any:
        text = values.map(lambda value: str(value).strip().lower(), na_action="ignore")
        unknown = text.notna() & ~text.isin(list(_TRUTH))
        if unknown.any():
            raise ValueError
        return text.map(_TRUTH, na_action="ignore").astype("boolean")

    return _checked(series, truth, first, "true or false")


def _levels(series: pd.Series, levels: Sequence[Any]) -> pd.Series:
    """Return values in the type of the model's levels; unknown values are unchanged."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    if all(isinstance(level, str) for level in levels):
        if _is_text(series):
            return series
        return series.map(_as_level, na_action="ignore")
    if not _is_text(series):
        return series
    by_text = {_as_level(level): level for level in levels}
    return series.astype(object).map(lambda text: by_text.get(text, text), na_action="ignore")


def _as_level(value: Any) -> str:
    """Return a value as text in a CSV file: 3.0 becomes 3."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _is_text(series: pd.Series) -> bool:
    if isinstance(series.dtype, pd.StringDtype):
        return True
    return series.dtype == object and pd.api.types.infer_dtype(series, skipna=True) == "string"


def _all_match(text: pd.Series, pattern: str) -> bool:
    return bool(text.dropna().str.fullmatch(pattern).all())


def _dates(text: pd.Series, zoned: bool | None = None) -> Any:
    """Return ISO 8601 text as dates: in UTC if they have offsets, otherwise local times."""
    if zoned is None:
        zoned = _all_match(text, _ZONE) and bool(text.dropna().str.contains("[T ]").all())
    if zoned and not _all_match(text, _ZONE):
        raise ValueError
    return pd.to_datetime(text, format="ISO8601", utc=zoned)


def _checked(series: pd.Series, convert: Any, first: int, what: str) -> Any:
    """Return a converted column, or raise InputError with the first value that fails."""
    try:
        return convert(series)
    except (ValueError, TypeError):
        for k in range(len(series)):
            if pd.isna(series.iloc[k]):
                continue
            try:
                convert(series.iloc[k : k + 1])
            except (ValueError, TypeError) as error:
                row = first + int(str(series.index[k])) + 1
                raise InputError(
                    f"column {series.name!r} has {series.iloc[k]!r} in row {row}, but the model "
                    f"expects {what}. Correct it, leave it empty if the value is missing, or fit "
                    "again."
                ) from error
        raise
