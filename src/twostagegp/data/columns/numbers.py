"""Rules for columns with an order: numbers, booleans and ordered categories.

Dates and durations are in ``times.py``. A column becomes one or more numeric columns. A missing
value becomes the training median of each of them; if the training rows had missing values, one more
column indicates them (1 for a missing value, else 0).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.errors import InputError

__all__ = [
    "BooleanColumn",
    "EmptyColumn",
    "NumberColumn",
    "NumericColumn",
    "OrderedColumn",
    "add_note",
    "format_values",
    "not_yet_reported",
    "weighted_median",
]

Array = NDArray[np.float64]


def weighted_median(values: Array, weight: Array) -> float:
    """Return the weighted median of the finite values; 0 if there are none.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_median(np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 2.0]))
    5.5
    """
    finite = np.isfinite(values)
    if not finite.all():
        values, weight = values[finite], weight[finite]
    if len(values) == 0:
        return 0.0
    if (weight == weight[0]).all():
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    half = below[-1] / 2.0
    low = int(np.searchsorted(below, half))
    high = min(low + 1, len(values) - 1) if below[low] == half else low
    return float(0.5 * values[order[low]] + 0.5 * values[order[high]])


def format_values(values: Sequence[Any], most: int = 5) -> str:
    """Return the first few values as text for a message."""
    texts = [text if len(text) <= 40 else f"{text[:37]}...'" for text in map(repr, values[:most])]
    more = len(values) - most
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def not_yet_reported(
    values: Sequence[Any], reported: set[Any], notes: list[str] | None
) -> list[Any]:
    """Return the values that are not in ``reported`` and add them to it.

    Returns an empty list, and changes nothing, if ``notes`` is None.
    """
    if notes is None:
        return []
    new = [value for value in values if value not in reported]
    reported.update(new)
    return new


def add_note(notes: list[str] | None, text: str) -> None:
    """Append a text to ``notes`` unless it is None."""
    if notes is not None:
        notes.append(text)


class NumericColumn:
    """A column that becomes numeric columns, and an indicator if the training rows had gaps.

    Parameters
    ----------
    name : str
        Name of the column.

    Attributes
    ----------
    fill : array of shape (parts,)
        Values that replace missing ones: the training medians.
    indicator : bool
        Whether there is an indicator column.
    """

    kind = "number"
    name: str
    fill: Array
    indicator: bool

    def __init__(self, name: str) -> None:
        self.name = name
        self.fill = np.zeros(0)
        self.indicator = False
        self.told: set[Any] = set()

    # --- methods that subclasses override ---------------------------------------------------------

    @property
    def parts(self) -> list[str]:
        """Names of the numeric columns without the indicator."""
        return [self.name]

    def learn(self, series: pd.Series) -> None:
        """Learn from the training rows what ``raw`` needs."""

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return the numbers, shape (n, parts), NaN for missing values."""
        return _as_numbers(series, self.name)[:, None]

    def restored(self, values: Array) -> Any:
        """Return values of the column from numbers of shape (n, parts), NaN for missing values."""
        return values[:, 0]

    @property
    def encoding(self) -> str:
        """Description of the encoding."""
        return "as it is"

    # --- common to all ----------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether this is a column of numbers that stays as it is."""
        return type(self) is NumberColumn and not self.indicator

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [*self.parts, f"{self.name} is missing"] if self.indicator else self.parts

    def fit(self, series: pd.Series, weight: Array) -> NumericColumn:
        """Fit the rule to the training rows and return it."""
        self.learn(series)
        numbers = self.raw(series, None)
        self.indicator = bool(np.isnan(numbers).any())
        self.fill = np.array([weighted_median(part, weight) for part in numbers.T])
        return self

    def encode(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return numbers without gaps, shape (n, len(names)).

        Texts of warnings are appended to ``notes``, each once in the lifetime of the rule.
        """
        numbers = self.raw(series, notes)
        gaps = np.isnan(numbers[:, 0])
        if not gaps.any() and not self.indicator:
            return numbers
        filled = np.where(np.isnan(numbers), self.fill, numbers)
        if self.indicator:
            return np.column_stack([filled, gaps])
        if not_yet_reported(["a gap"], self.told, notes):
            seen = f"{int(gaps.sum())} missing or unknown value(s) but had none in fit"
            add_note(notes, f"column {self.name!r} has {seen}: the training median is used")
        return filled

    def decode(self, numbers: Array) -> Any:
        """Return the user's values from encoded ones."""
        values = np.array(numbers[:, : len(self.parts)], dtype=np.float64)
        if self.indicator:
            values[numbers[:, -1] > 0.5] = np.nan
        return self.restored(values)

    def describe(self) -> str:
        """Return a description of the encoding, including that of missing values."""
        if not self.indicator:
            return self.encoding
        middle = self.decode(np.append(self.fill, 0.0)[None])[0]
        middle = f"{middle:.4g}" if isinstance(middle, float) else middle
        return f"{self.encoding}; gaps become the median, {middle}, and an indicator"


class NumberColumn(NumericColumn):
    """Numbers, which stay as they are."""


class EmptyColumn(NumericColumn):
    """A column without values in the training rows, which becomes a constant."""

    kind = "empty"

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return zeros."""
        return np.zeros((len(series), 1))

    def restored(self, values: Array) -> Any:
        """Return missing values."""
        return np.full(len(values), np.nan)

    @property
    def encoding(self) -> str:
        """Description of the encoding."""
        return "every value is missing: not used"


class BooleanColumn(NumericColumn):
    """False is 0, true is 1."""

    kind = "boolean"

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return zeros and ones, NaN for missing values."""
        return _as_numbers(series, self.name, "true or false")[:, None]

    def restored(self, values: Array) -> Any:
        """Return true for numbers of at least 0.5; pandas' nullable booleans if some are NaN."""
        truth = pd.array(values[:, 0] >= 0.5, dtype="boolean")
        gaps = np.isnan(values[:, 0])
        truth[gaps] = pd.NA
        return truth if gaps.any() else truth.to_numpy(dtype=bool)

    @property
    def encoding(self) -> str:
        """Description of the encoding."""
        return "0 for false, 1 for true"


class OrderedColumn(NumericColumn):
    """An ordered category, which becomes the position of its level in the order, from 0."""

    kind = "ordered category"
    levels: list[Any]

    def learn(self, series: pd.Series) -> None:
        """Learn the order, including levels without rows."""
        self.levels = list(series.cat.categories)

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return positions; a level that is not in the order counts as missing."""
        codes, found = pd.factorize(series)
        position = {level: float(k) for k, level in enumerate(self.levels)}
        new = [level for level in found if level not in position]
        unknown = not_yet_reported(new, self.told, notes)
        if unknown:
            seen = f"levels that are not in the order of fit: {format_values(unknown)}"
            add_note(notes, f"column {self.name!r} holds {seen}; they count as missing")
        positions = np.array([*(position.get(level, np.nan) for level in found), np.nan])
        return positions[codes][:, None]  # the code of a missing value is -1: the last entry

    def restored(self, values: Array) -> Any:
        """Return the nearest level."""
        gaps = np.isnan(values[:, 0])
        nearest = np.clip(np.rint(np.where(gaps, 0.0, values[:, 0])), 0, len(self.levels) - 1)
        codes = np.where(gaps, -1, nearest).astype(np.int64)
        levels: Any = pd.CategoricalDtype(self.levels, ordered=True)
        return pd.Categorical.from_codes(codes, dtype=levels)

    @property
    def encoding(self) -> str:
        """Description of the encoding."""
        last = len(self.levels) - 1
        return f"its position in the order, 0 ({self.levels[0]}) to {last} ({self.levels[-1]})"


def _as_numbers(series: pd.Series, name: str, what: str = "numbers") -> Array:
    """Return a column as numbers, NaN for missing values."""
    dtype = series.dtype
    if pd.api.types.is_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype):
        with contextlib.suppress(ValueError, TypeError):  # categories of numbers
            return series.to_numpy(dtype=np.float64, na_value=np.nan)
    objects = series.astype(object)
    objects = objects.where(~objects.isna(), np.nan)
    try:
        return objects.to_numpy(dtype=np.float64)
    except (ValueError, TypeError) as error:
        row = next(row for row, value in enumerate(objects) if not _is_number(value))
        raise InputError(
            f"column {name!r} held {what} in fit, but now holds {objects.iloc[row]!r} in row "
            f"{row}; convert it, or fit again."
        ) from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
