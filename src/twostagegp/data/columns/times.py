"""Columns of dates and durations: days, and where on the cycles of year, week and day."""

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
#: Periods of the cycles of a date, in days.
CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}


class DurationColumn(NumericColumn):
    """A length of time, in days."""

    kind = "duration"

    @property
    def parts(self) -> list[str]:
        """One number."""
        return [f"{self.name}: days"]

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Days."""
        if not pd.api.types.is_timedelta64_dtype(series.dtype):
            series = _converted(series, self.name, pd.to_timedelta, "durations")
        durations: Any = series
        days: Array = (durations / _DAY).to_numpy(dtype=np.float64, na_value=np.nan)
        return days[:, None]

    def restored(self, values: Array) -> Any:
        """Durations."""
        return pd.to_timedelta(values[:, 0], unit="D")

    @property
    def became(self) -> str:
        """The unit."""
        return "days"


class DateColumn(NumericColumn):
    """Days since the first training date, and where on the cycles of year, week and day.

    A cycle takes part where the training dates span at least one period of it and lie on more
    than one place of it.
    """

    kind = "date"

    def learn(self, series: pd.Series) -> None:
        """First date, time zone and cycles."""
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
        """Days, then a sine and a cosine a cycle."""
        waves = [f"{self.name}: {cycle} ({f})" for cycle in self.cycles for f in ("sin", "cos")]
        return [f"{self.name}: days", *waves]

    def raw(self, series: pd.Series, notes: list[str] | None) -> Array:
        """Days elapsed by the clock of the world, cycles by that of the column's time zone."""
        dates = self._dates(series)
        if (dates.dt.tz is None) != (self.zone is None):
            has, had = ("no", "one") if dates.dt.tz is None else ("a", "none")
            raise InputError(
                f"column {self.name!r} has {has} time zone, and had {had} in fit; use "
                "dt.tz_localize(...) to give it one, dt.tz_localize(None) to take it off."
            )
        if self.zone is not None:
            dates = dates.dt.tz_convert(self.zone)
        numbers = [((dates - self.start) / _DAY).to_numpy(dtype=np.float64, na_value=np.nan)]
        for cycle in self.cycles:
            angle = 2.0 * np.pi * _phase(dates, cycle)
            numbers += [np.sin(angle), np.cos(angle)]
        return np.column_stack(numbers)

    def restored(self, values: Array) -> Any:
        """Dates, from the days."""
        return self.start + pd.to_timedelta(values[:, 0], unit="D")

    @property
    def became(self) -> str:
        """First date and cycles."""
        cycles = f", sine and cosine of {', '.join(self.cycles)}" if self.cycles else ""
        return f"days since {self.start}{cycles}"

    def _dates(self, series: pd.Series) -> Any:
        if isinstance(series.dtype, pd.PeriodDtype):
            return series.dt.to_timestamp()
        if pd.api.types.is_datetime64_any_dtype(series.dtype):
            return series
        return _converted(series, self.name, pd.to_datetime, "dates")


def _phase(dates: Any, cycle: str) -> Array:
    """Place on a cycle, from 0 to 1, by the local clock."""
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
    """Objects as dates or durations; text is not read, for it can be read in more than one way."""
    texts = [value for value in series if isinstance(value, str | int | float) and value == value]
    if texts:
        raise InputError(
            f"column {name!r} held {what} in fit, and now {texts[0]!r}; convert it first, for "
            f"example with pandas.{convert.__name__}."
        )
    try:
        return convert(series)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"column {name!r} cannot be read as {what} ({error}); convert it first, for example "
            f"with pandas.{convert.__name__}."
        ) from error
