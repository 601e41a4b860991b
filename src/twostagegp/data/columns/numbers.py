"""Columns with an order: numbers, booleans and ordered categories; dates are in ``times.py``.

Each becomes one or more numbers a row. A gap becomes the training median of each of these numbers,
and where the training rows had gaps, one more column says so (1 for a gap, else 0).
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
    "first_time",
    "shown",
    "weighted_median",
]

Array = NDArray[np.float64]


def weighted_median(values: Array, weight: Array) -> float:
    """Median of finite values that count ``weight`` times each; 0 where there are none.

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


def shown(values: Sequence[Any], most: int = 5) -> str:
    """The first few values, for a message."""
    texts = [text if len(text) <= 40 else f"{text[:37]}...'" for text in map(repr, values[:most])]
    more = len(values) - most
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def first_time(things: Sequence[Any], told: set[Any], notes: list[str] | None) -> list[Any]:
    """Those of the things that have not been told yet; none where nobody takes notes."""
    if notes is None:
        return []
    new = [thing for thing in things if thing not in told]
    told.update(new)
    return new


def add_note(notes: list[str] | None, text: str) -> None:
    """Take a note, where notes are taken."""
    if notes is not None:
        notes.append(text)


class NumericColumn:
    """A column that becomes ``parts`` numbers a row, and perhaps an indicator of gaps."""

    kind = "number"

    def __init__(self, name: str) -> None:
        self.name = name
        self.fill: Array = np.zeros(0)
        self.indicator = False
        self.told: set[Any] = set()

    # --- what a kind of column says about itself --------------------------------------------------

    @property
    def parts(self) -> list[str]:
        """Names of the numbers, without the indicator."""
        return [self.name]

    def learn(self, series: pd.Series) -> None:
        """Whatever the numbers depend on, from the training rows."""

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """The numbers, shape (n, parts), NaN where there is a gap."""
        return _as_numbers(series, self.name)[:, None]

    def restored(self, values: Array) -> Any:
        """Values of the column from its numbers, NaN for gaps, shape (n, parts)."""
        return values[:, 0]

    @property
    def became(self) -> str:
        """What the column became, in words."""
        return "as it is"

    # --- common to all ----------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether this is a column of numbers that nothing happens to."""
        return type(self) is NumberColumn and not self.indicator

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [*self.parts, f"{self.name} is missing"] if self.indicator else self.parts

    def fit(self, series: pd.Series, weight: Array) -> NumericColumn:
        """Learn from the training rows."""
        self.learn(series)
        numbers = self.raw(series, None)
        self.indicator = bool(np.isnan(numbers).any())
        self.fill = np.array([weighted_median(part, weight) for part in numbers.T])
        return self

    def encode(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Numbers without gaps, shape (n, len(names)).

        What is worth a warning goes to notes, once in the life of the rule.
        """
        numbers = self.raw(series, notes)
        gaps = np.isnan(numbers[:, 0])
        if not gaps.any() and not self.indicator:
            return numbers
        filled = np.where(np.isnan(numbers), self.fill, numbers)
        if self.indicator:
            return np.column_stack([filled, gaps])
        if first_time(["a gap"], self.told, notes):
            seen = f"{int(gaps.sum())} missing or unknown value(s), and had none in fit"
            add_note(notes, f"column {self.name!r} has {seen}: the training median is taken")
        return filled

    def decode(self, numbers: Array) -> Any:
        """The user's values from the encoded ones."""
        values = np.array(numbers[:, : len(self.parts)], dtype=np.float64)
        if self.indicator:
            values[numbers[:, -1] > 0.5] = np.nan
        return self.restored(values)

    def describe(self) -> str:
        """What the column became, gaps included."""
        if not self.indicator:
            return self.became
        middle = self.decode(np.append(self.fill, 0.0)[None])[0]
        middle = f"{middle:.4g}" if isinstance(middle, float) else middle
        return f"{self.became}; gaps become the median, {middle}, and an indicator"


class NumberColumn(NumericColumn):
    """Numbers, as they are."""


class EmptyColumn(NumericColumn):
    """Nothing but gaps in the training rows: a constant, whatever comes later."""

    kind = "empty"

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Zeros."""
        return np.zeros((len(series), 1))

    def restored(self, values: Array) -> Any:
        """Gaps."""
        return np.full(len(values), np.nan)

    @property
    def became(self) -> str:
        """Nothing."""
        return "every value is missing: not used"


class BooleanColumn(NumericColumn):
    """False is 0, true is 1."""

    kind = "boolean"

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Zeros and ones."""
        return _as_numbers(series, self.name, "true or false")[:, None]

    def restored(self, values: Array) -> Any:
        """True from one half on; pandas' nullable booleans where there are gaps."""
        truth = pd.array(values[:, 0] >= 0.5, dtype="boolean")
        gaps = np.isnan(values[:, 0])
        truth[gaps] = pd.NA
        return truth if gaps.any() else truth.to_numpy(dtype=bool)

    @property
    def became(self) -> str:
        """Two numbers."""
        return "0 for false, 1 for true"


class OrderedColumn(NumericColumn):
    """An ordered category: the place of its level in the order, from 0."""

    kind = "ordered category"

    def learn(self, series: pd.Series) -> None:
        """The order, levels without a row included."""
        self.levels = list(series.cat.categories)

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Places; a level that fit did not know counts as a gap."""
        codes, found = pd.factorize(series)
        place = {level: float(k) for k, level in enumerate(self.levels)}
        unknown = first_time([level for level in found if level not in place], self.told, notes)
        if unknown:
            seen = f"levels without a place in the order of fit: {shown(unknown)}"
            add_note(notes, f"column {self.name!r} holds {seen}; they are taken as missing")
        places = np.array([*(place.get(level, np.nan) for level in found), np.nan])
        return places[codes][:, None]  # code -1, a gap, is the last

    def restored(self, values: Array) -> Any:
        """The nearest level."""
        gaps = np.isnan(values[:, 0])
        nearest = np.clip(np.rint(np.where(gaps, 0.0, values[:, 0])), 0, len(self.levels) - 1)
        codes = np.where(gaps, -1, nearest).astype(np.int64)
        levels: Any = pd.CategoricalDtype(self.levels, ordered=True)
        return pd.Categorical.from_codes(codes, dtype=levels)

    @property
    def became(self) -> str:
        """The range of places."""
        last = len(self.levels) - 1
        return f"its place in the order, 0 ({self.levels[0]}) to {last} ({self.levels[-1]})"


def _as_numbers(series: pd.Series, name: str, what: str = "numbers") -> Array:
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
            f"column {name!r} held {what} in fit, and now {objects.iloc[row]!r} in row {row}; "
            "convert it, or fit again."
        ) from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
