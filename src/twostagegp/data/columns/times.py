"""Rules for dates and durations: days, and the phase in the cycles of year, week and day."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twostagegp.data.columns.numbers import NumericColumn
from twostagegp.errors import InputError

__all__ = ["CYCLES", "DateColumn", "DurationColumn"]

Array = NDArray[np.float64]

_DAY = pd.Timedelta(days=1)
#: Period of each cycle in days.
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}


class DurationColumn(NumericColumn):
    """A length of time, which becomes its days."""

    kind = "duration"

    @property
    def parts(self) -> list[str]:
        """Name of the numeric column."""
        return [f"{self.name}: days"]

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return days, NaN for missing values."""
        if not pd.api.types.is_timedelta64_dtype(series.dtype):
            series = _converted(series, self.name, pd.to_timedelta, "durations")
        durations: Any = series
        days: Array = (durations / _DAY).to_numpy(dtype=np.float64, na_value=np.nan)
        return days[:, None]

    def restored(self, values: Array) -> Any:
        """Return durations."""
        return pd.to_timedelta(values[:, 0], unit="D")

    @property
    def encoding(self) -> str:
        """Description of the encoding."""
        return "days"


class DateColumn(NumericColumn):
    """A date, which becomes the days since the first training date and the phase in cycles.

    A cycle (year, week, day) is used if the training dates span at least one period of it and do
    not all have the same phase.
    """

    kind = "date"
    start: pd.Timestamp
    end: pd.Timestamp
    cycles: list[str]

    def learn(self, series: pd.Series) -> None:
        """Learn the first date, the time zone and the cycles."""
        dates = self._dates(series)
        self.zone = dates.dt.tz
        self.start, self.end = dates.min(), dates.max()
        span = (self.end - self.start) / _DAY
        self.cycles = [
            cycle
            for cycle, period in CYCLES.items()
            if span >= period and np.nanstd(_phase(dates, cycle)) > 1e-9
        ]

    @property
    def parts(self) -> list[str]:
        """Names of the numeric columns: days, then sine and cosine of each cycle."""
        waves = [f"{self.name}: {cycle} ({f})" for cycle in self.cycles for f in ("sin", "cos")]
        return [f"{self.name}: days", *waves]

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Return elapsed days (in UTC) and cycles (in the local time of the column's zone)."""
        dates = self._dates(series)
        if (dates.dt.tz is None) != (self.zone is None):
            has, had = ("no", "one") if dates.dt.tz is None else ("a", "none")
            raise InputError(
                f"column {self.name!r} has {has} time zone, but had {had} in fit; use "
                "dt.tz_localize(...) to add one, or dt.tz_localize(None) to remove it."
            )
        if self.zone is not None:
            dates = dates.dt.tz_convert(self.zone)
        numbers = [((dates - self.start) / _DAY).to_numpy(dtype=np.float64, na_value=np.nan)]
        for cycle in self.cycles:
            angle = 2.0 * np.pi * _phase(dates, cycle)
            numbers += [np.sin(angle), np.cos(angle)]
        return np.column_stack(numbers)

    def restored(self, values: Array) -> Any:
        """Return dates, from the days, to the microsecond."""
        # Without rounding, a date may come back just before a change of the clock, an hour off.
        return self.start + pd.to_timedelta(values[:, 0], unit="D").round("us")

    @property
    def encoding(self) -> str:
        """Description of the encoding."""
        cycles = f", sine and cosine of {', '.join(self.cycles)}" if self.cycles else ""
        return f"days since {self.start}{cycles}"

    def _dates(self, series: pd.Series) -> Any:
        if isinstance(series.dtype, pd.PeriodDtype):
            return series.dt.to_timestamp()
        if pd.api.types.is_datetime64_any_dtype(series.dtype):
            return series
        return _converted(series, self.name, pd.to_datetime, "dates")


def _phase(dates: Any, cycle: str) -> Array:
    """Return the phase in a cycle, from 0 to 1, by local time."""
    clock = dates.dt
    midnight = clock.tz_localize(None).dt.normalize()
    of_day = (clock.tz_localize(None) - midnight) / _DAY
    if cycle == "day":
        phase = of_day
    elif cycle == "week":
        phase = (clock.day_of_week + of_day) / 7.0
    else:
        phase = (clock.day_of_year - 1 + of_day) / (365.0 + clock.is_leap_year)
    return phase.to_numpy(dtype=np.float64, na_value=np.nan)


def _converted(series: pd.Series, name: str, convert: Any, what: str) -> Any:
    """Return objects as dates or durations; text is refused, because its format is ambiguous."""
    texts = [value for value in series if isinstance(value, str | int | float) and value == value]
    if texts:
        raise InputError(
            f"column {name!r} held {what} in fit, but now holds {texts[0]!r}; convert it first, "
            f"for example with pandas.{convert.__name__}."
        )
    try:
        return convert(series)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"column {name!r} cannot be read as {what} ({error}); convert it first, for example "
            f"with pandas.{convert.__name__}."
        ) from error
